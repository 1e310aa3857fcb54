"""The Python examples of Markdown pages, to be run as they stand."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

_BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def sources(page: Path) -> list[str]:
    """The examples of a page."""
    return _BLOCK.findall(page.read_text())


def blocks(page: Path) -> list[str]:
    """The examples of a page, below as many empty lines as stand above them: errors name the right line."""
    text = page.read_text()
    return ["\n" * (text.count("\n", 0, found.start()) + 1) + found[1] for found in _BLOCK.finditer(text)]


def run(page: Path) -> dict[str, Any]:
    """Run all examples of a page, one after the other; gives the names that they define."""
    names: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page):
        exec(compile(block, str(page.relative_to(ROOT)), "exec"), names)
    return names
