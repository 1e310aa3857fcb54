"""The command `pjax`: its commands, and what they take. What they do is in `pjax.experiments.cli`.

Outside of the package, which takes a second to import, and is imported when a command is run: help and what a
shell completes are there at once, an interrupt until then ends the program, and cannot be lost in the import
of something else.
"""

import importlib.util
import inspect
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from typer import Argument, Option

    for extra in ("matplotlib", "rich"):  # for those who run a command
        if importlib.util.find_spec(extra) is None:
            raise ModuleNotFoundError(name=extra)
except ImportError as error:
    sys.exit(f'pjax: the command line needs {error.name}: pip install "pjax-learn[experiments]"')

app = typer.Typer(
    help="Train networks by projections, and compare with other methods.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Data sets: which there are, and getting them.", no_args_is_help=True)
app.add_typer(data_app, name="data")


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGTERM, _leave)
    if hasattr(signal, "pthread_sigmask"):  # whoever started this may have held interrupts back until now
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may not know every letter that is printed
        sys.stdout.reconfigure(errors="replace")
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        app(prog_name="pjax")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done, and the exit code shall say how it went
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(number: int, _: object) -> None:
    os.write(2, b"\ninterrupted\n")
    os._exit(128 + number)


# --- How commands are declared ---

DATA = ("digits", "mnist", "cifar10", "higgs", "shakespeare")
SUFFIXES = (".csv", ".npz")
MODELS = ("mlp", "cnn", "rnn")
PROJECTIONS = ("dr", "ap", "cp", "dm")
METHODS = (
    *("ep", "sgd", "adam", "fa", "ff-sgd", "ff-adam", *PROJECTIONS),
    *(f"{name}-fp" for name in PROJECTIONS),
)
SCHEDULES = ("constant", "linear", "cosine")
LOGGERS = ("tensorboard", "csv", "wandb")

SETTINGS: dict[str, tuple[type, str]] = {
    "data": (str, f"Data set: {', '.join(DATA)}; to train, also a file {' or '.join(SUFFIXES)}."),
    "target": (str, "Of .csv: the column to predict."),
    "ignore": (str, "Of .csv: columns to leave out, as id,name."),
    "categorical": (str, "Of .csv: columns of numbers that are names of categories."),
    "task": (str, "Of own data: classes or regression; by default what the target looks like."),
    "validation": (float, "Of own data: share of the rows to validate with; by default 0.1."),
    "test": (float, "Of own data: share of the rows to test with; by default 0.2."),
    "standardise": (bool, "Of own data: inputs get mean 0 and deviation 1; by default they do."),
    "model": (str, "mlp, cnn or rnn, by default as suits the data; to train, also your own module:make."),
    "widths": (str, "Hidden layers, as 4x128, 4x128+skip, 64-32; 4x128+q16: rounded to 16 levels."),
    "method": (
        str,
        f"One of {', '.join(METHODS)}; with options, as ap:metric=balanced, or ap:groups=4:sync_every=10: "
        "groups of samples that exchange their parameters in every 10 steps.",
    ),
    "batch_size": (int, "Samples in a batch."),
    "steps_per_batch": (int, "Projection steps on one batch."),
    "max_steps": (int, "Stop after so many steps at the latest; with --resume, go on to so many."),
    "check_every": (int, "Steps between checks of the accuracy; the last is at --max-steps."),
    "patience": (int, "Checks without improvement to stop after; 0: never; by default 5."),
    "learning_rate": (float, "Of ep and methods that do not project; by default 0.001, and 0.0001 for fa."),
    "schedule": (str, "Of methods with a learning rate: constant, or how it falls to 0: linear, cosine."),
    "warmup": (int, "Of methods with a learning rate: steps in which it rises from 0."),
    "decay_steps": (int, "Of a schedule that falls: the step of 0; by default --max-steps."),
    "weight_decay": (float, "Of methods with a learning rate: how much weights shrink, times the rate."),
    "clip": (float, "Of methods with a learning rate: the largest norm of a gradient, or move."),
    "loss_scale": (float, "Of projections: factor of the loss in its proximal operator; by default 5."),
    "consensus": (str, "Of dr, ap, cp and dm: paper, the default, or exact."),
    "init_scale": (float, "Of mlp and cnn: variance of initial weights times their inputs; by default 1.5."),
    "sequence_length": (int, "Of texts: characters in a window; by default 64."),
    "log": (str, "Metrics to tensorboard, csv, wandb, as in csv,tensorboard."),
}
"""Settings of a run, which are options of commands: of which type, and what they are."""
NETWORK = ("data", "model", "widths", "method", "batch_size", "sequence_length")
"""Those that say what a network, and a step, looks like."""


