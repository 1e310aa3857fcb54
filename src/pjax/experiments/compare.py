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
from pjax.experiments.config import Config, parse_widths
from pjax.experiments.results import Run, architecture, read_run, read_runs
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
    """

    data: str
    model: str
    architectures: tuple[str, ...]
    methods: tuple[str, ...]
    quick: dict[str, Any]
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def configs(self, quick: bool = False, **settings: Any) -> Iterator[Config]:
        """The runs.

        Args:
            quick: the small version: fewer steps and seeds, and smaller batches where a step is slow.
            settings: changes to each run, see `Config`.
        """
        given = {key: value for key, value in settings.items() if value is not None}
        for name in self.architectures:
            widths, skip = parse_widths(name)
            for method in self.methods:
                if skip and method in ("fa", "ff-sgd", "ff-adam"):
                    continue
                common: dict[str, Any] = {"seeds": SEEDS, "max_steps": MAX_STEPS} | self.settings | given
                if quick:
                    small, steps = self.quick, "projection_steps" if _projects(method) else "steps"
                    common = {k: v for k, v in small.items() if not k.endswith("steps")}
                    common |= {"max_steps": small[steps], "quick": True} | given
                    common.setdefault("check_every", common["max_steps"] // QUICK_CHECKS)
                yield Config(
                    data=self.data, model=self.model, widths=widths, skip=skip, method=method, **common
                )


SEEDS = (0, 1, 2, 3, 4)
MAX_STEPS = 200_000
"""Early stopping comes long before, or the run is cut here."""
QUICK_CHECKS = 5

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


def _learning(preset: Preset, batches: int) -> Preset:
    """Extrapolated projections and Adam on the same number of batches, to the end."""
    settings = {"seeds": (0, 1, 2), "max_steps": batches, "check_every": batches // 20, "patience": 0}
    quick = preset.quick | {"projection_steps": preset.quick["steps"]}
    return dataclasses.replace(preset, methods=("ep", "adam"), quick=quick, settings=settings)


_BATCHES = {
    "mlp-mnist": 2000,
    "mlp-cifar10": 2000,
    "mlp-higgs": 1000,
    "cnn-mnist": 2000,
    "cnn-cifar10": 4000,
    "rnn-shakespeare": 4000,
}
PRESETS |= {f"learning-{name}": _learning(PRESETS[name], batches) for name, batches in _BATCHES.items()}
GROUPS = {
    "paper": tuple(_BATCHES),
    "learning": tuple(f"learning-{name}" for name in _BATCHES),
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
    methods.check_name("preset", preset, PRESETS)
    configs = chosen(PRESETS[preset], only_methods, only_architectures, quick, settings)
    parent = place(preset, folder, quick)
    runs = []
    for config in configs:
        where = parent / f"{architecture(config.widths, config.skip)}-{config.method}"
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
    methods.check_name("preset", preset, PRESETS)
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
            methods.check_name(kind, name, known)
    found = [
        config
        for config in preset.configs(quick, **settings)
        if (only_methods is None or config.method in only_methods)
        and (only_architectures is None or architecture(config.widths, config.skip) in only_architectures)
    ]
    if not found:
        raise InputError("no run is left: the methods asked for are not defined for these architectures")
    return found


def _projects(method: str) -> bool:
    return method.partition("-")[0] in methods.SOLVERS
