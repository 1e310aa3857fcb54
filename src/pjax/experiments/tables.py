"""Tables of results in Markdown, each number beside that of the paper, or beside Adam's; and their words."""

import dataclasses
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from pjax.experiments import methods, paper
from pjax.experiments.config import sent as bytes_sent
from pjax.experiments.own_model import is_own
from pjax.experiments.results import Run, Spread, per_seed, plain

METRICS = dict(
    zip(paper.METRICS, ["Test (%)", "Train (%)", "Steps (k)", "Time (s)", "Time/step (ms)"], strict=True)
)
STUDIES = {
    "learning": "Learning",
    "depth": "Depth",
    "quantised": "Weights and activations of few levels",
    "ablation": "What helps, and what does not",
    "precision": "Precision of the arithmetic",
    "exchanges": "Fewer exchanges",
}
TIMED = ("learning",)
"""Studies whose times are those of one run alone."""

MISSING = "–"
"""What stands in a table where there is no number."""

_Cells: TypeAlias = list[tuple[str, str]]
"""A row: what stands above each cell, and the cell."""
_Grid: TypeAlias = list[_Cells]


@dataclasses.dataclass(frozen=True)
class Table:
    """Runs that belong together, in the order in which they are shown."""

    name: str
    """A word for files and labels: ``mlp-mnist``, ``quick-mlp-mnist``."""
    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        study = self.runs[0].study
        name = f"{STUDIES.get(study, study)}: " if study else ""
        return name + describe(self.runs) + (" (quick version)" if self.runs[0].quick else "")

    @property
    def figure(self) -> str:
        """The name of its plot, one for all tables of a study unless they have times."""
        run = self.runs[0]
        shared = run.study and run.study not in TIMED
        return ("quick-" if run.quick else "") + run.study if shared else self.name

    def grids(self) -> list[_Grid]:
        """What is shown first, and what may be folded. Rows of the paper that are missing are shown, too."""
        shown = in_order([*self.runs, *paper.missing(self.runs)])
        if shown[0].study:
            grids = [[_beside_adam(run, self.runs) for run in shown]]
        elif any(map(paper.of, shown)):
            grids = [
                [_beside_paper(run) for run in shown],
                [_metrics(run, list(METRICS)[1:]) for run in shown],
            ]
        else:
            grids = [[_metrics(run, METRICS) for run in shown]]
        names = ["", *(spell(run.architecture) for run in shown)]
        firsts = [
            [("Architecture", "" if name == before else name), ("Method", label(run, self.runs))]
            for run, (before, name) in zip(shown, itertools.pairwise(names), strict=True)
        ]
        return [[first + cells for first, cells in zip(firsts, grid, strict=True)] for grid in grids]


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
    """Seeds, device, how long was trained, and by which command."""
    runs, first = table.runs, table.runs[0]
    made, size = f"{seeds_in_words(runs)}, {first.device}", _range(runs, "batch_size")
    preset, quick = table.name.removeprefix("quick-"), " --quick" if first.quick else ""
    # `pjax compare` writes into a folder with the name of the preset.
    command = f" `pjax compare --preset {preset}{quick}`." if first.folder.parent.name == preset else ""
    if first.study:
        said = f"{made}, {_from_to(map(batches, runs))} batches of {size}. {_BESIDE}"
        return (f"{said} {_SENT}" if first.study == "exchanges" else said) + command
    full = "Quick version, not trained to the end" if first.quick else "Full version"
    parts = [f"{full}: {made}, batches of {size}"]
    for title, projects in (("projections", True), ("the others", False)):
        if members := [run for run in runs if methods.projects(run.method) is projects]:
            steps, seen = _range(members, "max_steps"), _from_to(map(batches, members))
            parts.append(f"at most {steps} steps on {seen} batches for {title}")
    if (patience := _range(runs, "patience")) != "0":
        every = _range(runs, "check_every")
        better = f"without a better validation {first.score}"
        parts.append(f"stopped after {patience} checks, {every} steps each, {better}")
    if first.score != "accuracy":
        parts.append(f"test and train are {first.score}, not accuracies")
    several = any(len(run.seeds) > 1 for run in runs)
    numbers = "means ± standard deviations over seeds" if several else "of one seed"
    beside = f"; the paper has {paper.SEEDS} seeds on {paper.DEVICE}" if any(map(paper.of, runs)) else ""
    return f"{'; '.join(parts)}. Numbers are {numbers}{beside}.{command}"