_COMPLETED = {"data": DATA, "model": MODELS, "method": METHODS, "schedule": SCHEDULES, "log": LOGGERS}


def _completing(setting: str) -> Callable[[str], list[str]]:
    """What a shell offers for a setting: names, and for data files, too."""

    def offer(incomplete: str) -> list[str]:
        here = sorted(Path.cwd().glob("*")) if setting == "data" else []
        names = [*_COMPLETED.get(setting, ()), *(path.name for path in here if path.suffix in SUFFIXES)]
        return [name for name in names if name.startswith(incomplete)]

    return offer


def _command(
    group: typer.Typer, name: str, settings: Iterable[str] = (), **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare a command, which does what the function of the same name in `pjax.experiments.cli` does.

    Args:
        group: what it is a command of.
        name: what it is called there.
        settings: settings of a run that are its options, beside what the function takes that is decorated.
        defaults: of some of them.
    """

    def option(setting: str) -> inspect.Parameter:
        kind, words = SETTINGS[setting]
        annotation: Any = Annotated[kind | None, Option(help=words, autocompletion=_completing(setting))]
        return inspect.Parameter(
            setting, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(setting), annotation=annotation
        )

    def declare(declared: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            from pjax.experiments import cli, endings

            if signal.getsignal(signal.SIGINT) is _leave:  # from here on interrupts are heard by the package
                endings.listen()
            cli.run(declared.__name__, given)

        own = inspect.signature(declared).parameters.values()
        keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        run.__signature__ = inspect.Signature([*map(option, settings), *keywords])  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = declared.__name__, declared.__doc__
        group.command(name)(run)
        return declared

    return declare


def _flag(name: str, words: str) -> Any:
    """An option without a value, and without an opposite."""
    return Option(False, name, help=words)


AsJson = Annotated[bool, Option("--json", help="Print the results as JSON, and nothing else.")]
RunFolder = Annotated[Path, Argument(metavar="RUN", help="The folder of a run.")]
RunSeed = Annotated[int | None, Option(help="Which of the run's seeds; by default the first.")]
Results = Annotated[Path, Argument(help="Results of compare.")]
Together = Annotated[
    bool | None,
    Option(
        "--together/--one-by-one",
        help="Seeds in one program; by default on accelerators, if nothing convolves.",
    ),
]


# --- The commands ---


def _version(value: bool) -> None:
    if value:
        typer.echo(f"pjax-learn {metadata.version('pjax-learn')}, jax {metadata.version('jax')}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    del version


@_command(data_app, "list")
def data_list() -> None:
    """Show the data sets, and whether they are here."""


@_command(data_app, "get")
def data_get(names: list[str] = Argument(help=f"Of {', '.join(DATA)}.")) -> None:
    """Download data sets into $PJAX_DATA, or the user's cache; what has arrived is kept when interrupted."""


@_command(app, "train", SETTINGS, data="digits", method="ep")
def train(
    context: typer.Context,
    seed: int = Option(0, help="Decides initial values and the order of the data."),
    seeds: int = Option(1, min=1, max=10_000, help="How many seeds, from --seed on."),
    together: Together = None,
    folder: Path | None = Option(None, help="Of the run; by default a new one in runs/."),
    resume: Path | None = Option(None, help="Go on with the run in this folder."),
    init_from: Path | None = Option(None, help="Begin with the best parameters of the run in this folder."),
    quiet: bool = _flag("--quiet", "Print nothing but errors."),
    as_json: AsJson = False,
    devices: str | None = Option(None, help="How many devices share every batch, or all; by default 1."),
    shard_parameters: bool = _flag("--shard-parameters", "Divide the parameters, too, over the devices."),
    distributed: bool = _flag("--distributed", "Be one of several processes, which share every batch."),
    coordinator: str | None = Option(
        None,
        help="HOST:PORT of process 0; where all three are left out, the cluster is asked.",
        envvar="JAX_COORDINATOR_ADDRESS",
    ),
    processes: int | None = Option(None, help="How many processes there are.", envvar="JAX_NUM_PROCESSES"),
    process: int | None = Option(None, help="Which one this is, from 0.", envvar="JAX_PROCESS_ID"),
    timeout: int = Option(
        20, min=2, help="Seconds after which a process that is not heard of counts as dead."
    ),
    guarded: bool = Option(False, "--guarded", hidden=True),
) -> None:
    """Train a network: a progress bar, and a folder with metrics, checkpoint and plot."""


@_command(app, "list")
def list_runs(
    folder: Path = Argument(Path("runs"), help="Where to look, with all that is below it."),
    as_json: AsJson = False,
) -> None:
    """Show the runs in a folder, with their results."""


@_command(app, "eval")
def evaluate(
    run: RunFolder,
    data: Path | None = Option(
        None, help="A file .npz with x and y, or .csv; by default the run's own data."
    ),
    seed: RunSeed = None,
    as_json: AsJson = False,
) -> None:
    """Show the accuracy of a run's best parameters."""


@_command(app, "predict")
def predict(
    run: RunFolder,
    data: Path = Option(help="Inputs: a file .csv, .npy, or .npz with x."),
    out: Path = Option(help="Where to write: .npy, or .csv, with scores."),
    seed: RunSeed = None,
) -> None:
    """Write what a run's best parameters predict for inputs."""


@_command(app, "compare")
def compare(
    preset: list[str] | None = Option(
        None,
        help="A block of the paper's tables, such as mlp-mnist; paper, for all of them; learning, "
        "extrapolated projections beside Adam; exchanges, accuracy over bytes that "
        "devices send; studies, of rounding, precision and what helps. May be repeated.",
    ),
    every: bool = _flag("--all", "All presets."),
    quick: bool = Option(False, help="A small version: minutes on two cores."),
    only_methods: str | None = Option(None, "--methods", help="Some of the methods, as in dr,ap,adam."),
    architectures: str | None = Option(None, help="Some of the architectures, as in 1x128,4x128+skip."),
    seeds: int | None = Option(None, max=10_000, help="How many seeds."),
    max_steps: int | None = Option(None, help="Stop each run after so many steps."),
    batch_size: int | None = Option(None, help="Samples in a batch."),
    init_scale: float | None = Option(None, help="Variance of initial weights times their inputs."),
    together: Together = None,
    untimed: bool = _flag("--untimed", "Record no times: other work runs on the device."),
    retime: bool = _flag("--retime", "Run nothing: time the steps of what has ended, one run at a time."),
    folder: Path = Option(Path("results"), help="Where results are kept."),
) -> None:
    """Compare methods as the paper's tables do. Start again to go on with what was interrupted."""


@_command(app, "report")
def report(
    folder: Results = Path("results"),
    out: Path | None = Option(None, help="Where to write; by default into the folder."),
    formats: str = Option("png", "--plots", help="Formats of plots, as in png,svg; empty for none."),
) -> None:
    """Make tables, in Markdown, beside the paper's figures, and plots."""


@_command(app, "pack")
def pack(folder: Results = Path("results")) -> None:
    """Put the runs that have ended into one file for each study, and remove their folders.

    `pjax report` reads such files; `pjax compare` makes the folders again of runs that it goes on with.
    Runs with a checkpoint, as those of `pjax train`, stay.
    """


@_command(app, "graph", NETWORK, data="digits", method="ap", batch_size=32)
def graph(
    fold: bool = Option(True, help="Equal nodes as one box."),
    out: list[Path] | None = Option(
        None, help="Write a file, .svg or .mmd, instead of printing Mermaid. May be repeated."
    ),
) -> None:
    """Draw a network as a graph of constraints. For functions of your own: pjax.draw."""


@_command(app, "summary", NETWORK, data="digits", method="ap", batch_size=32)
def summary(markdown: bool = _flag("--markdown", "As a table in Markdown.")) -> None:
    """Show nodes, edges, memory and operations of a network. For functions of your own: pjax.summary."""


@_command(app, "profile", NETWORK, data="digits", method="ep")
def profile() -> None:
    """Show where the time of a step goes, node by node. For functions of your own: pjax.profile."""


if __name__ == "__main__":
    main()
