"""The command line: a thin layer over `data`, `train`, `compare` and `report`."""

import contextlib
import dataclasses
import inspect
import json
import math
import sys
import time
import typing
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import jax
import rich.progress
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

import pjax
from pjax.checks import check_name
from pjax.errors import InputError
from pjax.experiments import checkpoint, endings, learners, loggers, methods, own_data, results
from pjax.experiments import data as datasets
from pjax.experiments import devices as placing
from pjax.experiments import processes as joining
from pjax.experiments import train as training
from pjax.experiments.config import MODELS, Config, example, parse_widths
from pjax.experiments.loop import Loop
from pjax.experiments.results import Run
from pjax.experiments.train import Progress
from pjax.tools.drawing.names import clock

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

app = typer.Typer(
    help="Train networks by projections, and compare with other methods.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Data sets: which there are, and getting them.", no_args_is_help=True)
app.add_typer(data_app, name="data")

_DATA = ", ".join(datasets.names())
_METHODS = ", ".join(methods.LABELS)
AsJson = Annotated[bool, Option("--json", help="Print the results as JSON, and nothing else.")]
RunFolder = Annotated[Path, Argument(metavar="RUN", help="The folder of a run.")]
RunSeed = Annotated[int | None, Option(help="Which of the run's seeds; by default the first.")]
Results = Annotated[Path, Argument(help="Results of compare.")]


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


