"""What mkdocs is asked to do besides: links out of docs/, formulas, notebooks, a complete reference."""

import html
import importlib
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import griffe
import matplotlib as mpl
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import notebook

mpl.use("agg")
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_CHANGELOG = ROOT / "CHANGELOG.md"
_notebooks: dict[str, str] = {}
"""Files for Jupyter, by their path on the site."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out pages of the navigation that are not there."""
    if names := missing(DOCS / "api"):
        raise PluginError(f"no page of docs/api documents {', '.join(names)}: add a line '::: NAME'")
    config.nav = _there(config.nav or [])
    return config


def _there(entries: list[Any]) -> list[Any]:
    kept = []
    for entry in entries:
        ((title, target),) = entry.items()
        if isinstance(target, list):
            kept.append({title: _there(target)})
        elif (DOCS / target).is_file() or (ROOT / target).is_file():
            kept.append(entry)
    return kept


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the changelog, the files outside of docs/ that pages link to, and the font of formulas."""
    pages = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    for path in {_CHANGELOG: None, **dict.fromkeys(outside([_CHANGELOG, *pages]))}:
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    font = formula_font()
    files.append(File.generated(config, f"fonts/{font.name}", abs_src_path=str(font)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Turn links that leave docs/ to where their targets are, and run notebooks, with a link to the file."""
    source = Path(page.file.abs_src_path or "")
    if source.is_relative_to(DOCS):
        markdown = moved(markdown, page.file.src_uri)
    if not page.meta.get("notebook"):
        return markdown
    _notebooks[page.file.src_uri.removesuffix(".md") + ".ipynb"] = notebook.as_jupyter(markdown)
    title, _, rest = markdown.partition("\n\n")
    name = source.with_suffix(".ipynb").name
    linked = f'{title}\n\n<a href="{name}" download>Open as a notebook for Jupyter</a>\n\n{rest}'
    return notebook.run(linked, page.file.src_uri)


def on_page_content(content: str, /, **_: Any) -> str:
    """Draw formulas."""
    return render(content)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write the notebooks."""
    for name, text in _notebooks.items():
        (Path(config.site_dir) / name).write_text(text)


# --- Pages may link to files outside of docs/, as on GitHub; on the site these lie under the same path ---

_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def outside(pages: Iterable[Path]) -> list[Path]:
    """The files of the repository outside of docs/ that pages link to, and those that these link to."""
    found: dict[Path, None] = {}
    waiting = list(pages)
    while waiting:
        page = waiting.pop()
        for _, target, _ in _LINK.findall(page.read_text()):
            file = (page.parent / target).resolve()
            if (
                file.is_file()
                and file.is_relative_to(ROOT)
                and not file.is_relative_to(DOCS)
                and file not in found
            ):
                found[file] = None
                waiting += [file] if file.suffix == ".md" else []
    return sorted(found)


def moved(markdown: str, page: str) -> str:
    """The text of a page with its links out of docs/ as they are on the site.

    >>> moved("[all](../results/report.md#mlp), [one](speed.md)", "learning.md")
    '[all](results/report.md#mlp), [one](speed.md)'
    >>> moved("![plot](../../results/plot.png)", "api/nn.md")
    '![plot](../results/plot.png)'
    """
    depth = len(PurePosixPath(page).parts)

    def shorter(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        up = "../" * depth
        return before + (target.removeprefix("../") if target.startswith(up) else target) + after

    return _LINK.sub(shorter, markdown)


# --- Formulas as MathML, which browsers draw by themselves, with a font that the site brings along ---

_FORMULA = re.compile(
    r'<span class="arithmatex">\\\((?P<inline>.*?)\\\)</span>'
    r'|<div class="arithmatex">\s*\\\[(?P<block>.*?)\\\]\s*</div>',
    flags=re.DOTALL,
)


def formula_font() -> Path:
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


# --- The reference must document every public name ---

_ENTRY = re.compile(r"^::: (\S+)$", flags=re.MULTILINE)


def modules(folder: Path) -> list[str]:
    """What users import: pjax, and every package of which a page of a folder documents a name."""
    found = {"pjax"}
    for page in folder.rglob("*.md"):
        for path in _entries(page):
            name = ".".join(path.split(".")[:2])
            if name != "pjax" and inspect.ismodule(getattr(importlib.import_module("pjax"), name[5:], None)):
                found.add(name)
    return sorted(found)


def missing(folder: Path) -> list[str]:
    """The public names that no page of a folder documents, under this or another of their names."""
    documented = {id(_resolve(path)) for page in sorted(folder.rglob("*.md")) for path in _entries(page)}
    return [
        name for module in modules(folder) for name, value in _public(module) if id(value) not in documented
    ]


def _entries(page: Path) -> list[str]:
    return _ENTRY.findall(page.read_text())


def _resolve(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return inspect.unwrap(getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError):
        raise ValueError(f"the reference documents {path}, which does not exist") from None


def _public(module: str) -> Iterator[tuple[str, Any]]:
    """Functions and classes; of a module that is a file, those that it defines itself."""
    loaded = importlib.import_module(module)
    for name, value in vars(loaded).items():
        if name.startswith("_") or not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        home = value.__module__
        if home.startswith("pjax") and (hasattr(loaded, "__path__") or home == module):
            yield f"{module}.{name}", inspect.unwrap(value)


# --- Docstrings as Markdown: their formulas and examples are written as Sphinx and doctest have them ---

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
