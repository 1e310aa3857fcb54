"""Comparisons of methods: the blocks of the paper's three tables, as presets.

A comparison is a folder with one run for each architecture and method. What has ended is not run again, and
what was interrupted goes on, so a comparison is continued by starting it again.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pjax.errors import InputError
from pjax.experiments import methods
from pjax.experiments.checks import check_name
from pjax.experiments.config import Config, parse_widths
from pjax.experiments.loop import divisor
from pjax.experiments.results import Run, read_run, read_runs, unpack
from pjax.experiments.train import Progress, time_again, train

PROJECTIONS = ("dr", "ap", "cp")
FIXED_POINT = ("dr-fp", "ap-fp", "cp-fp")


@dataclasses.dataclass(frozen=True)
class Preset:
    """A data set and a network, with several architectures and methods: a block of a table.

    Args:
        data: the data set.
        model: the network.
        architectures: as in ``"4x128+skip"``.
        methods: those that are not defined with a skip are left out there.
        quick: settings of the small version.
        settings: of the full version, where they are not those of the paper.
        study: what it is part of, if not of the paper's tables.
        batches: for a study, how many batches each run sees, whatever happens; in the small version as many
            as the small version of a table has steps.
    """

    data: str
    model: str
    architectures: tuple[str, ...]
    methods: tuple[str, ...]
    quick: dict[str, Any]
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    study: str = ""
    batches: int = 0

    def configs(self, quick: bool = False, **settings: Any) -> Iterator[Config]:
        """The runs.

        Args:
            quick: the small version: fewer steps and seeds, and smaller batches where a step is slow.
            settings: changes to each run, see `Config`.
        """
        given = {key: value for key, value in settings.items() if value is not None}
        for name in self.architectures:
            widths, skip, levels = parse_widths(name)
            for method in self.methods:
                if skip and method in ("fa", "ff-sgd", "ff-adam"):
                    continue
                usual = (self._study if self.study else self._table)(method, quick, given)
                yield Config(
                    data=self.data,
                    model=self.model,
                    widths=widths,
                    skip=skip,
                    levels=levels,
                    method=method,
                    **({"batch_size": 256} | usual | given),
                )

    def _table(self, method: str, quick: bool, given: dict[str, Any]) -> dict[str, Any]:
        """Settings of a run to convergence, as in the paper."""
        if not quick:
            return {"seeds": SEEDS, "max_steps": MAX_STEPS, "check_every": 1000} | self.settings
        steps = self.quick["projection_steps" if methods.projects(method) else "steps"]
        steps = given.get("max_steps", steps)
        return self._small() | {"max_steps": steps, "check_every": divisor(steps, QUICK_CHECKS)}

    def _study(self, method: str, quick: bool, given: dict[str, Any]) -> dict[str, Any]:
        """Settings of a run on a number of batches."""
        per_batch = methods.default(method, "steps_per_batch")
        batches, checks = (self.quick["steps"], QUICK_CHECKS) if quick else (self.batches, CHECKS)
        batches = given.get("max_steps", batches * per_batch) // per_batch
        return (
            {"seeds": (0, 1, 2), "study": self.study, "patience": 0}
            | (self._small() if quick else {})
            | {"max_steps": batches * per_batch, "check_every": divisor(batches, checks) * per_batch}
            | self.settings
        )

    def _small(self) -> dict[str, Any]:
        """What the small version has besides fewer steps."""
        return {k: v for k, v in self.quick.items() if not k.endswith("steps")} | {"quick": True}


SEEDS = (0, 1, 2, 3, 4)
MAX_STEPS = 200_000
"""Early stopping comes long before, or the run is cut here."""
QUICK_CHECKS = 5
CHECKS = 40
"""How often a study looks at the accuracy."""

_GRADIENT = ("sgd", "adam")
_FORWARD = ("ff-sgd", "ff-adam")
_MLP_METHODS = (*_GRADIENT, "fa", *_FORWARD, *PROJECTIONS)
_CNN_METHODS = (*_GRADIENT, *_FORWARD, *PROJECTIONS)


def _mlp(data: str, width: int, *, extra: tuple[str, ...] = ()) -> Preset:
    return Preset(
        data,
        "mlp",
        (f"1x{width}", f"4x{width}", f"4x{width}+skip"),
        (*_MLP_METHODS, *extra),
        {"seeds": (0, 1), "steps": 500, "projection_steps": 1000},
    )


def _cnn(data: str) -> Preset:
    return Preset(
        data,
        "cnn",
        ("1x32", "4x16", "4x16+skip"),
        _CNN_METHODS,
        {"seeds": (0,), "steps": 250, "projection_steps": 250, "batch_size": 64, "evaluated": 2000},
    )


PRESETS = {
    "mlp-mnist": _mlp("mnist", 128, extra=FIXED_POINT),
    "mlp-cifar10": _mlp("cifar10", 256),
    "mlp-higgs": _mlp("higgs", 256),
    "cnn-mnist": _cnn("mnist"),
    "cnn-cifar10": _cnn("cifar10"),
    "rnn-shakespeare": Preset(
        "shakespeare",
        "rnn",
        ("1x256", "4x128", "4x128+skip"),
        (*_GRADIENT, "dr", "ap"),
        {
            "seeds": (0,),
            "steps": 250,
            "projection_steps": 250,
            "batch_size": 16,
            "sequence_length": 16,
            "evaluated": 2000,
        },
    ),
}
"""The blocks of the paper's tables, and of the study of learning."""


