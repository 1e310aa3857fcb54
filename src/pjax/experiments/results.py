"""Results of experiments: the metrics of the paper, and the folders they are read from.

A run is a folder: a data set, an architecture and a method, trained with one or more seeds.

- ``config.json``: what was run, and on which device.
- ``metrics.jsonl``: one line per check, with one value per seed: ``{"step": 1000, "seconds": 0.21, "loss":
  [...], "validation": [...], "test": [...]}``. Accuracies are in percent. Seconds are the training time so
  far, without loading, checks and compiling. A seed that has stopped may be ``null``.
- ``results.jsonl``: one line per seed, see `SeedResult`. Until it has all seeds, the run is unfinished.

Runs that have ended can be packed: a file ``NAME.runs.jsonl`` has a line for each, see
`pjax.experiments.packed`.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np

from pjax.errors import InputError
from pjax.tools.files import write_atomically as write_atomically

# --- Metrics, as the paper defines them ---


def best_check(validation: Sequence[float]) -> int:
    """The index of the check with the best validation accuracy; the first of several that are equal.

    >>> best_check([90.0, 92.0, 91.0, 92.0])
    1
    """
    values = _accuracies(validation)
    return int(np.argmax(values))


def check_at_fraction(validation: Sequence[float], fraction: float = 0.99) -> int:
    """The index of the first check at which the validation accuracy is a fraction of the run's best.

    >>> check_at_fraction([50.0, 98.9, 99.0, 100.0])
    2
    """
    if not 0 < fraction <= 1:
        raise InputError(f"fraction must be in (0, 1], got {fraction!r}")
    values = _accuracies(validation)
    return int(np.argmax(values >= fraction * values.max()))


def steps_to_fraction(steps: Sequence[int], validation: Sequence[float], fraction: float = 0.99) -> int:
    """The step of the first check at which the validation accuracy is a fraction of the run's best.

    >>> steps_to_fraction([1000, 2000, 3000, 4000], [50.0, 98.9, 99.0, 100.0])
    3000
    """
    _same_length(steps=steps, validation=validation)
    return int(steps[check_at_fraction(validation, fraction)])


def should_stop(validation: Sequence[float], patience: int = 5) -> bool:
    """Whether none of the last ``patience`` checks was better than the best before them.

    >>> should_stop([90.0, 95.0, 94.0, 95.0], patience=2)
    True
    >>> should_stop([90.0, 95.0, 94.0, 95.1], patience=2)
    False
    """
    if patience < 1:
        raise InputError(f"patience must be at least 1 check, got {patience!r}")
    return len(validation) > 0 and len(validation) - 1 - best_check(validation) >= patience


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
    """Training time until then."""
    ms_per_step: float
    best_validation: float
    best_step: int
    last_step: int
    stopped: str
    """``"patience"`` where it stopped early, ``"limit"`` where the steps were used up, ``"diverged"``."""

    def as_json(self) -> dict[str, Any]:
        """The line of ``results.jsonl``."""
        return dataclasses.asdict(self)


def summarise(
    seed: int,
    *,
    steps: Sequence[int],
    seconds: Sequence[float],
    validation: Sequence[float],
    test: Sequence[float],
    train: float,
    stopped: str,
    ms_per_step: float | None = None,
) -> SeedResult:
    """The metrics of one seed from its checks.

    Args:
        seed: the seed.
        steps, seconds, validation, test: one value per check, up to and including the check it stopped at.
        train: training accuracy of the parameters with the best validation accuracy.
        stopped: why it stopped, ``"patience"`` or ``"limit"``.
        ms_per_step: milliseconds per step; by default the time of all steps over their number.
    """
    _same_length(steps=steps, seconds=seconds, validation=validation, test=test)
    best, reached = best_check(validation), check_at_fraction(validation)
    if ms_per_step is None:
        ms_per_step = 1000 * float(seconds[-1]) / int(steps[-1]) if steps[-1] else math.nan
    return SeedResult(
        seed=int(seed),
        test=float(test[best]),
        train=float(train),
        steps=int(steps[reached]),
        seconds=float(seconds[reached]),
        ms_per_step=float(ms_per_step),
        best_validation=float(validation[best]),
        best_step=int(steps[best]),
        last_step=int(steps[-1]),
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
        if len(values) == 0:
            raise InputError("a mean needs at least one value, got none")
        array = np.asarray(values, dtype=np.float64)
        return cls(float(array.mean()), float(array.std()))


# --- Folders ---


def architecture(widths: Sequence[int], skip: bool = False, levels: int = 0) -> str:
    """How an architecture is written.

    >>> architecture([128]), architecture([128] * 4, skip=True), architecture([64, 32], levels=2)
    ('1x128', '4x128+skip', '64-32+q2')
    """
    if not widths:
        raise InputError("widths must hold at least one hidden layer, got none")
    equal = len(set(widths)) == 1
    name = f"{len(widths)}x{widths[0]}" if equal else "-".join(str(w) for w in widths)
    return name + ("+skip" if skip else "") + (f"+q{levels}" if levels else "")


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of ``metrics.jsonl``. A value is NaN for a seed that has stopped."""

    step: int
    seconds: float
    loss: tuple[float, ...]
    validation: tuple[float, ...]
    test: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Run:
    """A run's folder."""

    folder: Path
    config: Mapping[str, Any]
    checks: tuple[Check, ...]
    results: tuple[SeedResult, ...]

    @property
    def data(self) -> str:
        return str(self.config["data"])

    @property
    def model(self) -> str:
        return str(self.config["model"])

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def architecture(self) -> str:
        return architecture(self.config["widths"], self.config["skip"], self.config.get("levels", 0))

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.config["seeds"])

    @property
    def quick(self) -> bool:
        return bool(self.config.get("quick", False))

    @property
    def study(self) -> str:
        return str(self.config.get("study", ""))

    @property
    def device(self) -> str:
        return str(self.config.get("device", "unknown device"))

    @property
    def finished(self) -> bool:
        """Whether every seed has its result."""
        return {r.seed for r in self.results} >= set(self.seeds)

    @property
    def diverged(self) -> bool:
        """Whether the loss of a seed was not finite."""
        return any(r.stopped == "diverged" for r in self.results)

    @property
    def test(self) -> Spread | None:
        """Test accuracy in percent. None, as all of these, where no seed has finished."""
        return self._spread([r.test for r in self.results])

    @property
    def train(self) -> Spread | None:
        """Training accuracy in percent."""
        return self._spread([r.train for r in self.results])

    @property
    def steps_k(self) -> Spread | None:
        """Thousands of steps to 99 % of the best validation accuracy."""
        return self._spread([r.steps / 1000 for r in self.results])

    @property
    def seconds(self) -> Spread | None:
        """Seconds to 99 % of the best validation accuracy."""
        return self._spread([r.seconds for r in self.results])

    @property
    def ms_per_step(self) -> Spread | None:
        return self._spread([r.ms_per_step for r in self.results])

    @staticmethod
    def _spread(values: list[float]) -> Spread | None:
        return Spread.of(values) if values else None


