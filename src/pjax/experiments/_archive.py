"""A checkpoint in one file, a NumPy archive: arrays by their names, and some JSON as text; with checksums."""

import io
import json
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pjax.errors import InputError
from pjax.experiments.results import parse, write_atomically

_NOTE = "note"
_LEAF = "leaf:"


class DamagedError(InputError):
    """Something is missing, or no checkpoint."""


def write(path: Path, arrays: dict[str, Any], note: dict[str, Any]) -> None:
    """Write arrays, of which this process has all parts, and a note."""
    members = {_LEAF + name: np.asarray(array) for name, array in arrays.items()}
    members[_NOTE] = np.frombuffer(json.dumps(note).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **members)
    write_atomically(path, buffer.getvalue())


def check(path: Path) -> None:
    """Refuse a file that is not whole."""
    _members(path)


def read(
    path: Path, wanted: dict[str, Any], fits: Callable[[dict[str, Any]], None]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays, where they are wanted, and the note.

    Args:
        path: the file.
        wanted: shapes by name; with a sharding, or for a NumPy array.
        fits: refuses arrays that are not those that are wanted.
    """
    members, note = _members(path)
    fits(members)
    return {name: _placed(members[name], getattr(wanted[name], "sharding", None)) for name in wanted}, note


def _placed(values: np.ndarray, sharding: Any) -> Any:
    if sharding is None:
        return values
    return jax.make_array_from_callback(values.shape, sharding, lambda part: values[part])


def _members(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.zip.infolist()):
                raise ValueError("it is compressed")  # to unpack it could take any amount of memory
            members = {name: archive[name] for name in archive.files}
        note = parse(bytes(members.pop(_NOTE)))
    except FileNotFoundError:
        raise DamagedError(f"{path}: no such checkpoint") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedError(f"{path}: not a checkpoint, or cut off ({error})") from None
    return {name.removeprefix(_LEAF): array for name, array in members.items()}, note
