"""Results of experiments: the metrics of the paper, and the folders they are read from.

A run is a folder: a data set, an architecture and a method, trained with one or more seeds.

- ``config.json``: what was run, and on which device.
- ``metrics.jsonl``: one line per check, with one value per seed: ``{"step": 1000, "seconds": 0.21, "loss":
  [...], "validation": [...], "test": [...]}``. Accuracies are in percent. Seconds are the training time so
  far, without loading, checks and compiling. A seed that has stopped may be ``null``.
- ``results.jsonl``: one line per seed, see `SeedResult`. Until it has all seeds, the run is unfinished.

Runs that have ended can be packed: a file for each study instead of three for each of its runs. A line of
``NAME.runs.jsonl`` is a run, with its folder and what the files in it held: ``{"run": "mlp-mnist/1x128-dr",
"config": {...}, "metrics": [...], "results": [...]}``. Lines are in the order of folders, so that the same
runs are the same bytes.
"""

import dataclasses
import json
import math
import os
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from pjax.errors import InputError
from pjax.experiments import checkpoint
from pjax.tools.files import write_atomically
from pjax.tools.trees import parse

# --- Metrics, as the paper defines them ---


def check_at_fraction(validation: Sequence[float], fraction: float = 0.99) -> int:
    """The index of the first check at which the validation accuracy is a fraction of the run's best.

    >>> check_at_fraction([50.0, 98.9, 99.0, 100.0])
    2
    """
    best = max(validation)
    return int(np.argmax(np.asarray(validation) >= (fraction * best if best > 0 else best / fraction)))


def should_stop(validation: Sequence[float], patience: int = 5) -> bool:
    """Whether none of the last ``patience`` checks was better than the best before them.

    >>> should_stop([90.0, 95.0, 94.0, 95.0], 2), should_stop([90.0, 95.0, 94.0, 95.1], 2)
    (True, False)
    """
    return len(validation) > 0 and bool(len(validation) - 1 - np.argmax(validation) >= patience)


@dataclasses.dataclass(frozen=True)
class SeedResult:
    """What one seed of a run came to. Accuracies in percent."""

    seed: int
    test: float
    """Test accuracy of the parameters with the best validation accuracy."""
    train: float
    """Training accuracy of the same parameters."""
    steps: int
    """Steps until 99 % of the best validation accuracy."""
    seconds: float
    """Training time until then; NaN, as milliseconds are, of a run that was not timed."""
    ms_per_step: float
    best_validation: float
    best_step: int
    last_step: int
    stopped: str
    """``"patience"`` where it stopped early, ``"limit"`` where the steps were used up, ``"diverged"``, or
    ``"callback"`` where one of these has ended it."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of ``metrics.jsonl``. A value is NaN for a seed that has stopped, or a run without times."""

    step: int
    seconds: float
    loss: tuple[float, ...]
    validation: tuple[float, ...]
    test: tuple[float, ...]


