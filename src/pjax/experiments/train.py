"""Training with checks, early stopping and checkpoints, in a folder from which it can go on at any time.

A run is a function of its configuration: stopped at any moment and resumed, it ends with the same bits.
"""

import contextlib
import dataclasses
import itertools
import math
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pjax.checks import check_name, some
from pjax.errors import InputError
from pjax.experiments import checkpoint, endings, results
from pjax.experiments import config as configuration
from pjax.experiments import loggers as logging
from pjax.experiments.config import Config
from pjax.experiments.data import Dataset
from pjax.experiments.devices import Devices
from pjax.experiments.loggers import Logger
from pjax.experiments.loop import Loop
from pjax.experiments.own_data import GIVEN, Form
from pjax.experiments.results import Check, Run, as_json, read_run
from pjax.tools.files import Lock


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run stands, for whoever shows it. Accuracies, in percent, are means over seeds."""

    step: float
    max_steps: int
    loss: float
    validation: float = math.nan
    test: float = math.nan
    ms_per_step: float = math.nan
    message: str = ""
    folder: Path = Path()
    """Where it is written."""
    params: Callable[[], Any] | None = None
    """At a check: a function that gives the parameters of the first seed, as they are then."""


class StopTraining(Exception):  # noqa: N818 - it is no error
    """Raised by a callback: the run ends here, as if its steps were used up."""


def train(
    config: Config | None = None,
    folder: str | Path | None = None,
    *,
    data: Any = None,
    model: Any = None,
    callbacks: Sequence[Callable[[Progress], None]] = (),
    loggers: Sequence[Logger] = (),
    resume: bool = False,
    max_steps: int | None = None,
    patience: int | None = None,
    together: bool | None = None,
    devices: Devices | None = None,
    progress: Callable[[Progress], None] | None = None,
    keep_checkpoint: bool = True,
    timed: bool = True,
) -> Run:
    """Train a network, and write what happens into a folder, which no other process may do meanwhile.

    Args:
        config: what to run. When resuming it may be left out; if given, it must be that of the folder.
        folder: where to write ``config.json``, ``metrics.jsonl``, ``results.jsonl`` and checkpoints; by
            default a new folder in ``runs``.
        data: data of your own: ``(x, y)``, a mapping with the arrays of a file ``.npz``, or a `Dataset`, as
            of `own_data.from_batches`. A run that was given data is given them again to be resumed.
        model: a network of your own: a pair of functions ``(init, apply)``, or what `own_model` knows. A run
            that was given one is given it again to be resumed.
        callbacks: called after each check. One that raises `StopTraining` ends the run.
        loggers: take the metrics of each check, see `loggers`, beside those that the configuration names.
        resume: go on with the run in the folder. A run that has ended is returned as it is, unless more steps
            are asked for.
        max_steps, patience: when resuming, new values of these settings: a run that has ended goes on to more
            steps.
        together: whether to train all seeds in one program; by default on accelerators, if nothing convolves.
        devices: what to run on; by default one device, or all devices of several processes, of which only the
            first needs the folder.
        progress: called often while training.
        keep_checkpoint: whether to keep the checkpoint when the run has ended.
        timed: whether times are recorded; not where other work runs on the device. `time_again` adds them.

    Returns:
        The run as read from its folder; on other processes than the first, what they know of it.

    >>> import tempfile
    >>> config = Config(data="digits", method="adam", max_steps=60, check_every=30)
    >>> run = train(config, Path(tempfile.mkdtemp()) / "run")
    >>> [check.step for check in run.checks], len(run.results)
    ([30, 60], 1)

    Your own data and model, with a callback:

    >>> x = np.linspace(-1, 1, 300)[:, None]
    >>> model = lambda key: jax.random.normal(key, (2,)), lambda p, x: x**2 * p[0] + p[1]
    >>> seen = []
    >>> config = Config(max_steps=200, learning_rate=0.1, patience=0)
    >>> run = train(
    ...     config, tempfile.mkdtemp(), data=(x, x**2), model=model, callbacks=[lambda p: seen.append(p.step)]
    ... )
    >>> seen, run.results[0].test > 99
    ([100, 200], True)
    """
    devices = devices or Devices()
    given: dict[str, Any] = {
        name: GIVEN for name, value in (("data", data), ("model", model)) if value is not None
    }
    if isinstance(data, Dataset) and data.stream is not None:
        given["batch_size"] = len(data.x_train)
    if given and (config is not None or not resume):
        config = (config or Config()).on(**given)
    changes = {"max_steps": max_steps, "patience": patience}
    limits = {name: value for name, value in changes.items() if value is not None}
    if limits and not resume:
        raise InputError(f"{', '.join(limits)}: for a run that is resumed; else they are settings of it")
    with contextlib.ExitStack() as held:
        plan = devices.decide(lambda: _prepare(config, folder, resume, limits, held))
        decided = Config.from_json(plan["config"])
        others = {} if config is None else config.differences(decided)
        if different := [name for name in others if name not in limits]:
            raise InputError(
                f"process 0 has other settings ({', '.join(different)}): give all processes the same"
            )
        where = Path(plan["folder"])
        if not devices.first:  # the others need no access to it
            where = Path(held.enter_context(tempfile.TemporaryDirectory()))
            results.write_object(where / "config.json", decided.as_json())
        if not plan["finished"]:
            show = progress or (lambda _: None)
            show(Progress(0.0, decided.max_steps, math.nan, folder=where, message="loading data"))
            loop = Loop(decided, together=together, devices=devices, dataset=data, model=model)
            check_same_data(where, loop.dataset)
            trainer = _Trainer(loop, where, show, callbacks, timed)
            trainer.restore(Path(plan["checkpoint"])) if plan["checkpoint"] else trainer.begin()
            with contextlib.ExitStack() as logs:
                trainer.open_loggers(loggers, logs)
                trainer.run()
        if not keep_checkpoint:
            checkpoint.remove(where)
        return read_run(where)


def time_again(folder: str | Path) -> float:
    """Time a step of a run that has ended, and correct the seconds in its folder; the milliseconds.

    The device must be the one it was run on.
    """
    folder = Path(folder)
    with _alone(folder):
        run = read_run(folder)
        if run.device != device():
            raise InputError(f"{folder}: was run on {run.device}, cannot be timed on {device()}")
        loop = Loop(configuration.read(folder / "config.json", run.config))
        milliseconds = loop.milliseconds(loop.start())

        def timed(line: Any, steps: int, **more: float) -> dict[str, Any]:
            seconds = round(steps * milliseconds / 1000, _DIGITS)
            return as_json(dataclasses.replace(line, seconds=seconds, **more))

        checks = [timed(check, check.step) for check in run.checks]
        results.write_lines(folder / "metrics.jsonl", checks)
        ended = [timed(result, result.steps, ms_per_step=milliseconds) for result in run.results]
        results.write_lines(folder / "results.jsonl", ended)
    return milliseconds


def load_params(folder: str | Path, seed: int | None = None, *, model: Any = None) -> Any:
    """The parameters with the best validation accuracy of a run, from its checkpoint.

    Args:
        folder: of the run.
        seed: which one of its seeds; by default the first.
        model: that of the run, if it was given to `train`.

    Returns:
        A pytree of arrays; for the networks that come with pjax, a dictionary.
    """
    return best(Path(folder), seed, model)[1]


def best(folder: Path, seed: int | None, model: Any, *, rows: bool = False) -> tuple[Loop, Any]:
    """The network of a run, and what `load_params` gives; own data have rows only if these are wanted."""
    config, form = configuration.read(folder / "config.json"), saved_form(folder)
    loop = Loop(config, dataset=None if form is None or rows else form.empty(config.data), model=model)
    check_same_data(folder, loop.dataset)
    seed = config.seeds[0] if seed is None else seed
    if seed not in config.seeds:
        raise InputError(f"{folder} has the seeds {', '.join(map(str, config.seeds))}; got {seed}")
    path = checkpoint.last(folder)
    if path is None:
        raise InputError(f"{folder}: there is no checkpoint")
    tree, _ = checkpoint.load(path, _expected(loop))
    return loop, jax.tree.map(lambda values: values[config.seeds.index(seed)], tree["best"])


def saved_form(folder: Path) -> Form | None:
    """What a run knows of data of one's own."""
    file = folder / "data.json"
    if not file.exists():
        return None
    found = results.read_object(file)
    form: Form = results.parsed(Form, str(file), found)
    for name in found:
        check_name(f"{file}: what a run writes of its data", name, vars(form))
    check_name(f"{file}: 'task'", form.task, ("classes", "regression"))
    check_name(f"{file}: 'dtype'", form.dtype, ("float32", "int32"))
    moments = [len(x) for x in (form.shift, form.scale, form.target_shift, form.target_scale)]
    n = form.outputs if form.task == "regression" else 0
    if moments not in ([k, k, n, n] for k in (0, *form.shape[-1:])):
        raise InputError(
            f"{file}: 'shift' and 'scale' must hold a number for each feature, or output, or none"
        )
    return form


