"""Reports: tables in Markdown beside the paper's figures, each with a plot.

All runs below a folder are read and grouped into tables: a data set, a network, a device, full or quick. What
a table says of itself (seeds, steps, batches, what did not finish) is what its runs say.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pjax.errors import InputError
from pjax.experiments import paper
from pjax.experiments import plots as drawing
from pjax.experiments.results import Run, plain, read_runs
from pjax.experiments.tables import STUDIES, TIMED, Table, markdown, sort_architectures, sort_methods
from pjax.tools.files import write_atomically
from pjax.tools.plotting import FORMATS, module, save


def report(
    folder: str | Path, out: str | Path | None = None, plots: Sequence[str] = ("png",)
) -> tuple[Path, ...]:
    """Write tables and plots of all results below a folder; the files that were written.

    Args:
        folder: of runs, comparisons, or both; runs may be packed.
        out: where to write ``report.md`` and ``figures``; by default into the folder itself.
        plots: formats of the plots, some of ``"png"`` and ``"svg"``; without any, matplotlib is not needed.
    """
    for name in plots:
        if name not in FORMATS:
            raise InputError(f"plots are written as {', '.join(FORMATS)}; got {name!r}")
    folder, out = Path(folder), Path(folder if out is None else out)
    tables = group(read_runs(folder))
    if not tables:
        raise InputError(f"{folder}: no results in it; make some with pjax compare or pjax train")
    together: dict[str, list[Table]] = {}
    for table in tables if plots else ():
        module("matplotlib")
        together.setdefault(table.figure, []).append(table)
    figures: list[Path] = []
    links = {}
    for name, members in together.items():
        if runs := [run for table in members for run in table.runs if run.checks]:
            made = save(_figure(members[0].study, runs), out / "figures" / name, plots)
            figures += made
            links[members[-1].name] = min(made).relative_to(out)  # a PNG, if there is one
    text = write_atomically(out / "report.md", markdown(tables, links).encode())
    return (text, *figures)


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


def _new(name: str, names: Iterable[str]) -> str:
    """A name that is not taken, with a number if need be."""
    taken, number = set(names), 1
    while (numbered := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return numbered


def _figure(study: str, runs: Sequence[Run]) -> Any:
    """The plot of a table, or of a study."""
    if study == "exchanges":
        return drawing.accuracy_over_bytes(runs)
    if study and study not in TIMED:
        return drawing.accuracies(runs)
    present = {run.method for run in runs}
    # With the exact proximal operator, where a method was run with both.
    main = [run for run in runs if run.method.removesuffix("-fp") not in present - {run.method}]
    return drawing.training_curves(main)