_CONFIG = {"data": str, "model": str, "method": str, "widths": list, "skip": bool, "seeds": list}
_CONFIG |= dict.fromkeys(("batch_size", "steps_per_batch", "max_steps", "check_every", "patience"), int)


PACKED = ".runs.jsonl"
"""How the names of files of packed runs end."""

_Lines: TypeAlias = Iterable[tuple[str, dict[str, Any]]]


def read_run(folder: str | Path) -> Run:
    """Read a run's folder. A run that is still being written, or was interrupted, is read so far."""
    folder = Path(folder)
    config = folder / "config.json"
    return _run(
        folder,
        str(config),
        read_object(config),
        _lines(folder / "metrics.jsonl"),
        _lines(folder / "results.jsonl"),
    )


def read_packed(path: str | Path) -> tuple[Run, ...]:
    """Read the runs of a packed file. Their folders are those that they had; they need not exist."""
    path = Path(path)
    if not path.read_bytes().endswith(b"\n"):
        raise InputError(f"{path}: its last line has no end; get the file again, or pack the runs again")
    runs = []
    for where, line in read_lines(path):
        place, config = line.get("run"), line.get("config")
        if not isinstance(place, str) or PurePosixPath(place).is_absolute() or ".." in place.split("/"):
            raise InputError(f"{where}: 'run' must be a path below {path.parent}, got {place!r}")
        if not isinstance(config, dict):
            raise InputError(f"{where}: 'config' must be an object, got {config!r}")
        checks, results = (_packed_lines(where, name, line.get(name)) for name in ("metrics", "results"))
        runs.append(_run(path.parent / place, where, config, checks, results))
    return tuple(runs)


