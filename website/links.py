"""Pages may link to files outside of docs/, as on GitHub; on the site these lie under the same path."""

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

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


def on_site(markdown: str, page: str) -> str:
    """The text of a page with its links out of docs/ as they are on the site.

    >>> on_site("[all](../results/report.md#mlp), [one](speed.md)", "learning.md")
    '[all](results/report.md#mlp), [one](speed.md)'
    >>> on_site("![plot](../../results/plot.png)", "api/index.md")
    '![plot](../results/plot.png)'
    """
    depth = len(PurePosixPath(page).parts)

    def shorter(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        up = "../" * depth
        return before + (target.removeprefix("../") if target.startswith(up) else target) + after

    return _LINK.sub(shorter, markdown)
