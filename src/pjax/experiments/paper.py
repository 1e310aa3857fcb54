"""The figures of the paper, as it prints them.

Andreas Bergmeister, Manish Krishan Lal, Stefanie Jegelka, Suvrit Sra: *A Projection-Based Framework for
Gradient-Free and Parallel Learning*, AISTATS 2026. Appendix "Detailed experimental results", the three
tables: MLPs (63 rows), CNNs (38) and RNNs (12). Five seeds each, on one NVIDIA H100.
"""

import csv
import dataclasses
import functools
import importlib.resources

from pjax.experiments import methods
from pjax.experiments.results import Run, Spread

TITLE = "A Projection-Based Framework for Gradient-Free and Parallel Learning"
DEVICE = "NVIDIA H100"
SEEDS = 5
DATA_LABELS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "higgs": "HIGGS", "shakespeare": "Shakespeare"}
"""How the data sets are written."""
METRICS = ("test", "train", "steps_k", "seconds", "ms_per_step")


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
    """The paper's row for a run, or None where it has none.

    Args:
        data, model, architecture: as in ``("mnist", "mlp", "4x128+skip")``.
        method: as in ``"ff-adam"``. A method with the paper's proximal operator (``"dr-fp"``) has the same
            row as with the exact one.

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
