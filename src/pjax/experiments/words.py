"""How tables and figures name data sets, architectures, methods and runs."""

import re
from collections.abc import Iterable, Sequence

from pjax.experiments import methods, paper
from pjax.experiments.own_model import is_own
from pjax.experiments.results import Run, plain

MISSING = "–"
"""What stands in a table where there is no number."""


def method_label(name: str, *, short: bool = False) -> str:
    """What a method is called, in full or short enough for the end of a line.

    >>> method_label("ff-adam"), method_label("dr-fp"), method_label("dr-fp", short=True)
    ('FF (Adam)', 'DR, fixed point', 'DR (fp)')
    """
    label = methods.label(name)
    return label.replace(", fixed point", " (fp)") if short else label


def apart(run: Run, runs: Iterable[Run]) -> str:
    """What tells a run from others of its method and architecture: its seed, or else its folder."""
    same = [other for other in runs if (other.method, other.architecture) == (run.method, run.architecture)]
    if len(same) < 2:
        return ""
    seeds = {other.seeds for other in same}
    if len(seeds) == len(same) and all(len(one) == 1 for one in seeds):
        return f" (seed {run.seeds[0]})"
    return f" ({run.folder.name})"


def sort_methods(runs: Iterable[Run]) -> list[Run]:
    """Runs in the order of the paper's methods, and of the numbers in their options."""
    names = list(methods.LABELS)

    def key(run: Run) -> tuple[int, list[str | int]]:
        base = run.method.partition(":")[0]
        parts = [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", run.method)]
        return names.index(base) if base in names else len(names), parts

    return sorted(runs, key=key)


def sort_architectures(names: Iterable[str]) -> list[str]:
    """Shallow before deep, plain before skip.

    >>> sort_architectures(["4x128+skip", "1x128", "4x128", "64-32"])
    ['1x128', '64-32', '4x128', '4x128+skip']
    """

    def key(name: str) -> tuple[int, bool, int, str]:
        body, _, rest = name.partition("+")
        layers = re.fullmatch(r"(\d+)x\d+", body)  # or a network of one's own
        depth = int(layers[1]) if layers else body.count("-") + 1
        levels = int(rest.partition("q")[2] or 0)
        return depth, "skip" in rest, levels, name

    return sorted(names, key=key)


def spell(architecture: str) -> str:
    """An architecture as one reads it.

    >>> spell("4x128+skip"), spell("64-32"), spell("1x128+q4")
    ('4 × 128 + skip', '64, 32', '1 × 128, 4 levels')
    """
    if not architecture[0].isdigit():  # a network of one's own
        return architecture
    body, _, levels = architecture.partition("+q")
    text = body.replace("x", " × ").replace("-", ", ").replace("+", " + ")
    return f"{text}, {levels} levels" if levels else text


def describe(runs: Sequence[Run]) -> str:
    """What the runs train: ``MLP on MNIST``."""
    models = "/".join(dict.fromkeys(_model(run.model) for run in runs))
    return f"{models} on {'/'.join(dict.fromkeys(_data(run) for run in runs))}"


def _data(run: Run) -> str:
    """What a data set is called; of a table, with what is predicted."""
    predicted = f" ({run.config['target']})" if "target" in run.config else ""
    return paper.DATA_LABELS.get(run.data, plain(run.data)) + predicted


def _model(name: str) -> str:
    return plain(name) if is_own(name) else name.upper()


def about(runs: Sequence[Run]) -> str:
    """Where the runs come from: device, seeds, and whether they are quick or unfinished."""
    parts = [", ".join(dict.fromkeys(run.device for run in runs)), seeds_in_words(runs)]
    if any(run.quick for run in runs):
        parts.append("quick version")
    if not all(run.finished for run in runs):
        parts.append("unfinished")
    return "  ·  ".join(parts)


def seeds_in_words(runs: Sequence[Run]) -> str:
    """The number of seeds, ``5 seeds``, or their range."""
    low, *more = sorted({len(run.seeds) for run in runs})
    if more:
        return f"{low} to {more[-1]} seeds"
    return "1 seed" if low == 1 else f"{low} seeds"
