"""Your own data: a file ``.csv`` or ``.npz``, arrays, or batches from an iterator, as a `Dataset`.

The page "Your own data and model" says what they may be. What is known of them (categories and labels; means
and deviations of the rows to train on) is a `Form`: it lies in the folder of a run, and is all that is needed
to read more rows of the same kind.
"""

import csv
import dataclasses
import hashlib
import io
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pjax.checks import check_name, some
from pjax.errors import DataError, InputError
from pjax.experiments.data import (
    TOO_LARGE,
    Array,
    Dataset,
    Kind,
    check_numbers,
    moments,
    permutation,
    read_arrays,
)

SUFFIXES = (".csv", ".npz")
GIVEN = "given"
"""What data, or a model, are called that Python has handed over."""
VALIDATION, TEST = 0.1, 0.2
"""Which share of the rows is to validate with, and to test with, where nothing is said."""
_VALIDATION, _TEST = (3, 2**64 - 1), (4, 2**64 - 1)
_CATEGORIES = 100
"""A column of more different texts is none of categories."""
_CLASSES = 20
"""A column of more different whole numbers is none of classes."""
_PARTS = ("train", "val", "test")


def is_own(name: str) -> bool:
    """Whether the name of data is that of a file, or of what Python has handed over.

    >>> is_own("iris.csv"), is_own("mnist")
    (True, False)
    """
    return name == GIVEN or Path(name).suffix in SUFFIXES


@dataclasses.dataclass(frozen=True)
class Form:
    """What is known of data beside their rows, and all that is needed to read more of them."""

    task: str = "classes"
    """``"classes"`` or ``"regression"``."""
    shape: tuple[int, ...] = ()
    """The shape of one input."""
    outputs: int = 0
    """How many classes there are, or how many numbers to predict."""
    shift: tuple[float, ...] = ()
    """What is subtracted from each feature, or channel; nothing, if they are not standardised."""
    scale: tuple[float, ...] = ()
    """What it is then divided by."""
    dtype: str = "float32"
    """The type of inputs, as the network sees them."""
    labels: tuple[str, ...] = ()
    """Names of the classes; without, they are numbers."""
    columns: tuple[tuple[str, tuple[str, ...] | None], ...] = ()
    """Of tables: the names of columns, each with its categories, or None where it is of numbers."""
    target: str = ""
    """Of tables: the name of the column to predict."""
    target_shift: tuple[float, ...] = ()
    """Of regressions: what is subtracted from each number to predict."""
    target_scale: tuple[float, ...] = ()
    """What it is then divided by."""
    digest: str = ""
    """By which data are told from others."""
    codes: int = 0
    """Of texts: how many characters there are."""

    def empty(self, name: str) -> Dataset:
        """A data set of this form without rows."""
        x = np.zeros((0, *self.shape), self.dtype)
        y = np.zeros((0, self.outputs), np.float32) if self.task == "regression" else np.zeros(0, np.int32)
        return _dataset(name, self, dict.fromkeys(_PARTS, (x, y)))

    def inputs(self, x: Any, where: object) -> Array:
        """Inputs as the network sees them; they may be flat, and have other axes of one."""
        x = check_numbers(np.asarray(x), f"{where}: x")
        axes, own = ([n for n in shape if n != 1] for shape in (x.shape[1:], self.shape))
        if x.ndim < 1 or not len(x) or axes not in (own, [math.prod(own)]):
            wanted = ", ".join(map(str, ("n", *self.shape)))
            raise DataError(f"{where}: expected inputs of shape ({wanted}), as the run has; got {x.shape}")
        if self.codes and (x.dtype.kind == "f" or x.min() < 0 or x.max() >= self.codes):
            raise DataError(f"{where}: characters must be codes from 0 to {self.codes - 1}")
        return self._standard(x.reshape(len(x), *self.shape), f"{where}: x")

    def _standard(self, x: Array, where: str) -> Array:
        if self.shift:
            x = (x - np.array(self.shift)) / np.array(self.scale)
        return _narrowed(x, self.dtype, where)

    def targets(self, y: Any, where: object) -> Array:
        """Classes by number, or standardised numbers."""
        y = np.asarray(y)
        if self.task == "regression":
            y = check_numbers(y, f"{where}: y").reshape(len(y), -1)
            if y.shape[1] != self.outputs:
                raise DataError(f"{where}: y must hold {self.outputs} numbers a row, got {y.shape[1]}")
            y = (y - np.array(self.target_shift)) / np.array(self.target_scale)
            return _narrowed(y, "float32", f"{where}: y")
        y = _whole(y)
        if self.labels:
            places = {label: i for i, label in enumerate(self.labels)}
            texts = y.astype(str).ravel().tolist()
            if unknown := sorted(set(texts) - set(places)):
                raise DataError(f"{where}: {unknown[0]!r} is no class; there are {some(self.labels, 10)}")
            return np.array([places[text] for text in texts], np.int32).reshape(y.shape)
        if y.dtype.kind not in "iub":
            raise DataError(f"{where}: labels must be whole numbers, got {y.dtype}{list(y.shape)}")
        if y.size and not 0 <= y.min() <= y.max() < self.outputs:
            raise DataError(f"{where}: labels must be 0 to {self.outputs - 1}, got {y.min()} to {y.max()}")
        return y.astype(np.int32)

    def numbers(self, outputs: Array) -> Array:
        """What outputs of the network say, as large as in the data."""
        return outputs * np.array(self.target_scale) + np.array(self.target_shift)


