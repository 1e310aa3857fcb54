"""Where the data sets come from, and the formats in which they are published.

The digests and lengths of the published files, in ``downloads.csv``, are from the checksum lists of
TensorFlow Datasets (``tensorflow_datasets/url_checksums``); several other projects pin the same digests. Only
files that have their digest are read, so that readers need not doubt what is in them.
"""

import csv
import gzip
import importlib.resources
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pjax.experiments.download import File, Progress

Array: TypeAlias = npt.NDArray[Any]


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


def _shakespeare(paths: Sequence[Path], _: Progress) -> dict[str, Array]:
    """A text, as it is."""
    return {"text": np.frombuffer(paths[0].read_bytes(), np.uint8)}


def files(name: str) -> tuple[File, ...]:
    """The files of a data set, by the list that comes with the package."""
    text = importlib.resources.files("pjax.experiments").joinpath("downloads.csv").read_text(encoding="utf-8")
    lines = [line for line in csv.DictReader(text.splitlines()) if line["data"] == name]
    return tuple(File(tuple(line["urls"].split()), line["sha256"], int(line["size"])) for line in lines)


READERS: Mapping[str, Callable[[Sequence[Path], Progress], dict[str, Array]]] = {
    "mnist": _mnist,
    "cifar10": _cifar10,
    "higgs": _higgs,
    "shakespeare": _shakespeare,
}
"""What makes the arrays of a data set, from paths of its files and who shows progress."""