def check_same_data(folder: Path, dataset: Dataset) -> None:
    """Refuse data of one's own that are not those the run began with."""
    form = saved_form(folder)
    if form is not None and dataset.form is not None and dataset.form.digest != form.digest:
        raise InputError(
            f"{folder}: the data are not those that the run began with, {dataset.name} has changed since: "
            "put the old ones there, or begin a new run, with --init-from if it shall go on from here"
        )


def _prepare(
    config: Config | None,
    folder: str | Path | None,
    resume: bool,
    limits: dict[str, int],
    held: contextlib.ExitStack,
) -> dict[str, Any]:
    """What a run is, where, whether it has ended, and the checkpoint to go on from.

    Its folder is this process's alone as long as ``held`` is open, unless the run has ended.
    """
    wanted, finished, last = config or Config(), False, None
    where = Path(folder or "")
    if folder is not None:
        wanted, finished = _look(config, where, resume, limits)
        if not finished:
            held.enter_context(_alone(where))
            wanted, finished = _look(config, where, resume, limits)  # again: another may have written
            last = None if finished else checkpoint.last(where)
            if last is None and limits and read_run(where).finished:
                raise InputError(f"{where}: there is no checkpoint, so the run cannot go on")
    elif resume:
        raise InputError("say which run to resume: its folder is missing")
    else:
        for number in itertools.count(1):  # whoever makes it first has it
            where = Path("runs") / (wanted.name if number == 1 else f"{wanted.name}-{number}")
            with contextlib.suppress(FileExistsError):
                held.enter_context(_alone(where, new=True))
                break
    paths = {"folder": str(where.absolute()), "checkpoint": last and str(last.absolute())}
    return {"config": wanted.as_json(), "finished": finished, **paths}


