"""Checkpoints: a pytree of arrays and some JSON, there whole or not at all; the one before the last is kept.

In a run's folder they are called ``checkpoint-N``, by a number that grows, and come in two kinds: ``.npz``, a
file, see `_archive`, and ``.orbax``, a folder into which several processes can write, see `_parts`. Reading
executes nothing, and anything that does not fit the tree that is expected is refused by name. One that is
damaged, or was not finished, is named in a warning, and passed over for the one before.
"""

import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pjax.errors import InputError
from pjax.experiments import _archive, _parts
from pjax.experiments._archive import DamagedError

KINDS: dict[str, Any] = {".npz": _archive, ".orbax": _parts}
orbax = _parts.orbax


def path(folder: Path, number: int, kind: str) -> Path:
    """Where a checkpoint is.

    >>> path(Path("run"), 120, ".npz").name
    'checkpoint-120.npz'
    """
    return folder / f"checkpoint-{number}{kind}"


def save(path: Path, tree: Any, note: dict[str, Any]) -> None:
    """Write a checkpoint. The one before it is kept, what is older is removed.

    Args:
        path: see `path`.
        tree: a pytree of arrays. Keys of `jax.random` must be given as their data. If other processes have
            parts of the arrays, all must save, and the kind must be ``.orbax``; else one process does.
        note: anything that JSON knows.
    """
    first = jax.process_index() == 0
    if first:
        for unfinished in (*_unfinished(path.parent), *path.parent.glob(".checkpoint-*")):
            _remove(unfinished)
    KINDS[path.suffix].write(path, _named(tree), note)
    if first:
        earlier = [other for other in _all(path.parent) if _number(other) < _number(path)]
        for other in _all(path.parent):
            if other not in (path, *earlier[-1:]):
                _remove(other)


def exists(folder: Path) -> bool:
    """Whether there is a checkpoint in a folder, be it whole or not."""
    return bool(_all(folder))


def last(folder: Path) -> Path | None:
    """The last whole checkpoint in a folder, if there is one; a warning names those that are passed over."""
    problems = [f"{path}: was not finished" for path in _unfinished(folder)]
    damaged = None
    for path in reversed(_all(folder)):
        try:
            KINDS[path.suffix].check(path)
        except DamagedError as error:
            damaged = damaged or error
            problems.append(str(error))
            continue
        if problems:
            warnings.warn(f"{'; '.join(problems)}. Going on from {path.name}", stacklevel=2)
        return path
    if damaged:
        raise damaged
    if problems:
        warnings.warn(f"{'; '.join(problems)}. Beginning anew", stacklevel=2)
    return None


def load(path: Path, like: Any) -> tuple[Any, dict[str, Any]]:
    """Read a checkpoint.

    Args:
        path: see `last`.
        like: a tree of arrays, or of shapes, with the structure that is expected. Where a shape has a
            sharding the array is read there: every process reads its parts, and all must do so.

    Returns:
        The tree, of NumPy arrays where nothing else is said, and the note.
    """
    wanted = _named(like)

    def fits(found: dict[str, Any]) -> None:
        if missing := sorted(wanted.keys() - found.keys()):
            raise InputError(f"{path}: holds no {_some(missing)}; it was written by another run or version")
        if extra := sorted(found.keys() - wanted.keys()):
            raise InputError(f"{path}: holds {_some(extra)}, which this run does not have")
        for name, leaf in wanted.items():
            shape, dtype = tuple(found[name].shape), np.dtype(found[name].dtype)
            if shape != tuple(leaf.shape) or dtype != np.dtype(leaf.dtype):
                raise InputError(
                    f"{path}: {name} is {dtype}{list(shape)}, this run has "
                    f"{np.dtype(leaf.dtype)}{list(leaf.shape)}"
                )

    arrays, note = KINDS[path.suffix].read(path, wanted, fits)
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted]), note


def remove(folder: Path) -> None:
    """Remove all checkpoints in a folder."""
    for path in (*_all(folder), *_unfinished(folder)):
        _remove(path)


_NAME = re.compile(rf"checkpoint-\d+({'|'.join(map(re.escape, KINDS))})")


def _all(folder: Path) -> list[Path]:
    """The checkpoints in a folder, by their numbers."""
    return sorted((path for path in folder.glob("checkpoint-*") if _NAME.fullmatch(path.name)), key=_number)


def _unfinished(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"checkpoint-*{_parts.UNFINISHED}*"))


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _named(tree: Any) -> dict[str, Any]:
    """The leaves by their paths, in the order of the tree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