def notes(table: Table) -> list[str]:
    """What a reader must know of single rows."""
    found: dict[str, list[str]] = {}
    for run in table.runs:
        stopped = Counter(result.stopped for result in run.results)
        few = len(run.seeds) if paper.found(table.runs) and len(run.seeds) < paper.SEEDS else 0
        seeds = {
            "Unfinished": len(set(run.seeds) - {result.seed for result in run.results}),
            "Diverged": stopped["diverged"],
            "Cut at the largest number of steps": 0 if run.quick or run.study else stopped["limit"],
            f"Not counted, fewer than {paper.SEEDS} seeds": few,
        }
        for what in filter(seeds.get, seeds):
            who = f"{spell(run.architecture)} {label(run, table.runs)}"
            found.setdefault(what, []).append(f"{who} ({seeds[what]} of {len(run.seeds)} seeds)")
    return [f"{what}: {', '.join(who)}." for what, who in found.items()]


def batches(run: Run) -> int:
    """How many a run sees at most."""
    return run.max_steps // _steps_per_batch(run)


def _steps_per_batch(run: Run) -> int:
    """Files of earlier versions have a number for methods that do not look at it."""
    return run.steps_per_batch if methods.projects(run.method) else 1


def _range(runs: Sequence[Run], name: str) -> str:
    return _from_to(getattr(run, name) for run in runs)


def _from_to(values: Iterable[int]) -> str:
    found = sorted(values)
    low, high = found[0], found[-1]
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


# --- Beside the paper ---


def shown(value: float, form: str) -> str:
    """A number in a format, or a dash where there is none.

    >>> shown(1234, ","), shown(math.nan, ".1f")
    ('1,234', '–')
    """
    return MISSING if math.isnan(value) else format(value, form)


def number(spread: Spread, digits: int, *, alone: bool = False) -> str:
    """A mean with its deviation, or a dash.

    >>> number(Spread(95.84, 0.61), 1), number(Spread(3.72, 0.0), 2, alone=True)
    ('95.8 ± 0.6', '3.72')
    """
    std = "" if alone or math.isnan(spread.mean) else f" ± {spread.std:.{digits}f}"
    return shown(spread.mean, f".{digits}f") + std


def _digits(mean: float, metric: str) -> int:
    """Of percentages one; of others three that count.

    >>> _digits(0.2163, "ms_per_step"), _digits(171.4, "seconds"), _digits(58.6, "steps_k")
    (3, 0, 1)
    """
    if metric in ("seconds", "ms_per_step") and 0 < mean < math.inf:
        return min(4, max(0, 2 - math.floor(math.log10(mean))))
    return 2 if metric == "steps_k" and 0 < mean < 1 else 1


def signed(points: float, digits: int = 1) -> str:
    """A difference with its sign, or a dash.

    >>> signed(0.31), signed(-1.26), signed(-0.04)
    ('+0.3', '−1.3', '0.0')
    """
    text = shown(points, f"+.{digits}f").replace("-", "−")  # noqa: RUF001
    return "0.0" if text[1:] == "0.0" else text


def _ours(run: Run, metric: str) -> str:
    spread: Spread = getattr(run, metric)
    # A step is timed once for all seeds: times deviate as steps do.
    alone = len(run.results) == 1 or metric in ("seconds", "ms_per_step")
    return number(spread, _digits(spread.mean, metric), alone=alone)


