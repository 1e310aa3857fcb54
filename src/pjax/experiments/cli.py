"""The command line: a thin layer over `data`, `train`, `compare` and `report`."""

import contextlib
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
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

from pjax.errors import InputError
from pjax.experiments import checkpoint, endings, methods, results
from pjax.experiments import data as datasets
from pjax.experiments.checks import check_name
from pjax.experiments.config import Config, parse_widths
from pjax.experiments.results import Run, read_runs
from pjax.experiments.train import Progress

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

app = typer.Typer(
    help="Train networks by projections, and compare with other methods.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Data sets: which there are, and getting them.", no_args_is_help=True)
app.add_typer(data_app, name="data")


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


def _version(value: bool) -> None:
    if value:
        console.print(f"pjax-learn {metadata.version('pjax-learn')}, jax {metadata.version('jax')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
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
    console.print(f"folder: {escape(str(datasets.folder()))}", soft_wrap=True)


@data_app.command("get")
def data_get(
    names: Annotated[list[str], typer.Argument(help=f"Of {', '.join(datasets.names())}.")],
) -> None:
    """Download data sets into $PJAX_DATA, or the user's cache; what has arrived is kept when interrupted."""
    with _messages(lambda: "start again to go on"):
        for name in names:
            check_name("NAME", name, datasets.names())
        for name in names:
            with _download_bar() as show:
                path = datasets.get(name, progress=show)
            console.print(f"{name}: {escape(str(path))}", soft_wrap=True)


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

Methods = ", ".join(methods.LABELS)


Model = Annotated[str | None, typer.Option(help="mlp, cnn or rnn; by default what suits the data.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON, and nothing else.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
RunSeed = Annotated[int | None, typer.Option(help="Which of the run's seeds; by default the first.")]
Widths = Annotated[str | None, typer.Option(help="Hidden layers, as 4x128, 4x128+skip or 64-32.")]
Length = Annotated[int | None, typer.Option(help="Of texts: characters in a window; by default 64.")]


@app.command()
def train(
    context: typer.Context,
    data: Annotated[str, typer.Option(help=f"Data set: {', '.join(datasets.names())}.")] = "digits",
    model: Model = None,
    widths: Annotated[
        str | None,
        typer.Option(help="Hidden layers, as 4x128, 4x128+skip, 64-32; 4x128+q16: rounded to 16 levels."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help=f"One of {Methods}; with options, as ap:metric=balanced, or ap:groups=4:sync_every=10: "
            "groups of samples that exchange their parameters in every 10 steps."
        ),
    ] = "ep",
    seed: Annotated[int, typer.Option(help="Decides initial values and the order of the data.")] = 0,
    batch_size: Annotated[int | None, typer.Option(help="Samples in a batch.")] = None,
    steps_per_batch: Annotated[int | None, typer.Option(help="Projection steps on one batch.")] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(help="Stop after so many steps at the latest; with --resume, go on to so many."),
    ] = None,
    check_every: Annotated[
        int | None, typer.Option(help="Steps between checks of the accuracy; the last is at --max-steps.")
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Checks without improvement to stop after; 0: never; by default 5.")
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Of ep and methods that do not project; by default 0.001, and 0.0001 for fa."),
    ] = None,
    loss_scale: Annotated[
        float | None,
        typer.Option(
            help="Of methods that project: factor of the loss in its proximal operator; by default 5."
        ),
    ] = None,
    consensus: Annotated[
        str | None, typer.Option(help="Of dr, ap, cp and dm: paper, the default, or exact.")
    ] = None,
    sequence_length: Length = None,
    folder: Annotated[Path | None, typer.Option(help="Of the run; by default a new one in runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    init_from: Annotated[
        Path | None, typer.Option(help="Begin with the best parameters of the run in this folder.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    devices: Annotated[
        str | None, typer.Option(help="How many devices share every batch, or all; by default 1.")
    ] = None,
    shard_parameters: Annotated[
        bool,
        typer.Option("--shard-parameters", help="Divide the parameters, too, over the devices."),
    ] = False,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Be one of several processes, which share every batch.")
    ] = False,
    coordinator: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of process 0; where all three are left out, the cluster is asked.",
            envvar="JAX_COORDINATOR_ADDRESS",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="How many processes there are.", envvar="JAX_NUM_PROCESSES")
    ] = None,
    process: Annotated[
        int | None, typer.Option(help="Which one this is, from 0.", envvar="JAX_PROCESS_ID")
    ] = None,
    timeout: Annotated[
        int, typer.Option(min=2, help="Seconds after which a process that is not heard of counts as dead.")
    ] = 20,
    guarded: Annotated[bool, typer.Option("--guarded", hidden=True)] = False,
) -> None:
    """Train a network: a progress bar, and a folder with metrics, checkpoint and plot."""
    from pjax.experiments import devices as placing
    from pjax.experiments import plots
    from pjax.experiments import processes as joining
    from pjax.experiments import train as training

    with _messages():
        count = _count(devices)
        if not distributed:
            if given := [f"--{name}" for name in _given(context) if name in _CLUSTER]:
                raise InputError(f"{', '.join(given)}: for several processes, give --distributed too")
        else:
            joining.check(coordinator, processes, process)
            if folder is None and resume is None:
                raise InputError("--distributed needs --folder or --resume, the same for all processes")
            if count is not None:
                raise InputError("--distributed uses all devices of all processes: drop --devices")
        if resume is None:
            config = _config(
                data,
                method,
                model=model,
                widths=widths,
                seeds=(seed,),
                batch_size=batch_size,
                steps_per_batch=steps_per_batch,
                max_steps=max_steps,
                check_every=check_every,
                patience=patience,
                learning_rate=learning_rate,
                loss_scale=loss_scale,
                consensus=consensus,
                sequence_length=sequence_length,
                init_from=None if init_from is None else str(init_from),
            )
            where = folder
        else:
            config, where = None, resume
            if others := [
                f"--{name.replace('_', '-')}" for name in _given(context) if name not in _NO_SETTING
            ]:
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

    if distributed and not guarded:
        command = [sys.executable, "-m", "pjax_command", *sys.argv[1:], "--guarded"]
        raise typer.Exit(
            joining.watch(command, f"{again()}, alone or --distributed over any number of processes")
        )
    joined = (
        joining.joined(coordinator, processes, process, timeout, again())
        if distributed
        else contextlib.nullcontext()
    )
    with _messages(advice), joined:
        places = placing.Devices(
            jax.device_count() if count == "all" else count, shard_parameters=shard_parameters
        )
        shown = places.first and not quiet and not as_json
        with _training_bar() if shown else contextlib.nullcontext(lambda *_: None) as show:
            run = training.train(
                config,
                where,
                resume=resume is not None,
                max_steps=None if resume is None else max_steps,
                patience=None if resume is None else patience,
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
                console.print(f"plot:   {escape(str(plot))}\nfolder: {escape(str(where))}", soft_wrap=True)
    if run.diverged:
        errors.print(
            "[bold red]diverged:[/] the loss was not finite: take a lower --learning-rate, or another method"
        )
        raise typer.Exit(endings.DIVERGED)


_CLUSTER = ("coordinator", "processes", "process", "timeout")
_NO_SETTING = (
    "resume",
    "quiet",
    "as_json",
    "max_steps",
    "patience",
    "devices",
    "shard_parameters",
    "distributed",
    "guarded",
    *_CLUSTER,
)


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


def _config(data: str, method: str, *, widths: str | None = None, **settings: Any) -> Config:
    """A configuration from what the command line gives; the rest is left open."""
    given = {name: value for name, value in settings.items() if value is not None}
    if widths is not None:
        given["widths"], given["skip"], given["levels"] = parse_widths(widths)
    return Config(data=data, method=method, **given)


class _Left(rich.progress.ProgressColumn):
    """How long a run still takes at most, or took."""

    def render(self, task: rich.progress.Task) -> Text:
        if task.finished:
            return Text(f"took {_clock(task.finished_time)}")
        return Text(f"{_clock(task.time_remaining)} left", style="cyan")


def _clock(seconds: float | None) -> str:
    """Seconds as a clock shows them.

    >>> _clock(75), _clock(3700), _clock(None)
    ('1:15', '1:01:40', '-:--')
    """
    if seconds is None or not math.isfinite(seconds):
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


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
            f"test {p.test:.2f} %  {p.ms_per_step:.3g} ms/step  {_clock(left)} left",
            soft_wrap=True,
        )


def _print_results(runs: list[Run]) -> None:
    table = Table("run", "test %", "train %", "steps", "seconds", "ms/step", "ended", box=None)
    for run in runs:
        label = methods.label(run.method)
        for r in run.results:
            table.add_row(
                f"{run.data} {run.model} {run.architecture} {label}, seed {r.seed}",
                f"{r.test:.2f}",
                f"{r.train:.2f}",
                f"{r.steps:,}",
                f"{r.seconds:.2f}",
                f"{r.ms_per_step:.3g}",
                f"{r.stopped} at {r.last_step:,}",
            )
    console.print(table)
    console.print(
        "test, train: of the parameters with the best validation accuracy; steps, seconds: to 99 % of it"
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
    folder: Annotated[Path, typer.Argument(help="Where to look, with all that is below it.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show the runs in a folder, with their results."""
    with _messages():
        runs = read_runs(folder)
        if as_json:
            typer.echo(json.dumps([_as_json(run) for run in runs]))
            return
        table = Table(box=None)
        table.add_column("folder", overflow="fold")
        for title in ("method", "seeds", "steps", "test %", "ended"):
            table.add_column(title)
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
        Path | None, typer.Option(help="A file .npz with x and y; by default the run's own data set.")
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
        for name, accuracy in found.items():
            console.print(f"{escape(name)}: {accuracy:.2f} %", soft_wrap=True)


@app.command()
def predict(
    run: RunFolder,
    data: Annotated[Path, typer.Option(help="Inputs: a file .npy, or .npz with x.")],
    out: Annotated[Path, typer.Option(help="Where to write: .npy, classes; .csv, with scores.")],
    seed: RunSeed = None,
) -> None:
    """Write what a run's best parameters predict for inputs."""
    from pjax.experiments import evaluate as evaluating

    with _messages():
        evaluating.check_out(out)
        scores = evaluating.predict(run, data, seed=seed)
        console.print(escape(str(evaluating.write_predictions(scores, out))), soft_wrap=True)


# --- compare ---


@app.command()
def compare(
    preset: Annotated[
        list[str] | None,
        typer.Option(
            help="A block of the paper's tables, such as mlp-mnist; paper, for all of them; learning, "
            "extrapolated projections beside Adam; exchanges, accuracy over bytes that "
            "devices send; studies, of rounding, precision and what helps; depth, times over depth. May be "
            "repeated."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All presets.")] = False,
    quick: Annotated[bool, typer.Option(help="A small version: minutes on two cores.")] = False,
    methods_: Annotated[
        str | None, typer.Option("--methods", help="Some of the methods, as in dr,ap,adam.")
    ] = None,
    architectures: Annotated[
        str | None, typer.Option(help="Some of the architectures, as in 1x128,4x128+skip.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop each run after so many steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples in a batch.")] = None,
    together: Annotated[
        bool | None,
        typer.Option("--together/--one-by-one", help="Seeds in one program; by default on accelerators."),
    ] = None,
    retime: Annotated[
        bool,
        typer.Option("--retime", help="Run nothing: time the steps of what has ended, one run at a time."),
    ] = False,
    folder: Annotated[Path, typer.Option(help="Where results are kept.")] = Path("results"),
) -> None:
    """Compare methods as the paper's tables do. Start again to go on with what was interrupted."""
    from pjax.experiments import compare as comparing
    from pjax.experiments import depth

    known = [*comparing.PRESETS, *comparing.GROUPS, "depth"]
    with _messages(lambda: f"start again to go on; results so far are in {folder}"):
        if bool(preset) == every:
            raise typer.BadParameter(
                f"name one or more, of {', '.join(known)}, or all", param_hint="--preset"
            )
        for name in preset or ():
            check_name("preset", name, known)
        asked = [*comparing.GROUPS, "depth"] if every else preset or ()
        for name in (one for group in asked for one in comparing.GROUPS.get(group, (group,))):
            with _training_bar() as show:
                if name == "depth":
                    depth.run(folder / "depth", progress=lambda line: console.print(escape(str(line))))
                    continue
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


# --- profile ---


@app.command()
def profile(
    data: Annotated[str, typer.Option(help=f"Data set: {', '.join(datasets.names())}.")] = "digits",
    model: Model = None,
    widths: Widths = None,
    method: Annotated[str, typer.Option(help="A projection method: ep, dr, ap, cp or dm.")] = "ep",
    batch_size: Annotated[int | None, typer.Option(help="Samples in a batch.")] = None,
    sequence_length: Length = None,
) -> None:
    """Show where the time of a step goes, node by node. For functions of your own: pjax.profile."""
    import jax

    import pjax
    from pjax.experiments.loop import Loop

    with _messages():
        config = _config(
            data, method, model=model, widths=widths, batch_size=batch_size, sequence_length=sequence_length
        )
        loop = Loop(config)
        if not isinstance(loop.method, methods.Projections):
            raise InputError(f"only projection methods can be profiled, got {method}")
        params = loop.model.init(jax.random.key(0))
        with methods.products(loop.method.precision):
            found = pjax.profile(loop.method.loss(loop.model, *loop.batch()), params, loop.method.solver)
        console.print(escape(str(found)), soft_wrap=True, highlight=False)


# --- graph and summary ---

Data = Annotated[str, typer.Option(help=f"Data set, for its shapes: {', '.join(datasets.names())}.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Samples in a batch.")]


@app.command()
def graph(
    data: Data = "digits",
    model: Model = None,
    widths: Widths = None,
    method: Annotated[str, typer.Option(help="Whose sets to show: dr, ap, dm have two; cp, ep.")] = "ap",
    batch_size: BatchSize = 32,
    sequence_length: Length = None,
    fold: Annotated[bool, typer.Option(help="Equal nodes as one box.")] = True,
    direction: Annotated[str, typer.Option(help="Where arrows run: right or down.")] = "right",
    out: Annotated[
        list[Path] | None,
        typer.Option(help="Write a file: .svg, .png, .dot, .gv or .mmd. May be repeated."),
    ] = None,
    text: Annotated[
        str, typer.Option("--print", help="Print mermaid or dot, if no file is named.")
    ] = "mermaid",
) -> None:
    """Draw a network as a graph of constraints. For functions of your own: pjax.draw."""
    import pjax
    from pjax.experiments import structure

    with _messages():
        check_name("--print", text, ("mermaid", "dot"))
        config = _config(
            data, method, model=model, widths=widths, batch_size=batch_size, sequence_length=sequence_length
        )
        drawing = pjax.draw(*structure.example(config), fold=fold, direction=direction)  # type: ignore[arg-type]
        for path in out or ():
            console.print(escape(str(drawing.save(path))), soft_wrap=True)
        if not out:
            typer.echo(drawing.mermaid if text == "mermaid" else drawing.dot, nl=False)


@app.command()
def summary(
    data: Data = "digits",
    model: Model = None,
    widths: Widths = None,
    method: Annotated[str, typer.Option(help="A projection method: ep, dr, ap, cp or dm.")] = "ap",
    batch_size: BatchSize = 32,
    sequence_length: Length = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a table in Markdown.")] = False,
) -> None:
    """Show nodes, edges, memory and operations of a network. For functions of your own: pjax.summary."""
    import pjax
    from pjax.experiments import structure

    with _messages():
        config = _config(
            data, method, model=model, widths=widths, batch_size=batch_size, sequence_length=sequence_length
        )
        found = pjax.summary(*structure.example(config))
        typer.echo(found.markdown if markdown else str(found))


# --- report ---


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Results of compare.")] = Path("results"),
    out: Annotated[Path | None, typer.Option(help="Where to write; by default into the folder.")] = None,
    plots: Annotated[str, typer.Option(help="Formats of plots, as in png,svg; empty for none.")] = "png",
) -> None:
    """Make tables (Markdown, CSV, LaTeX) beside the paper's figures, and plots."""
    from pjax.experiments import report as reporting

    with _messages():
        made = reporting.report(folder, out, plots=_names(plots) or ())
        for path in made.paths:
            console.print(escape(str(path)), soft_wrap=True)


@app.command()
def pack(
    folder: Annotated[Path, typer.Argument(help="Results of compare.")] = Path("results"),
) -> None:
    """Put the runs that have ended into one file for each study, and remove their folders.

    `pjax report` reads such files; `pjax compare` makes the folders again of runs that it goes on with.
    """
    with _messages():
        for path in results.pack(folder):
            console.print(escape(str(path)), soft_wrap=True)
