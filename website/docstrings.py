"""Docstrings as Markdown: their formulas and examples are written as Sphinx and doctest have them."""

import re
import textwrap
from typing import Any

import griffe

_INLINE = re.compile(r":math:`([^`]*)`")
_BLOCK = re.compile(r"^( *)\.\. math::((?:.*\n?)(?:\1 +\S.*\n?)*)", flags=re.MULTILINE)
_SESSION = re.compile(r"^( *)>>> (?:.*\S.*\n?)+", flags=re.MULTILINE)


def markdown(text: str) -> str:
    """A docstring with formulas between dollars and examples in fences.

    >>> markdown("The :math:`x^2`.\\n\\n>>> 1 + 1\\n2")
    'The $x^2$.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    text = _INLINE.sub(lambda found: f"${' '.join(found[1].split())}$", text)
    text = _BLOCK.sub(lambda found: f"\n{found[1]}$$ {' '.join(found[2].split())} $$\n", text)
    return _SESSION.sub(_fenced, text)


def _fenced(found: re.Match[str]) -> str:
    session = textwrap.dedent(found[0]).strip()
    return textwrap.indent(f"```pycon\n{session}\n```", found[1])


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
