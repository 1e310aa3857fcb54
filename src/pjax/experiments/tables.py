"""Tables of results in Markdown, each number beside that of the paper, or beside Adam's; and their words."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from pjax.experiments import methods, paper
from pjax.experiments.config import sent as bytes_sent
from pjax.experiments.own_model import is_own
from pjax.experiments.results import Run, Spread, plain

METRICS = dict(
    zip(paper.METRICS, ["Test (%)", "Train (%)", "Steps (k)", "Time (s)", "Time/step (ms)"], strict=True)
)
STUDIES = {
    "learning": "Learning",
    "quantised": "Weights and activations of few levels",
    "ablation": "What helps, and what does not",
    "precision": "Precision of the arithmetic",
    "exchanges": "Fewer exchanges",
}
TIMED = ("learning",)
"""Studies whose times are those of one run alone."""

MISSING = "–"
"""What stands in a table where there is no number."""

_Grid: TypeAlias = tuple[list[str], list[list[str]]]
"""Header and rows."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Runs that belong together, in the order in which they are shown."""

    name: str
    """A word for files and labels: ``mlp-mnist``, ``quick-mlp-mnist``."""
    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        study = f"{STUDIES.get(self.study, self.study)}: " if self.study else ""
        return study + describe(self.runs) + (" (quick version)" if self.quick else "")

    @property
    def study(self) -> str:
        """What study it is of; empty for the paper's tables."""
        return self.runs[0].study

    @property
    def quick(self) -> bool:
        return self.runs[0].quick

    @property
    def figure(self) -> str:
        """The name of its plot, one for all tables of a study unless they have times."""
        shared = self.study and self.study not in TIMED
        return ("quick-" if self.quick else "") + self.study if shared else self.name

    def label(self, run: Run) -> str:
        """The method; with its seed or folder where there are several runs of it."""
        return method_label(run.method) + apart(run, self.runs)

    def grid(self) -> _Grid:
        header = ["Architecture", "Method"]
        if self.study:
            header += _header_beside_adam(self.study)
        else:
            for metric, title in METRICS.items():
                header += [title, "paper", "diff."] if metric == "test" else [title, "paper"]
        rows, last = [], ""
        for run in self.runs:
            cells = _cells_beside_adam(run, self.runs) if self.study else _cells(run)
            name = spell(run.architecture)
            rows.append([name if name != last else "", self.label(run), *cells])
            last = name
        return header, rows


# --- What a table says of itself ---

_BESIDE = (
    "Adam is backpropagation with Adam (1e-3). Test: of the parameters with the best validation accuracy. "
    "To 97%: until the mean test accuracy is that much of Adam's at the end; – where it never is."
)
_SENT = (
    "Exchanges: how often groups average their parameters, or gradients, on a batch. MB: what each device "
    "has sent, with a device for each group and sums around a ring."
)


def caption(table: Table) -> str:
    """Seeds, device, and how long was trained."""
    runs, seeds, device = table.runs, seeds_in_words(table.runs), table.runs[0].device
    size = _range(runs, "batch_size")
    if table.study:
        said = f"{seeds}, {device}, {_from_to(map(batches, runs))} batches of {size}. {_BESIDE}"
        return f"{said} {_SENT}" if table.study == "exchanges" else said
    full = "Quick version, not trained to the end" if table.quick else "Full version"
    parts = [f"{full}: {seeds}, {device}, batches of {size}"]
    for title, projects in (("projections", True), ("the others", False)):
        if members := [run for run in runs if methods.projects(run.method) is projects]:
            steps, seen = _range(members, "max_steps"), _from_to(map(batches, members))
            parts.append(f"at most {steps} steps on {seen} batches for {title}")
    if (patience := _range(runs, "patience")) != "0":
        every = _range(runs, "check_every")
        parts.append(
            f"stopped after {patience} checks, {every} steps each, without a better validation "
            f"{runs[0].score}"
        )
    if runs[0].score != "accuracy":
        parts.append(f"test and train are {runs[0].score}, not accuracies")
    several = any(len(run.seeds) > 1 for run in runs)
    numbers = "means ± standard deviations over seeds" if several else "of one seed"
    return "; ".join(parts) + f". Numbers are {numbers}; the paper has {paper.SEEDS} seeds on {paper.DEVICE}."


