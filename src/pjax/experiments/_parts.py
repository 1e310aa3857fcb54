"""A checkpoint in a folder, in the format of Orbax: every process writes and reads its parts of the arrays.

Beside what Orbax writes lies a note: some JSON, and the sizes of all files, by which one that was cut off is
told. Until all of it is there the folder has another name.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pjax.errors import InputError
from pjax.experiments._archive import DamagedError
from pjax.experiments.results import parse, write_atomically

UNFINISHED = ".unfinished"
_NOTE = "note.json"


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


def write(path: Path, arrays: dict[str, Any], note: dict[str, Any]) -> None:
    """Write arrays and a note. If other processes have parts of the arrays, all must do so."""
    unfinished = path.with_name(path.name + UNFINISHED).absolute()
    with _checkpointer(path, arrays) as checkpointer:
        checkpointer.save(unfinished, args=orbax().args.PyTreeSave(arrays))
    if jax.process_index() == 0:
        content = {"note": note, "files": _sizes(unfinished)}
        write_atomically(unfinished / _NOTE, json.dumps(content).encode())
        if path.exists():  # a damaged one that was passed over
            shutil.rmtree(path)
        os.replace(unfinished, path)


def check(path: Path) -> None:
    """Refuse a folder that is not whole."""
    _note(path)


def read(
    path: Path, wanted: dict[str, Any], fits: Callable[[dict[str, Any]], None]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays, where they are wanted, and the note; see `_archive.read`."""
    note = _note(path)
    package, place = orbax(), path.absolute()
    with _checkpointer(path, wanted) as checkpointer:
        found = checkpointer.metadata(place).item_metadata
        if found is None:
            raise DamagedError(f"{path}: not a checkpoint of Orbax")
        fits(found.tree)
        try:
            arrays = checkpointer.restore(
                place,
                args=package.args.PyTreeRestore(
                    item=wanted, restore_args={name: _restored(leaf) for name, leaf in wanted.items()}
                ),
            )
        except (OSError, ValueError, KeyError) as error:
            raise DamagedError(
                f"{path}: is damaged ({error}); remove it to go on from the one before"
            ) from error
    return arrays, note


def _restored(leaf: Any) -> Any:
    """How Orbax shall read an array: onto devices, or for NumPy."""
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return orbax().RestoreArgs(restore_type=np.ndarray)
    return orbax().ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype)


def _checkpointer(path: Path, arrays: dict[str, Any]) -> Any:
    """Of this process alone, or of all if they share arrays; waits for others end after five minutes."""
    package = orbax()
    shardings = [getattr(array, "sharding", None) for array in arrays.values()]
    alone = all(sharding is None or sharding.is_fully_addressable for sharding in shardings)
    here = jax.process_index()
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


def _note(path: Path) -> dict[str, Any]:
    try:
        content = parse((path / _NOTE).read_bytes())
        note: dict[str, Any] = content["note"]
        expected: dict[str, int] = content["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path}: not a checkpoint, or cut off ({error})") from None
    sizes = _sizes(path)
    for name, size in expected.items():
        if sizes.get(name) != size:
            raise DamagedError(
                f"{path}: not a checkpoint, or cut off ({name} has {sizes.get(name, 0)} bytes, not {size})"
            )
    return note
