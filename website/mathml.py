"""Formulas as MathML, which browsers draw by themselves, with a font that the site brings along."""

import html
import importlib.util
import re
from pathlib import Path

from latex2mathml.converter import convert

_FORMULA = re.compile(
    r'<span class="arithmatex">\\\((?P<inline>.*?)\\\)</span>'
    r'|<div class="arithmatex">\s*\\\[(?P<block>.*?)\\\]\s*</div>',
    flags=re.DOTALL,
)


def font() -> Path:
    """The font of formulas, STIX Two Math, as the package ziamath has it."""
    found = importlib.util.find_spec("ziamath")
    if found is None or found.origin is None:
        raise ImportError('the site needs ziamath: pip install "pjax-learn[docs]"')
    return Path(found.origin).parent / "fonts" / "STIXTwoMath-Regular.ttf"


def render(page: str) -> str:
    """The HTML of a page with its formulas in MathML.

    >>> made = render(r'<span class="arithmatex">\\(x &lt; 1\\)</span>')
    >>> made[made.index("<mrow>"):]
    '<mrow><mi>x</mi><mo>&#x0003C;</mo><mn>1</mn></mrow></math>'
    """
    return _FORMULA.sub(_mathml, page)


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found["inline"] is None else "inline"
    latex = html.unescape(found["block"] if display == "block" else found["inline"]).strip()
    made = convert(latex.replace("\\arg", "\\operatorname{arg}"), display=display)
    if "\\" in html.unescape(made):
        raise ValueError(f"the formula {latex!r} has a command that MathML is not known for: {made}")
    return made
