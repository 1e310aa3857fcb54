"""Runs that have ended, packed: a file for each study instead of three for each of its runs.

A line of ``NAME.runs.jsonl`` is a run, with its folder and what the files in it held: ``{"run":
"mlp-mnist/1x128-dr", "config": {...}, "metrics": [...], "results": [...]}``. Lines are in the order of
folders, so that the same runs are the same bytes. All that reads results reads such files too, and writes
folders.
"""

from pathlib import Path
from typing import Any

from pjax.errors import InputError
from pjax.experiments.results import (
    PACKED,
    Run,
    read_lines,
    read_object,
    read_packed,
    read_run,
    write_lines,
    write_object,
)


def pack(folder: str | Path) -> tuple[Path, ...]:
    """Pack all runs below a folder that have ended, and remove their files.

    The folder gets one file for each study, ``paper`` for the paper's tables, and ``quick`` for small
    versions. What is packed already stays, but for runs that have a folder again. Runs that have not ended,
    and other files in the folder of a run, are left alone.

    Args:
        folder: of results; runs are known by their place in it.

    Returns:
        The files that were written.
    """
    folder = Path(folder)
    runs = [read_run(path.parent) for path in folder.rglob("config.json")]
    studies: dict[str, list[Run]] = {}
    for run in runs:
        if run.finished:
            studies.setdefault("quick" if run.quick else run.study or "paper", []).append(run)
    if not studies:
        raise InputError(f"{folder}: no run to pack, none has ended; make some with pjax compare")
    return tuple(_pack(folder, name, members) for name, members in sorted(studies.items()))


def _pack(folder: Path, study: str, runs: list[Run]) -> Path:
    path = folder / f"{study}{PACKED}"
    lines = _read(path) if path.exists() else {}
    lines |= {run.folder: _line(folder, run.folder) for run in runs}
    write_lines(path, [lines[place] for place in sorted(lines)])
    for run in runs:
        _remove(folder, run.folder)
    return path


def _line(folder: Path, run: Path) -> dict[str, Any]:
    line: dict[str, Any] = {"run": run.relative_to(folder).as_posix()}
    line["config"] = read_object(run / "config.json")
    for name in ("metrics", "results"):
        path = run / f"{name}.jsonl"
        line[name] = [value for _, value in read_lines(path)] if path.exists() else []
    return line


def _remove(folder: Path, run: Path) -> None:
    for name in ("config.json", "metrics.jsonl", "results.jsonl"):  # without the first it is no run any more
        (run / name).unlink(missing_ok=True)
    while run != folder and not any(run.iterdir()):
        run.rmdir()
        run = run.parent


def unpack(folder: str | Path, below: str | Path) -> None:
    """Write the folders of packed runs, as training left them, where they are not there.

    Args:
        folder: that has packed files.
        below: what the folders must lie in.
    """
    for path in sorted(Path(folder).rglob(f"*{PACKED}")):
        for run, line in _read(path).items():
            if run.is_relative_to(below) and not (run / "config.json").exists():
                for name in ("metrics", "results"):
                    write_lines(run / f"{name}.jsonl", line[name])
                write_object(run / "config.json", line["config"])


def _read(path: Path) -> dict[Path, dict[str, Any]]:
    """The lines of a packed file, by their folders."""
    runs = read_packed(path)  # which refuses what is no run
    return {run.folder: line for run, (_, line) in zip(runs, read_lines(path), strict=True)}