_BATCHES = {
    "mlp-mnist": 2000,
    "mlp-cifar10": 2000,
    "mlp-higgs": 1000,
    "cnn-mnist": 2000,
    "cnn-cifar10": 4000,
    "rnn-shakespeare": 2000,
}
_TABLES = tuple(PRESETS)


def _study(
    study: str, table: str, methods: Sequence[str], architectures: Sequence[str] = (), batches: int = 0
) -> None:
    """Add a study of some methods on the data and the network of a table."""
    preset = PRESETS[table]
    PRESETS[f"{study}-{table}"] = dataclasses.replace(
        preset,
        methods=tuple(methods),
        architectures=tuple(architectures) or preset.architectures,
        study=study,
        batches=batches or _BATCHES[table],
    )


for _table in _TABLES:
    _study("learning", _table, ("ep", "adam"))

_LEVELS = [f"{size}{levels}" for size in ("1x128", "4x128") for levels in ("+q2", "+q4", "+q16", "")]
_study("quantised", "mlp-mnist", ("ep", "adam", "dr"), _LEVELS)

_SWEEPS = ("adam", "ep", "ep:softness=0.1", "ep:softness=1", "ep:reach=1", "ep:steps=4")
_RECIPE = "metric=balanced:extrapolate=tensor:outer=adam"
_study(
    "ablation",
    "mlp-mnist",
    (
        *_SWEEPS,
        "ap",
        "ap:metric=balanced",
        "ap:extrapolate=tensor",
        "ap:metric=balanced:extrapolate=tensor",
        "ap:outer=adam:steps=10",
        "ap:metric=balanced:outer=adam:steps=10",
        f"ap:{_RECIPE}:steps=5",
        f"ap:{_RECIPE}:steps=10",
        f"ap:{_RECIPE}:steps=20",
        f"ap:{_RECIPE}:steps=10:loss_scale=1",
        f"cp:{_RECIPE}:steps=1",
        "dr",
        "dr:metric=balanced",
        "dr:metric=balanced:outer=adam:steps=10",
    ),
    ("4x128",),
)
_study(
    "ablation",
    "cnn-mnist",
    (
        *_SWEEPS,
        f"ap:{_RECIPE}:steps=20:loss_scale=2",
    ),
    ("4x16+skip",),
    600,
)
_study(
    "precision",
    "mlp-mnist",
    [
        f"{method}:precision={precision}"
        for method in ("adam", "ep", f"ap:{_RECIPE}:steps=10", "dr")
        for precision in methods.PRECISIONS
    ]
    + [f"{method}:precision=float32:state_dtype=bfloat16" for method in (f"ap:{_RECIPE}:steps=10", "dr")],
    ("4x128",),
)
_study(
    "precision",
    "cnn-mnist",
    [f"{method}:precision={precision}" for method in ("adam", "ep") for precision in methods.PRECISIONS],
    ("4x16+skip",),
)

_DEVICES = 8


def _exchanging(method: str, every: Sequence[int]) -> list[str]:
    """A method whose groups exchange in every so many steps."""
    return [f"{method}:groups={_DEVICES}" + (f":sync_every={steps}" if steps > 1 else "") for steps in every]


