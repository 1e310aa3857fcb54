"""Checkpoints: a pytree of arrays and some JSON in one file, written atomically; the one before is kept.

The file is a NumPy archive: one array per leaf, named by its path in the tree, and the JSON as text. Reading
it executes nothing, and anything that does not fit the tree that is expected is refused by name. A damaged
file is told by its checksums, and passed over for the one before.
"""

import io
import json
import os
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pjax.errors import InputError
from pjax.experiments.results import write_atomically

_NOTE = "note"
_LEAF = "leaf:"


def save(path: Path, tree: Any, note: dict[str, Any]) -> None:
    """Write a checkpoint: it is there whole or not at all. The one before it is kept beside it.

    Args:
        path: the file.
        tree: a pytree of arrays. Keys of `jax.random` must be given as their data.
        note: anything that JSON knows.
    """
    arrays = {_LEAF + name: np.asarray(leaf) for name, leaf in _named(tree).items()}
    arrays[_NOTE] = np.frombuffer(json.dumps(note).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    new = write_atomically(path.with_name(f"{path.name}.new"), buffer.getvalue())
    if path.exists():
        os.replace(path, before(path))
    os.replace(new, path)


def before(path: Path) -> Path:
    """Where the checkpoint before the last one is.

    >>> before(Path("run/checkpoint.npz")).name
    'checkpoint-before.npz'
    """
    return path.with_name(f"{path.stem}-before{path.suffix}")


def exists(path: Path) -> bool:
    """Whether there is a checkpoint, or the one before it."""
    return path.exists() or before(path).exists()


def remove(path: Path) -> None:
    """Remove a checkpoint, and the one before it."""
    for file in (path, before(path)):
        file.unlink(missing_ok=True)


def load(path: Path, like: Any) -> tuple[Any, dict[str, Any]]:
    """Read a checkpoint, or, with a warning if it is damaged, the one before it.

    Args:
        path: the file.
        like: a tree of arrays, or of shapes, with the structure that is expected.

    Returns:
        The tree, of NumPy arrays, and the note.
    """
    path, arrays, note = _read_last(path)
    wanted = _named(like)
    if missing := sorted(wanted.keys() - arrays.keys()):
        raise InputError(f"{path}: holds no {_some(missing)}; it was written by another run or version")
    if extra := sorted(arrays.keys() - wanted.keys()):
        raise InputError(f"{path}: holds {_some(extra)}, which this run does not have")
    for name, leaf in wanted.items():
        found, shape, dtype = arrays[name], tuple(np.shape(leaf)), np.dtype(leaf.dtype)
        if found.shape != shape or found.dtype != dtype:
            raise InputError(
                f"{path}: {name} is {found.dtype}{list(found.shape)}, this run has {dtype}{list(shape)}"
            )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted]), note


class _DamagedError(InputError):
    """A file is missing, or no checkpoint."""


def _read_last(path: Path) -> tuple[Path, dict[str, np.ndarray], dict[str, Any]]:
    """The file that is read, and what is in it."""
    try:
        return path, *_read(path)
    except _DamagedError as error:
        try:
            found = before(path), *_read(before(path))
        except _DamagedError:
            raise error from None
        if path.exists():
            warnings.warn(f"{error}. Going on from the one before it, {before(path).name}", stacklevel=3)
        return found


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        note = json.loads(bytes(arrays.pop(_NOTE)))
    except FileNotFoundError:
        raise _DamagedError(f"{path}: no such checkpoint") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _DamagedError(f"{path}: not a checkpoint, or cut off ({error})") from None
    return {name.removeprefix(_LEAF): array for name, array in arrays.items()}, note


def _named(tree: Any) -> dict[str, Any]:
    """The leaves by their paths, in the order of the tree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
