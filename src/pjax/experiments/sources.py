"""Where the data sets come from, and the formats in which they are published.

The digests and lengths of the published files are from the checksum lists of TensorFlow Datasets
(``tensorflow_datasets/url_checksums``); several other projects pin the same digests.
"""

import abc
import gzip
import io
import itertools
import math
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pjax.errors import DataError
from pjax.experiments._download import Progress

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
class Source(abc.ABC):
    """The official source of a data set.

    Args:
        page: where it is described.
        files: what to download.
        train: how many rows there are to train on.
        test: how many rows there are to test with.
    """

    page: str
    files: tuple[File, ...]
    train: int
    test: int

    @abc.abstractmethod
    def read(self, paths: Sequence[Path], progress: Progress | None = None) -> dict[str, Array]:
        """The arrays of the data set, from its files in the order of `files`."""


@dataclass(frozen=True)
class Mnist(Source):
    """Four files in the IDX format: images and labels to train on, images and labels to test with."""

    def read(self, paths: Sequence[Path], progress: Progress | None = None) -> dict[str, Array]:  # noqa: ARG002
        shapes = {
            "x_train": (self.train, 28, 28),
            "y_train": (self.train,),
            "x_test": (self.test, 28, 28),
            "y_test": (self.test,),
        }
        return {key: _read_idx(path, shape) for (key, shape), path in zip(shapes.items(), paths, strict=True)}


@dataclass(frozen=True)
class Cifar10(Source):
    """A tar archive with five files of images to train on and one to test with (the binary version).

    Each image is a byte of label and 3072 bytes of pixels, by colour, row and column.
    """

    def read(self, paths: Sequence[Path], progress: Progress | None = None) -> dict[str, Array]:  # noqa: ARG002
        (path,) = paths
        members = {f"data_batch_{i}.bin": self.train // 5 for i in range(1, 6)} | {
            "test_batch.bin": self.test
        }
        records = _read_members(path, {name: count * 3073 for name, count in members.items()})
        rows = {name: np.frombuffer(blob, np.uint8).reshape(-1, 3073) for name, blob in records.items()}
        test = rows.pop("test_batch.bin")
        train = np.concatenate([rows[name] for name in members if name in rows])
        x_train, x_test = (
            np.ascontiguousarray(part[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            for part in (train, test)
        )
        return {"x_train": x_train, "y_train": train[:, 0], "x_test": x_test, "y_test": test[:, 0]}


@dataclass(frozen=True)
class Higgs(Source):
    """A table: the label, then 28 numbers a line. The last lines are those to test with."""

    def read(self, paths: Sequence[Path], progress: Progress | None = None) -> dict[str, Array]:
        (path,) = paths
        total, done = self.train + self.test, 0
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
        n = self.train
        return {"x_train": x[:n], "y_train": y[:n], "x_test": x[n:], "y_test": y[n:]}


@dataclass(frozen=True)
class Shakespeare(Source):
    """A text of `train` + `test` bytes, as it is."""

    def read(self, paths: Sequence[Path], progress: Progress | None = None) -> dict[str, Array]:  # noqa: ARG002
        (path,) = paths
        text = path.read_bytes()
        if len(text) != self.train + self.test:
            raise DataError(f"{path} has {len(text)} bytes, expected {self.train + self.test}")
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


_MNIST = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)


def _mnist(name: str, sha256: str, size: int) -> File:
    return File(tuple(base + name for base in _MNIST), sha256, size)


OFFICIAL: Mapping[str, Source] = MappingProxyType(
    {
        "mnist": Mnist(
            page="https://yann.lecun.com/exdb/mnist/",
            files=(
                _mnist(
                    "train-images-idx3-ubyte.gz",
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                    9912422,
                ),
                _mnist(
                    "train-labels-idx1-ubyte.gz",
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                    28881,
                ),
                _mnist(
                    "t10k-images-idx3-ubyte.gz",
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                    1648877,
                ),
                _mnist(
                    "t10k-labels-idx1-ubyte.gz",
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                    4542,
                ),
            ),
            train=60_000,
            test=10_000,
        ),
        "cifar10": Cifar10(
            page="https://www.cs.toronto.edu/~kriz/cifar.html",
            files=(
                File(
                    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                    170052171,
                ),
            ),
            train=50_000,
            test=10_000,
        ),
        "higgs": Higgs(
            page="https://archive.ics.uci.edu/dataset/280/higgs",
            files=(
                File(
                    ("https://archive.ics.uci.edu/ml/machine-learning-databases/00280/HIGGS.csv.gz",),
                    "ea302c18164d4e3d916a1e2e83a9a8d07069fa6ebc7771e4c0540d54e593b698",
                    2816407858,
                ),
            ),
            train=10_500_000,
            test=500_000,
        ),
        "shakespeare": Shakespeare(
            page="https://github.com/karpathy/char-rnn",
            files=(
                File(
                    (
                        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
                    ),
                    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                    1115394,
                ),
            ),
            train=892_315,
            test=223_079,
        ),
    }
)
"""The official sources, by the name of the data set."""
