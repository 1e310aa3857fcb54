"""Checkpoints: a pytree of arrays and some JSON, there whole or not at all; the one before the last is kept.

In a run's folder they are files of `pjax.tools.trees`, ``checkpoint-N.npz``, by a number that grows. Reading
executes nothing, and anything that does not fit the tree that is expected is refused by name. One that is
damaged is named in a warning, and passed over for the one before.
"""

import re
import warnings
from pathlib import Path
from typing import Any, TypeAlias

import jax

from pjax.tools import trees
from pjax.tools.trees import DamagedError, check_fits, named

Note: TypeAlias = dict[str, Any]


def path(folder: Path, number: int) -> Path:
    """Where a checkpoint is.

    >>> path(Path("run"), 120).name
    'checkpoint-120.npz'
    """
    return folder / f"checkpoint-{number}.npz"


def save(path: Path, tree: Any, note: Note) -> None:
    """Write a checkpoint. The one before it is kept, what is older is removed.

    Keys of `jax.random` must be given as their data.
    """
    for unfinished in path.parent.glob(".checkpoint-*"):
        unfinished.unlink(missing_ok=True)
    trees.write(path, named(tree), note)
    paths = every(path.parent)
    place = paths.index(path)
    for other in {*paths} - {*paths[max(place - 1, 0) : place + 1]}:
        other.unlink(missing_ok=True)


def last(folder: Path) -> Path | None:
    """The last whole checkpoint in a folder, if there is one; a warning names those that are passed over."""
    problems: list[DamagedError] = []
    for path in reversed(every(folder)):
        try:
            trees.read(path)
        except DamagedError as error:
            problems.append(error)
            continue
        if problems:
            warnings.warn(f"{'; '.join(map(str, problems))}. Going on from {path.name}", stacklevel=2)
        return path
    if problems:
        raise DamagedError(f"{'; '.join(map(str, problems))}. None is whole: begin a new run")
    return None


def load(path: Path, like: Any) -> tuple[Any, Note]:
    """Read a checkpoint: a tree of NumPy arrays, ``like`` one of arrays or of shapes, and the note."""
    wanted = named(like)
    arrays, note = trees.read(path)
    check_fits(path, arrays, wanted)
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted]), note


def remove(folder: Path) -> None:
    """Remove all checkpoints in a folder."""
    for path in every(folder):
        path.unlink(missing_ok=True)


def every(folder: Path) -> list[Path]:
    """The checkpoints in a folder, by their numbers, be they whole or not."""
    matches = ((re.fullmatch(r"checkpoint-(\d+)", path.stem), path) for path in folder.glob("*.npz"))
    return [path for _, path in sorted((int(match[1]), path) for match, path in matches if match)]
