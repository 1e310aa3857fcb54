"""What the commands of the command line do: a thin layer over `data`, `train`, `compare` and `report`.

What they take is declared in `pjax_command`, which shows help without this.
"""

import contextlib
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import rich.progress
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

import pjax
from pjax.checks import check_name
from pjax.errors import InputError
from pjax.experiments import checkpoint, endings, methods, plots, results
from pjax.experiments import compare as comparing
from pjax.experiments import data as datasets
from pjax.experiments import devices as placing
from pjax.experiments import evaluate as evaluating
from pjax.experiments import processes as joining
from pjax.experiments import report as reporting
from pjax.experiments import train as training
from pjax.experiments.config import Config, example, parse_widths
from pjax.experiments.loop import Loop
from pjax.experiments.results import Run
from pjax.experiments.train import Progress
from pjax.tools.drawing.names import clock

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


@contextlib.contextmanager
def _messages(interrupted: Callable[[], str] = str) -> Iterator[None]:
    """Errors that can be explained as a line, and an interrupt with advice, with their exit codes."""
    with endings.saying(interrupted):
        try:
            yield
        except Exception as error:
            if (words := endings.words(error)) is None:
                raise
            errors.print(f"[bold red]error:[/] {escape(words)}", soft_wrap=True)
            raise typer.Exit(endings.REFUSED) from None


def _say(what: object) -> None:
    """Print something that is no markup, and may be longer than a line."""
    console.print(escape(str(what)), soft_wrap=True)


# --- data ---


def data_list() -> None:
    """Show the data sets, and whether they are here."""
    table = Table("name", "where", box=None)
    for name in datasets.names():
        here = datasets.path(name)
        table.add_row(name, escape(str(here)) if here.exists() else f"not here: pjax data get {name}")
    console.print(table)
    _say(f"folder: {datasets.folder()}")


def data_get(*, names: list[str]) -> None:
    """Download data sets, with a bar."""
    with _messages(lambda: "start again to go on"):
        for name in names:
            check_name("NAME", name, datasets.names())
        for name in names:
            with _download_bar() as show:
                path = datasets.get(name, progress=show)
            _say(f"{name}: {path}")