_WRITTEN = ("data.json", "metrics.jsonl", "results.jsonl", "metrics.csv", "run.png")
"""What a run writes beside its settings and checkpoints."""


def _look(config: Config | None, folder: Path, resume: bool, limits: dict[str, int]) -> tuple[Config, bool]:
    """What the run in a folder is, and whether it has ended."""
    file = folder / "config.json"
    if not (resume and file.exists()):
        _check_free(folder, config is None)
        return config or Config(), False
    saved = configuration.read(file)
    if config is not None and (different := config.differences(saved)):
        lines = ", ".join(f"{name} is {b!r} there and {a!r} here" for name, (a, b) in different.items())
        raise InputError(f"{folder}: the run there is another one: {lines}")
    run = read_run(folder)
    made = run.checks[-1].step if run.checks else 0
    if limits.get("max_steps", made) < made:
        raise InputError(
            f"{folder}: has made {made} steps; max_steps must be more, got {limits['max_steps']}"
        )
    wanted = Config(**(dataclasses.asdict(saved) | limits))
    if wanted.decay_steps is not None and wanted.max_steps > wanted.decay_steps:
        raise InputError(
            f"{folder}: its learning rate has fallen to 0 at step {wanted.decay_steps}, more steps would do "
            "nothing: begin a new run, with --init-from to go on from its parameters"
        )
    return wanted, run.finished and wanted == saved


def _check_free(folder: Path, left_out: bool) -> None:
    """Refuse to begin a run where it would write over another, or over files that are of no run."""
    file = folder / "config.json"
    if left_out and not file.exists():
        raise InputError(f"{folder}: there is no run to resume, no config.json is in it")
    there = [path.name for path in checkpoint.every(folder)]
    there += [name for name in _WRITTEN if (path := folder / name).exists() and path.stat().st_size]
    if file.exists():
        try:
            configuration.read(file)
        except InputError as error:
            raise InputError(
                f"{folder}: its config.json is of no run; choose another folder ({error})"
            ) from None
        if left_out or there not in ([], ["data.json"]):  # else it was stopped before its first check
            raise InputError(f"{folder}: there is a run already; resume it, or choose another folder")
    elif there:
        raise InputError(
            f"{folder}: a run would write over {some(there)}, which is there: choose another folder"
        )


@contextlib.contextmanager
def _alone(folder: Path, *, new: bool = False) -> Iterator[None]:
    """A block in which no other process writes into a folder; if it is empty at the end it does not stay."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=not new)
    lock = Lock(folder / ".lock")
    if not lock.take():
        raise InputError(
            f"{folder}: {lock.holder()} writes into it; wait until it ends, or choose another folder"
        )

    def end() -> None:
        lock.give_back()
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()

    with endings.cleaning(end):
        yield


def _expected(loop: Loop) -> dict[str, Any]:
    """Shapes and types of a checkpoint's arrays, and where they lie."""
    return {"state": loop.shapes, "best": loop.params(loop.shapes)}


