"""Tables of results, in Markdown, CSV and LaTeX, each number beside that of the paper."""

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from pjax.experiments import _beside, depth, exchanges, paper
from pjax.experiments._words import MISSING, apart, describe, method_label, seeds_in_words, spell
from pjax.experiments.methods import projects
from pjax.experiments.results import Run, Spread

METRICS = {
    "test": "Test (%)",
    "train": "Train (%)",
    "steps_k": "Steps (k)",
    "seconds": "Time (s)",
    "ms_per_step": "Time/step (ms)",
}


@dataclasses.dataclass(frozen=True)
class Table:
    """Runs that belong together, in the order in which they are shown."""

    name: str
    """A word for files and labels: ``mlp-mnist``, ``quick-mlp-mnist``."""
    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        study = f"{_beside.TITLES.get(self.study, self.study)}: " if self.study else ""
        return study + describe(self.runs) + (" (quick version)" if self.quick else "")

    @property
    def study(self) -> str:
        """What study it is of; empty for the paper's tables."""
        return self.runs[0].study

    @property
    def quick(self) -> bool:
        return self.runs[0].quick

    @property
    def device(self) -> str:
        return self.runs[0].device

    @property
    def architectures(self) -> list[tuple[str, list[Run]]]:
        names = dict.fromkeys(run.architecture for run in self.runs)
        return [(name, [run for run in self.runs if run.architecture == name]) for name in names]

    def label(self, run: Run) -> str:
        """The method; with its seed or folder where there are several runs of it."""
        return method_label(run.method) + apart(run, self.runs)


