"""Where the data sets come from, and the formats in which they are published.

The digests and lengths of the published files, in ``downloads.csv``, are from the checksum lists of
TensorFlow Datasets (``tensorflow_datasets/url_checksums``); several other projects pin the same digests.
"""

import csv
import gzip
import importlib.resources
import io
import itertools
import math
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pjax.errors import DataError
from pjax.experiments.download import Progress

Array: TypeAlias = npt.NDArray[Any]

_DAMAGED = (OSError, EOFError, zlib.error, tarfile.TarError)
_ROWS = 50_000
_LINE = 4096
"""More than a line of numbers has: what is longer is cut, and refused, before it fills the memory."""
_REST = 1 << 20
"""What an archive may have besides the files that are wanted."""


@dataclass(frozen=True)
class File:
    """A file of an official source: the addresses of it, its SHA-256, and its length in bytes."""

    urls: tuple[str, ...]
    sha256: str
    size: int

    @property
    def name(self) -> str:
        """Its name: the end of its address."""
        return self.urls[0].rpartition("/")[2]


@dataclass(frozen=True)
class Source:
    """The official source of a data set.

    Args:
        read: makes the arrays of the data set, from paths of its files, the numbers of rows to train on and
            to test with, and who shows progress.
        train: how many rows there are to train on.
        test: how many rows there are to test with.
        files: what to download.
    """

    read: Callable[[Sequence[Path], int, int, Progress | None], dict[str, Array]]
    train: int
    test: int
    files: tuple[File, ...]


def _mnist(paths: Sequence[Path], train: int, test: int, _: Progress | None) -> dict[str, Array]:
    """Four files in the IDX format: images and labels to train on, images and labels to test with."""
    shapes = {"x_train": (train, 28, 28), "y_train": (train,), "x_test": (test, 28, 28), "y_test": (test,)}
    return {key: _read_idx(path, shape) for (key, shape), path in zip(shapes.items(), paths, strict=True)}