@contextlib.contextmanager
def _download_bar() -> Iterator[Any]:
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.DownloadColumn(),
        rich.progress.TransferSpeedColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=console) as bar:
        tasks: dict[str, rich.progress.TaskID] = {}

        def show(done: int, total: int | None, what: str) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(escape(what), total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield show


# --- train ---


_LIMITS = ("max_steps", "patience")
"""What may change when a run is resumed."""
_CLUSTER = ("coordinator", "processes", "process", "timeout")


def train(
    *,
    context: typer.Context,
    seed: int,
    seeds: int,
    together: bool | None,
    folder: Path | None,
    resume: Path | None,
    init_from: Path | None,
    quiet: bool,
    as_json: bool,
    devices: str | None,
    shard_parameters: bool,
    distributed: bool,
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    timeout: int,
    guarded: bool,
    **settings: Any,
) -> None:
    """Train a network, or go on with a run."""
    given = _given(context)
    kept = {*settings, "seed", "seeds", "folder", "init_from"} - {*_LIMITS}
    with _messages():
        count = _count(devices)
        if not distributed:
            if stray := [f"--{name}" for name in given if name in _CLUSTER]:
                raise InputError(f"{', '.join(stray)}: for several processes, give --distributed too")
        else:
            joining.check(coordinator, processes, process)
            if folder is None and resume is None:
                raise InputError("--distributed needs --folder or --resume, the same for all processes")
            if count is not None:
                raise InputError("--distributed uses all devices of all processes: drop --devices")
        config, where = None, resume
        if resume is None:
            begin = None if init_from is None else str(init_from)
            config, where = (
                _config(**settings, seeds=tuple(range(seed, seed + seeds)), init_from=begin),
                folder,
            )
        elif others := [f"--{n.replace('_', '-')}" for n in given if n in kept]:
            raise InputError(
                f"--resume takes all settings but --max-steps and --patience from the run's folder: drop "
                f"{', '.join(others)}"
            )

    def again() -> str:
        return f"pjax train --resume {where}"

    def advice() -> str:
        saved = where is not None and checkpoint.exists(where)
        return f"go on with: {again()}" if saved else "there was no checkpoint yet"

    def show_in(bar: Any, p: Progress) -> None:
        nonlocal where
        if where is None:
            here = Path.cwd()
            where = p.folder.relative_to(here) if p.folder.is_relative_to(here) else p.folder
        bar("", p)

    joined: Any = contextlib.nullcontext()
    if distributed and not guarded:
        command = [sys.executable, "-m", "pjax_command", *sys.argv[1:], "--guarded"]
        advised = f"{again()}, alone or --distributed over any number of processes"
        raise typer.Exit(joining.watch(command, advised))
    if distributed:
        joined = joining.joined(coordinator, processes, process, timeout, again())
    with _messages(advice), joined:
        count = jax.device_count() if count == "all" else count
        places = placing.Devices(count, shard_parameters=shard_parameters)
        shown = places.first and not quiet and not as_json
        with _training_bar() if shown else contextlib.nullcontext(lambda *_: None) as show:
            run = training.train(
                config,
                where,
                resume=resume is not None,
                **{name: settings[name] for name in _LIMITS if resume},
                together=together,
                devices=places,
                progress=lambda p: show_in(show, p),
            )
    if places.first:
        with _messages():
            plot = plots.plot_run(where or run.folder)
            if as_json:
                typer.echo(json.dumps(_as_json(run) | {"plot": str(plot)}))
            elif not quiet:
                _print_results([run])
                _say(f"plot:   {plot}\nfolder: {where}")
                own = "with your own data: pjax train --data FILE.csv --target COLUMN"
                if not run.diverged:
                    _say(f"next:   pjax eval {where}; {own}")
    if run.diverged:
        errors.print(
            "[bold red]diverged:[/] the loss was not finite: take a lower --learning-rate, or another method"
        )
        raise typer.Exit(endings.DIVERGED)


def _count(devices: str | None) -> Any:
    """A number of devices, ``"all"``, or None."""
    if devices is None or devices == "all":
        return devices
    if not devices.isdecimal() or int(devices) < 1:
        raise InputError(f"--devices must be a number from 1, or all; got {devices!r}")
    return int(devices)


def _given(context: typer.Context) -> list[str]:
    """The parameters that the command line names."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def _config(widths: str | None = None, **settings: Any) -> Config:
    """A configuration from what the command line gives; the rest is left open."""
    given = {name: value for name, value in settings.items() if value is not None}
    if widths is not None:
        given["widths"], given["skip"], given["levels"] = parse_widths(widths)
    return Config(**given)


class _Left(rich.progress.ProgressColumn):
    """How long a run still takes at most, or took."""

    def render(self, task: rich.progress.Task) -> Text:
        if task.finished:
            return Text(f"took {clock(task.finished_time)}")
        return Text(f"{clock(task.time_remaining)} left", style="cyan")


_BAR = 12
"""Characters of the bar itself."""


@contextlib.contextmanager
def _training_bar() -> Iterator[Any]:
    """A function that shows progress: as a bar on a terminal, as lines elsewhere."""
    if not console.is_terminal:
        yield _Lines().show
        return
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(bar_width=_BAR),
        rich.progress.TextColumn("{task.completed:,.0f}/{task.total:,}"),
        rich.progress.TextColumn("{task.fields[state]}"),
        _Left(),
    )
    with rich.progress.Progress(*columns, console=console) as bar:
        tasks: dict[str, rich.progress.TaskID] = {}
        accuracies: dict[str, list[str]] = {}

        def show(name: str, p: Progress) -> None:
            room = console.width // 3
            title = name if len(name) <= room else f"…{name[1 - room :]}"
            if name not in tasks:
                tasks[name] = bar.add_task(escape(title), total=p.max_steps, state="")
            if not math.isnan(p.test):
                accuracies[name] = [f"test {p.test:.1f} %", f"validation {p.validation:.1f} %"]
            parts = [p.message] if p.message else [f"loss {p.loss:.3f}", *accuracies.get(name, [])]
            if not math.isnan(p.ms_per_step):
                parts.append(f"{p.ms_per_step:.3g} ms/step")
            others = len(title) + 1 + _BAR + 1 + 2 * len(f"{p.max_steps:,}") + 2 + len(" 00:00:00 left")
            state = escape(_fitting(parts, console.width - others))
            bar.update(tasks[name], completed=p.step, total=p.max_steps, state=state)

        yield show


def _fitting(parts: list[str], width: int) -> str:
    """As many of the first parts as fit.

    >>> _fitting(["loss 0.1", "test 90 %", "2 ms/step"], 20)
    'loss 0.1 test 90 %'
    """
    while len(parts) > 1 and len(" ".join(parts)) > width:
        parts = parts[:-1]
    return " ".join(parts)


class _Lines:
    """One line for each check, not oftener than once a second for one run."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}

    def show(self, name: str, p: Progress) -> None:
        now = time.monotonic()
        if p.message == "timed":
            console.print(f"{name}: {p.ms_per_step:.3g} ms/step", soft_wrap=True)
        if math.isnan(p.test) or (now - self.last.get(name, -1.0) < 1.0 and p.step < p.max_steps):
            return
        self.last[name] = now
        title = f"{name}: " if name else ""
        left = (p.max_steps - p.step) * p.ms_per_step / 1000
        console.print(
            f"{title}step {p.step:,.0f}  loss {p.loss:.4f}  validation {p.validation:.2f} %  "
            f"test {p.test:.2f} %  {p.ms_per_step:.3g} ms/step  {clock(left)} left",
            soft_wrap=True,
        )


def _print_results(runs: list[Run]) -> None:
    table = Table("run", "test %", "train %", "steps", "seconds", "ms/step", "ended", box=None)
    for run in runs:
        label = methods.label(run.method)
        for r in run.results:
            table.add_row(
                f"{run.name} {label}, seed {r.seed}",
                f"{r.test:.2f}",
                f"{r.train:.2f}",
                f"{r.steps:,}",
                f"{r.seconds:.2f}",
                f"{r.ms_per_step:.3g}",
                f"{r.stopped} at {r.last_step:,}",
            )
    console.print(table)
    score = " and ".join(dict.fromkeys(run.score for run in runs))
    console.print(
        f"test, train: {score} of the parameters with the best validation; steps, seconds: to 99 % of it"
    )


# --- What runs came to ---


def _as_json(run: Run) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "config": dict(run.config),
        "last_step": run.checks[-1].step if run.checks else 0,
        "finished": run.finished,
        "results": [dataclasses.asdict(result) for result in run.results],
    }