@dataclasses.dataclass(frozen=True)
class Study:
    """A depth study on one device."""

    name: str
    rows: tuple[depth.Row, ...]

    @property
    def title(self) -> str:
        return f"Depth on {self.rows[0].device}"

    @property
    def caption(self) -> str:
        first = self.rows[0]
        return (
            f"MLP with {first.width} units per hidden layer, one sample of {first.inputs} numbers, "
            f"{first.steps} steps inside one compiled loop; times are medians of {first.repeats} repeats. "
            "Columns are numbers of hidden layers."
        )

    def grids(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Title, header and rows of each table."""
        return [
            self._grid("Milliseconds per step", lambda row: three(row.ms_per_step)),
            self._grid(
                "Temporary memory in KiB",
                lambda row: MISSING if row.temp_bytes is None else three(row.temp_bytes / 1024),
            ),
            self._grid("Seconds to trace and compile", lambda row: three(row.compile_seconds)),
        ]

    def _grid(self, title: str, cell: Callable[[depth.Row], str]) -> tuple[str, list[str], list[list[str]]]:
        depths = sorted({row.depth for row in self.rows})
        found = {(row.method, row.depth): row for row in self.rows}
        methods = dict.fromkeys(row.method for row in self.rows)
        rows = [
            [method_label(m), *(cell(found[m, d]) if (m, d) in found else MISSING for d in depths)]
            for m in methods
        ]
        return title, ["Method", *(str(d) for d in depths)], rows


# --- What a table says of itself ---


def caption(table: Table) -> str:
    """Seeds, device, and how long was trained."""
    runs = table.runs
    if table.study:
        batches = [int(run.config["max_steps"]) // _steps_per_batch(run) for run in runs]
        return (
            f"{seeds_in_words(runs)}, {table.device}, {_from_to(batches)} batches of "
            f"{_range(runs, 'batch_size')}. {_beside.EXPLANATION}"
            + (f" {_beside.SENT}" if table.study == "exchanges" else "")
        )
    full = "Quick version, not trained to the end" if table.quick else "Full version"
    parts = [f"{full}: {seeds_in_words(runs)}, {table.device}, batches of {_range(runs, 'batch_size')}"]
    for title, members in (
        ("projections", [run for run in runs if _projects(run)]),
        ("the others", [run for run in runs if not _projects(run)]),
    ):
        if members:
            batches = [int(run.config["max_steps"]) // _steps_per_batch(run) for run in members]
            steps = _range(members, "max_steps")
            parts.append(f"at most {steps} steps on {_from_to(batches)} batches for {title}")
    patience = _range(runs, "patience")
    if patience != "0":
        every = _range(runs, "check_every")
        parts.append(
            f"stopped after {patience} checks, {every} steps each, without a better validation accuracy"
        )
    several = any(len(run.seeds) > 1 for run in runs)
    numbers = "means ± standard deviations over seeds" if several else "of one seed"
    return "; ".join(parts) + f". Numbers are {numbers}; the paper has {paper.SEEDS} seeds on {paper.DEVICE}."


def notes(table: Table) -> list[str]:
    """What a reader must know of single rows."""

    def named(condition: Callable[[Run], int]) -> str:
        found = [(run, condition(run)) for run in table.runs]
        return ", ".join(
            f"{spell(run.architecture)} {table.label(run)} ({number} of {len(run.seeds)} seeds)"
            for run, number in found
            if number
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


def _projects(run: Run) -> bool:
    return projects(run.method)


def _steps_per_batch(run: Run) -> int:
    return int(run.config["steps_per_batch"]) if _projects(run) else 1


def _range(runs: Sequence[Run], name: str) -> str:
    return _from_to([int(run.config[name]) for run in runs])


def _from_to(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


# --- Numbers ---


def number(spread: Spread | None, metric: str, *, alone: bool = False) -> str:
    """A mean with its deviation, or a dash.

    >>> number(Spread(95.84, 0.61), "test"), number(Spread(0.2163, 0.0012), "ms_per_step")
    ('95.8 ± 0.6', '0.216 ± 0.001')
    >>> number(Spread(171.4, 21.4), "seconds"), number(Spread(3.72, 0.0), "seconds", alone=True)
    ('171 ± 21', '3.72')
    >>> number(None, "test")
    '–'
    """
    if spread is None:
        return MISSING
    digits = _digits(spread.mean, metric)
    return f"{spread.mean:.{digits}f}" + ("" if alone else f" ± {spread.std:.{digits}f}")


def _digits(mean: float, metric: str) -> int:
    if metric in ("test", "train"):
        return 1
    if metric == "steps_k":
        return 1 if mean >= 1 or mean == 0 else 2
    if not math.isfinite(mean) or mean <= 0:
        return 1
    return min(4, max(0, 2 - math.floor(math.log10(mean))))  # three digits that count


def _printed(spread: Spread | None, metric: str) -> str:
    """A number of the paper, with the digits it prints."""
    if spread is None:
        return MISSING
    digits = 2 if metric == "ms_per_step" else 1
    return f"{spread.mean:.{digits}f} ± {spread.std:.{digits}f}"


def difference(run: Run) -> float | None:
    """Test accuracy minus the paper's, in points."""
    row = _row(run)
    return None if row is None or run.test is None else run.test.mean - row.test.mean


def signed(points: float) -> str:
    """A difference with its sign.

    >>> signed(0.31), signed(-1.26), signed(-0.04)
    ('+0.3', '−1.3', '0.0')
    """
    text = f"{points:+.1f}".replace("-", "−")  # noqa: RUF001
    return "0.0" if text[1:] == "0.0" else text


def _row(run: Run) -> paper.Row | None:
    return paper.lookup(run.data, run.model, run.architecture, run.method)


def _cells(run: Run) -> list[str]:
    """Ours and the paper's number of each metric; after those of the test accuracy, the difference."""
    row, alone = _row(run), len(run.results) == 1
    cells = []
    for metric in METRICS:
        cells.append(number(getattr(run, metric), metric, alone=alone))
        cells.append(_printed(getattr(row, metric) if row else None, metric))
        if metric == "test":
            delta = difference(run)
            cells.append(MISSING if delta is None else signed(delta))
    return cells


def three(value: float) -> str:
    return f"{value:.{_digits(value, 'seconds')}f}"


# --- Markdown ---

_INTRODUCTION = f"""# Results

Test and train: accuracy of the parameters with the best validation accuracy. Steps and time: until 99 % of
the run's best validation accuracy; time without loading, checks and compiling. Each projection step counts as
a step. Beside each number is that of the paper, *{paper.TITLE}*; "diff." is our test accuracy minus the
paper's, in points.
"""


def markdown(
    tables: Sequence[Table], studies: Sequence[Study] = (), figures: dict[str, list[Path]] | None = None
) -> str:
    """The report in Markdown.

    Args:
        tables: of runs.
        studies: of depth.
        figures: paths of the plots, relative to the report, by the name of their table or study.
    """
    parts = [_INTRODUCTION] if tables else ["# Results\n"]
    for table in tables:
        header, rows = _grid(table)
        parts.append(f"## {table.title}\n\n{caption(table)}\n\n{_markdown_table(header, rows, left=2)}")
        parts += [f"{note}\n" for note in notes(table)]
        parts += _pictures(table.title, (figures or {}).get(table.name, []))
    for study in studies:
        parts.append(f"## {study.title}\n\n{study.caption}\n")
        for title, header, rows in study.grids():
            parts.append(f"{title}:\n\n{_markdown_table(header, rows, left=1)}")
        parts += _pictures(study.title, (figures or {}).get(study.name, []))
    return "\n".join(parts)


def _grid(table: Table) -> tuple[list[str], list[list[str]]]:
    """Header and rows."""
    header = ["Architecture", "Method"]
    if table.study:
        header += _beside.header(table.study)
    else:
        for metric, title in METRICS.items():
            header += [title, "paper", "diff."] if metric == "test" else [title, "paper"]
    rows = []
    for name, runs in table.architectures:
        for index, run in enumerate(runs):
            cells = _beside.cells(run, table.runs, table.study) if table.study else _cells(run)
            rows.append([spell(name) if index == 0 else "", table.label(run), *cells])
    return header, rows


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    marks = [":---" if index < left else "---:" for index in range(len(header))]
    lines = [header, marks, *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _pictures(title: str, paths: Sequence[Path]) -> list[str]:
    """One of each picture, which may be there in two formats."""
    chosen = {path.with_suffix(""): path for path in sorted(paths, key=lambda p: p.suffix == ".png")}
    return [f"![{title}: {path.stem}]({path.as_posix()})\n" for path in chosen.values()]


# --- CSV ---


def comma_separated(tables: Sequence[Table]) -> str:
    """All runs as CSV, one line each; what is missing is empty."""
    first = ["study", "data", "model", "architecture", "method", "label", "quick", "device"]
    first += ["seeds", "finished_seeds"]
    ours = [f"{metric}_{kind}" for metric in METRICS for kind in ("mean", "std")]
    header = [*first, *ours, *(f"paper_{name}" for name in ours), "test_difference", "sent_bytes"]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    for table in tables:
        for run in table.runs:
            about = [run.study, run.data, run.model, run.architecture, run.method, table.label(run)]
            about += [str(run.quick).lower(), run.device, str(len(run.seeds)), str(len(run.results))]
            numbers: list[float | None] = []
            for source in (run, _row(run)):
                for metric in METRICS:
                    spread: Spread | None = getattr(source, metric) if source is not None else None
                    numbers += [None, None] if spread is None else [spread.mean, spread.std]
            numbers.append(difference(run))
            numbers.append(exchanges.sent(run) * _beside.batches(run) if "groups=" in run.method else None)
            writer.writerow([*about, *("" if n is None else f"{n:.7g}" for n in numbers)])
    return buffer.getvalue()


# --- LaTeX ---

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",  # noqa: RUF001
    "–": "--",
}


def escape(text: str) -> str:
    r"""Text as LaTeX writes it.

    >>> print(escape("95.8 ± 0.6 % of A_1 & B"))
    95.8 $\pm$ 0.6 \% of A\_1 \& B
    """
    return "".join(_SPECIAL.get(character, character) for character in text)


def latex(tables: Sequence[Table], studies: Sequence[Study] = ()) -> str:
    """The tables in LaTeX, to be included in a document."""
    parts = ["% Needs \\usepackage{booktabs, graphicx, multirow}.\n"]
    parts += [_latex_runs(table) for table in tables]
    for study in studies:
        for index, (title, header, rows) in enumerate(study.grids()):
            body = [_latex_row(header), r"\midrule", *(_latex_row(row) for row in rows)]
            text = f"{study.title}. {title}. {study.caption}"
            parts.append(_latex_float(f"{study.name}-{index + 1}", text, "l" + "r" * (len(header) - 1), body))
    return "\n".join(parts)


def _latex_runs(table: Table) -> str:
    text = " ".join([f"{table.title}.", caption(table), *notes(table)])
    if table.study:
        header, rows = _grid(table)
        body = [_latex_row(header), r"\midrule", *map(_latex_row, rows)]
        return _latex_float(table.name, text, "ll" + "r" * (len(header) - 2), body)
    above, rules, below, column = ["", ""], [], ["Architecture", "Method"], 3
    for metric, title in METRICS.items():
        names = ["ours", "paper", "diff."] if metric == "test" else ["ours", "paper"]
        above.append(rf"\multicolumn{{{len(names)}}}{{c}}{{{escape(title)}}}")
        rules.append(rf"\cmidrule(lr){{{column}-{column + len(names) - 1}}}")
        below += names
        column += len(names)
    body = [f"{' & '.join(above)} \\\\", " ".join(rules), _latex_row(below)]
    for name, runs in table.architectures:
        body.append(r"\midrule")
        for index, run in enumerate(runs):
            first = rf"\multirow{{{len(runs)}}}{{*}}{{{escape(spell(name))}}}" if index == 0 else ""
            body.append(f"{first} & {_latex_row([table.label(run), *_cells(run)])}")
    return _latex_float(table.name, text, "ll" + "r" * (column - 3), body)


def _latex_row(cells: Sequence[str]) -> str:
    return f"{' & '.join(escape(cell) for cell in cells)} \\\\"


def _latex_float(name: str, text: str, columns: str, body: Sequence[str]) -> str:
    lines = [
        r"\begin{table}[htbp]",
        r"  \centering",
        rf"  \caption{{{escape(text)}}}",
        rf"  \label{{tab:{name}}}",
        r"  \resizebox{\textwidth}{!}{%",
        rf"  \begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"    \toprule",
        *(f"    {line}" for line in body),
        r"    \bottomrule",
        r"  \end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