def _version(value: bool) -> None:
    if value:
        console.print(f"pjax-learn {metadata.version('pjax-learn')}, jax {metadata.version('jax')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


# --- data ---


@data_app.command("list")
def data_list() -> None:
    """Show the data sets, and whether they are here."""
    table = Table("name", "where", box=None)
    for name in datasets.names():
        here = datasets.path(name)
        table.add_row(name, escape(str(here)) if here.exists() else f"not here: pjax data get {name}")
    console.print(table)
    _say(f"folder: {datasets.folder()}")


@data_app.command("get")
def data_get(names: Annotated[list[str], Argument(help=f"Of {_DATA}.")]) -> None:
    """Download data sets into $PJAX_DATA, or the user's cache; what has arrived is kept when interrupted."""
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


def _completing(names: Iterable[str]) -> Callable[[str], list[str]]:
    """What a shell offers."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def _complete_data(incomplete: str) -> list[str]:
    files = [str(path) for path in sorted(Path.cwd().glob("*")) if path.suffix in own_data.SUFFIXES]
    return _completing([*datasets.names(), *(Path(file).name for file in files)])(incomplete)


_SETTINGS = {
    "data": f"Data set: {_DATA}; to train, also a file .csv or .npz.",
    "target": "Of .csv: the column to predict.",
    "ignore": "Of .csv: columns to leave out, as id,name.",
    "categorical": "Of .csv: columns of numbers that are names of categories.",
    "task": "Of own data: classes or regression; by default what the target looks like.",
    "validation": "Of own data: share of the rows to validate with; by default 0.1.",
    "test": "Of own data: share of the rows to test with; by default 0.2.",
    "standardise": "Of own data: inputs get mean 0 and deviation 1; by default they do.",
    "model": "mlp, cnn or rnn, by default what suits the data; to train, also your own, package.module:make.",
    "widths": "Hidden layers, as 4x128, 4x128+skip, 64-32; 4x128+q16: rounded to 16 levels.",
    "method": f"One of {_METHODS}; with options, as ap:metric=balanced, or ap:groups=4:sync_every=10: "
    "groups of samples that exchange their parameters in every 10 steps.",
    "batch_size": "Samples in a batch.",
    "steps_per_batch": "Projection steps on one batch.",
    "max_steps": "Stop after so many steps at the latest; with --resume, go on to so many.",
    "check_every": "Steps between checks of the accuracy; the last is at --max-steps.",
    "patience": "Checks without improvement to stop after; 0: never; by default 5.",
    "learning_rate": "Of ep and methods that do not project; by default 0.001, and 0.0001 for fa.",
    "schedule": "Of methods with a learning rate: constant, or how it falls to 0: linear, cosine.",
    "warmup": "Of methods with a learning rate: steps in which it rises from 0.",
    "decay_steps": "Of a schedule that falls: the step of 0; by default --max-steps.",
    "weight_decay": "Of methods with a learning rate: how much weights shrink, times the rate.",
    "clip": "Of methods with a learning rate: the largest norm of a gradient, or move.",
    "loss_scale": "Of methods that project: factor of the loss in its proximal operator; by default 5.",
    "consensus": "Of dr, ap, cp and dm: paper, the default, or exact.",
    "sequence_length": "Of texts: characters in a window; by default 64.",
    "log": "Metrics to tensorboard, csv, wandb, as in csv,tensorboard.",
}
"""Settings of a run, which are options of commands, and what they are."""
_NETWORK = ("data", "model", "widths", "method", "batch_size", "sequence_length")
_COMPLETED = {
    "data": _complete_data,
    "model": _completing(MODELS),
    "method": _completing(methods.LABELS),
    "schedule": _completing(learners.SCHEDULES),
    "log": _completing(loggers.KINDS),
}


def _with_settings(names: Iterable[str] = _NETWORK, **defaults: Any) -> Callable[[Any], Any]:
    """A command with options for settings, some of which have defaults, beside its own parameters."""
    kinds = typing.get_type_hints(Config) | {"widths": str}

    def option(name: str) -> inspect.Parameter:
        made = Option(help=_SETTINGS[name], autocompletion=_COMPLETED.get(name))
        kind: Any = Annotated[kinds[name] | None, made]
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=kind
        )

    def decorate(command: Any) -> Any:
        own = [one for one in inspect.signature(command).parameters.values() if one.kind != one.VAR_KEYWORD]
        own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        command.__signature__ = inspect.Signature([*map(option, names), *own])
        return command

    return decorate


_KEPT = (*_SETTINGS, "seed", "seeds", "folder", "init_from")
"""What a run that is resumed has settled, but for `_LIMITS`."""
_LIMITS = ("max_steps", "patience")
_CLUSTER = ("coordinator", "processes", "process", "timeout")


@app.command()
@_with_settings(_SETTINGS, data="digits", method="ep")
def train(
    context: typer.Context,
    seed: Annotated[int, Option(help="Decides initial values and the order of the data.")] = 0,
    seeds: Annotated[int, Option(min=1, help="How many seeds, from --seed on.")] = 1,
    together: Annotated[
        bool | None,
        Option("--together/--one-by-one", help="Seeds in one program; by default on accelerators."),
    ] = None,
    folder: Annotated[Path | None, Option(help="Of the run; by default a new one in runs/.")] = None,
    resume: Annotated[Path | None, Option(help="Go on with the run in this folder.")] = None,
    init_from: Annotated[
        Path | None, Option(help="Begin with the best parameters of the run in this folder.")
    ] = None,
    quiet: Annotated[bool, Option("--quiet", help="Print nothing but errors.")] = False,
    as_json: AsJson = False,
    devices: Annotated[
        str | None, Option(help="How many devices share every batch, or all; by default 1.")
    ] = None,
    shard_parameters: Annotated[
        bool, Option("--shard-parameters", help="Divide the parameters, too, over the devices.")
    ] = False,
    distributed: Annotated[
        bool, Option("--distributed", help="Be one of several processes, which share every batch.")
    ] = False,
    coordinator: Annotated[
        str | None,
        Option(
            help="HOST:PORT of process 0; where all three are left out, the cluster is asked.",
            envvar="JAX_COORDINATOR_ADDRESS",
        ),
    ] = None,
    processes: Annotated[
        int | None, Option(help="How many processes there are.", envvar="JAX_NUM_PROCESSES")
    ] = None,
    process: Annotated[int | None, Option(help="Which one this is, from 0.", envvar="JAX_PROCESS_ID")] = None,
    timeout: Annotated[
        int, Option(min=2, help="Seconds after which a process that is not heard of counts as dead.")
    ] = 20,
    guarded: Annotated[bool, Option("--guarded", hidden=True)] = False,
    **settings: Any,
) -> None:
    """Train a network: a progress bar, and a folder with metrics, checkpoint and plot."""
    from pjax.experiments import plots

    given = _given(context)
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
        elif others := [f"--{n.replace('_', '-')}" for n in given if n in _KEPT and n not in _LIMITS]:
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


@app.command("list")
def list_runs(
    folder: Annotated[Path, Argument(help="Where to look, with all that is below it.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
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


@app.command("eval")
def evaluate(
    run: RunFolder,
    data: Annotated[
        Path | None, Option(help="A file .npz with x and y, or .csv; by default the run's own data.")
    ] = None,
    seed: RunSeed = None,
    as_json: AsJson = False,
) -> None:
    """Show the accuracy of a run's best parameters."""
    from pjax.experiments import evaluate as evaluating

    with _messages():
        found = evaluating.evaluate(run, data, seed=seed)
        if as_json:
            typer.echo(json.dumps(found))
            return
        for name, value in found.items():
            _say(f"{name}: {value:.4g}" if name.endswith(" rmse") else f"{name}: {value:.2f} %")


@app.command()
def predict(
    run: RunFolder,
    data: Annotated[Path, Option(help="Inputs: a file .csv, .npy, or .npz with x.")],
    out: Annotated[Path, Option(help="Where to write: .npy, or .csv, with scores.")],
    seed: RunSeed = None,
) -> None:
    """Write what a run's best parameters predict for inputs."""
    from pjax.experiments import evaluate as evaluating

    with _messages():
        evaluating.check_out(out)
        outputs = evaluating.predict(run, data, seed=seed)
        _say(evaluating.write_predictions(outputs, out, training.saved_form(run)))


# --- compare ---


@app.command()
def compare(
    preset: Annotated[
        list[str] | None,
        Option(
            help="A block of the paper's tables, such as mlp-mnist; paper, for all of them; learning, "
            "extrapolated projections beside Adam; exchanges, accuracy over bytes that "
            "devices send; studies, of rounding, precision and what helps. May be repeated."
        ),
    ] = None,
    every: Annotated[bool, Option("--all", help="All presets.")] = False,
    quick: Annotated[bool, Option(help="A small version: minutes on two cores.")] = False,
    methods_: Annotated[
        str | None, Option("--methods", help="Some of the methods, as in dr,ap,adam.")
    ] = None,
    architectures: Annotated[
        str | None, Option(help="Some of the architectures, as in 1x128,4x128+skip.")
    ] = None,
    seeds: Annotated[int | None, Option(help="How many seeds.")] = None,
    max_steps: Annotated[int | None, Option(help="Stop each run after so many steps.")] = None,
    batch_size: Annotated[int | None, Option(help="Samples in a batch.")] = None,
    together: Annotated[
        bool | None,
        Option("--together/--one-by-one", help="Seeds in one program; by default on accelerators."),
    ] = None,
    retime: Annotated[
        bool, Option("--retime", help="Run nothing: time the steps of what has ended, one run at a time.")
    ] = False,
    folder: Annotated[Path, Option(help="Where results are kept.")] = Path("results"),
) -> None:
    """Compare methods as the paper's tables do. Start again to go on with what was interrupted."""
    from pjax.experiments import compare as comparing

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
                    only_methods=_names(methods_),
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


@app.command()
def report(
    folder: Results = Path("results"),
    out: Annotated[Path | None, Option(help="Where to write; by default into the folder.")] = None,
    plots: Annotated[str, Option(help="Formats of plots, as in png,svg; empty for none.")] = "png",
) -> None:
    """Make tables, in Markdown, beside the paper's figures, and plots."""
    from pjax.experiments import report as reporting

    with _messages():
        for path in reporting.report(folder, out, _names(plots) or ()):
            _say(path)


@app.command()
def pack(folder: Results = Path("results")) -> None:
    """Put the runs that have ended into one file for each study, and remove their folders.

    `pjax report` reads such files; `pjax compare` makes the folders again of runs that it goes on with.
    """
    with _messages():
        for path in results.pack(folder):
            _say(path)


# --- Networks ---


@app.command()
@_with_settings(data="digits", method="ap", batch_size=32)
def graph(
    fold: Annotated[bool, Option(help="Equal nodes as one box.")] = True,
    direction: Annotated[str, Option(help="Where arrows run: right or down.")] = "right",
    out: Annotated[
        list[Path] | None, Option(help="Write a file: .svg, .dot, .gv or .mmd. May be repeated.")
    ] = None,
    text: Annotated[str, Option("--print", help="Print mermaid or dot, if no file is named.")] = "mermaid",
    **settings: Any,
) -> None:
    """Draw a network as a graph of constraints. For functions of your own: pjax.draw."""
    with _messages():
        check_name("--print", text, ("mermaid", "dot"))
        drawing = pjax.draw(*example(_config(**settings)), fold=fold, direction=direction)  # type: ignore[arg-type]
        for path in out or ():
            _say(drawing.save(path))
        if not out:
            typer.echo(drawing.mermaid if text == "mermaid" else drawing.dot, nl=False)


@app.command()
@_with_settings(data="digits", method="ap", batch_size=32)
def summary(
    markdown: Annotated[bool, Option("--markdown", help="As a table in Markdown.")] = False, **settings: Any
) -> None:
    """Show nodes, edges, memory and operations of a network. For functions of your own: pjax.summary."""
    with _messages():
        found = pjax.summary(*example(_config(**settings)))
        typer.echo(found.markdown if markdown else str(found))


@app.command()
@_with_settings(data="digits", method="ep")
def profile(**settings: Any) -> None:
    """Show where the time of a step goes, node by node. For functions of your own: pjax.profile."""
    with _messages():
        loop = Loop(_config(**settings))
        if not isinstance(loop.method, methods.Projections):
            raise InputError(f"only projection methods can be profiled, got {settings['method']}")
        params = loop.model.init(jax.random.key(0))
        with methods.products(loop.method.precision):
            found = pjax.profile(loop.method.loss(loop.model, *loop.batch()), params, loop.method.solver)
        _say(found)