def _cifar10(paths: Sequence[Path], train: int, test: int, _: Progress | None) -> dict[str, Array]:
    """A tar archive with five files of images to train on and one to test with (the binary version).

    Each image is a byte of label and 3072 bytes of pixels, by colour, row and column.
    """
    (path,) = paths
    batches = [f"data_batch_{i}.bin" for i in range(1, 6)]
    lengths = dict.fromkeys(batches, train // 5 * 3073) | {"test_batch.bin": test * 3073}
    found = _read_members(path, lengths)
    arrays: dict[str, Array] = {}
    for part, members in (("train", batches), ("test", ["test_batch.bin"])):
        rows = np.frombuffer(b"".join(found[name] for name in members), np.uint8).reshape(-1, 3073)
        images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays |= {f"x_{part}": np.ascontiguousarray(images), f"y_{part}": rows[:, 0]}
    return arrays


def _higgs(paths: Sequence[Path], train: int, test: int, progress: Progress | None) -> dict[str, Array]:
    """A table: the label, then 28 numbers a line. The last lines are those to test with."""
    (path,) = paths
    total, done = train + test, 0
    x, y = np.empty((total, 28), np.float32), np.empty(total, np.uint8)
    size = path.stat().st_size
    try:
        with path.open("rb") as packed, gzip.open(packed) as lines:
            each = iter(lambda: lines.readline(_LINE), b"")
            while block := list(itertools.islice(each, _ROWS)):
                if done + len(block) > total:
                    raise DataError(f"{path} has more than the expected {total} lines")
                table = _parse(block, path, done)
                rows = slice(done, done := done + len(block))
                y[rows], x[rows] = table[:, 0], table[:, 1:]
                if progress is not None:
                    progress(packed.tell(), size, f"reading {path.name}")
    except _DAMAGED as error:
        raise _damaged(path, error) from error
    if done != total:
        raise DataError(f"{path} has {done} lines, expected {total}")
    return {"x_train": x[:train], "y_train": y[:train], "x_test": x[train:], "y_test": y[train:]}


def _shakespeare(paths: Sequence[Path], train: int, test: int, _: Progress | None) -> dict[str, Array]:
    """A text of so many bytes, as it is."""
    (path,) = paths
    text = path.read_bytes()
    if len(text) != train + test:
        raise DataError(f"{path} has {len(text)} bytes, expected {train + test}")
    return {"text": np.frombuffer(text, np.uint8)}


def _read_idx(path: Path, shape: tuple[int, ...]) -> Array:
    """An array of bytes in the IDX format: two zeros, the type, how many axes, their lengths, the values."""
    expected = bytes([0, 0, 8, len(shape)])
    length = 4 + 4 * len(shape) + math.prod(shape)
    try:
        with gzip.open(path) as file:
            blob = file.read(length + 1)  # more than expected is noticed, and not all read
    except _DAMAGED as error:
        raise _damaged(path, error) from error
    if blob[:4] != expected:
        raise DataError(
            f"{path} is not an IDX file of bytes with {len(shape)} axes: it begins with {blob[:4].hex()},"
            f" expected {expected.hex()}"
        )
    header = blob[4 : 4 + 4 * len(shape)]
    if header != np.array(shape, ">u4").tobytes():
        lengths = tuple(int.from_bytes(header[i : i + 4], "big") for i in range(0, len(header), 4))
        raise DataError(f"{path} says that its shape is {lengths}, expected {shape}")
    if len(blob) != length:
        few = "fewer" if len(blob) < length else "more"
        raise DataError(f"{path} has {few} values than its shape {shape} says")
    return np.frombuffer(blob, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def _read_members(path: Path, lengths: Mapping[str, int]) -> dict[str, bytes]:
    """The contents of some files of a tar archive. Nothing is unpacked to the disk."""
    found = {}
    try:
        with (
            _Bounded(path, sum(lengths.values()) + _REST) as packed,
            tarfile.open(fileobj=packed, mode="r:") as archive,
        ):
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name not in lengths:
                    continue
                if not member.isreg() or member.size != lengths[name]:
                    kind = f"{member.size} bytes" if member.isreg() else "no ordinary file"
                    raise DataError(f"{path}: {member.name} has {kind}, expected {lengths[name]} bytes")
                file = archive.extractfile(member) or io.BytesIO()
                found[name] = file.read()
                if len(found[name]) != lengths[name]:
                    raise DataError(f"{path}: {member.name} ends after {len(found[name])} bytes")
            while packed.read(1 << 20):
                pass  # the checksum is at the very end
    except _DAMAGED as error:
        raise _damaged(path, error) from error
    if missing := [name for name in lengths if name not in found]:
        raise DataError(f"{path} lacks {', '.join(missing)}")
    return found


class _Bounded(gzip.GzipFile):
    """A packed file that is not unpacked further than so many bytes."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(path)
        self._path, self._most = path, most

    def read(self, size: int | None = -1) -> bytes:
        left = self._most - self.tell() + 1
        blob = super().read(left if size is None or size < 0 else min(size, left))
        self._check(self.tell())
        return blob

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_SET:
            self._check(offset)
        return super().seek(offset, whence)

    def _check(self, place: int) -> None:
        if place > self._most:
            raise DataError(
                f"{self._path} unpacks to more than {self._most:,} bytes: it is not the right file"
            )


def _parse(lines: list[bytes], path: Path, start: int) -> Array:
    """Lines of 29 numbers, of which the first is 0 or 1."""
    if (table := _numbers(lines)) is not None:
        return table
    for number, line in enumerate(lines, start + 1):
        if _numbers([line]) is None:
            raise DataError(
                f"{path}, line {number}: expected a label (0 or 1) and 28 finite numbers, separated by"
                f" commas; got {line[:80]!r}"
            )
    raise AssertionError("lines that can be read one by one can be read together")


def _numbers(lines: list[bytes]) -> Array | None:
    if any(line.isspace() for line in lines):
        return None  # loadtxt would pass over it, and warn if there is nothing else
    try:
        table = np.loadtxt(lines, np.float32, comments=None, delimiter=",", ndmin=2, encoding="ascii")
    except ValueError:
        return None
    if table.shape != (len(lines), 29) or not np.isfinite(table).all():
        return None
    return table if np.isin(table[:, 0], (0, 1)).all() else None


def _damaged(path: Path, error: BaseException) -> DataError:
    return DataError(f"{path} is damaged: {error or type(error).__name__}. Remove it and download it again")


def _files(data: str) -> tuple[File, ...]:
    """The files of a data set, by the list that comes with the package."""
    text = importlib.resources.files("pjax.experiments").joinpath("downloads.csv").read_text(encoding="utf-8")
    return tuple(
        File(tuple(line["urls"].split()), line["sha256"], int(line["size"]))
        for line in csv.DictReader(text.splitlines())
        if line["data"] == data
    )


OFFICIAL: Mapping[str, Source] = {
    "mnist": Source(_mnist, 60_000, 10_000, _files("mnist")),
    "cifar10": Source(_cifar10, 50_000, 10_000, _files("cifar10")),
    "higgs": Source(_higgs, 10_500_000, 500_000, _files("higgs")),
    "shakespeare": Source(_shakespeare, 892_315, 223_079, _files("shakespeare")),
}
"""The official sources, by the name of the data set."""