def summarise(seed: int, place: int, checks: Sequence[Check], train: float, stopped: str) -> SeedResult:
    """The metrics of one seed, with its place among others, from all checks until it stopped."""
    # Parameters are not kept from where the loss was not finite.
    finite = [check for check in checks if not math.isnan(check.loss[place])] or checks
    validation = [check.validation[place] for check in finite]
    best, reached = finite[int(np.argmax(validation))], finite[check_at_fraction(validation)]
    return SeedResult(
        seed=seed,
        test=best.test[place],
        train=train,
        steps=reached.step,
        seconds=reached.seconds,
        ms_per_step=1000 * checks[-1].seconds / checks[-1].step,
        best_validation=best.validation[place],
        best_step=best.step,
        last_step=checks[-1].step,
        stopped=stopped,
    )


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds.

    The deviation divides by the number of seeds, as the paper's does: its mean steps, whole thousands over
    five seeds, leave no other choice.

    >>> Spread.of([1.0, 2.0])
    Spread(mean=1.5, std=0.5)
    """

    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        array = np.asarray(values, dtype=np.float64)
        return cls(float(array.mean()), float(array.std()))


# --- Folders ---


def architecture(widths: Sequence[int], skip: bool = False, levels: int = 0) -> str:
    """How an architecture is written.

    >>> architecture([128]), architecture([128] * 4, skip=True), architecture([64, 32], levels=2)
    ('1x128', '4x128+skip', '64-32+q2')
    """
    if not widths:  # a network of one's own
        return ""
    equal = len(set(widths)) == 1
    name = f"{len(widths)}x{widths[0]}" if equal else "-".join(str(w) for w in widths)
    return name + ("+skip" if skip else "") + (f"+q{levels}" if levels else "")


def plain(name: str) -> str:
    """What data, or a model, of one's own are called where there is no room for a path.

    >>> plain("data/iris.csv"), plain("package.networks:make"), plain("mnist")
    ('iris', 'networks.make', 'mnist')
    """
    if ":" in name:
        module, _, attribute = name.partition(":")
        return f"{Path(module.removesuffix('.py')).name.rpartition('.')[2]}.{attribute}"
    return Path(name).stem


@dataclasses.dataclass(frozen=True)
class Run:
    """A run's folder, and those of its settings that tables and plots look at."""

    folder: Path
    config: Mapping[str, Any]
    checks: tuple[Check, ...]
    results: tuple[SeedResult, ...]
    data: str
    model: str
    method: str
    widths: tuple[int, ...]
    skip: bool
    seeds: tuple[int, ...]
    batch_size: int
    steps_per_batch: int
    max_steps: int
    check_every: int
    patience: int
    levels: int = 0
    task: str = "classes"
    target: str = ""
    quick: bool = False
    study: str = ""
    device: str = "unknown device"

    @property
    def architecture(self) -> str:
        return architecture(self.widths, self.skip, self.levels) or plain(self.model)

    @property
    def name(self) -> str:
        """Data, model and architecture."""
        return " ".join(dict.fromkeys((plain(self.data), plain(self.model), self.architecture)))

    @property
    def score(self) -> str:
        """What validation and test are, in percent: accuracies or, of a regression, explained variance."""
        return "R²" if self.task == "regression" else "accuracy"

    @property
    def finished(self) -> bool:
        """Whether every seed has its result."""
        return {r.seed for r in self.results} >= set(self.seeds)

    @property
    def diverged(self) -> bool:
        """Whether the loss of a seed was not finite."""
        return any(r.stopped == "diverged" for r in self.results)

    # What `SeedResult` has of each seed; NaN where none has finished, or a run was not timed.
    test = property(lambda run: run._spread("test"))
    train = property(lambda run: run._spread("train"))
    seconds = property(lambda run: run._spread("seconds"))
    ms_per_step = property(lambda run: run._spread("ms_per_step"))
    steps_k = property(lambda run: run._spread("steps", 1000))

    def _spread(self, name: str, unit: int = 1) -> Spread:
        return Spread.of([getattr(r, name) / unit for r in self.results] or [math.nan])


def per_seed(run: Run, name: str) -> np.ndarray:
    """A metric at each check (rows) for each seed (columns).

    From its end on, a seed keeps its last value: the mean must not jump because one is missing.
    """
    values = np.array([getattr(check, name) for check in run.checks], dtype=np.float64)
    values = values.reshape(len(run.checks), len(run.seeds))
    steps = np.array([check.step for check in run.checks])
    last = {result.seed: result.last_step for result in run.results}
    for column, seed in enumerate(run.seeds):
        values[steps > last.get(seed, math.inf), column] = np.nan
    for row in range(1, len(values)):
        gone = np.isnan(values[row])
        values[row, gone] = values[row - 1, gone]
    return values


# --- Reading ---

