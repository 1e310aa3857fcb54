"""Comparisons of methods: the blocks of the paper's three tables, and studies, as presets.

A comparison is a folder with one run for each architecture and method. What has ended is not run again, and
what was interrupted goes on, so a comparison is continued by starting it again.
"""

import dataclasses
import importlib.resources
import math
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pjax.checks import check_name
from pjax.errors import InputError
from pjax.experiments import methods
from pjax.experiments.config import Config, parse_widths
from pjax.experiments.loop import divisor
from pjax.experiments.results import Run, read_runs, unpack
from pjax.experiments.train import Progress, time_again, train

SEEDS = (0, 1, 2, 3, 4)
MAX_STEPS = 200_000
"""Early stopping comes long before, or the run is cut here."""
QUICK_CHECKS = 5
CHECKS = 40
"""How often a study looks at the accuracy."""


@dataclasses.dataclass(frozen=True)
class Preset:
    """A data set and a network, with several architectures and methods: a block of a table.

    Args:
        data: the data set.
        model: the network.
        architectures: as in ``"4x128+skip"``.
        methods: those that are not defined with a skip are left out there.
        quick: settings of the small version.
        batches: for a study, how many batches each run sees, whatever happens; in the small version as many
            as the small version of a table has steps.
        study: what it is part of, if not of the paper's tables.
    """

    data: str
    model: str
    architectures: Sequence[str]
    methods: Sequence[str]
    quick: dict[str, Any]
    batches: int = 0
    study: str = ""

    def configs(self, quick: bool = False, **settings: Any) -> Iterator[Config]:
        """The runs.

        Args:
            quick: the small version: fewer steps and seeds, and smaller batches where a step is slow.
            settings: changes to each run, see `Config`.
        """
        given = {key: value for key, value in settings.items() if value is not None}
        for name in self.architectures:
            network = Config(self.data, self.model, **parse_widths(name))
            for method in self.methods:
                if not (network.skip and method in methods.NO_SKIP):
                    usual = self._usual(method, quick, given.get("max_steps"))
                    yield network.on(method=method, **({"batch_size": 256} | usual | given))

    def _usual(self, method: str, quick: bool, most: int | None) -> dict[str, Any]:
        """Settings of a run to convergence, as in the paper, or on a number of batches."""
        small = {k: v for k, v in self.quick.items() if not k.endswith("steps")} | {"quick": True}
        per_batch = methods.settings(method)["steps_per_batch"]
        if not self.study:
            if not quick:
                return {"seeds": SEEDS, "max_steps": MAX_STEPS, "check_every": 1000}
            steps = most or self.quick["projection_steps" if methods.projects(method) else "steps"]
            every = divisor(max(steps // per_batch, 1), QUICK_CHECKS) * per_batch
            return small | {"max_steps": steps, "check_every": every}
        batches, checks = (self.quick["steps"], QUICK_CHECKS) if quick else (self.batches, CHECKS)
        batches = (most or batches * per_batch) // per_batch
        usual = {"seeds": (0, 1, 2), "study": self.study, "patience": 0} | (small if quick else {})
        every = divisor(batches, checks) * per_batch
        return usual | {"max_steps": batches * per_batch, "check_every": every}


def _listed() -> dict[str, Preset]:
    """The presets that come with the package."""
    text = importlib.resources.files("pjax.experiments").joinpath("presets.toml").read_text(encoding="utf-8")
    listed = tomllib.loads(text)
    found = {name: Preset(**block) for name, block in listed["tables"].items()}
    for study in listed["studies"]:
        for table in study.pop("tables"):
            found[f"{study['study']}-{table}"] = dataclasses.replace(found[table], **study)
    return found


PRESETS = _listed()
"""The blocks of the paper's tables, and studies."""
GROUPS = {
    "paper": tuple(name for name, preset in PRESETS.items() if not preset.study),
    "learning": tuple(name for name, preset in PRESETS.items() if preset.study == "learning"),
    "exchanges": tuple(name for name, preset in PRESETS.items() if preset.study == "exchanges"),
    "studies": tuple(n for n, p in PRESETS.items() if p.study not in ("", "learning", "exchanges")),
}
"""Several presets at once."""


def compare(
    preset: str,
    folder: str | Path = "results",
    *,
    quick: bool = False,
    only_methods: Sequence[str] | None = None,
    only_architectures: Sequence[str] | None = None,
    progress: Callable[[str, Progress], None] = lambda *_: None,
    together: bool | None = None,
    timed: bool = True,
    **settings: Any,
) -> tuple[Run, ...]:
    """Run a preset, or go on with it; all of its runs, which have ended.

    Args:
        preset: one of `PRESETS`.
        folder: the runs are written into its subfolder with the name of the preset, within ``quick`` for the
            small version.
        quick: the small version.
        only_methods, only_architectures: some of the preset's.
        progress: called often, with the name of the run.
        together, timed: see `train`; `retime` adds times.
        settings: changes to each run, see `Config`.
    """
    check_name("preset", preset, PRESETS)
    chosen = PRESETS[preset]
    for kind, names in (("method", only_methods), ("architecture", only_architectures)):
        known = getattr(chosen, f"{kind}s")
        for name in names or ():
            check_name(kind, name, known)
        if names is not None:
            some: Any = {f"{kind}s": [name for name in known if name in names]}
            chosen = dataclasses.replace(chosen, **some)
    configs = list(chosen.configs(quick, **settings))
    if not configs:
        raise InputError("no run is left: the methods asked for are not defined for these architectures")
    parent = _unpacked(preset, folder, quick)

    def run(config: Config) -> Run:
        where = parent / config.run_name
        return train(
            config,
            where,
            resume=(where / "config.json").exists(),
            together=together,
            progress=lambda p: progress(f"{preset} {where.name}", p),
            keep_checkpoint=False,
            timed=timed,
        )

    return tuple(run(config) for config in configs)


def retime(
    preset: str,
    folder: str | Path = "results",
    *,
    quick: bool = False,
    progress: Callable[[str, Progress], None] = lambda *_: None,
) -> None:
    """Time a step of every run again that has ended, each alone, and correct the seconds of its results.

    For comparisons that were made several at once, or on a busy machine. Nothing else is changed.
    """
    check_name("preset", preset, PRESETS)
    for run in read_runs(_unpacked(preset, folder, quick)):
        if run.finished:
            about = Progress(0, 1, math.nan, ms_per_step=time_again(run.folder), message="timed")
            progress(f"{preset} {run.folder.name}", about)


def _unpacked(preset: str, folder: str | Path, quick: bool) -> Path:
    """Where the runs of a preset are, in folders of their own."""
    where = Path(folder, "quick", preset) if quick else Path(folder, preset)
    unpack(folder, where)
    return where
