"""What the commands of the command line do: a thin layer over `data`, `train`, `compare` and `report`.

Functions have the names of those in `pjax_command` that say what a command takes, and show help without this.
"""

import contextlib
import dataclasses
import json
import math
import sys
import time
import types
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
from pjax.experiments import checkpoint, endings, learners, methods, own_data, plots, results
from pjax.experiments import compare as comparing
from pjax.experiments import data as datasets
from pjax.experiments import devices as placing
from pjax.experiments import evaluate as evaluating
from pjax.experiments import processes as joining
from pjax.experiments import report as reporting
from pjax.experiments import train as training
from pjax.experiments.config import Config, example, parse_widths
from pjax.experiments.loggers import names
from pjax.experiments.loop import Loop
from pjax.experiments.results import Run
from pjax.experiments.train import Progress
from pjax.tools.drawing.names import clock

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def run(command: str, given: dict[str, Any]) -> None:
    """Do what a command does; errors that can be explained are a line, and have their exit code."""
    try:
        globals()[command](**given)
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
    table = Table("name", "where", box=None)
    for name in datasets.names():
        here = datasets.path(name)
        table.add_row(name, escape(str(here)) if here.exists() else f"not here: pjax data get {name}")
    console.print(table)
    _say(f"folder: {datasets.folder()}")


