"""Reports: tables in Markdown, CSV and LaTeX beside the paper's figures, and plots.

All runs below a folder are read and grouped into tables: a data set, a network, a device, full or quick. What
a table says of itself (seeds, steps, batches, what did not finish) is what its runs say.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pjax.errors import InputError
from pjax.experiments import depth, paper
from pjax.experiments import plots as drawing
from pjax.experiments.results import Run, plain, read_runs
from pjax.experiments.tables import STUDIES, TIMED, Study, Table, comma_separated, latex, markdown
from pjax.experiments.words import sort_architectures, sort_methods
from pjax.tools.files import write_atomically
from pjax.tools.plotting import FORMATS, module, save


def report(
    folder: str | Path, out: str | Path | None = None, plots: Sequence[str] = ("png",)
) -> tuple[Path, ...]:
    """Write tables and plots of all results below a folder; the files that were written.

    Args:
        folder: of runs, comparisons, a depth study, or all of them; runs may be packed.
        out: where to write ``report.md``, ``report.csv``, ``report.tex``, and ``figures``; by default into
            the folder itself.
        plots: formats of the plots, some of ``"png"`` and ``"svg"``; without any, matplotlib is not needed.
    """
    for name in plots:
        if name not in FORMATS:
            raise InputError(f"plots are written as {', '.join(FORMATS)}; got {name!r}")
    folder, out = Path(folder), Path(folder if out is None else out)
    tables, studies = group(read_runs(folder)), _studies(folder)
    if not tables and not studies:
        raise InputError(f"{folder}: no results in it; make some with pjax compare or pjax train")
    figures: dict[str, list[Path]] = {}
    if plots:
        module("matplotlib")
        for name, what, figure in _figures(tables, studies):
            figures.setdefault(name, []).extend(save(figure, out / "figures" / f"{name}-{what}", plots))
    links = {name: [path.relative_to(out) for path in found] for name, found in figures.items()}
    texts = {
        "md": markdown(tables, studies, links),
        "csv": comma_separated(tables),
        "tex": latex(tables, studies),
    }
    paths = [write_atomically(out / f"report.{name}", text.encode()) for name, text in texts.items()]
    return (*paths, *(path for found in figures.values() for path in found))


def group(runs: Iterable[Run]) -> list[Table]:
    """Tables of runs: the paper's, full before quick, in its order of networks and data; then studies."""

    def place(names: Iterable[str], name: str) -> tuple[bool, int, str]:
        known = list(names)
        return name not in known, known.index(name) if name in known else 0, name

    def key(run: Run) -> tuple[Any, ...]:
        network = place(("mlp", "cnn", "rnn"), run.model), place(paper.DATA_LABELS, run.data)
        parent = run.folder.parent.as_posix()
        predicted = str(run.config.get("target", "")), run.score
        return place(("", *STUDIES), run.study), run.quick, *network, *predicted, run.device, parent

    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    tables: dict[str, Table] = {}
    for _, members in sorted(groups.items()):
        first = members[0]
        prefix = ("quick-" if first.quick else "") + (f"{first.study}-" if first.study else "")
        name = _new(f"{prefix}{plain(first.model)}-{plain(first.data)}", tables)
        order = sort_architectures({run.architecture for run in members})
        rows = sorted(sort_methods(members), key=lambda run: order.index(run.architecture))
        tables[name] = Table(name, tuple(rows))
    return list(tables.values())


def _studies(folder: Path) -> list[Study]:
    studies: dict[str, Study] = {}
    for path in sorted(folder.rglob(depth.FILE)):
        rows = depth.read(path.parent)
        for device in dict.fromkeys(row.device for row in rows):
            name = _new("depth", studies)
            studies[name] = Study(name, tuple(row for row in rows if row.device == device))
    return list(studies.values())


def _new(name: str, names: Iterable[str]) -> str:
    """A name that is not taken, with a number if need be."""
    taken, number = set(names), 1
    while (numbered := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return numbered


def _figures(tables: Sequence[Table], studies: Sequence[Study]) -> Iterator[tuple[str, str, Any]]:
    """All plots, each with the name of its table or study, and what it shows."""
    for table in tables:
        runs = [run for run in table.runs if run.checks]
        if not runs:
            continue
        if table.study == "exchanges":
            yield table.name, "bytes", drawing.accuracy_over_bytes(runs)
            continue
        if table.study and table.study not in TIMED:
            yield table.name, "accuracy", drawing.accuracies(runs)
            continue
        present = {run.method for run in runs}
        main = [run for run in runs if run.method.removesuffix("-fp") not in present - {run.method}]
        yield table.name, "steps", drawing.training_curves(main, "steps")
        yield table.name, "seconds", drawing.training_curves(main, "seconds")
        if len({run.architecture for run in runs if run.method == "dr"}) > 1:
            yield table.name, "depth-and-skip", drawing.depth_and_skip(runs)
        bases = [run.method.removesuffix("-fp") for run in runs]
        if both := [run for run, base in zip(runs, bases, strict=True) if {base, f"{base}-fp"} <= present]:
            title = "exact and fixed-point (fp) proximal operator"
            yield table.name, "prox", drawing.training_curves(both, title=title)
    for study in studies:
        yield study.name, "time", drawing.step_time_over_depth(study.rows)
        if any(row.temp_bytes for row in study.rows):
            yield study.name, "memory", drawing.memory_over_depth(study.rows)
