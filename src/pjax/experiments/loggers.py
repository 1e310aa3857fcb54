"""Where metrics go beside the files of a run: TensorBoard, a table, Weights & Biases, or your own.

A logger is given a step and values by name, and closed at the end. The packages that it needs are imported
when it is made. In a loop of your own:

>>> import tempfile
>>> file = Path(tempfile.mkdtemp()) / "metrics.csv"
>>> with Csv(file) as log:
...     for step in range(2):
...         log(step, {"loss": 1 / (1 + step)})
>>> print(file.read_text())
step,loss
0,1.0
1,0.5
<BLANKLINE>
"""

import abc
import contextlib
import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pjax.errors import InputError
from pjax.tools.files import write_atomically


class Logger(contextlib.AbstractContextManager["Logger"]):
    """Takes metrics. One of your own defines `__call__`."""

    @abc.abstractmethod
    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of a step."""

    def close(self) -> None:
        """Write what is left; nothing comes any more."""

    def __exit__(self, *_: object) -> None:
        self.close()


class Csv(Logger):
    """A table: a line for each step, a column for each value of the first.

    Args:
        path: the file.
        start: the first step that will come: what the file has before it is kept.
    """

    def __init__(self, path: str | Path, start: int = 0) -> None:
        self.path = Path(path)
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        head, *lines = text.splitlines(keepends=True) or [""]
        kept = [line for line in lines if (step := line.partition(",")[0]).isdecimal() and int(step) < start]
        self.names: list[str] = next(csv.reader([head]))[1:] if kept else []
        if text:
            write_atomically(self.path, "".join([head, *kept] if kept else []).encode())

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            if not self.names:
                self.names = list(values)
                table.writerow(["step", *self.names])
            table.writerow([step, *(values.get(name, "") for name in self.names)])


class TensorBoard(Logger):
    """Files that ``tensorboard --logdir FOLDER`` shows.

    Args:
        folder: where they are written.
        start: the first step that will come: what was written before from there on is not shown any more.
    """

    def __init__(self, folder: str | Path, start: int | None = None) -> None:
        package = _package("tensorboardX", "tensorboard")
        self.writer = package.SummaryWriter(str(folder), purge_step=start)

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandB(Logger):
    """A run of Weights & Biases; ``WANDB_MODE=offline`` keeps it here.

    Args:
        folder: whose name the run gets, and where its files are kept; who goes on there goes on with it.
        config: settings to show.
        options: more for ``wandb.init``, such as ``project``.
    """

    def __init__(self, folder: str | Path, config: Mapping[str, Any] | None = None, **options: Any) -> None:
        package, name = _package("wandb", "wandb"), Path(folder).resolve().name
        Path(folder).mkdir(parents=True, exist_ok=True)
        settings = {"dir": str(folder), "name": name, "id": name, "resume": "allow"}
        self.run = package.init(config=dict(config or {}), **(settings | options))

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        if step >= self.run.step:  # it may know of this one already
            self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


def _package(name: str, extra: str) -> Any:
    """A package that an extra installs."""
    try:
        return __import__(name)
    except ImportError:
        raise InputError(f'log: {name} is not installed: pip install "pjax-learn[{extra}]"') from None


KINDS = ("tensorboard", "csv", "wandb")


def names(text: str) -> list[str]:
    """The names of loggers in a list.

    >>> names("csv, tensorboard")
    ['csv', 'tensorboard']
    """
    return [name.strip() for name in text.split(",") if name.strip()]


def make(name: str, folder: Path, config: Mapping[str, Any]) -> Logger:
    """A logger by name, one of `KINDS`, for the folder of a run; it is given all checks from the first on."""
    if name == "csv":
        return Csv(folder / "metrics.csv")
    return TensorBoard(folder, start=0) if name == "tensorboard" else WandB(folder, config)
