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
from pjax.experiments.results import Spread

TITLE = "A Projection-Based Framework for Gradient-Free and Parallel Learning"
DEVICE = "NVIDIA H100"
SEEDS = 5

LABELS = {name: methods.LABELS[name] for name in ("sgd", "adam", "fa", "ff-sgd", "ff-adam", "dr", "ap", "cp")}
"""The paper's label of each of its methods, in the order of its tables."""

DATA_LABELS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "higgs": "HIGGS", "shakespeare": "Shakespeare"}
"""How the data sets are written."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the paper's tables."""

    data: str
    model: str
    architecture: str
    method: str
    """The method's name, a key of `LABELS`."""
    test: Spread
    train: Spread
    steps_k: Spread
    seconds: Spread
    ms_per_step: Spread


@functools.cache
def rows() -> tuple[Row, ...]:
    """All rows, in the order of the paper."""
    names = {label: name for name, label in LABELS.items()}
    text = importlib.resources.files("pjax.experiments").joinpath("paper.csv").read_text(encoding="utf-8")

    def spread(line: dict[str, str], name: str) -> Spread:
        return Spread(float(line[f"{name}_mean"]), float(line[f"{name}_std"]))

    return tuple(
        Row(
            data=line["data"],
            model=line["model"],
            architecture=line["architecture"],
            method=names[line["method"]],
            test=spread(line, "test"),
            train=spread(line, "train"),
            steps_k=spread(line, "steps_k"),
            seconds=spread(line, "seconds"),
            ms_per_step=spread(line, "ms_per_step"),
        )
        for line in csv.DictReader(text.splitlines())
    )


def lookup(data: str, model: str, architecture: str, method: str) -> Row | None:
    """The paper's row for a run, or None where it has none.

    Args:
        data, model, architecture: as in ``("mnist", "mlp", "4x128+skip")``.
        method: a name (``"ff-adam"``) or a label (``"FF (Adam)"``). A method with the paper's proximal
            operator (``"dr-fp"``) has the same row as with the exact one.

    >>> lookup("mnist", "mlp", "1x128", "dr").test
    Spread(mean=95.8, std=0.6)
    >>> lookup("mnist", "mlp", "7x128", "dr") is None
    True
    """
    name = label(method.removesuffix("-fp"))
    return _by_key().get((data, model, architecture, name))


def label(method: str) -> str:
    """The paper's label of a method; a method that the paper does not have is its own label.

    >>> label("ff-adam"), label("DR"), label("mine")
    ('FF (Adam)', 'DR', 'mine')
    """
    return LABELS.get(method, method)


@functools.cache
def _by_key() -> dict[tuple[str, str, str, str], Row]:
    return {(r.data, r.model, r.architecture, LABELS[r.method]): r for r in rows()}
