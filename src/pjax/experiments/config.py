"""What a run is: a data set, a network, a method, seeds, and when to stop. Kept as JSON in its folder."""

import dataclasses
import difflib
import math
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pjax.errors import InputError
from pjax.experiments import data, methods, models
from pjax.experiments.results import architecture, read_object

MODELS = ("mlp", "cnn", "rnn")


@dataclasses.dataclass(frozen=True)
class Config:
    """A run.

    Args:
        data: name of a data set, see `pjax.experiments.data.names`.
        model: ``"mlp"``, ``"cnn"`` or ``"rnn"``.
        widths: features of each hidden layer.
        skip: whether the last linear map sees all hidden layers.
        levels: 0, or to how many levels all weights and hidden activations are rounded; for ``"mlp"``.
        method: one of `pjax.experiments.methods.LABELS`, perhaps with options.
        seeds: one run for each; a seed decides the initial parameters, the order of the data, and all else
            that is random.
        batch_size: samples in a batch.
        steps_per_batch: projection steps on one batch, each of which counts as a step; by default 50, and 1
            for ``"ep"``. Methods that do not project always make one.
        max_steps: after how many steps to stop at the latest.
        check_every: steps between two checks of the accuracy.
        patience: checks without a better validation accuracy after which to stop; 0 for never.
        learning_rate: of methods that have one; by default the paper's.
        loss_scale: factor λ of the loss in its proximal operator.
        consensus: of the projection methods, ``"paper"`` or ``"exact"``.
        init_scale: variance of initial weights times their fan-in, but for ``"rnn"``.
        sequence_length: characters in a window of text.
        evaluated: on how many samples of each part of the data accuracies are measured; by default on all.
        quick: whether this is the small version of an experiment; only noted.
        study: the study that the run is part of; only noted.
    """

    data: str = "digits"
    model: str = "mlp"
    widths: tuple[int, ...] = (64,)
    skip: bool = False
    levels: int = 0
    method: str = "dr"
    seeds: tuple[int, ...] = (0,)
    batch_size: int = 256
    steps_per_batch: int | None = None
    max_steps: int = 20_000
    check_every: int = 1000
    patience: int = 5
    learning_rate: float | None = None
    loss_scale: float = 5.0
    consensus: str = "paper"
    init_scale: float = models.SCALE
    sequence_length: int = 64
    evaluated: int | None = None
    quick: bool = False
    study: str = ""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            self._check_type(field.name, field.type)
        base, options = methods.split(self.method)
        if self.steps_per_batch is None or not methods.projects(self.method) or "steps" in options:
            object.__setattr__(self, "steps_per_batch", methods.default_steps(self.method))
        methods.check_name("data", self.data, data.names())
        methods.check_name("model", self.model, MODELS)
        methods.check_name("consensus", self.consensus, ("paper", "exact"))
        for name in ("batch_size", "steps_per_batch", "max_steps", "check_every", "sequence_length"):
            _at_least(name, getattr(self, name), 1)
        _at_least("patience", self.patience, 0)
        groups = options.get("groups", 1)
        if self.batch_size % groups:
            near = max(self.batch_size // groups, 1) * groups
            raise InputError(
                f"batch_size must be a multiple of the {groups} groups, got {self.batch_size}: take {near}"
            )
        if self.evaluated is not None:
            _at_least("evaluated", self.evaluated, 1)
        for name in ("widths", "seeds"):
            if not getattr(self, name):
                raise InputError(f"{name} must hold at least one number, got none")
        for width in self.widths:
            _at_least("widths", width, 1)
        for seed in self.seeds:
            if not 0 <= seed < 2**32:
                raise InputError(f"seeds must be from 0 to {2**32 - 1}, got {seed}")
        if len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds must differ, got {', '.join(map(str, self.seeds))}")
        for name in ("loss_scale", "init_scale", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} must be a positive number, got {value!r}")
        if (self.model == "rnn") != (self.data == "shakespeare"):
            raise InputError(
                f"the model {self.model} does not take the data {self.data}: rnn goes with shakespeare, mlp "
                "and cnn with the others"
            )
        if self.levels and (self.model != "mlp" or self.levels < 2 or base in ("fa", "ff-sgd", "ff-adam")):
            raise InputError(
                f"levels must be 0, or at least 2 for the model mlp with projections, sgd or adam; got "
                f"{self.levels} with {self.model} and {methods.LABELS[base]}"
            )
        if base in ("fa", "ff-sgd", "ff-adam") and (self.skip or self.model == "rnn"):
            raise InputError(
                f"{methods.LABELS[base]} is not defined for recurrent networks and skip connections; "
                "use sgd, adam or a projection method"
            )
        if self.method == "fa" and self.model != "mlp":
            raise InputError(f"FA is for the model mlp, got {self.model}")
        for name in ("max_steps", "check_every"):
            if getattr(self, name) % self.steps_per_batch:
                raise InputError(
                    f"{name} must be a multiple of the {self.steps_per_batch} steps on one batch, got "
                    f"{getattr(self, name)}"
                )
        if self.max_steps % self.check_every:
            raise InputError(
                f"max_steps must be a multiple of check_every, {self.check_every}, got {self.max_steps}"
            )

    def _check_type(self, name: str, annotation: Any) -> None:
        value = getattr(self, name)
        if annotation in (tuple[int, ...], "tuple[int, ...]"):
            if isinstance(value, list):
                value = tuple(value)
                object.__setattr__(self, name, value)
            good = isinstance(value, tuple) and all(_is(v, int) for v in value)
        else:
            good = any(_is(value, kind) for kind in typing.get_args(annotation) or (annotation,))
        if not good:
            wanted = getattr(annotation, "__name__", str(annotation))
            raise InputError(f"{name} must be of type {wanted}, got {value!r}")

    def made_method(self) -> methods.Method:
        """The method, with its settings."""
        return methods.make(
            self.method,
            learning_rate=self.learning_rate,
            steps_per_batch=self.steps_per_batch,
            loss_scale=self.loss_scale,
            consensus=self.consensus,
        )

    @property
    def name(self) -> str:
        """What the run's folder is called by default.

        >>> Config(data="mnist", widths=(128,) * 4, skip=True).name
        'mnist-mlp-4x128+skip-dr'
        """
        return f"{self.data}-{self.model}-{self.run_name}"

    @property
    def run_name(self) -> str:
        """What the run's folder is called in a comparison.

        >>> Config(data="mnist", levels=4, method="ap:metric=balanced:steps=10").run_name
        '1x64+q4-ap_metric=balanced_steps=10'
        """
        return f"{self.architecture}-{self.method.replace(':', '_')}"

    @property
    def architecture(self) -> str:
        """How it is written, as in ``4x128+skip``."""
        return architecture(self.widths, self.skip, self.levels)

    def as_json(self) -> dict[str, Any]:
        """As JSON knows it.

        >>> Config.from_json(Config().as_json()) == Config()
        True
        """
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "the configuration") -> "Config":
        """Back from `as_json`; unknown names are refused."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise InputError(f"{where}: there is no setting {name!r}.{hint}")
        return cls(**values)

    def differences(self, other: "Config") -> dict[str, tuple[Any, Any]]:
        """The settings in which two runs differ, with both values."""
        mine, theirs = self.as_json(), other.as_json()
        return {k: (mine[k], theirs[k]) for k in mine if mine[k] != theirs[k]}


_ABOUT = ("device", "versions")


def read(path: Path) -> Config:
    """The configuration in a run's folder."""
    return of_run(read_object(path), path)


def of_run(values: Mapping[str, Any], path: Path) -> Config:
    """The configuration among what a run's file holds."""
    return Config.from_json({k: v for k, v in values.items() if k not in _ABOUT}, str(path))


def parse_widths(text: str) -> tuple[tuple[int, ...], bool, int]:
    """Widths, skip and levels from how an architecture is written.

    >>> parse_widths("4x128+skip")
    ((128, 128, 128, 128), True, 0)
    >>> parse_widths("64-32+q4")
    ((64, 32), False, 4)
    """
    match = re.fullmatch(r"((\d+)x(\d+)|\d+(?:-\d+)*)(\+skip)?(?:\+q(\d+))?", text.strip().lower())
    if match:
        name, layers, width, skip, levels = match.groups()
        widths = (int(width),) * int(layers) if layers else tuple(map(int, name.split("-")))
        if widths and min(widths) >= 1:
            return widths, bool(skip), int(levels or 0)
    raise InputError(
        f"an architecture is written as 4x128, 4x128+skip, 64-32, or 4x128+q16 with 16 levels; got {text!r}"
    )


def _is(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{name} must be at least {least}, got {value}")
