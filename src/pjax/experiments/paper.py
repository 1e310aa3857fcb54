"""The figures of the paper, as it prints them.

Andreas Bergmeister, Manish Krishan Lal, Stefanie Jegelka, Suvrit Sra: *A Projection-Based Framework for
Gradient-Free and Parallel Learning*, AISTATS 2026. Appendix "Detailed experimental results", the three
tables: MLPs (63 rows), CNNs (38) and RNNs (12). Five seeds each, on one NVIDIA H100.
"""

import csv
import dataclasses
import functools
import importlib.resources
import math
from collections.abc import Iterable, Sequence
from typing import Any

from pjax.experiments import methods
from pjax.experiments.config import parse_widths
from pjax.experiments.results import Run, Spread

TITLE = "A Projection-Based Framework for Gradient-Free and Parallel Learning"
DEVICE = "NVIDIA H100"
SEEDS = 5
DATA_LABELS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "higgs": "HIGGS", "shakespeare": "Shakespeare"}
"""How the data sets are written."""
METRICS = ("test", "train", "steps_k", "seconds", "ms_per_step")
PROJECTIONS = ("dr", "ap", "cp")
NEAR = 2.0
"""Points of test accuracy within which a row counts as reproduced."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the paper's tables."""

    data: str
    model: str
    architecture: str
    method: str
    """The method's name, a key of `pjax.experiments.methods.LABELS`."""
    test: Spread
    train: Spread
    steps_k: Spread
    seconds: Spread
    ms_per_step: Spread


@functools.cache
def rows() -> tuple[Row, ...]:
    """All rows, in the order of the paper."""
    names = {label: name for name, label in methods.LABELS.items()}
    text = importlib.resources.files("pjax.experiments").joinpath("paper.csv").read_text(encoding="utf-8")
    return tuple(
        Row(
            line["data"],
            line["model"],
            line["architecture"],
            names[line["method"]],
            *(Spread(float(line[f"{m}_mean"]), float(line[f"{m}_std"])) for m in METRICS),
        )
        for line in csv.DictReader(text.splitlines())
    )


@functools.cache
def lookup(data: str, model: str, architecture: str, method: str) -> Row | None:
    """The paper's row, if it has one; its proximal operator (``"dr-fp"``) has that of the exact one.

    >>> lookup("mnist", "mlp", "1x128", "dr").test
    Spread(mean=95.8, std=0.6)
    >>> lookup("mnist", "mlp", "7x128", "dr") is None
    True
    """
    key = data, model, architecture, method.removesuffix("-fp")
    return next((row for row in rows() if (row.data, row.model, row.architecture, row.method) == key), None)


def of(run: Run) -> Row | None:
    """The paper's row for a run."""
    return lookup(run.data, run.model, run.architecture, run.method)


def found(runs: Iterable[Run]) -> dict[Row, Run]:
    """The runs that stand for rows of the paper: in full, with as many seeds; the first of several."""
    counted: dict[Row, Run] = {}
    for run in runs:
        row = of(run)
        whole = run.finished and len(run.seeds) >= SEEDS and not (run.quick or run.study)
        if row is not None and row.method == run.method and whole:
            counted.setdefault(row, run)
    return counted


def missing(runs: Sequence[Run]) -> list[Run]:
    """Where runs of one network stand for rows of the paper: a run without results for each other row."""
    there, absent = {of(run) for run in runs}, []
    for row in rows() if found(runs) else ():
        if (row.data, row.model) == (runs[0].data, runs[0].model) and row not in there:
            empty: Any = {"method": row.method, "seeds": (), "checks": (), "results": ()}
            absent.append(dataclasses.replace(runs[0], **empty, **parse_widths(row.architecture)))
    return absent


def difference(run: Run) -> float:
    """Test accuracy minus the paper's, in points, as exact as the paper prints it, or NaN."""
    row = of(run)
    return round(run.test.mean - row.test.mean, 1) if row else math.nan