def _metrics(run: Run, names: Iterable[str]) -> _Cells:
    """Metrics of a run, each with the paper's mean in brackets."""
    row, found = paper.of(run), []
    for name in names:
        digits = 2 if name == "ms_per_step" else 1
        papers = "" if row is None else f" ({number(getattr(row, name), digits, alone=True)})"
        found.append((METRICS[name], _ours(run, name) + papers))
    return found


def _beside_paper(run: Run) -> _Cells:
    """Test accuracies, their difference, and how soon the paper's best projection method is reached."""
    row = paper.of(run)
    printed = [paper.lookup(run.data, run.model, run.architecture, name) for name in paper.PROJECTIONS]
    _, seconds = _reached(run, max((one.test.mean for one in printed if one), default=math.nan))
    return [
        ("Paper's test (%)", number(row.test, 1) if row else MISSING),
        ("Ours (%)", _ours(run, "test")),
        ("Difference", signed(paper.difference(run))),
        ("Seconds to the paper's best projection", shown(seconds, ".3g")),
    ]


def summary(runs: Iterable[Run]) -> str:
    """How many rows of the paper there are, in one line; empty where there is none."""
    found = paper.found(runs)
    (there, rows, near), (ours, papers, nearer) = _counts(found, paper.rows())
    points = f"within {paper.NEAR:g} points of its test accuracy"
    text = f"{there} of {rows} rows of the paper, {near} of them {points}"
    return f"{text} (DR, AP, CP: {ours} of {papers}, {nearer} of them)" if found else ""


def _counts(found: Mapping[paper.Row, Run], rows: Sequence[paper.Row]) -> list[tuple[int, int, int]]:
    """Of rows of the paper, and of those of its projections: how many are found, there are, and are near."""
    counts = []
    for some in (rows, [row for row in rows if row.method in paper.PROJECTIONS]):
        differences = [paper.difference(found[row]) for row in some if row in found]
        near = sum(abs(delta) <= paper.NEAR for delta in differences)
        counts.append((len(differences), len(some), near))
    return counts


def _overview(tables: Sequence[Table]) -> list[str]:
    """What there is of the paper's rows, block by block."""
    found = paper.found(run for table in tables for run in table.runs)
    blocks: dict[tuple[str, str], list[paper.Row]] = {}
    for row in paper.rows():
        blocks.setdefault((row.model.upper(), paper.DATA_LABELS[row.data]), []).append(row)
    there, grid = {table.title for table in tables}, []
    for (model, data), rows in {**blocks, ("All", ""): paper.rows()}.items():
        anchor = f"{model}-on-{data}".lower()
        link = f"[{model}](#{anchor})" if f"{model} on {data}" in there else model
        cells = [("Network", link), ("Data", data)]
        for kind, (ours, papers, near) in zip(("Rows", "DR, AP, CP"), _counts(found, rows), strict=True):
            cells += [(kind, f"{ours} of {papers}"), (f"within {paper.NEAR:g} points", str(near))]
        grid.append(cells)
    return [_SUMMARY, _markdown_table(grid)] if found else []


# --- Beside Adam, which sees the same batches ---

_FRACTION = 0.97
"""Of Adam's accuracy at the end: how soon it is reached is reported."""


def _beside_adam(run: Run, runs: Sequence[Run]) -> _Cells:
    """The cells of a run of a study, after architecture and method."""
    adam = _adam(run, runs)
    end = float(np.nanmean(adam.checks[-1].test)) if adam and adam.checks else math.nan
    seen, seconds = _reached(run, _FRACTION * end)
    compared = adam is not None and adam is not run and run.results and adam.results
    found = [
        ("Test (%)", number(run.test, 2)),
        ("minus Adam", signed(run.test.mean - adam.test.mean, 2) if adam and compared else ""),
        ("Train (%)", number(run.train, 1, alone=True)),
        ("Batches to 97%", shown(seen, ",")),
    ]
    if run.study in TIMED:
        per_batch = run.ms_per_step.mean * _steps_per_batch(run)
        found += [("Seconds to 97%", shown(seconds, ".3g")), ("ms/batch", shown(per_batch, ".3g"))]
    if run.study == "exchanges":
        often, sent = bytes_sent(run)
        found += [("Exchanges/batch", str(often)), ("MB sent", _megabytes(sent * batches(run)))]
        found.append(("MB to 97%", _megabytes(sent * seen)))
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