def _packed_lines(where: str, name: str, values: Any) -> _Lines:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise InputError(f"{where}: {name!r} must be a list of objects, got {values!r}")
    return [(f"{where}, {name} {number}", value) for number, value in enumerate(values, start=1)]


def read_runs(folder: str | Path) -> tuple[Run, ...]:
    """Read all runs at or below a folder, in the order of their paths.

    Where a run is packed and has a folder too, the folder counts: it was changed since.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected a folder of results")
    found = {run.folder: run for path in sorted(folder.rglob(f"*{PACKED}")) for run in read_packed(path)}
    found |= {path.parent: read_run(path.parent) for path in folder.rglob("config.json")}
    return tuple(found[path] for path in sorted(found))


def _run(folder: Path, where: str, config: dict[str, Any], checks: _Lines, results: _Lines) -> Run:
    _check_config(where, config)
    seeds = len(config["seeds"])
    return Run(
        folder,
        config,
        tuple(_check(place, line, seeds) for place, line in checks),
        tuple(_seed_result(place, line) for place, line in results),
    )


def parse(text: str | bytes) -> Any:
    """What JSON says; anything else is a ValueError, brackets in brackets without end too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run."""
    try:
        found = parse(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected the folder of a run") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); delete the folder and run it again") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found


def _check_config(where: str, config: Mapping[str, Any]) -> None:
    for name, kind in _CONFIG.items():
        if name not in config:
            raise InputError(f"{where}: {name!r} is missing; it has {', '.join(sorted(config))}")
        if not isinstance(config[name], kind):
            raise InputError(f"{where}: {name!r} must be a {kind.__name__}, got {config[name]!r}")
    for name in ("widths", "seeds"):
        if not config[name]:
            raise InputError(f"{where}: {name!r} is empty")
        for value in config[name]:
            _whole(where, name, value)


def read_lines(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON-lines file, each with where it stands. A torn last line is left out.

    A line is torn where a process was killed while writing it: it has no end, and is not JSON.
    """
    path = Path(path)
    data = path.read_bytes()
    for number, line in enumerate(data.splitlines(keepends=True), start=1):
        where = f"{path}, line {number}"
        try:
            value = parse(line)
        except ValueError as error:
            if not line.endswith(b"\n"):
                return
            raise InputError(f"{where}: not JSON ({error}); remove the line or run it again") from None
        if not isinstance(value, dict):
            raise InputError(f"{where}: expected a JSON object, got {value!r}")
        yield where, value


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
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    return read_lines(path) if path.exists() else iter(())


def _check(where: str, line: Mapping[str, Any], seeds: int) -> Check:
    def per_seed(name: str) -> tuple[float, ...]:
        values = line.get(name)
        if not isinstance(values, list) or len(values) != seeds:
            raise InputError(
                f"{where}: {name!r} must be a list of {seeds} numbers, one per seed; got {values!r}"
            )
        return tuple(math.nan if v is None else _number(where, name, v) for v in values)

    return Check(
        step=_whole(where, "step", line.get("step")),
        seconds=_number(where, "seconds", line.get("seconds")),
        loss=per_seed("loss"),
        validation=per_seed("validation"),
        test=per_seed("test"),
    )


def _seed_result(where: str, line: dict[str, Any]) -> SeedResult:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(SeedResult):
        if field.name not in line:
            raise InputError(f"{where}: {field.name!r} is missing; it has {', '.join(sorted(line))}")
        if field.type is str:
            values[field.name] = str(line[field.name])
        elif field.type is int:
            values[field.name] = _whole(where, field.name, line[field.name])
        else:
            values[field.name] = _number(where, field.name, line[field.name])
    return SeedResult(**values)


def _whole(where: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where}: {name!r} must be a whole number, got {value!r}")
    return value


def _number(where: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where}: {name!r} must be a number, got {value!r}")
    return float(value)


def _accuracies(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"expected one validation accuracy per check, got an array of shape {array.shape}")
    if not np.isfinite(array).all():
        raise InputError(f"validation accuracies must be finite, got {values!r}")
    return array


def _same_length(**sequences: Sequence[Any]) -> None:
    if len({len(s) for s in sequences.values()}) > 1:
        lengths = ", ".join(f"{name} has {len(s)}" for name, s in sequences.items())
        raise InputError(f"expected one value per check everywhere: {lengths}")
