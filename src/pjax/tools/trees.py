"""Pytrees of arrays in a file, which is there whole or not at all, and executes nothing when it is read.

The file is a NumPy archive, with checksums: an array for each leaf, by its path in the tree, and a note.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pjax.checks import some
from pjax.errors import InputError
from pjax.tools.files import write_atomically


class DamagedError(InputError):
    """Something is missing, or is no file of this kind."""


def save(path: str | Path, tree: Any) -> Path:
    """Write a pytree of arrays, such as parameters and the state of an optimiser, to a file.

    The file is written anew as a whole: who is interrupted leaves the old one. Arrays of any type, keys of
    `jax.random`, and numbers and text of Python, are known.

    Args:
        path: of the file; by custom it ends in ``.npz``.
        tree: any pytree.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "state.npz"
    >>> _ = save(file, {"w": jnp.arange(3.0), "step": 7})
    >>> load(file, {"w": jnp.zeros(3), "step": 0})
    {'step': 7, 'w': Array([0., 1., 2.], dtype=float32)}
    """
    write(Path(path), named(jax.tree.map(_plain, tree)), {})
    return Path(path)


def load(path: str | Path, like: Any) -> Any:
    """Read what `save` has written.

    Args:
        path: of the file.
        like: a tree with the same paths, shapes and types, such as what one begins with; a file that holds
            anything else is refused. Arrays of JAX come to lie where those of ``like`` do.
    """
    path, wanted = Path(path), named(jax.tree.map(_plain, like))
    arrays, _ = read(path)
    check_fits(path, arrays, wanted)
    leaves = [_like(arrays[name], leaf) for name, leaf in zip(wanted, jax.tree.leaves(like), strict=True)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _plain(leaf: Any) -> Any:
    """A leaf as an array, or its shape, that a file can hold."""
    if _is_key(leaf):
        shape = isinstance(leaf, jax.ShapeDtypeStruct)
        return jax.eval_shape(jax.random.key_data, leaf) if shape else jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf
    array = np.asarray(leaf)
    if array.dtype == object:
        raise InputError(
            f"a leaf of the tree is no array, number or key, but {leaf!r:.80}: keep it apart from what is"
            " saved; of an Equinox model, eqx.partition(model, eqx.is_array) does that"
        )
    return array


def _like(value: np.ndarray, leaf: Any) -> Any:
    """An array as a leaf of the same kind as another."""
    if _is_key(leaf):
        kinds: list[Any] = []
        jax.eval_shape(lambda key: kinds.append(jax.random.key_impl(key)), leaf)
        return jax.random.wrap_key_data(jnp.asarray(value), impl=kinds[0])
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return jax.device_put(value, leaf.sharding)
    return value if isinstance(leaf, np.ndarray) else type(leaf)(value[()])


def _is_key(leaf: Any) -> bool:
    known = isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)
    return known and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def named(tree: Any) -> dict[str, Any]:
    """The leaves by their paths, in the order of the tree.

    >>> named({"a": [1, 2], "b": 3})
    {'a/0': 1, 'a/1': 2, 'b': 3}
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"two leaves would have the same name in a file, {some(twice)}: rename one")
    return {name: leaf for name, (_, leaf) in zip(names, leaves, strict=True)}


def write(path: Path, arrays: Mapping[str, Any], note: Mapping[str, Any]) -> None:
    """Write arrays by name, and something that JSON knows."""
    values = {name: np.asarray(array) for name, array in arrays.items()}
    # NumPy does not know how types such as bfloat16 are written.
    others = {name: value.dtype.name for name, value in values.items() if value.dtype.isbuiltin == 2}
    members = {f"leaf:{n}": v.view(f"u{v.itemsize}") if n in others else v for n, v in values.items()}
    text = json.dumps({"note": note, "types": others} if others else note)
    members["note"] = np.frombuffer(text.encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **members)
    write_atomically(path, buffer.getvalue())


def read(path: Path) -> tuple[dict[str, np.ndarray], Any]:
    """All that is in a file: arrays by name, and the note; one that is not whole is refused."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.zip.infolist()):
                raise ValueError("it is compressed")  # to unpack it could take any amount of memory
            members = {name: archive[name] for name in archive.files}
        note = parse(bytes(members.pop("note")))
        arrays = {name.removeprefix("leaf:"): array for name, array in members.items()}
        if isinstance(note, dict) and note.keys() == {"note", "types"}:
            note, others = note["note"], note["types"]
            arrays |= {name: arrays[name].view(jnp.dtype(kind)) for name, kind in others.items()}
    except FileNotFoundError:
        raise DamagedError(f"{path}: no such checkpoint") from None
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedError(f"{path}: not a checkpoint, or cut off ({error})") from None
    return arrays, note


def check_fits(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse arrays that are not those that are wanted, by name, shape and type."""
    if missing := sorted(wanted.keys() - found.keys()):
        raise InputError(f"{path}: holds no {some(missing)}; it was written by another run or version")
    if extra := sorted(found.keys() - wanted.keys()):
        raise InputError(f"{path}: holds {some(extra)}, which this run does not have")
    for name, leaf in wanted.items():
        there, here = (f"{np.dtype(a.dtype)}{list(a.shape)}" for a in (found[name], leaf))
        if there != here:
            raise InputError(f"{path}: {name} is {there}, this run has {here}")


def parse(text: str | bytes) -> Any:
    """What JSON says; anything else is a ValueError, brackets in brackets without end too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
