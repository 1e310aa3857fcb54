"""The reference must document every public name."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