def _narrowed(x: Array, dtype: str, where: str) -> Array:
    """Numbers in fewer bits, which must be enough for them."""
    with np.errstate(over="ignore"):
        found = x.astype(dtype)
    if not (np.isfinite(found) if found.dtype.kind == "f" else found == x).all():
        raise DataError(f"{where} holds numbers up to {np.abs(x).max():.3g}, {TOO_LARGE}")
    return found


# --- From files, arrays and iterators ---


def load(
    data: Any,
    *,
    target: str | None = None,
    task: str | None = None,
    ignore: Sequence[str] = (),
    categorical: Sequence[str] = (),
    validation: float = VALIDATION,
    test: float | None = None,
    standardise: bool = True,
) -> Dataset:
    """Data of your own, from a file or from arrays.

    Args:
        data: a file ``.csv`` or ``.npz``; or ``(x, y)``, or a mapping with the arrays of a file ``.npz``.
        target: of ``.csv``, the column to predict.
        task: ``"classes"`` or ``"regression"``; by default what the target looks like: texts, and at most 20
            different whole numbers, are classes.
        ignore: of ``.csv``, columns to leave out.
        categorical: of ``.csv``, columns of numbers that are names of categories.
        validation: which share of the rows is to validate with.
        test: which share is to test with, 0.2 by default; only where the file has no ``x_test``.
        standardise: whether inputs get mean 0 and deviation 1, feature by feature, over the rows to train on;
            numbers to predict always do.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "fruit.csv"
    >>> _ = file.write_text("weight,colour,fruit\\n" + "150,red,apple\\n5,red,cherry\\n6,dark,cherry\\n" * 10)
    >>> load(file, target="fruit")
    Dataset(fruit.csv: 21 to train on, 3 to validate with, 6 to test with; inputs (3,), 2 classes)

    >>> load((np.eye(10), np.arange(10) / 3))
    Dataset(given: 7 to train on, 1 to validate with, 2 to test with; inputs (10,), to predict 1 number)
    """
    name, columns, digest = GIVEN, (), hashlib.sha256()
    if isinstance(data, str | Path):
        path = Path(data)
        name = path.name
        if path.suffix == ".csv":
            arrays, columns = _Table(path).encoded(target, ignore, categorical)
        else:
            arrays = read_arrays(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    else:
        if isinstance(data, tuple | list) and len(data) == 2:
            data = dict(zip("xy", data, strict=True))
        if not isinstance(data, Mapping):
            raise InputError(
                f"data must be (x, y), or a mapping with these arrays, got {type(data).__name__}; batches "
                "from an iterator become data by own_data.from_batches(batches, validation=(x, y))"
            )
        arrays = {key: _plain(key, np.asarray(array)) for key, array in data.items()}
        for key in sorted(arrays):
            digest.update(f"{key} {arrays[key].dtype} {arrays[key].shape}".encode())
            digest.update(np.ascontiguousarray(arrays[key]).data)
    if (target or ignore or categorical) and not columns:
        raise InputError(f"target, ignore and categorical are for the columns of a .csv file, got {name}")
    form = Form(digest=digest.hexdigest(), columns=columns, target=target or "")
    return _made(name, arrays, form, task, validation, test, standardise)


def from_batches(
    batches: Callable[[int], Iterable[tuple[Any, Any]]] | Iterable[tuple[Any, Any]],
    validation: tuple[Any, Any],
    test: tuple[Any, Any] | None = None,
) -> Dataset:
    """Data of your own that come batch by batch, each of the same shape, and are seen as they come.

    Args:
        batches: pairs of inputs and targets. A function of the number of the first batch can go on anywhere;
            what can only be gone through from its beginning, such as a generator, is asked again for batches
            that a resumed run has seen. Begun anew where it ends, if it can be.
        validation: inputs and targets to validate with.
        test: inputs and targets to test with; by default the same.

    Whole numbers to predict are classes, those of ``validation`` and of the first batch. Nothing is
    standardised.
    """
    iterator = iter(batches(0) if callable(batches) else batches)
    first = next(iterator, None)
    again: Iterator[Any] = itertools.repeat(batches)
    if iterator is batches:  # it can be gone through once, of which the first batch was looked at
        again = iter([itertools.chain([first], iterator)])

    def begin(start: int) -> Iterable[Any]:
        if callable(batches):
            return batches(start)
        return itertools.islice(itertools.chain.from_iterable(again), start, None)

    if first is None:
        raise InputError("batches: there is none; an iterator that was used up must be made anew")
    held = {"train": first, "val": validation, "test": test or validation}
    arrays = {
        f"{a}_{part}": np.asarray(v) for part, pair in held.items() for a, v in zip("xy", pair, strict=True)
    }
    dataset = _made(GIVEN, arrays, Form(digest="batches"), None, VALIDATION, None, False, targets=False)
    form: Form = dataset.form

    def stream(start: int) -> Iterator[tuple[Array, Array]]:
        number = start
        while True:
            before = number
            for number, (x, y) in enumerate(begin(before), before + 1):
                if np.shape(x) != np.shape(first[0]):
                    raise InputError(
                        f"batch {number - 1} has inputs of shape {np.shape(x)}, the first "
                        f"{np.shape(first[0])}: batches must be alike; leave out the last of an epoch"
                    )
                yield form.inputs(x, f"batch {number - 1}"), form.targets(y, f"batch {number - 1}")
            if number == before:
                raise InputError(f"there is no batch {before}: the iterator is used up; make it endless")

    return dataclasses.replace(dataset, stream=stream)


def read_more(form: Form, data: Any, *, targets: bool) -> tuple[Array, Array | None]:
    """More rows of the same form: inputs as the network sees them and, if they are wanted, targets.

    Args:
        form: of the run's data.
        data: a file ``.csv``, ``.npz`` with ``x`` and ``y``, or ``.npy`` with inputs; ``(x, y)``, or inputs.
        targets: whether targets are wanted.
    """
    where = data if isinstance(data, str | Path) else "data"
    if where == "data":
        arrays = dict(zip("xy", data if targets else (data,), strict=False))
    elif Path(where).suffix != ".csv":
        arrays = read_arrays(Path(where))
    elif form.columns:
        table = _Table(Path(where))
        arrays = {"x": table.inputs(form.columns)}
        if targets:
            named = not all(map(_is_number, form.labels))
            arrays["y"] = np.array(table.column(form.target)) if named else table.target(form.target)
    else:
        raise DataError(f"{where}: the run's data were arrays, not a table: give .npz or .npy")
    for name, what in (("x", "inputs"), ("y", "labels"))[: 1 + targets]:
        if name not in arrays:
            raise DataError(
                f"{where}: {what} {name!r} are missing, it holds {', '.join(arrays) or 'nothing'}"
            )
    x = form.inputs(arrays["x"], where)
    if not targets:
        return x, None
    y = form.targets(arrays["y"], where)
    if y.shape[: 2 if form.codes else 1] != (x.shape if form.codes else x.shape[:1]):
        raise DataError(f"{where}: inputs x of shape {x.shape} do not go with targets y of shape {y.shape}")
    return x, y


# --- Arrays ---


def _plain(key: str, array: Array) -> Array:
    """An array of numbers or texts, whose bytes are what it says; texts of pandas are objects."""
    if array.dtype.kind in "OT" and all(isinstance(one, str) for one in array.flat):
        return array.astype(str)
    if array.dtype.kind not in "biufcSU":
        raise DataError(f"data: {key} has type {array.dtype}, expected numbers or texts")
    return array


def _made(
    name: str,
    arrays: dict[str, Array],
    form: Form,
    task: str | None,
    validation: float,
    test: float | None,
    standardise: bool,
    targets: bool = True,
) -> Dataset:
    """A data set of arrays that are split already, or not; numbers to predict are standardised, or not."""
    pairs = _split(name, arrays, validation, test)
    train, y_train = pairs["train"]
    everything = np.concatenate([pairs[part][1].reshape(-1) for part in _PARTS])
    known: dict[str, Any] = {"task": _task(name, task, everything, _CLASSES if form.columns else None)}
    if known["task"] == "classes":
        known["labels"], known["outputs"] = _labels(name, everything)
    else:
        flat = check_numbers(y_train, f"{name}: y").reshape(len(y_train), -1)
        known["outputs"] = n = flat.shape[1]
        moved = moments(flat, f"{name}: y") if targets else (np.zeros(n), np.ones(n))
        known["target_shift"], known["target_scale"] = (tuple(values.tolist()) for values in moved)
    if standardise:
        shift, scale = moments(train.reshape(-1, train.shape[-1]), f"{name}: x")
        if form.columns:  # whether something is of a category is 0 or 1
            kinds = [categories is None for _, categories in form.columns for _ in categories or (0,)]
            shift, scale = np.where(kinds, shift, 0.0), np.where(kinds, scale, 1.0)
        known["shift"], known["scale"] = tuple(shift.tolist()), tuple(scale.tolist())
    known["dtype"] = "float32" if standardise or train.dtype.kind == "f" else "int32"
    form = dataclasses.replace(form, shape=tuple(train.shape[1:]), **known)
    seen = {part: (form._standard(x, f"{name}: x"), form.targets(y, name)) for part, (x, y) in pairs.items()}
    return _dataset(name, form, seen)


def _dataset(name: str, form: Form, pairs: Mapping[str, tuple[Array, Array]]) -> Dataset:
    kind: Kind = "image" if len(form.shape) == 3 else "table"
    classes = form.outputs if form.task == "classes" else 0
    rows: dict[str, Any] = {
        f"{a}_{part}": pair[i] for part, pair in pairs.items() for i, a in enumerate("xy")
    }
    return Dataset(name=name, kind=kind, classes=classes, form=form, **rows)


def check_share(setting: str, share: float | None) -> None:
    """Refuse what is no share of the rows, if it is given."""
    if share is not None and not 0 < share < 1:
        raise InputError(f"{setting} must be a share of the rows, between 0 and 1; got {share}")


def _split(
    name: str, arrays: Mapping[str, Array], validation: float, test: float | None
) -> dict[str, tuple[Array, Array]]:
    """Inputs and targets of all three parts."""
    tested = TEST if test is None else test
    check_share("validation", validation)
    check_share("test", test)
    there = [part for part in _PARTS if f"x_{part}" in arrays]
    if not there and "x" not in arrays:
        expected = "x and y, or x_train, y_train, x_test and y_test"
        raise DataError(f"{name}: expected the arrays {expected}; it holds {', '.join(arrays) or 'none'}")
    if there and not {"train", "test"} <= {*there}:
        raise DataError(f"{name}: beside {', '.join(arrays)} it needs x_train, y_train, x_test and y_test")
    if there and test is not None:
        raise InputError(f"{name} has x_test of its own: drop test")
    pairs = {part: _pair(name, arrays, f"_{part}") for part in there} or {"train": _pair(name, arrays, "")}
    n = len(pairs["train"][0])
    for part, key, share in (("test", _TEST, tested), ("val", _VALIDATION, validation)):
        if part not in pairs:
            x, y = pairs["train"]
            chosen, rest = map(np.sort, np.split(permutation(key, len(x)), [round(n * share)]))
            pairs |= {part: (x[chosen], y[chosen]), "train": (x[rest], y[rest])}
    for part, words in zip(_PARTS, ("to train on", "to validate with", "to test with"), strict=True):
        shapes = [pairs[p][0].shape for p in ("train", part)]
        if not shapes[1][0]:
            raise DataError(f"{name}: no row is left {words}; give more rows, or other shares")
        if shapes[0][1:] != shapes[1][1:]:
            raise DataError(f"{name}: inputs to train on have shape {shapes[0]}, those {words} {shapes[1]}")
    return pairs


def _pair(name: str, arrays: Mapping[str, Array], end: str) -> tuple[Array, Array]:
    """Inputs and targets that go together."""
    key, other = f"x{end}", f"y{end}"
    if other not in arrays:
        raise DataError(f"{name}: {other} is missing beside {key}; it holds {', '.join(arrays)}")
    x, y = check_numbers(arrays[key], f"{name}: {key}"), arrays[other]
    if x.ndim == 1:
        x = x[:, None]
    if x.ndim == 3 and x.dtype == np.uint8:  # grey images
        x = x[..., None]
    if x.ndim < 2 or y.ndim < 1 or len(x) != len(y):
        raise DataError(f"{name}: {key} and {other} must have as many rows, got {x.shape} and {y.shape}")
    if 0 in x.shape[1:]:
        raise DataError(f"{name}: {key} has no columns, its shape is {x.shape}")
    return x, y


def _task(name: str, task: str | None, y: Array, most: int | None) -> str:
    """Whether classes are to be told apart, or numbers predicted; more different ones are no classes."""
    if task is None:
        many = y.dtype.kind in "iu" and most is not None and len(np.unique(y)) > most
        return "regression" if many or y.dtype.kind == "f" else "classes"
    check_name("task", task, ("classes", "regression"))
    if task == "regression" and y.dtype.kind not in "biuf":
        raise DataError(f"{name}: a regression needs numbers to predict, got texts such as {str(y[0])!r}")
    return task


def _labels(name: str, y: Array) -> tuple[tuple[str, ...], int]:
    """Names of classes, where they have some, and how many there are."""
    y = _whole(y)
    if y.dtype.kind == "f":
        raise DataError(f"{name}: classes must be whole numbers or texts, got {y[~_is_whole(y)][0]}")
    values = np.unique(y)
    if len(values) < 2:
        raise DataError(f"{name}: there is one class only, {str(values[0])!r}: nothing can be learnt")
    if y.dtype.kind in "iub" and np.array_equal(values, np.arange(len(values))):
        return (), len(values)
    return tuple(str(value) for value in values), len(values)


def _whole(y: Array) -> Array:
    """Whole numbers as such, also where they are written as 1.0, and texts, also where they are bytes."""
    if y.dtype.kind == "S":
        return np.char.decode(y, "utf-8", "replace")
    return y.astype(np.int64) if y.dtype.kind == "f" and _is_whole(y).all() else y


def _is_whole(y: Array) -> Array:
    """Which floating-point numbers are whole, and told from their neighbours."""
    return (y == np.round(y)) & (np.abs(y) < 2**53)


# --- Tables ---


class _Table:
    """A file with names of columns in its first line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = path.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: is not a text in UTF-8, save it as such ({error})") from None
        first = text.partition("\n")[0]
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count))
        self.names = [name.strip() for name in next(self._rows(reader), [])]
        if not self.names or all(_is_number(name) for name in self.names):
            raise DataError(f"{path}: its first line must name the columns, got {first[:60]!r}")
        if "" in self.names:
            place = self.names.index("") + 1
            advice = "name it, or leave it out; pandas writes its index so, but for to_csv(…, index=False)"
            raise DataError(f"{path}: column {place} has no name in the first line: {advice}")
        if double := [name for name in self.names if self.names.count(name) > 1]:
            raise DataError(f"{path}: two columns are called {double[0]!r}")
        rows, self.lines = [], []
        for row in self._rows(reader):
            if not row or row == [""]:
                continue
            if len(row) != len(self.names):
                values = f"{len(row)} values, expected {len(self.names)} as in the first line"
                raise DataError(f"{path}, line {reader.line_num}: {values}")
            rows.append([value.strip() for value in row])
            self.lines.append(reader.line_num)
        if not rows:
            raise DataError(f"{path}: has no rows below the names of its columns")
        self.texts = dict(zip(self.names, map(list, zip(*rows, strict=True)), strict=True))

    def _rows(self, reader: Any) -> Iterator[list[str]]:
        try:
            yield from reader
        except csv.Error as error:  # a text without end, which is one that a quote begins
            raise DataError(f"{self.path}, line {reader.line_num}: {error}; is a quote not closed?") from None

    def encoded(
        self, target: str | None, ignore: Sequence[str], categorical: Sequence[str]
    ) -> tuple[dict[str, Array], tuple[Any, ...]]:
        """Inputs and targets, and the columns."""
        if target is None:
            raise InputError(f"{self.path}: say which column is the target; it has {some(self.names, 10)}")
        check_name(f"{self.path}: the target", target, self.names)
        others = [name for name in self.names if name != target]
        for name in (*ignore, *categorical):
            check_name(f"{self.path}: a column beside the target", name, others)
        inputs = [name for name in others if name not in ignore]
        if not inputs:
            raise DataError(f"{self.path}: no column is left beside the target {target!r}")
        columns = tuple(
            (name, self._categories(name) if name in categorical or not self._is_numeric(name) else None)
            for name in inputs
        )
        return {"x": self.inputs(columns), "y": self.target(target)}, columns

    def column(self, name: str) -> list[str]:
        if name not in self.names:
            raise DataError(f"{self.path}: the column {name!r} is missing; it has {some(self.names, 10)}")
        return self.texts[name]

    def inputs(self, columns: Iterable[tuple[str, Sequence[str] | None]]) -> Array:
        """A number for each column of numbers, and 0 or 1 for each category of others."""
        parts = [
            self._numbers(name) if categories is None else self._one_hot(name, categories)
            for name, categories in columns
        ]
        return np.column_stack(parts)

    def target(self, name: str) -> Array:
        """A column of numbers, whole if all are, or of texts."""
        texts = self.column(name)
        if "" in texts:
            line = self.lines[texts.index("")]
            raise DataError(f"{self.path}, line {line}: the target {name!r} is empty: leave out such lines")
        y = self._numbers(name) if self._is_numeric(name) else np.array(texts)
        if not all(re.fullmatch(r"[+-]?\d+", text) for text in texts):
            return y
        try:
            return np.array([int(text) for text in texts], np.int64)
        except (OverflowError, ValueError):  # Python refuses to read thousands of digits
            longest = max(texts, key=len)
            raise DataError(
                f"{self.path}: the target {name!r} has a whole number of {len(longest)} digits, at most 18 "
                "are read: if it is the name of a class, write it with a letter, as n1234"
            ) from None

    def _is_numeric(self, name: str) -> bool:
        """Whether most entries of a column are numbers."""
        return 2 * sum(map(_is_number, self.texts[name])) > len(self.texts[name])

    def _numbers(self, name: str) -> Array:
        """A column of numbers."""
        texts = self.column(name)
        if wrong := [i for i, text in enumerate(texts) if not _is_number(text)]:
            raise DataError(
                f"{self.path}, line {self.lines[wrong[0]]}: {texts[wrong[0]]!r} in the column {name!r}, "
                f"whose other entries are numbers ({len(wrong)} such lines): correct it, leave out the "
                "lines or, if it is an input, name the column in categorical"
            )
        return np.array([float(text) for text in texts])

    def _categories(self, name: str) -> tuple[str, ...]:
        found = sorted(set(self.texts[name]))
        if all(re.fullmatch(r"[+-]?\d+(,\d+)?", text) for text in found) and "," in "".join(found):
            raise DataError(f"{self.path}: the column {name!r} has decimal commas: write points, 1.5")
        if len(found) > _CATEGORIES:
            raise DataError(
                f"{self.path}: the column {name!r} has {len(found)} different texts, too many for "
                f"categories: leave it out, with --ignore {name}"
            )
        return tuple(found)

    def _one_hot(self, name: str, categories: Sequence[str]) -> Array:
        places = {category: i for i, category in enumerate(categories)}
        texts = self.column(name)
        for line, text in zip(self.lines, texts, strict=True):
            if text not in places:
                raise DataError(
                    f"{self.path}, line {line}: {text!r} in the column {name!r} is no category of the run; "
                    f"it knows {some(list(places), 10)}"
                )
        return np.eye(len(places))[[places[text] for text in texts]]


def _is_number(text: str) -> bool:
    """
    >>> [_is_number(text) for text in ("-1.5e3", "NA", "", "inf", "1_2")]
    [True, False, False, False, False]
    """
    try:
        return "_" not in text and math.isfinite(float(text))  # Python reads 1_2 as 12
    except ValueError:
        return False