PACKED = ".runs.jsonl"
"""How the names of files of packed runs end."""
_LISTS = {"metrics": Check, "results": SeedResult}


def read_run(folder: str | Path) -> Run:
    """Read a run's folder. A run that is still being written, or was interrupted, is read so far."""
    return _run(Path(folder), str(folder), _contents(Path(folder)))


def read_runs(folder: str | Path) -> tuple[Run, ...]:
    """Read all runs at or below a folder, in the order of their paths.

    Where a run is packed and has a folder too, the folder counts: it was changed since.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected one with runs, as `pjax train` makes them")
    found = {run.folder: run for path in folder.rglob(f"*{PACKED}") for run, _ in _read_packed(path)}
    found |= {path.parent: read_run(path.parent) for path in folder.rglob("config.json")}
    return tuple(found[path] for path in sorted(found))


def _contents(folder: Path) -> dict[str, Any]:
    """What the files of a run hold."""
    paths = {name: folder / f"{name}.jsonl" for name in _LISTS}
    lists = {name: list(read_lines(path)) if path.exists() else [] for name, path in paths.items()}
    return {"config": read_object(folder / "config.json"), **lists}


def _read_packed(path: Path) -> Iterator[tuple[Run, dict[str, Any]]]:
    """The runs of a packed file, with their lines; their folders, which they had, need not exist."""
    if not path.read_bytes().endswith(b"\n"):
        raise InputError(f"{path}: its last line has no end; get the file again, or pack the runs again")
    for number, line in enumerate(read_lines(path), 1):
        where, place = f"{path}, line {number}", line.get("run")
        if not isinstance(place, str) or PurePosixPath(place).is_absolute() or ".." in place.split("/"):
            raise InputError(f"{where}: 'run' must be a path below {path.parent}, got {place!r}")
        yield _run(path.parent / place, where, line), line


def _run(folder: Path, where: str, found: Mapping[str, Any]) -> Run:
    """A run, if that is what its files, or its packed line, held."""
    lists = {}
    for name, kind in _LISTS.items():
        if not isinstance(lines := found.get(name), list):
            raise InputError(f"{where}: {name!r} must be a list, got {lines!r}")
        lists[name] = tuple(parsed(kind, f"{where}, {name} {i}", line) for i, line in enumerate(lines, 1))
    config, (checks, results) = found.get("config"), lists.values()
    known = {"folder": folder, "config": config, "checks": checks, "results": results}
    run = parsed(Run, f"{where}, config", config, **known)
    for i, check in enumerate(checks, 1):
        for name in ("loss", "validation", "test"):
            if len(values := getattr(check, name)) != len(run.seeds):
                wanted = f"a list of {len(run.seeds)} numbers, one per seed"
                raise InputError(f"{where}, metrics {i}: {name!r} must be {wanted}; got {len(values)}")
    return run


def parsed(kind: Any, where: str, line: Any, **known: Any) -> Any:
    """An object of JSON as a dataclass whose fields are known, or are in it and of their types."""
    if not isinstance(line, dict):
        raise InputError(f"{where}: expected a JSON object, got {line!r}")
    for field in dataclasses.fields(kind):
        name = field.name
        if name in line and name not in known:
            known[name] = of_kind(f"{where}: {name!r}", line[name], field.type)
        elif name not in known and field.default is dataclasses.MISSING:
            raise InputError(f"{where}: {name!r} is missing; it has {', '.join(sorted(line))}")
    return kind(**known)


_WORDS = {int: "whole number", float: "number", tuple: "list"}


def of_kind(where: str, value: Any, kind: Any) -> Any:
    """A value that must be of a kind, or several; NaN is written as null."""
    items = typing.get_args(kind)
    if isinstance(kind, types.UnionType):  # with None
        return None if value is None else of_kind(where, value, items[0])
    expected = tuple if items else kind
    if value is None and kind is float:
        return math.nan
    right = isinstance(value, {float: int | float, tuple: list | tuple}.get(expected, expected))
    if not right or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{where} must be a {_WORDS.get(expected, expected.__name__)}, got {value!r}")
    if not items:
        return kind(value)
    each = items[:1] * len(value) if items[-1] is ... else items
    if len(value) != len(each):
        raise InputError(f"{where} must hold {len(each)} values, got {value!r}")
    return tuple(of_kind(where, item, one) for item, one in zip(value, each, strict=True))


# --- Files ---


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run."""
    try:
        found = parse(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected the folder of a run") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); put a whole one there, or begin a new run") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found


