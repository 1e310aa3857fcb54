"""Reports: tables in Markdown beside the paper's figures, each with a plot.

All runs below a folder are read and grouped into tables: a data set, a network, a device, full or quick. What
a table says of itself (seeds, steps, batches, what did not finish) is what its runs say.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pjax.errors import InputError
from pjax.experiments import paper
from pjax.experiments import plots as drawing
from pjax.experiments.results import Run, plain, read_runs
from pjax.experiments.tables import STUDIES, TIMED, Table, in_order, markdown
from pjax.experiments.tables import summary as summary
from pjax.tools.files import write_atomically
from pjax.tools.plotting import save


def report(
    folder: str | Path, out: str | Path | None = None, plots: Sequence[str] = ("png",)
) -> tuple[Path, ...]:
    """Write tables and plots of all results below a folder; the files that were written.

    Args:
        folder: of runs, comparisons, or both; runs may be packed.
        out: where to write ``report.md`` and ``figures``; by default into the folder itself.
        plots: formats of the plots, some of ``"png"`` and ``"svg"``; without any, matplotlib is not needed.
    """
    folder, out = Path(folder), Path(folder if out is None else out)
    tables = group(read_runs(folder))
    if not tables:
        raise InputError(f"{folder}: no results in it; make some with pjax compare or pjax train")
    files: list[Path] = []
    links: dict[str, list[Path]] = {}
    for table, name, draw, runs in _figures(tables) if plots else ():
        if started := [run for run in runs if run.checks]:
            made = save(draw(started), out / "figures" / name, plots)
            files += made
            links.setdefault(table, []).append(min(made).relative_to(out))  # a PNG, if there is one
    text = write_atomically(out / "report.md", markdown(tables, links).encode(errors="replace"))
    return (text, *files)


def group(runs: Iterable[Run]) -> list[Table]:
    """Tables of runs: the paper's, full before quick, in its order of networks and data; then studies."""

    def place(names: Iterable[str], name: str) -> tuple[bool, int, str]:
        known = list(names)
        return name not in known, known.index(name) if name in known else 0, name

    def key(run: Run) -> tuple[Any, ...]:
        network = place(("mlp", "cnn", "rnn"), run.model), place(paper.DATA_LABELS, run.data)
        parent = run.folder.parent.as_posix()
        about = run.target, run.score, run.device, parent
        return place(("", *STUDIES), run.study), run.quick, *network, *about

    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    tables, named = [], Counter[str]()
    for _, members in sorted(groups.items()):
        first = members[0]
        prefix = ("quick-" if first.quick else "") + (f"{first.study}-" if first.study else "")
        name = f"{prefix}{plain(first.model)}-{plain(first.data)}"
        named[name] += 1
        numbered = name if named[name] == 1 else f"{name}-{named[name]}"
        tables.append(Table(numbered, tuple(in_order(members))))
    return tables


def _figures(tables: Sequence[Table]) -> Iterator[tuple[str, str, Callable[[list[Run]], Any], list[Run]]]:
    """A figure of each table, or of a study; and the paper's of depth and skip connections.

    Yields:
        The table that it follows, its name, what draws it, and of which runs.
    """
    together: dict[str, list[Table]] = {}
    for table in tables:
        together.setdefault(table.figure, []).append(table)
    for name, members in together.items():
        last, runs = members[-1].name, [run for table in members for run in table.runs]
        study = runs[0].study
        if study and study not in TIMED:
            own = {"exchanges": drawing.accuracy_over_bytes, "depth": drawing.accuracy_over_depth}
            yield last, name, own.get(study, drawing.accuracies), [run for run in runs if run.results]
            continue
        # With the exact proximal operator, where a method was run with both.
        present = {run.method for run in runs}
        runs = [run for run in runs if run.method.removesuffix("-fp") not in present - {run.method}]
        yield last, name, drawing.training_curves, runs
        if name == "mlp-mnist" and len([run for run in runs if run.method == "dr"]) > 1:
            shown = [run for run in runs if run.method in ("dr", "sgd", "adam")]
            title = "impact of depth and skip connections"
            draw = functools.partial(drawing.training_curves, over=("steps",), title=title)
            yield last, "depth-and-skip", draw, shown
