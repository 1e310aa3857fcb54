"""Checkpoints: a pytree of arrays and some JSON in one file, written atomically.

The file is a NumPy archive: one array per leaf, named by its path in the tree, and the JSON as text. Reading
it executes nothing, and anything that does not fit the tree that is expected is refused by name.
"""

import io
import json
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
    """Write a checkpoint: it is there whole or not at all, and the one before it until then.

    Args:
        path: the file.
        tree: a pytree of arrays. Keys of `jax.random` must be given as their data.
        note: anything that JSON knows.
    """
    arrays = {_LEAF + name: np.asarray(leaf) for name, leaf in _named(tree).items()}
    arrays[_NOTE] = np.frombuffer(json.dumps(note).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_atomically(path, buffer.getvalue())


def load(path: Path, like: Any) -> tuple[Any, dict[str, Any]]:
    """Read a checkpoint.

    Args:
        path: the file.
        like: a tree of arrays, or of shapes, with the structure that is expected.

    Returns:
        The tree, of NumPy arrays, and the note.
    """
    arrays, note = _read(path)
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


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        note = json.loads(bytes(arrays.pop(_NOTE)))
    except FileNotFoundError:
        raise InputError(f"{path}: no such checkpoint") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: not a checkpoint ({error}); delete it to start the run again") from None
    return {name.removeprefix(_LEAF): array for name, array in arrays.items()}, note


def _named(tree: Any) -> dict[str, Any]:
    """The leaves by their paths, in the order of the tree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