def list_runs(*, folder: Path, as_json: bool) -> None:
    """Show the runs in a folder, with their results."""
    with _messages():
        runs = results.read_runs(folder)
        if as_json:
            typer.echo(json.dumps([_as_json(run) for run in runs]))
            return
        table = Table("folder", "method", "seeds", "steps", "test %", "ended", box=None)
        table.columns[0].overflow = "fold"
        for run in runs:
            table.add_row(
                escape(str(run.folder)),
                methods.label(run.method),
                ", ".join(map(str, run.seeds)),
                f"{run.checks[-1].step:,}" if run.checks else "0",
                "" if run.test is None else f"{run.test.mean:.2f}",
                ", ".join(sorted({result.stopped for result in run.results})) or "not yet",
            )
        console.print(table)


def evaluate(*, run: Path, data: Path | None, seed: int | None, as_json: bool) -> None:
    """Show the accuracy of a run's best parameters."""
    with _messages():
        found = evaluating.evaluate(run, data, seed=seed)
        if as_json:
            typer.echo(json.dumps(found))
            return
        for name, value in found.items():
            _say(f"{name}: {value:.4g}" if name.endswith(" rmse") else f"{name}: {value:.2f} %")


def predict(*, run: Path, data: Path, out: Path, seed: int | None) -> None:
    """Write what a run's best parameters predict for inputs."""
    with _messages():
        evaluating.check_out(out)
        outputs = evaluating.predict(run, data, seed=seed)
        _say(evaluating.write_predictions(outputs, out, training.saved_form(run)))


# --- compare ---


def compare(
    *,
    preset: list[str] | None,
    every: bool,
    quick: bool,
    only_methods: str | None,
    architectures: str | None,
    seeds: int | None,
    max_steps: int | None,
    batch_size: int | None,
    together: bool | None,
    retime: bool,
    folder: Path,
) -> None:
    """Make the runs of presets, or go on with them, and show their results."""
    known = [*comparing.PRESETS, *comparing.GROUPS]
    with _messages(lambda: f"start again to go on; results so far are in {folder}"):
        if bool(preset) == every:
            advice = f"name one or more, of {', '.join(known)}, or all"
            raise typer.BadParameter(advice, param_hint="--preset")
        for name in preset or ():
            check_name("preset", name, known)
        asked = comparing.GROUPS if every else preset or ()
        for name in (one for group in asked for one in comparing.GROUPS.get(group, (group,))):
            with _training_bar() as show:
                if retime:
                    comparing.retime(name, folder, quick=quick, progress=show)
                    continue
                runs = comparing.compare(
                    name,
                    folder,
                    quick=quick,
                    only_methods=_names(only_methods),
                    only_architectures=_names(architectures),
                    progress=show,
                    together=together,
                    seeds=None if seeds is None else tuple(range(seeds)),
                    max_steps=max_steps,
                    batch_size=batch_size,
                )
            _print_results(list(runs))
        console.print(f"results: {escape(str(folder))}; tables and plots: pjax report {escape(str(folder))}")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def report(*, folder: Path, out: Path | None, formats: str) -> None:
    """Make tables and plots."""
    with _messages():
        for path in reporting.report(folder, out, _names(formats) or ()):
            _say(path)
        if line := reporting.summary(results.read_runs(folder)):
            _say(line)


def pack(*, folder: Path) -> None:
    """Put the runs that have ended into one file for each study."""
    with _messages():
        for path in results.pack(folder):
            _say(path)


# --- Networks ---


def graph(*, fold: bool, out: list[Path] | None, **settings: Any) -> None:
    """Draw a network as a graph of constraints."""
    with _messages():
        drawing = pjax.draw(*example(_config(**settings)), fold=fold)
        for path in out or ():
            _say(drawing.save(path))
        if not out:
            typer.echo(drawing.mermaid, nl=False)


def summary(*, markdown: bool, **settings: Any) -> None:
    """Show nodes, edges, memory and operations of a network."""
    with _messages():
        found = pjax.summary(*example(_config(**settings)))
        typer.echo(found.markdown if markdown else str(found))


def profile(**settings: Any) -> None:
    """Show where the time of a step goes, node by node."""
    with _messages():
        loop = Loop(_config(**settings))
        if not isinstance(loop.method, methods.Projections):
            raise InputError(f"only projection methods can be profiled, got {settings['method']}")
        params = loop.model.init(jax.random.key(0))
        with methods.products(loop.method.precision):
            found = pjax.profile(loop.method.loss(loop.model, *loop.batch()), params, loop.method.solver)
        _say(found)