def read_lines(path: str | Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file. A torn last line is left out.

    A line is torn where a process was killed while writing it: it has no end, and is not JSON.
    """
    for number, line in enumerate(Path(path).read_bytes().splitlines(keepends=True), start=1):
        where = f"{path}, line {number}"
        try:
            value = parse(line)
        except ValueError as error:
            if not line.endswith(b"\n"):
                return
            raise InputError(f"{where}: not JSON ({error}); remove the line or run it again") from None
        if not isinstance(value, dict):
            raise InputError(f"{where}: expected a JSON object, got {value!r}")
        yield value


def as_json(line: SeedResult | Check) -> dict[str, Any]:
    """A line of a file as JSON knows it: null for NaN."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(one) for one in value]
        return None if value != value else value

    return {name: plain(value) for name, value in vars(line).items()}


def write_lines(path: Path, values: Iterable[Mapping[str, Any]]) -> Path:
    """Write a JSON-lines file."""
    return write_atomically(path, "".join(json.dumps(value) + "\n" for value in values).encode())


def write_object(path: Path, values: Mapping[str, Any]) -> Path:
    """Write a JSON object, to be read by people too."""
    return write_atomically(path, (json.dumps(values, indent=2) + "\n").encode())


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Add an object to a JSON-lines file."""
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk does not say which file
        raise


# --- Packing ---


def pack(folder: str | Path) -> tuple[Path, ...]:
    """Pack all runs below a folder that have ended, and remove their files; the files that were written.

    The folder gets one file for each study, ``paper`` for the paper's tables, and ``quick`` for small
    versions. What is packed already stays, but for runs that have a folder again. Runs that have not ended,
    those with a checkpoint, and other files in the folder of a run, are left alone.
    """
    folder = Path(folder)
    studies: dict[Path, list[Path]] = {}
    for run in (read_run(path.parent) for path in folder.rglob("config.json")):
        if run.finished and not checkpoint.every(run.folder):
            file = folder / f"{'quick' if run.quick else run.study or 'paper'}{PACKED}"
            studies.setdefault(file, []).append(run.folder)
    if not studies:
        raise InputError(
            f"{folder}: no run to pack, none has ended, and is without a checkpoint, as those of pjax compare"
        )
    for file, places in studies.items():
        lines = {run.folder: line for run, line in _read_packed(file)} if file.exists() else {}
        for place in places:
            lines[place] = {"run": place.relative_to(folder).as_posix(), **_contents(place)}
        write_lines(file, [lines[place] for place in sorted(lines)])
        for place in places:
            for name in ("config.json", "metrics.jsonl", "results.jsonl"):  # without the first it is no run
                (place / name).unlink(missing_ok=True)
            while place != folder and not any(place.iterdir()):
                place.rmdir()
                place = place.parent
    return tuple(sorted(studies))


def unpack(folder: str | Path, below: str | Path) -> None:
    """Write the folders of packed runs that lie below another, as training left them, if not there."""
    for path in Path(folder).rglob(f"*{PACKED}"):
        for run, line in _read_packed(path):
            if run.folder.is_relative_to(below) and not (run.folder / "config.json").exists():
                for name in _LISTS:
                    write_lines(run.folder / f"{name}.jsonl", line[name])
                write_object(run.folder / "config.json", line["config"])
