"""Checkpoints: a pytree of arrays and some JSON, there whole or not at all; the one before the last is kept.

In a run's folder they are called ``checkpoint-N``, by a number that grows, and come in two kinds: ``.npz``, a
file, and ``.orbax``, a folder into which several processes can write. Reading executes nothing, and anything
that does not fit the tree that is expected is refused by name. One that is damaged, or was not finished, is
named in a warning, and passed over for the one before.
"""

import json
import os
import re
import shutil
import warnings
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np

from pjax.errors import InputError
from pjax.tools import trees
from pjax.tools.files import write_atomically
from pjax.tools.trees import DamagedError, check_fits, named, parse

Arrays: TypeAlias = dict[str, Any]
Note: TypeAlias = dict[str, Any]

_UNFINISHED = ".unfinished"


def path(folder: Path, number: int, kind: str) -> Path:
    """Where a checkpoint is.

    >>> path(Path("run"), 120, ".npz").name
    'checkpoint-120.npz'
    """
    return folder / f"checkpoint-{number}{kind}"


def save(path: Path, tree: Any, note: Note) -> None:
    """Write a checkpoint. The one before it is kept, what is older is removed.

    Keys of `jax.random` must be given as their data. If other processes have parts of the arrays, all must
    save, and the kind must be ``.orbax``; else one process does.
    """
    first = jax.process_index() == 0
    if first:
        for unfinished in (*_unfinished(path.parent), *path.parent.glob(".checkpoint-*")):
            _remove(unfinished)
    KINDS[path.suffix].write(path, named(tree), note)
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


def load(path: Path, like: Any) -> tuple[Any, Note]:
    """Read a checkpoint: a tree, and the note.

    The tree is ``like`` one of arrays, or of shapes. Where a shape has a sharding the array is read there:
    every process reads its parts, and all must do so. Elsewhere it is one of NumPy.
    """
    wanted = named(like)

    arrays, note = KINDS[path.suffix].read(path, wanted)
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted]), note


def remove(folder: Path) -> None:
    """Remove all checkpoints in a folder."""
    for path in (*_all(folder), *_unfinished(folder)):
        _remove(path)


# --- One file ---


class _Archive:
    """A file of `pjax.tools.trees`."""

    @staticmethod
    def write(path: Path, arrays: Arrays, note: Note) -> None:
        """Write arrays, of which this process has all parts, and a note."""
        trees.write(path, arrays, note)

    @staticmethod
    def check(path: Path) -> None:
        """Refuse a file that is not whole."""
        trees.read(path)

    @staticmethod
    def read(path: Path, wanted: Arrays) -> tuple[Arrays, Note]:
        """The arrays, where they are wanted, and the note; other arrays are refused."""
        found, note = trees.read(path)
        check_fits(path, found, wanted)

        def place(values: np.ndarray, sharding: Any) -> Any:
            if sharding is None:
                return values
            return jax.make_array_from_callback(values.shape, sharding, lambda part: values[part])

        return {
            name: place(found[name], getattr(leaf, "sharding", None)) for name, leaf in wanted.items()
        }, note


# --- A folder ---


def orbax() -> Any:
    """The package."""
    try:
        import orbax.checkpoint as package
    except ImportError:
        raise InputError(
            "checkpoints of several devices are written and read by Orbax, which is not installed: "
            'pip install "pjax-learn[distributed]"'
        ) from None
    return package


class _Parts:
    """A folder in the format of Orbax: every process writes and reads its parts of the arrays.

    Beside what Orbax writes lies a note, with the sizes of all files, by which one that was cut off is told.
    Until all of it is there the folder has another name.
    """

    @staticmethod
    def write(path: Path, arrays: Arrays, note: Note) -> None:
        """Write arrays and a note. If other processes have parts of the arrays, all must do so."""
        unfinished = path.with_name(path.name + _UNFINISHED).absolute()
        with _checkpointer(path, arrays) as checkpointer:
            checkpointer.save(unfinished, args=orbax().args.PyTreeSave(arrays))
        if jax.process_index() == 0:
            content = {"note": note, "files": _sizes(unfinished)}
            write_atomically(unfinished / "note.json", json.dumps(content).encode())
            if path.exists():  # a damaged one that was passed over
                shutil.rmtree(path)
            os.replace(unfinished, path)

    @staticmethod
    def check(path: Path) -> Note:
        """The note of a folder; one that is not whole is refused."""
        try:
            content = parse((path / "note.json").read_bytes())
            note: Note = content["note"]
            sizes = _sizes(path)
            for name, size in content["files"].items():
                if sizes.get(name) != size:
                    raise ValueError(f"{name} has {sizes.get(name, 0)} bytes, not {size}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{path}: not a checkpoint, or cut off ({error})") from None
        return note

    @staticmethod
    def read(path: Path, wanted: Arrays) -> tuple[Arrays, Note]:
        """As of an archive."""
        note, package, place = _Parts.check(path), orbax(), path.absolute()

        def restored(leaf: Any) -> Any:
            if (sharding := getattr(leaf, "sharding", None)) is None:
                return package.RestoreArgs(restore_type=np.ndarray)
            return package.ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype)

        with _checkpointer(path, wanted) as checkpointer:
            found = checkpointer.metadata(place).item_metadata
            if found is None:
                raise DamagedError(f"{path}: not a checkpoint of Orbax")
            check_fits(path, found.tree, wanted)
            how = package.args.PyTreeRestore(item=wanted, restore_args=jax.tree.map(restored, wanted))
            try:
                return checkpointer.restore(place, args=how), note
            except (OSError, ValueError, KeyError) as error:
                raise DamagedError(
                    f"{path}: is damaged ({error}); remove it to go on from the one before"
                ) from error


def _checkpointer(path: Path, arrays: Arrays) -> Any:
    """Of this process alone, or of all if they share arrays; waits for others end after five minutes."""
    package, here = orbax(), jax.process_index()
    shardings = [getattr(array, "sharding", None) for array in arrays.values()]
    alone = all(sharding is None or sharding.is_fully_addressable for sharding in shardings)
    processes = package.options.MultiprocessingOptions(
        primary_host=here if alone else 0,
        active_processes={here} if alone else set(range(jax.process_count())),
        barrier_sync_key_prefix=path.name,
    )
    handler = package.PyTreeCheckpointHandler(multiprocessing_options=processes)
    return package.Checkpointer(handler, multiprocessing_options=processes)


def _sizes(folder: Path) -> dict[str, int]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}


KINDS: dict[str, Any] = {".npz": _Archive, ".orbax": _Parts}
_NAME = re.compile(rf"checkpoint-\d+({'|'.join(map(re.escape, KINDS))})")


# --- Names ---


def _all(folder: Path) -> list[Path]:
    """The checkpoints in a folder, by their numbers."""
    return sorted((path for path in folder.glob("checkpoint-*") if _NAME.fullmatch(path.name)), key=_number)


def _unfinished(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"checkpoint-*{_UNFINISHED}*"))


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
