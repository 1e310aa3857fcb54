"""What mkdocs is asked to do besides."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import links, mathml, notebook, reference

mpl.use("agg")
_CHANGELOG = links.ROOT / "CHANGELOG.md"
_notebooks: dict[str, str] = {}
"""Files for Jupyter, by their path on the site."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out pages of the navigation that are not there."""
    missing = reference.missing(links.DOCS / "api")
    if missing:
        raise PluginError(f"no page of docs/api documents {', '.join(missing)}: add a line '::: NAME'")
    config.nav = _there(config.nav or [])
    return config


def _there(entries: list[Any]) -> list[Any]:
    kept = []
    for entry in entries:
        ((title, target),) = entry.items()
        if isinstance(target, list):
            kept.append({title: _there(target)})
        elif (links.DOCS / target).is_file() or (links.ROOT / target).is_file():
            kept.append(entry)
    return kept


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the changelog, the files outside of docs/ that pages link to, and the font of formulas."""
    pages = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    for path in {_CHANGELOG: None, **dict.fromkeys(links.outside([_CHANGELOG, *pages]))}:
        files.append(File.generated(config, path.relative_to(links.ROOT).as_posix(), abs_src_path=str(path)))
    font = mathml.font()
    files.append(File.generated(config, f"fonts/{font.name}", abs_src_path=str(font)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Turn links that leave docs/ to where their targets are, and run notebooks, with a link to the file."""
    source = Path(page.file.abs_src_path or "")
    if source.is_relative_to(links.DOCS):
        markdown = links.on_site(markdown, page.file.src_uri)
    if not page.meta.get("notebook"):
        return markdown
    _notebooks[page.file.src_uri.removesuffix(".md") + ".ipynb"] = notebook.as_jupyter(markdown)
    title, _, rest = markdown.partition("\n\n")
    name = source.with_suffix(".ipynb").name
    linked = f'{title}\n\n<a href="{name}" download>Open as a notebook for Jupyter</a>\n\n{rest}'
    return notebook.run(linked, page.file.src_uri)


def on_page_content(html: str, **_: Any) -> str:
    """Draw formulas."""
    return mathml.render(html)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write the notebooks."""
    for name, text in _notebooks.items():
        (Path(config.site_dir) / name).write_text(text)