def notes(table: Table) -> list[str]:
    """What a reader must know of single rows."""

    def named(seeds: Callable[[Run], int]) -> str:
        return ", ".join(
            f"{spell(run.architecture)} {table.label(run)} ({number} of {len(run.seeds)} seeds)"
            for run in table.runs
            if (number := seeds(run))
        )

    def stopped(why: str) -> Callable[[Run], int]:
        return lambda run: sum(result.stopped == why for result in run.results)

    found = {
        "Unfinished": named(lambda run: len(set(run.seeds) - {result.seed for result in run.results})),
        "Diverged": named(stopped("diverged")),
    }
    if not (table.quick or table.study):
        found["Cut at the largest number of steps"] = named(stopped("limit"))
    return [f"{what}: {who}." for what, who in found.items() if who]


def batches(run: Run) -> int:
    """How many a run sees at most."""
    return int(run.config["max_steps"]) // _steps_per_batch(run)


def _steps_per_batch(run: Run) -> int:
    """Files of earlier versions have a number for methods that do not look at it."""
    return int(run.config["steps_per_batch"]) if methods.projects(run.method) else 1


def _range(runs: Sequence[Run], name: str) -> str:
    return _from_to(int(run.config[name]) for run in runs)


def _from_to(values: Iterable[int]) -> str:
    found = sorted(values)
    low, high = found[0], found[-1]
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


# --- Beside the paper ---


def number(spread: Spread | None, digits: int, *, alone: bool = False) -> str:
    """A mean with its deviation, or a dash.

    >>> number(Spread(95.84, 0.61), 1), number(Spread(3.72, 0.0), 2, alone=True), number(None, 1)
    ('95.8 ± 0.6', '3.72', '–')
    """
    if spread is None:
        return MISSING
    return f"{spread.mean:.{digits}f}" + ("" if alone else f" ± {spread.std:.{digits}f}")


def _digits(mean: float, metric: str) -> int:
    """Of percentages one; of others three that count.

    >>> _digits(0.2163, "ms_per_step"), _digits(171.4, "seconds"), _digits(58.6, "steps_k")
    (3, 0, 1)
    """
    if metric in ("test", "train"):
        return 1
    if metric == "steps_k":
        return 1 if mean >= 1 or mean == 0 else 2
    if not math.isfinite(mean) or mean <= 0:
        return 1
    return min(4, max(0, 2 - math.floor(math.log10(mean))))


def difference(run: Run) -> float | None:
    """Test accuracy minus the paper's, in points."""
    row = paper.of(run)
    return None if row is None or run.test is None else run.test.mean - row.test.mean


def signed(points: float, digits: int = 1) -> str:
    """A difference with its sign.

    >>> signed(0.31), signed(-1.26), signed(-0.04)
    ('+0.3', '−1.3', '0.0')
    """
    text = f"{points:+.{digits}f}".replace("-", "−")  # noqa: RUF001
    return "0.0" if text[1:] == "0.0" else text


def _cells(run: Run) -> list[str]:
    """Ours and the paper's number of each metric; after those of the test accuracy, the difference."""
    row, cells = paper.of(run), []
    for metric in METRICS:
        ours: Spread | None = getattr(run, metric)
        digits = 1 if ours is None else _digits(ours.mean, metric)
        cells.append(number(ours, digits, alone=len(run.results) == 1))
        cells.append(number(getattr(row, metric, None), 2 if metric == "ms_per_step" else 1))
        if metric == "test":
            delta = difference(run)
            cells.append(MISSING if delta is None else signed(delta))
    return cells


# --- Beside Adam, which sees the same batches ---