_study(
    "exchanges",
    "mlp-mnist",
    (
        *_exchanging("sgd", (1,)),
        *_exchanging("adam", (1, 10, 100)),
        *_exchanging("ep", (1, 10, 100)),
        *_exchanging(f"ap:{_RECIPE}:steps=10", (1, 2, 5, 10, 20, 50, 100, 1000)),
    ),
    ("1x128",),
)
_study(
    "exchanges",
    "cnn-mnist",
    (
        *_exchanging("sgd", (1,)),
        *_exchanging("adam", (1, 10, 100)),
        *_exchanging("ep", (1, 10, 100)),
        *_exchanging(f"ap:{_RECIPE}:steps=20:loss_scale=2", (1, 5, 20, 200, 2000)),
    ),
    ("4x16+skip",),
    300,
)
GROUPS = {
    "paper": _TABLES,
    "learning": tuple(name for name in PRESETS if PRESETS[name].study == "learning"),
    "exchanges": tuple(name for name in PRESETS if PRESETS[name].study == "exchanges"),
    "studies": tuple(name for name in PRESETS if PRESETS[name].study not in ("", "learning", "exchanges")),
}
"""Several presets at once."""


def compare(
    preset: str,
    folder: str | Path = "results",
    *,
    quick: bool = False,
    only_methods: Sequence[str] | None = None,
    only_architectures: Sequence[str] | None = None,
    progress: Callable[[str, Progress], None] | None = None,
    together: bool | None = None,
    **settings: Any,
) -> tuple[Run, ...]:
    """Run a preset, or go on with it.

    Args:
        preset: one of `PRESETS`.
        folder: the runs are written into its subfolder with the name of the preset, within ``quick`` for the
            small version.
        quick: the small version.
        only_methods: some of the preset's methods.
        only_architectures: some of the preset's architectures.
        progress: called often, with the name of the run.
        together: whether to train all seeds of a run in one program; by default on accelerators.
        settings: changes to each run, see `Config`.

    Returns:
        The runs, all of which have ended.
    """
    check_name("preset", preset, PRESETS)
    configs = chosen(PRESETS[preset], only_methods, only_architectures, quick, settings)
    parent = place(preset, folder, quick)
    unpack(folder, parent)
    runs = []
    for config in configs:
        where = parent / config.run_name
        name = f"{preset} {where.name}"

        def show(p: Progress, name: str = name) -> None:
            if progress:
                progress(name, p)

        runs.append(
            train(
                config,
                where,
                resume=(where / "config.json").exists(),
                together=together,
                progress=show,
                keep_checkpoint=False,
            )
        )
    return tuple(runs)


def retime(
    preset: str,
    folder: str | Path = "results",
    *,
    quick: bool = False,
    progress: Callable[[str, Progress], None] | None = None,
) -> tuple[Run, ...]:
    """Time a step of every run again that has ended, each alone, and correct the seconds of its results.

    For comparisons that were made several at once, or on a busy machine. Nothing else is changed.
    """
    check_name("preset", preset, PRESETS)
    unpack(folder, place(preset, folder, quick))
    found = [run for run in read_runs(place(preset, folder, quick)) if run.finished]
    for run in found:
        milliseconds = time_again(run.folder)
        if progress:
            about = Progress(0, 1, math.nan, ms_per_step=milliseconds, message="timed")
            progress(f"{preset} {run.folder.name}", about)
    return tuple(read_run(run.folder) for run in found)


def place(preset: str, folder: str | Path = "results", quick: bool = False) -> Path:
    """Where the runs of a preset are.

    >>> place("cnn-mnist", quick=True).as_posix()
    'results/quick/cnn-mnist'
    """
    return Path(folder, "quick", preset) if quick else Path(folder, preset)


def chosen(
    preset: Preset,
    only_methods: Sequence[str] | None,
    only_architectures: Sequence[str] | None,
    quick: bool,
    settings: dict[str, Any],
) -> list[Config]:
    """The runs of a preset that are asked for."""
    for kind, names, known in (
        ("method", only_methods, preset.methods),
        ("architecture", only_architectures, preset.architectures),
    ):
        for name in names or ():
            check_name(kind, name, known)
    found = [
        config
        for config in preset.configs(quick, **settings)
        if (only_methods is None or config.method in only_methods)
        and (only_architectures is None or config.architecture in only_architectures)
    ]
    if not found:
        raise InputError("no run is left: the methods asked for are not defined for these architectures")
    return found
