"""Reports: tables in Markdown, CSV and LaTeX beside the paper's figures, and plots.

All runs below a folder are read and grouped into tables: a data set, a network, a device, full or quick. What
a table says of itself (seeds, steps, batches, what did not finish) is what its runs say.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pjax.errors import InputError
from pjax.experiments import depth, paper, plots
from pjax.experiments.results import Run, read_runs
from pjax.experiments.tables import STUDIES, TIMED, Study, Table, comma_separated, latex, markdown
from pjax.experiments.words import sort_architectures, sort_methods
from pjax.tools.files import write_atomically

FORMATS = ("md", "csv", "tex")
PLOTS = ("png", "svg")


@dataclasses.dataclass(frozen=True)
class Report:
    """What was written."""

    paths: tuple[Path, ...]


def report(
    folder: str | Path,
    out: str | Path | None = None,
    formats: Sequence[str] = FORMATS,
    plots: Sequence[str] = ("png",),
) -> Report:
    """Write tables and plots of all results below a folder.

    Args:
        folder: of runs, comparisons, a depth study, or all of them; runs may be packed.
        out: where to write ``report.md``, ``report.csv``, ``report.tex``, and ``figures``; by default into
            the folder itself.
        formats: of the tables, some of ``"md"``, ``"csv"`` and ``"tex"``.
        plots: formats of the plots, some of ``"png"`` and ``"svg"``; without any, matplotlib is not needed.

    Returns:
        The files that were written.
    """
    for what, names, known in (("tables", formats, FORMATS), ("plots", plots, PLOTS)):
        for name in names:
            if name not in known:
                raise InputError(f"{what} are written as {', '.join(known)}; got {name!r}")
    folder, out = Path(folder), Path(folder if out is None else out)
    tables = group(read_runs(folder))
    studies = _studies(folder)
    if not tables and not studies:
        raise InputError(f"{folder}: no results in it; make some with pjax compare or pjax train")
    figures = _draw(tables, studies, out / "figures", plots) if plots else {}
    links = {name: [path.relative_to(out) for path in found] for name, found in figures.items()}
    texts = {
        "md": lambda: markdown(tables, studies, links),
        "csv": lambda: comma_separated(tables),
        "tex": lambda: latex(tables, studies),
    }
    paths = [write_atomically(out / f"report.{name}", texts[name]().encode()) for name in formats]
    return Report((*paths, *(path for found in figures.values() for path in found)))


def group(runs: Iterable[Run]) -> list[Table]:
    """Tables of runs: the paper's, full before quick, in its order of networks and data; then studies."""
    models, data = ["mlp", "cnn", "rnn"], list(paper.DATA_LABELS)

    def place(names: list[str], name: str) -> tuple[int, str]:
        return (names.index(name) if name in names else len(names), name)

    def key(run: Run) -> tuple[Any, ...]:
        parent = run.folder.parent.as_posix()
        network = place(models, run.model), place(data, run.data)
        return (place(["", *STUDIES], run.study), run.quick, *network, run.device, parent)

    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    tables: list[Table] = []
    for _, members in sorted(groups.items()):
        first = members[0]
        prefix = ("quick-" if first.quick else "") + (f"{first.study}-" if first.study else "")
        name = base = f"{prefix}{first.model}-{first.data}"
        number = 1
        while any(table.name == name for table in tables):
            number += 1
            name = f"{base}-{number}"
        order = sort_architectures({run.architecture for run in members})
        rows = sorted(sort_methods(members), key=lambda run: order.index(run.architecture))
        tables.append(Table(name, tuple(rows)))
    return tables


def _studies(folder: Path) -> list[Study]:
    studies: list[Study] = []
    for path in sorted(folder.rglob(depth.FILE)):
        rows = depth.read(path.parent)
        for device in dict.fromkeys(row.device for row in rows):
            name = "depth" if not studies else f"depth-{len(studies) + 1}"
            studies.append(Study(name, tuple(row for row in rows if row.device == device)))
    return studies


# --- Plots ---


def _draw(
    tables: Sequence[Table], studies: Sequence[Study], out: Path, formats: Sequence[str]
) -> dict[str, list[Path]]:
    """Write all plots, and return their paths by the name of their table or study."""
    plots.require()
    written: dict[str, list[Path]] = {}

    def save(name: str, what: str, figure: Any) -> None:
        written.setdefault(name, []).extend(plots.save(figure, out / f"{name}-{what}", formats))

    for table in tables:
        runs = [run for run in table.runs if run.checks]
        if not runs:
            continue
        present = {run.method for run in runs}
        main = [run for run in runs if run.method.removesuffix("-fp") not in present - {run.method}]
        if table.study == "exchanges":
            save(table.name, "bytes", plots.accuracy_over_bytes(runs))
            continue
        if table.study and table.study not in TIMED:
            save(table.name, "accuracy", plots.accuracies(runs))
            continue
        save(table.name, "steps", plots.training_curves(main, "steps"))
        save(table.name, "seconds", plots.training_curves(main, "seconds"))
        if len({run.architecture for run in runs if run.method == "dr"}) > 1:
            save(table.name, "depth-and-skip", plots.depth_and_skip(runs))
        pairs = [name for name in present if name.endswith("-fp") and name.removesuffix("-fp") in present]
        both = [run for run in runs if run.method in pairs or f"{run.method}-fp" in pairs]
        if both:
            save(
                table.name,
                "prox",
                plots.training_curves(both, title="exact and fixed-point (fp) proximal operator"),
            )
    for study in studies:
        save(study.name, "time", plots.step_time_over_depth(study.rows))
        if any(row.temp_bytes for row in study.rows):
            save(study.name, "memory", plots.memory_over_depth(study.rows))
    return written