_FRACTION = 0.97
"""Of Adam's accuracy at the end: how soon it is reached is reported."""


def _header_beside_adam(study: str) -> list[str]:
    columns = ["Test (%)", "minus Adam", "Train (%)", "Batches to 97%"]
    if study in TIMED:
        columns += ["Seconds to 97%", "ms/batch"]
    if study == "exchanges":
        columns += ["Exchanges/batch", "MB sent", "MB to 97%"]
    return [*columns, "Paper's best projection (%)"] if study == "learning" else columns


def _cells_beside_adam(run: Run, runs: Sequence[Run]) -> list[str]:
    """The cells of a run, after architecture and method."""
    adam, test, train = _adam(run, runs), run.test, run.train
    against = None if adam is None or adam is run else adam.test
    when = None
    if adam is not None and adam.checks:
        when = _reached(run, _FRACTION * float(np.nanmean(adam.checks[-1].test)))
    found = [
        number(test, 2),
        "" if against is None or test is None else signed(test.mean - against.mean, 2),
        number(train, 1, alone=True),
        MISSING if when is None else f"{when[0]:,}",
    ]
    if run.study in TIMED:
        step = run.ms_per_step
        found.append(MISSING if when is None else f"{when[1]:.3g}")
        found.append(MISSING if step is None else f"{step.mean * _steps_per_batch(run):.3g}")
    if run.study == "exchanges":
        often, sent = bytes_sent(run)
        found += [str(often), _megabytes(sent * batches(run))]
        found.append(MISSING if when is None else _megabytes(sent * when[0]))
    if run.study == "learning":
        printed = [paper.lookup(run.data, run.model, run.architecture, name) for name in ("dr", "ap", "cp")]
        best = max((row.test.mean for row in printed if row is not None), default=None)
        found.append("" if run.method != "ep" else MISSING if best is None else f"{best:.1f}")
    return found


def _adam(run: Run, runs: Sequence[Run]) -> Run | None:
    """The run of Adam to compare a run with: on the same network, if possible in the same precision.

    Its groups, if it has any, exchange on every batch, so that it is Adam on the whole batch.
    """

    def precision(one: Run) -> str | None:
        return methods.split(one.method)[1].get("precision")

    names = [one for one in runs if one.method.partition(":")[0] == "adam" and "sync_every" not in one.method]
    same = [one for one in names if one.architecture == run.architecture]
    return next((one for one in same if precision(one) == precision(run)), next(iter(same), None))


def _reached(run: Run, accuracy: float) -> tuple[int, float] | None:
    """Batches and seconds until the mean test accuracy over seeds is a given one; None if it never is."""
    for check in run.checks:
        if np.nanmean(check.test) >= accuracy:
            return check.step // _steps_per_batch(run), check.seconds
    return None


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f}" if size >= 100e6 else f"{size / 1e6:.3g}"


# --- Markdown ---

_INTRODUCTION = f"""# Results

Test and train: accuracy of the parameters with the best validation accuracy. Steps and time: until 99 % of
the run's best validation accuracy; time without loading, checks and compiling. Each projection step counts as
a step. Beside each number is that of the paper, *{paper.TITLE}*; "diff." is our test accuracy minus the
paper's, in points.
"""


def markdown(tables: Sequence[Table], figures: dict[str, Path]) -> str:
    """The report in Markdown; figures are paths relative to it, by the table that they follow."""
    parts = [_INTRODUCTION]
    for table in tables:
        parts.append(f"## {table.title}\n\n{caption(table)}\n\n{_markdown_table(*table.grid())}")
        parts += [f"{note}\n" for note in notes(table)]
        if table.name in figures:
            parts.append(f"![{table.title}]({figures[table.name].as_posix()})\n")
    return "\n".join(parts)


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    marks = [":---" if index < 2 else "---:" for index in range(len(header))]
    lines = [header, marks, *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# --- How data sets, architectures, methods and runs are called ---


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