def data_get(*, names: list[str]) -> None:
    columns = (
        rich.progress.DownloadColumn(),
        rich.progress.TransferSpeedColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    with endings.saying(lambda: "start again to go on"):
        for name in names:
            check_name("NAME", name, datasets.names())
        for name in names:
            with _bar(rich.progress.BarColumn(), *columns) as update:
                path = datasets.get(name, progress=lambda d, n, what: update(what, completed=d, total=n))
            _say(f"{name}: {path}")


@contextlib.contextmanager
def _bar(*columns: rich.progress.ProgressColumn) -> Iterator[Callable[..., None]]:
    """A function that shows how far something has come, by its name, in columns beside it."""
    title = rich.progress.TextColumn("{task.description}")
    with rich.progress.Progress(title, *columns, console=console) as bar:
        tasks: dict[str, rich.progress.TaskID] = {}

        def update(name: str, **values: Any) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(escape(name), **values)
            bar.update(tasks[name], **values)

        yield update


# --- train ---


_LIMITS = ("max_steps", "patience")
"""What may change when a run is resumed."""
_CLUSTER = ("coordinator", "processes", "process", "timeout")


def _asked_for(o: types.SimpleNamespace, context: typer.Context) -> Config | None:
    """The run that options ask for; None if one is resumed. Options that do not go together are refused."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    named = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    if o.distributed:
        joining.check(o.coordinator, o.processes, o.process)
        if (o.resume or o.folder) is None:
            raise InputError("--distributed needs --folder or --resume, the same for all processes")
        if o.devices is not None:
            raise InputError("--distributed uses all devices of all processes: drop --devices")
    elif stray := [f"--{name}" for name in named if name in _CLUSTER]:
        raise InputError(f"{', '.join(stray)}: for several processes, give --distributed too")
    settings = {field.name for field in dataclasses.fields(Config)}
    if o.resume is None:
        seeds = tuple(range(o.seed, o.seed + o.seeds))
        given = vars(o) | {"seeds": seeds, "init_from": o.init_from and str(o.init_from)}
        return _config(**{name: value for name, value in given.items() if name in settings})
    if others := [name for name in named if name in {*settings, "seed", "folder"} - {*_LIMITS}]:
        raise InputError(
            f"--resume takes all settings but --max-steps and --patience from the run's folder: drop "
            f"{', '.join('--' + name.replace('_', '-') for name in others)}"
        )
    return None


def train(*, context: typer.Context, **given: Any) -> None:
    o = types.SimpleNamespace(**given)
    where, config = o.resume or o.folder, _asked_for(o, context)

    def advice() -> str:
        saved = where is not None and checkpoint.every(where)
        return f"go on with: pjax train --resume {where}" if saved else "there was no checkpoint yet"

    def progress(p: Progress) -> None:
        nonlocal where
        where = where or p.folder.relative_to(Path.cwd())
        show("", p)

    if o.distributed and not o.guarded:
        command = [sys.executable, "-m", "pjax_command", *sys.argv[1:], "--guarded"]
        advised = f"pjax train --resume {where}, alone or --distributed over any number of processes"
        raise typer.Exit(joining.watch(command, advised))
    cluster = {name: given[name] for name in _CLUSTER}
    with endings.saying(advice), joining.joined(**cluster) if o.distributed else contextlib.nullcontext():
        places = placing.Devices(_count(o.devices), shard_parameters=o.shard_parameters)
        shown = places.first and not o.quiet and not o.as_json
        with _training_bar() if shown else contextlib.nullcontext(lambda *_: None) as show:
            run = training.train(
                config,
                where,
                resume=o.resume is not None,
                **{name: given[name] for name in _LIMITS if o.resume},
                together=o.together,
                devices=places,
                progress=progress,
            )
    if places.first:
        plot = plots.plot_run(where)
        if o.as_json:
            typer.echo(json.dumps(_as_json(run) | {"plot": str(plot)}))
        elif not o.quiet:
            _print_results([run])
            _say(f"plot:   {plot}\nfolder: {where}")
            more = "with your own data: pjax train --data FILE.csv --target COLUMN"
            if own_data.is_own(run.data):
                more = f"pjax predict {where} --data FILE --out predicted.csv"
            if not run.diverged:
                _say(f"next:   pjax eval {where}; {more}")
    if run.diverged:
        errors.print(
            "[bold red]diverged:[/] the loss was not finite: take a lower --learning-rate, or another method"
        )
        raise typer.Exit(endings.DIVERGED)


def _count(devices: str | None) -> int | None:
    """A number of devices, if it is given."""
    if devices is None:
        return None
    if devices == "all":
        return jax.device_count()
    if not devices.isdecimal() or int(devices) < 1:
        raise InputError(f"--devices must be a number from 1, or all; got {devices!r}")
    return int(devices)


def _config(widths: str | None = None, **settings: Any) -> Config:
    """A configuration from what the command line gives; the rest is left open."""
    given = {name: value for name, value in settings.items() if value is not None}
    return Config(**given, **(parse_widths(widths) if widths is not None else {}))


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
        yield _line_shower()
        return
    columns = (
        rich.progress.BarColumn(bar_width=_BAR),
        rich.progress.TextColumn("{task.completed:,.0f}/{task.total:,}"),
        rich.progress.TextColumn("{task.fields[state]}"),
        _Left(),
    )
    with _bar(*columns) as update:
        accuracies: dict[str, list[str]] = {}

        def show(name: str, p: Progress) -> None:
            room = console.width // 3
            title = name if len(name) <= room else f"…{name[1 - room :]}"
            if not math.isnan(p.test):
                accuracies[name] = [f"test {p.test:.1f} %", f"validation {p.validation:.1f} %"]
            parts = [p.message] if p.message else [f"loss {p.loss:.3f}", *accuracies.get(name, [])]
            if not math.isnan(p.ms_per_step):
                parts.append(f"{p.ms_per_step:.3g} ms/step")
            others = len(title) + 1 + _BAR + 1 + 2 * len(f"{p.max_steps:,}") + 2 + len(" 00:00:00 left")
            while len(parts) > 1 and len(" ".join(parts)) > console.width - others:
                parts.pop()
            update(title, completed=p.step, total=p.max_steps, state=escape(" ".join(parts)))

        yield show


def _line_shower() -> Callable[[str, Progress], None]:
    """A function that prints a line for each check, not oftener than once a second for one run."""
    last: dict[str, float] = {}

    def show(name: str, p: Progress) -> None:
        now = time.monotonic()
        if p.message == "timed":
            console.print(f"{name}: {p.ms_per_step:.3g} ms/step", soft_wrap=True)
        if math.isnan(p.test) or (now - last.get(name, -1.0) < 1.0 and p.step < p.max_steps):
            return
        last[name] = now
        title = f"{name}: " if name else ""
        left = (p.max_steps - p.step) * p.ms_per_step / 1000
        console.print(
            f"{title}step {p.step:,.0f}  loss {p.loss:.4f}  validation {p.validation:.2f} %  "
            f"test {p.test:.2f} %  {p.ms_per_step:.3g} ms/step  {clock(left)} left",
            soft_wrap=True,
        )

    return show


def _print_results(runs: list[Run]) -> None:
    table = Table("run", "test %", "train %", "steps", "seconds", "ms/step", "ended", box=None)
    for run in runs:
        label = methods.label(run.method)
        for r in run.results:
            table.add_row(
                escape(f"{run.name} {label}, seed {r.seed}"),
                f"{r.test:.2f}",
                f"{r.train:.2f}",
                f"{r.steps:,}",
                *("–" if math.isnan(t) else f"{t:.3g}" for t in (r.seconds, r.ms_per_step)),
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
        "results": [results.as_json(result) for result in run.results],
    }


def list_runs(*, folder: Path, as_json: bool) -> None:
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
            f"{run.test.mean:.2f}" if run.results else "",
            ", ".join(sorted({result.stopped for result in run.results})) or "not yet",
        )
    console.print(table)


def evaluate(*, run: Path, data: Path | None, seed: int | None, as_json: bool) -> None:
    found = evaluating.evaluate(run, data, seed=seed)
    if as_json:
        typer.echo(json.dumps(found))
        return
    for name, value in found.items():
        _say(f"{name}: {value:.4g}" if name.endswith(" rmse") else f"{name}: {value:.2f} %")


def predict(*, run: Path, data: Path, out: Path, seed: int | None) -> None:
    _say(evaluating.write_predictions(run, data, out, seed=seed))


# --- compare ---


def compare(*, preset: list[str] | None, every: bool, retime: bool, **given: Any) -> None:
    o, known = types.SimpleNamespace(**given), [*comparing.PRESETS, *comparing.GROUPS]
    if bool(preset) == every:
        advice = f"name one or more, of {', '.join(known)}, or all"
        raise typer.BadParameter(advice, param_hint="--preset")
    for name in preset or ():
        check_name("preset", name, known)
    others = given | {"folder": None, "quick": None, "only_methods": None, "methods": o.only_methods}
    stray = [f"--{name.replace('_', '-')}" for name, value in others.items() if value not in (None, False)]
    if retime and stray:
        raise InputError(f"{', '.join(stray)}: --retime runs nothing, and times all that has ended: drop it")
    asked = comparing.GROUPS if every else preset or ()
    with endings.saying(lambda: f"start again to go on; results so far are in {o.folder}"):
        for name in (one for group in asked for one in comparing.GROUPS.get(group, (group,))):
            with _training_bar() as show:
                if retime:
                    comparing.retime(name, o.folder, quick=o.quick, progress=show)
                    continue
                runs = comparing.compare(
                    name,
                    o.folder,
                    quick=o.quick,
                    only_methods=None if o.only_methods is None else names(o.only_methods),
                    only_architectures=None if o.architectures is None else names(o.architectures),
                    progress=show,
                    together=o.together,
                    timed=not o.untimed,
                    seeds=None if o.seeds is None else tuple(range(o.seeds)),
                    max_steps=o.max_steps,
                    batch_size=o.batch_size,
                    init_scale=o.init_scale,
                )
            _print_results(list(runs))
    _say(f"results: {o.folder}; tables and plots: pjax report {o.folder}")


def report(*, folder: Path, out: Path | None, formats: str) -> None:
    for path in reporting.report(folder, out, names(formats)):
        _say(path)
    if line := reporting.summary(results.read_runs(folder)):
        _say(line)


def pack(*, folder: Path) -> None:
    for path in results.pack(folder):
        _say(path)


# --- Networks ---


def _shown(settings: dict[str, Any]) -> Config:
    """The configuration of a network that is looked at."""
    if settings["data"].endswith(".csv"):
        raise InputError(
            f"{settings['data']}: this is for data that have a name; for your own: pjax.draw, pjax.summary, "
            "pjax.profile"
        )
    return _config(**settings)


def graph(*, fold: bool, out: list[Path] | None, **settings: Any) -> None:
    drawing = pjax.draw(*example(_shown(settings)), fold=fold)
    for path in out or ():
        _say(drawing.save(path))
    if not out:
        typer.echo(drawing.mermaid, nl=False)


def summary(*, markdown: bool, **settings: Any) -> None:
    found = pjax.summary(*example(_shown(settings)))
    typer.echo(found.markdown if markdown else str(found))


def profile(**settings: Any) -> None:
    loop = Loop(_shown(settings))
    if not isinstance(loop.method, learners.Projections):
        raise InputError(f"only projection methods can be profiled, got {settings['method']}")
    params = loop.model.init(jax.random.key(0))
    with learners.products(loop.method.precision):
        found = pjax.profile(loop.method.loss(loop.model, *loop.batch()), params, loop.method.optimiser)
    _say(found)