@dataclasses.dataclass(frozen=True)
class _Note:
    """What a checkpoint holds beside arrays."""

    config: dict  # type: ignore[type-arg]
    batch: int
    checks: tuple  # type: ignore[type-arg]
    ms_per_step: float


@dataclasses.dataclass
class _Trainer:
    """A run under way."""

    loop: Loop
    folder: Path
    progress: Callable[[Progress], None]
    callbacks: Sequence[Callable[[Progress], None]]
    timed: bool
    checks: list[Check] = dataclasses.field(default_factory=list)
    loggers: list[Logger] = dataclasses.field(default_factory=list)
    ms_per_step: float = math.nan
    ended: bool = False
    """Whether a callback has ended the run."""

    def __post_init__(self) -> None:
        self.config, self.devices = self.loop.config, self.loop.devices

    def tell(self, step: float = 0.0, loss: float = math.nan, **more: Any) -> Progress:
        told = Progress(step, self.config.max_steps, loss, folder=self.folder, **more)
        self.progress(told)
        return told

    def open_loggers(self, given: Sequence[Logger], until: contextlib.ExitStack) -> None:
        """Those that the configuration names, until a block ends, and those that are given."""
        for name in logging.names(self.config.log) if self.devices.first else ():
            logger = logging.make(name, self.folder, self.config.as_json())
            self.loggers.append(until.enter_context(logger))
            for check in self.checks:  # a run that was killed may have lost some
                logger(check.step, _means(check) | {"seconds": check.seconds})
        self.loggers += given if self.devices.first else ()

    # --- Beginning, saving, resuming ---

    def begin(self) -> None:
        self.state = self.loop.start()
        if other := self.config.init_from:
            theirs = configuration.read(Path(other) / "config.json").seeds
            found = [
                load_params(other, seed if seed in theirs else None, model=self.loop.source)
                for seed in self.config.seeds
            ]
            self.state = self.loop.started_from(self.state, found, Path(other))
        params = self.loop.params(self.state)
        self.best = self.loop.chosen([], params, params)
        self.batch = 0
        about = {
            "device": device(self.devices.count),
            "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
            | {"python": platform.python_version()},
        }
        results.write_object(self.folder / "config.json", self.config.as_json() | about)
        if (form := self.loop.dataset.form) is not None:
            results.write_object(self.folder / "data.json", dataclasses.asdict(form))
        results.write_lines(self.folder / "metrics.jsonl", [])

    def restore(self, path: Path) -> None:
        expected = _expected(self.loop)
        tree, found = self.devices.read(lambda: checkpoint.load(path, expected), expected)
        note = results.parsed(_Note, str(path), found)
        saved = Config.from_json(note.config, str(path))
        if different := saved.differences(self.config).keys() - {"max_steps", "patience"}:
            raise InputError(f"{path}: written with another {', '.join(different)}")
        self.state, self.best = tree["state"], tree["best"]
        self.batch, self.ms_per_step = note.batch, note.ms_per_step
        self.checks = [results.parsed(Check, f"{path}: a check", check) for check in note.checks]
        if saved != self.config:
            self._extend()
        # All checks that count: a run that was killed may have written one that will be made again.
        results.write_lines(self.folder / "metrics.jsonl", map(as_json, self.checks))

    def _extend(self) -> None:
        """Go on with other limits. Stopped in between, the run is unfinished, and ends as it had."""
        if not self._active():
            why = ", ".join(sorted({self._stopped(i) or "limit" for i in range(len(self.config.seeds))}))
            raise InputError(
                f"{self.folder}: no seed can go on, all have stopped ({why}). At the 'limit', give more "
                "max_steps; after checks without a better validation accuracy ('patience'), a larger "
                "patience, or 0 for never"
            )
        (self.folder / "results.jsonl").unlink(missing_ok=True)
        file = self.folder / "config.json"
        results.write_object(file, results.read_object(file) | self.config.as_json())

    def save(self) -> None:
        tree = self.devices.gathered({"state": self.state, "best": self.best})
        if not self.devices.first:
            return
        checks = tuple(as_json(check) for check in self.checks)
        note = _Note(self.config.as_json(), self.batch, checks, self.ms_per_step)
        checkpoint.save(checkpoint.path(self.folder, self.batch), tree, vars(note))

    # --- Running ---

    def run(self) -> None:
        if self.timed and self.loop.together and math.isnan(self.ms_per_step):
            self.tell(message="compiling, and timing one run alone")
            self.ms_per_step = self.loop.milliseconds(self.state)
        self.tell(self._step, message="compiling")
        while not self.ended and (active := self._active()):
            self._until_check(active)
        train = self.loop.accuracy(self.best, "train")
        found = []
        for i, seed in enumerate(self.config.seeds):
            stopped = self._stopped(i) or ("callback" if self.ended else "limit")
            found.append(results.summarise(seed, i, self._checks_of(i), float(train[i]), stopped))
        results.write_lines(self.folder / "results.jsonl", map(as_json, found))

    @property
    def _step(self) -> int:
        return self.batch * self.loop.method.steps_per_batch

    def _active(self) -> list[int]:
        """The places of the seeds that go on."""
        if self._step >= self.config.max_steps:
            return []
        return [i for i in range(len(self.config.seeds)) if self._stopped(i) is None]

    def _checks_of(self, i: int) -> list[Check]:
        """Those at which a seed had not stopped."""
        return [check for check in self.checks if not math.isnan(check.validation[i])]

    def _stopped(self, i: int) -> str | None:
        """Why a seed has stopped, or None."""
        checks = self._checks_of(i)
        if any(math.isnan(check.loss[i]) for check in checks):
            return "diverged"
        validation = [check.validation[i] for check in checks]
        if self.config.patience and results.should_stop(validation, self.config.patience):
            return "patience"
        if len(checks) < len(self.checks):  # before the others, with the patience of then
            return "patience"
        return "limit" if self._step >= self.config.max_steps else None

    def _until_check(self, active: list[int]) -> None:
        before = self.checks[-1].seconds if self.checks else 0.0
        batches = self.loop.batches_until_check(self.batch)
        steps = batches * self.loop.method.steps_per_batch
        at = float(self._step)

        def on_call(steps: float, loss: float) -> None:
            nonlocal at
            at += steps
            self.tell(at, loss, ms_per_step=self.ms_per_step)

        self.state, losses, seconds = self.loop.advance(self.state, self.batch, active, on_call)
        if self.loop.together:
            seconds = steps * self.ms_per_step / 1000
        else:
            self.ms_per_step = 1000 * seconds / steps
        self.batch += batches
        params = self.loop.params(self.state)
        values = {name: self.loop.accuracy(params, split) for name, split in _SPLITS.items()}
        values["loss"] = losses

        def kept(i: int, value: float) -> float:
            """Rounded as it is written: a resumed run, which reads it, must decide the same."""
            return round(float(value), _DIGITS) if i in active and math.isfinite(value) else math.nan

        check = Check(
            self._step,
            round(before + seconds, _DIGITS) if self.timed else math.nan,
            **{name: tuple(kept(i, value) for i, value in enumerate(v)) for name, v in values.items()},
        )
        best = {i: max((c.validation[i] for c in self._checks_of(i)), default=-math.inf) for i in active}
        better = [i for i in active if check.validation[i] > best[i] and not math.isnan(check.loss[i])]
        if better:
            self.best = self.loop.chosen(better, params, self.best)
        self.checks.append(check)
        results.append_line(self.folder / "metrics.jsonl", as_json(check))
        self.save()
        means = _means(check)
        for logger in self.loggers:
            logger(check.step, means | {"seconds": check.seconds})

        def first() -> Any:
            return jax.tree.map(lambda leaf: np.asarray(leaf)[0], self.loop.params(self.state))

        told = self.tell(check.step, ms_per_step=self.ms_per_step, params=first, **means)
        try:
            for callback in self.callbacks:
                callback(told)
        except StopTraining:
            self.ended = True


_DIGITS = 6
_SPLITS = {"validation": "val", "test": "test"}


def device(count: int = 1) -> str:
    """The devices that are used, in words."""
    kind = jax.devices()[0].device_kind
    one = f"CPU, {os.cpu_count()} cores" if jax.default_backend() == "cpu" else kind
    return one if count == 1 else f"{count} × {one}"


def _means(check: Check) -> dict[str, float]:
    """The values of a check, over the seeds that it has."""
    values = {name: [v for v in getattr(check, name) if not math.isnan(v)] for name in ("loss", *_SPLITS)}
    return {name: float(np.mean(found or [math.nan])) for name, found in values.items()}
