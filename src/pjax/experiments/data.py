"""The data sets of the experiments: where they are, how they are split, in what order they are seen.

``load("digits")`` needs nothing. The others are files of the folder `folder`, which `get` downloads from
their official sources, or which you put there yourself: ``NAME.npz`` with the arrays ``x_train``,
``y_train``, ``x_test``, ``y_test``, and for Shakespeare ``shakespeare.txt``.

The digits, which come with the package, are the 1797 test images of "Optical Recognition of Handwritten
Digits" (E. Alpaydin, C. Kaynak, 1998; UCI Machine Learning Repository, doi:10.24432/C50P49, CC BY 4.0) as
distributed with scikit-learn: 8×8 pixels from 0 to 16, stored as bytes and otherwise unchanged, in a random
order of which the last fifth is to test with.
"""

import contextlib
import csv
import functools
import gzip
import math
import os
import queue
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax
import numpy as np
import numpy.typing as npt

from pjax.checks import check_name, check_whole
from pjax.errors import DataError, InputError
from pjax.experiments.download import Download, File, Progress, check_space, locked, on_disk
from pjax.tools.files import replacing

Array: TypeAlias = npt.NDArray[Any]
Kind: TypeAlias = Literal["image", "table", "text"]

_VALIDATION = (1, 2**64 - 1)
"""The key of a random permutation is its seed and its epoch. This one is of no epoch."""


# --- Official files, of which only those are read that have their digest ---