def _reached(run: Run, accuracy: float) -> tuple[float, float]:
    """Batches and seconds until the mean test accuracy over seeds is a given one; NaN if it never is."""
    for check, tests in zip(run.checks, per_seed(run, "test"), strict=True):
        if tests.mean() >= accuracy:
            return check.step // _steps_per_batch(run), check.seconds
    return math.nan, math.nan


def _megabytes(size: float) -> str:
    return shown(size / 1e6, ",.0f" if size >= 100e6 else ".3g")


# --- Markdown ---

_INTRODUCTION = f"""# Results

Beside our numbers stand those of the paper,
*{paper.TITLE}*.
Test and train: accuracy of the parameters with the best validation accuracy; the difference is our test
accuracy minus the paper's, in points. Steps and time: until 99 % of the run's best validation accuracy; time
without loading, checks and compiling. Each projection step counts as a step. The paper's best projection: how
soon the mean test accuracy, at a check, is that of the best of DR, AP and CP in the paper.
"""
_SUMMARY = (
    f"Rows of the paper's tables for which there is a run in full, with {paper.SEEDS} seeds, and how many of "
    f"these are within {paper.NEAR:g} points of its test accuracy:\n"
)
_FOLDED = """<details markdown>
<summary>Train accuracy, steps and time; in brackets the paper's</summary>

{}
</details>
"""


def markdown(tables: Sequence[Table], figures: Mapping[str, Sequence[Path]]) -> str:
    """The report in Markdown; figures are paths relative to it, by the table that they follow."""
    parts = [_INTRODUCTION, *_overview(tables)]
    for table in tables:
        first, *more = map(_markdown_table, table.grids())
        parts.append(f"## {table.title}\n\n{caption(table)}\n\n{first}")
        parts += [f"{note}\n" for note in notes(table)]
        parts += map(_FOLDED.format, more)
        parts += [f"![{table.title}]({path.as_posix()})\n" for path in figures.get(table.name, ())]
    return "\n".join(parts)


def _markdown_table(grid: _Grid) -> str:
    """Two columns of words, then numbers."""
    header = [title for title, _ in grid[0]]
    marks = [":---" if index < 2 else "---:" for index in range(len(header))]
    lines = [header, marks, *([cell.replace("|", r"\|") for _, cell in cells] for cells in grid)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# --- How data sets, architectures, methods and runs are called ---


def label(run: Run, runs: Iterable[Run]) -> str:
    """The method; with its seed, or else its folder, where others have the same method and architecture."""
    name = methods.label(run.method)
    same = [r for r in runs if (r.method, r.architecture) == (run.method, run.architecture)]
    if len(same) < 2:
        return name
    seeds = {other.seeds for other in same}
    alone = len(seeds) == len(same) and all(len(one) == 1 for one in seeds)
    return f"{name} (seed {run.seeds[0]})" if alone else f"{name} ({run.folder.name})"


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Runs by architecture, shallow before deep, plain before skip; and by method, as the paper has them."""
    known = list(methods.LABELS)

    def place(run: Run) -> tuple[Any, ...]:
        base = run.method.partition(":")[0]
        parts = [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", run.method)]
        method = known.index(base) if base in known else len(known), parts
        return len(run.widths), run.skip, run.levels, run.architecture, *method

    return sorted(runs, key=place)


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
    models = dict.fromkeys(plain(run.model) if is_own(run.model) else run.model.upper() for run in runs)
    data = dict.fromkeys(
        paper.DATA_LABELS.get(run.data, plain(run.data)) + (f" ({run.target})" if run.target else "")
        for run in runs
    )
    return f"{'/'.join(models)} on {'/'.join(data)}"


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
    number = _from_to(len(run.seeds) for run in runs)
    return "1 seed" if number == "1" else f"{number} seeds"