def _mnist(paths: Sequence[Path], _: Progress) -> dict[str, Array]:
    """Four files in the IDX format, a header and bytes: images and labels to train on, and to test with."""
    shapes = {"x_train": (-1, 28, 28), "y_train": (-1,), "x_test": (-1, 28, 28), "y_test": (-1,)}
    blobs = [gzip.decompress(path.read_bytes()) for path in paths]
    return {
        key: np.frombuffer(blob, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
        for (key, shape), blob in zip(shapes.items(), blobs, strict=True)
    }


def _cifar10(paths: Sequence[Path], _: Progress) -> dict[str, Array]:
    """A tar archive with five files of images to train on and one to test with (the binary version).

    Each image is a byte of label and 3072 bytes of pixels, by colour, row and column.
    """
    batches = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
    arrays: dict[str, Array] = {}
    with tarfile.open(paths[0]) as archive:
        files = {name.rpartition("/")[2]: archive.extractfile(name) for name in archive.getnames()}
        for part, members in batches.items():
            blob = b"".join(file.read() for name in members if (file := files[name]))
            rows = np.frombuffer(blob, np.uint8).reshape(-1, 3073)
            images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            arrays |= {f"x_{part}": np.ascontiguousarray(images), f"y_{part}": rows[:, 0]}
    return arrays


_HIGGS_TEST = 500_000


def _higgs(paths: Sequence[Path], progress: Progress) -> dict[str, Array]:
    """A table: the label, then 28 numbers a line. The last lines are those to test with."""
    (path,) = paths
    size = path.stat().st_size
    with path.open("rb") as packed, gzip.open(packed) as lines:

        def shown() -> Iterator[bytes]:
            for number, line in enumerate(lines):
                if number % 50_000 == 0:
                    progress(packed.tell(), size, f"reading {path.name}")
                yield line

        table = np.loadtxt(shown(), np.float32, delimiter=",")
    x, y, test = table[:, 1:], table[:, 0].astype(np.uint8), _HIGGS_TEST
    return {"x_train": x[:-test], "y_train": y[:-test], "x_test": x[-test:], "y_test": y[-test:]}


def official_files(name: str) -> tuple[File, ...]:
    """The files of a data set, by the list that comes with the package.

    Their digests and lengths are from the checksum lists of TensorFlow Datasets
    (``tensorflow_datasets/url_checksums``); several other projects pin the same digests.
    """
    text = Path(__file__).with_name("downloads.csv").read_text(encoding="utf-8")
    lines = [line for line in csv.DictReader(text.splitlines()) if line["data"] == name]
    return tuple(File(tuple(line["urls"].split()), line["sha256"], int(line["size"])) for line in lines)


# --- Data sets ---


@dataclass(frozen=True)
class _Format:
    """What the arrays of a data set must be, and how they are read from its official files."""

    kind: Kind
    shape: tuple[int, ...] = ()
    """The shape of one input."""
    classes: int = 0
    read: Any = None
    """A function of paths and who shows progress."""


_FORMATS = {
    "digits": _Format("image", (8, 8, 1), 10),
    "mnist": _Format("image", (28, 28, 1), 10, _mnist),
    "cifar10": _Format("image", (32, 32, 3), 10, _cifar10),
    "higgs": _Format("table", (28,), 2, _higgs),
    "shakespeare": _Format("text", (), 65, lambda paths, _: {"text": np.fromfile(paths[0], np.uint8)}),
}
_MOST = 3 << 30
"""So many bytes a file may unpack to: more than is published, and less than fills a memory."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Dataset:
    """Inputs and labels to train on, to validate with, and to test with.

    Images are bytes of shape (n, height, width, channels), tables are float32 of shape (n, features), texts
    are int32 of shape (n, length): character codes, each labelled with the code that follows it. Labels are
    int32; numbers to predict are float32 of shape (n, numbers).

    Args:
        name: as given to `load`.
        kind: what an input is.
        classes: how many labels there are; 0 where numbers are to be predicted, see `own_data`.
        shift: what `normalise` subtracts.
        scale: what `normalise` then multiplies by.
        characters: texts: the character of each code.
        form: own data: the `own_data.Form` by which they were read; inputs are standardised already.
        stream: own data: a function of the number of the first batch, for batches that come one by one.
    """

    name: str
    kind: Kind
    classes: int
    x_train: Array
    y_train: Array
    x_val: Array
    y_val: Array
    x_test: Array
    y_test: Array
    shift: Array | float = 0.0
    scale: Array | float = 1.0
    characters: str = ""
    form: Any = None
    stream: Callable[[int], Iterator[tuple[Array, Array]]] | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x_train.shape[1:])

    def normalise(self, x: Any) -> Any:
        """What the network sees of stored inputs, which may be a NumPy or a JAX array.

        Each channel of images, and each feature of a table, has mean 0 and variance 1 over the training data;
        texts are unchanged.

        >>> digits = load("digits")
        >>> round(float(digits.normalise(digits.x_train).std()), 3)
        1.0
        """
        # Not a division: XLA makes a product of it, and the two round differently.
        if self.kind == "text" or self.form is not None:
            return x
        return (x.astype(np.float32) - self.shift) * self.scale

    @property
    def outputs(self) -> int:
        """How many numbers the network gives for one target."""
        return self.classes or int(self.y_train.shape[-1])

    def __repr__(self) -> str:
        numbers = f"to predict {self.outputs} number{'s' * (self.outputs > 1)}"
        return (
            f"Dataset({self.name}: {len(self.x_train)} to train on, {len(self.x_val)} to validate with,"
            f" {len(self.x_test)} to test with; inputs {self.input_shape}, "
            f"{f'{self.classes} classes' if self.classes else numbers})"
        )


def names() -> tuple[str, ...]:
    """The data sets there are.

    >>> names()
    ('digits', 'mnist', 'cifar10', 'higgs', 'shakespeare')
    """
    return tuple(_FORMATS)


def made_up(name: str, samples: int, sequence_length: int = 64) -> tuple[Array, Array, int]:
    """Inputs, zeros or all characters in turn, and labels of a data set's shape, and how many classes.

    >>> x, y, classes = made_up("shakespeare", 2, sequence_length=5)
    >>> x.tolist(), y.shape, classes
    ([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], (2, 5), 65)
    """
    form = _FORMATS[name]
    if form.kind == "text":
        codes = np.arange(samples * sequence_length + 1, dtype=np.int32) % form.classes
        shape = (samples, sequence_length)
        return codes[:-1].reshape(shape), codes[1:].reshape(shape), form.classes
    labels = np.arange(samples, dtype=np.int32) % form.classes
    return np.zeros((samples, *form.shape), np.float32), labels, form.classes


def folder() -> Path:
    """Where data sets are kept: ``$PJAX_DATA``, or else ``pjax`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("PJAX_DATA") or f"{cache}/pjax").expanduser()


def path(name: str) -> Path:
    """The file of a data set, or where it belongs if it is not there.

    >>> path("digits").name
    'digits.npz'
    """
    check_name("data", name, _FORMATS)
    if name == "digits":
        return Path(__file__).with_name("digits.npz")
    return folder() / (f"{name}.txt" if _FORMATS[name].kind == "text" else f"{name}.npz")


def get(
    name: str,
    *,
    progress: Progress = lambda *_: None,
    files: Sequence[File] = (),
    tries: int = 4,
) -> Path:
    """Download a data set from its official source, unless it is there already; gives its file.

    A download that was interrupted is continued. Each file must have the SHA-256 that is on record for it.
    The data set takes its name only when it is complete, so that there is never half of one. HIGGS, the
    largest, needs 4.1 GB on the disk, of which 1.3 GB stay, and 2 GB of memory.

    Args:
        name: one of `names`.
        progress: called with the bytes done, the bytes there are (or ``None``), and what is being done.
        files: what to download, in place of the official files.
        tries: how often to try an address in a row without getting further.

    Raises:
        DownloadError: it could not be downloaded or written.
        DataError: the file that is there already, or one that was downloaded, is not what it should be.
    """
    target = path(name)
    if not target.exists():
        with on_disk(target), locked(target.with_name(f"{name}.lock"), progress=progress):
            if not target.exists():  # else another process has been quicker
                _get(name, files or official_files(name), target, progress, tries)
    _read(name, target)
    return target


def _get(name: str, files: Sequence[File], target: Path, progress: Progress, tries: int) -> None:
    """Make the file of a data set of those that are published, which are kept beside it until it is there."""
    parts = target.with_name(f"{name}.download")
    paths = [Download(file, parts / file.name, progress, tries=tries).fetch() for file in files]
    arrays = _FORMATS[name].read(paths, progress)
    check_space(target.parent, sum(array.nbytes for array in arrays.values()))
    with replacing(target, parts / f"{target.name}.tmp") as out:
        if target.suffix == ".txt":
            out.write(arrays["text"].tobytes())
        else:
            np.savez(out, allow_pickle=False, **arrays)
    shutil.rmtree(parts, ignore_errors=True)


def load(name: str, *, sequence_length: int = 64) -> Dataset:
    """A data set, split into three parts.

    The data to test with are those of the official split (digits: a random fifth). Of the other rows a tenth,
    chosen at random but always the same, are to validate with. A text is cut into windows: the first four
    fifths of it are to train on, the last tenth of which are to validate with, and the rest is to test with.

    Args:
        name: one of `names`.
        sequence_length: texts: how many characters are in a window.

    Raises:
        DataError: the file is missing, damaged, or does not hold what it should.

    >>> load("digits")
    Dataset(digits: 1294 to train on, 143 to validate with, 360 to test with; inputs (8, 8, 1), 10 classes)
    """
    check_whole("sequence_length", sequence_length, 1)
    file = path(name)
    if not file.exists():
        raise DataError(f"there is no {file}: run `pjax data get {name}`, or put it there")
    arrays = _read(name, file)
    if _FORMATS[name].kind == "text":
        return _text(name, arrays["text"], file, sequence_length)
    return _rows(name, arrays)


def order(seed: int, epoch: int, n: int) -> Array:
    """The order in which an epoch sees n rows: a function of the seed and the epoch, and of nothing else.

    The array is read-only, and the same with every version of NumPy.

    >>> order(seed=0, epoch=0, n=8)
    array([0, 2, 1, 5, 4, 3, 6, 7], dtype=int32)
    """
    check_whole("seed", seed, 0)
    check_whole("epoch", epoch, 0)
    check_whole("n", n, 0, 2**31)
    return permutation((int(seed), int(epoch)), int(n))


def batches(seed: int, start: int, count: int, n: int, batch_size: int) -> Array:
    """The rows of the batches number `start` to ``start + count - 1``, of shape (count, batch_size).

    Batches are numbered through all epochs. An epoch has ``n // batch_size`` of them, and leaves out the rows
    that are left over, which are others in every epoch.

    >>> batches(seed=0, start=1, count=2, n=8, batch_size=3)
    array([[5, 4, 3],
           [5, 3, 7]], dtype=int32)
    """
    check_whole("start", start, 0)
    check_whole("count", count, 0)
    check_whole("n", n, 1, 2**31)
    check_whole("batch_size", batch_size, 1)
    if n < batch_size:
        raise InputError(f"batch_size is {batch_size}, but there are only {n} rows: take {n} or less")
    places = (divmod(number, n // batch_size) for number in range(start, start + count))
    rows = [order(seed, epoch, n)[i * batch_size : (i + 1) * batch_size] for epoch, i in places]
    return np.array(rows, np.int32).reshape(count, batch_size)


def prefetch(batches: Iterable[Any], ahead: int = 2) -> Iterator[Any]:
    """Batches on the device before they are asked for: a thread gets the next ones meanwhile.

    Args:
        batches: arrays, or any pytrees of them.
        ahead: how many to get before they are asked for.

    >>> [int(x.sum()) for x in prefetch(np.full(3, i) for i in range(4))]
    [0, 3, 6, 9]
    """
    check_whole("ahead", ahead, 1)
    ready: queue.Queue[Any] = queue.Queue(ahead)
    failed: list[BaseException] = []
    last, ended = object(), threading.Event()

    def hand_over(value: Any) -> None:
        while not ended.is_set():
            with contextlib.suppress(queue.Full):
                return ready.put(value, timeout=0.1)

    def work() -> None:
        try:
            for batch in batches:
                hand_over(jax.device_put(batch))
                if ended.is_set():
                    return
        except BaseException as error:
            failed.append(error)
        hand_over(last)

    # Not of an executor, for which Python would wait at its end, if need be for ever.
    threading.Thread(target=work, daemon=True).start()
    try:
        while (value := ready.get()) is not last:
            yield value
        for error in failed:
            raise error
    finally:
        ended.set()


@functools.lru_cache(maxsize=8)  # a run asks for an epoch piece by piece
def permutation(key: tuple[int, int], n: int) -> Array:
    # A bit generator gives the same numbers with every version of NumPy, a Generator need not.
    numbers = np.random.Philox(key=np.array(key, np.uint64)).random_raw(n)
    result = np.argsort(numbers, kind="stable").astype(np.int32)
    result.flags.writeable = False
    return result


def _rows(name: str, arrays: dict[str, Array]) -> Dataset:
    n = len(arrays["x_train"])
    # Sorted: the order of the rows has no meaning, and reading them in that of the file is faster.
    val, train = map(np.sort, np.split(permutation(_VALIDATION, n), [max(1, n // 10)]))
    split: dict[str, Any] = {f"{a}_test": arrays[f"{a}_test"] for a in "xy"}
    for part, rows in (("train", train), ("val", val)):
        split |= {f"{a}_{part}": arrays[f"{a}_train"][rows] for a in "xy"}
    mean, deviation = moments(split["x_train"].reshape(-1, split["x_train"].shape[-1]), name)
    shift, scale = mean.astype(np.float32), (1 / deviation).astype(np.float32)
    form = _FORMATS[name]
    return Dataset(name=name, kind=form.kind, classes=form.classes, shift=shift, scale=scale, **split)


TOO_LARGE = "too large to compute with: divide them by a constant"


def moments(x: Array, where: str = "x") -> tuple[Array, Array]:
    """Mean and standard deviation of each column, in blocks: a float64 copy of it all would be large.

    That of a column of one value is taken to be 1. Sums of bytes are exact.
    """
    blocks = [x[i : i + 100_000] for i in range(0, len(x), 100_000)]
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.sum([block.sum(0, dtype=np.float64) for block in blocks], 0) / len(x)
        squares = [np.square(block - mean).sum(0, dtype=np.float64) for block in blocks]
        variance = np.sum(squares, 0) / len(x)
    if not np.isfinite(variance).all():
        raise DataError(f"{where} holds numbers up to {np.abs(x).max():.3g}, {TOO_LARGE}")
    # The mean of one value may not be it, by rounding: where so little is left, its column is looked at.
    doubtful = (variance > 0) & (variance <= np.square(1e-9 * mean))
    few = x[:, doubtful]
    variance[doubtful] *= few.max(0) > few.min(0)
    return mean, np.sqrt(np.where(variance > 0, variance, 1))


def _text(name: str, text: Array, file: Path, length: int) -> Dataset:
    points, codes = np.unique(text, return_inverse=True)
    codes = codes.astype(np.int32)
    end = len(codes) * 4 // 5
    parts = {"train": codes[: end - end // 10], "val": codes[end - end // 10 : end], "test": codes[end:]}
    windows: dict[str, Any] = {}
    for part, piece in parts.items():
        rows = (len(piece) - 1) // length
        if rows < 1:
            raise DataError(
                f"{file}: the {part} part of the text has {len(piece)} characters, too few for a window of"
                f" {length} and the character after it: take a lower sequence_length, or a longer text"
            )
        windows[f"x_{part}"] = piece[: rows * length].reshape(rows, length)
        windows[f"y_{part}"] = piece[1 : rows * length + 1].reshape(rows, length)
    characters = "".join(map(chr, points))
    return Dataset(name=name, kind="text", classes=len(points), characters=characters, **windows)


def _read(name: str, file: Path) -> dict[str, Array]:
    """The arrays of a file, checked: labels as int32, tables as float32, a text as code points."""
    form = _FORMATS[name]
    advice = f"Remove it and run `pjax data get {name}`, or put a good one in its place"
    try:
        arrays = read_arrays(file, _MOST)
    except DataError as error:
        raise DataError(f"{error}. {advice}") from error
    keys = ("text",) if form.kind == "text" else ("x_train", "y_train", "x_test", "y_test")
    if missing := [key for key in keys if key not in arrays]:
        raise DataError(
            f"{file} lacks {', '.join(missing)}: expected the arrays {', '.join(keys)},"
            f" got {', '.join(arrays) or 'none'}. {advice}"
        )
    if form.kind == "text":
        return arrays
    # A grey image may come without its axis of one channel.
    shapes = [form.shape[:-1], form.shape] if form.shape[-1] == 1 else [form.shape]
    kind = "uint8" if form.kind == "image" else "float"
    wanted = f"{kind} of shape {' or '.join(str(('n', *shape)) for shape in shapes)}".replace("'", "")
    for part, least in (("train", 2), ("test", 1)):  # one to train on, one to validate with
        x, y, where = arrays[f"x_{part}"], arrays[f"y_{part}"], f"{file}: y_{part}"
        if x.ndim == 0 or x.shape[1:] not in shapes or len(x) < least or not x.dtype.name.startswith(kind):
            found = f"{file}: x_{part} is {x.dtype} of shape {x.shape}"
            raise DataError(f"{found}, expected {wanted} with at least {least} rows")
        if y.dtype.kind not in "iu" or y.shape != (len(x),):
            expected = f"whole numbers of shape {(len(x),)}: one label for each input"
            raise DataError(f"{where} is {y.dtype} of shape {y.shape}, expected {expected}")
        if y.min() < 0 or y.max() >= form.classes:
            expected = f"expected 0 to {form.classes - 1}"
            raise DataError(f"{where} has labels from {y.min()} to {y.max()}, {expected}")
        if kind == "float":
            with np.errstate(over="ignore"):
                x = check_numbers(x.astype(np.float32, copy=False), f"{file}: x_{part}")
        arrays |= {f"x_{part}": x.reshape(-1, *form.shape), f"y_{part}": y.astype(np.int32)}
    return arrays


def read_arrays(path: Path, most: float = math.inf) -> dict[str, Array]:
    """The arrays of a file ``.npz``, that of ``.npy`` as ``x``, or code points of ``.txt`` as ``text``.

    Nothing in it is executed, and it is not unpacked if it has more than so many bytes.
    """
    if not path.is_file():
        what = "it is no ordinary file" if path.exists() else "there is no such file"
        raise DataError(f"{path} cannot be read: {what}")
    try:
        with path.open("rb") as file:
            found: Any = None if path.suffix == ".txt" else np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return {"x": found}
            # What an archive says is the most that zipfile unpacks.
            sizes = [member.file_size for member in found.zip.infolist()] if found else [path.stat().st_size]
            if sum(sizes) > most:
                raise ValueError(f"it unpacks to {sum(sizes):,} bytes, at most {most:,} are expected")
            if found is None:
                return {"text": np.frombuffer(file.read().decode().encode("utf-32-le"), np.uint32)}
            with found:
                arrays = {name: found[name] for name in found}
            if strange := [name for name, value in arrays.items() if not isinstance(value, np.ndarray)]:
                raise ValueError(f"{strange[0]} is no array")
            return arrays
    except Exception as error:  # whatever zip and NumPy say of a file that is cut off, or something else
        reason, expected = str(error) or type(error).__name__, ".npy, .npz with arrays, or .txt in UTF-8"
        if "pickle" in reason:  # which NumPy says of any file that is none of its own, with bad advice
            reason = "it holds something else, or objects of Python, which are never read"
        raise DataError(f"{path} cannot be read: expected {expected} ({reason})") from error


def check_numbers(x: Array, where: str) -> Array:
    """Refuse what is no finite number."""
    if x.dtype.kind not in "biuf":
        raise DataError(f"{where} has type {x.dtype}, expected numbers")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row = int(np.argmin(np.isfinite(x).reshape(len(x), -1).all(1)))
        raise DataError(f"{where} must be finite numbers, row {row} has another: leave out such rows")
    return x
