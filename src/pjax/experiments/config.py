"""What a run is: a data set, a network, a method, seeds, and when to stop. Kept as JSON in its folder."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from pjax import nn
from pjax.checks import check_multiple, check_name
from pjax.errors import InputError
from pjax.experiments import data, learners, loggers, methods, models, own_data, own_model
from pjax.experiments.results import Run, architecture, of_kind, plain, read_object
from pjax.optim import Solver

MODELS = ("mlp", "cnn", "rnn")
OPEN: Any = None
"""A setting that is filled in with what suits the data and the method."""
_WIDTHS = {"cnn": (16,) * 4, "rnn": (256,), "digits": (64,), "mnist": (128,)}
_BATCHES = {"digits": 128, "shakespeare": 32}
_OWN = {"task": None, "validation": own_data.VALIDATION, "test": None, "standardise": True}
"""Settings of data of one's own."""
_COLUMNS = ("target", "ignore", "categorical")
"""Settings of files .csv."""
_CHECKS = 40
"""How many checks a run has, where nothing is said."""
_COUNTS = (
    *("batch_size", "steps_per_batch", "max_steps", "check_every", "sequence_length", "evaluated"),
    "decay_steps",
)
_RANGES: dict[str, tuple[float, str]] = (
    dict.fromkeys(_COUNTS, (1, "at least 1"))
    | {"patience": (0, "at least 0")}
    | dict.fromkeys(("loss_scale", "init_scale", "learning_rate"), (math.ulp(0.0), "a positive number"))
    | dict.fromkeys(("warmup", "weight_decay", "clip"), (0, "a number from 0"))
)
"""The least value of settings, and how it is called."""


def _applying(method: str, data: str) -> dict[str, Any]:
    """Settings that a method on some data looks at, and others do not, with what suits it."""
    found = methods.settings(method) | (_OWN if own_data.is_own(data) else {})
    found |= dict.fromkeys(_COLUMNS) if data.endswith(".csv") else {}
    return found | ({"sequence_length": 64} if data == "shakespeare" else {})


@dataclasses.dataclass(frozen=True)
class Config:
    """A run. Settings that are left open are filled in with what suits the data and the method.

    Args:
        data: name of a data set, see `pjax.experiments.data.names`, or a file ``.csv`` or ``.npz``.
        model: ``"mlp"``, ``"cnn"`` or ``"rnn"``; by default what suits the data. Or a function that makes one
            of your own, as ``"package.module:make"``, see `pjax.experiments.own_model`.
        widths: features of each hidden layer; by default one layer of 64 to 256, or four of 16 with a skip
            for ``"cnn"``.
        skip: whether the last linear map sees all hidden layers.
        levels: 0, or to how many levels all weights and hidden activations are rounded; for ``"mlp"``.
        method: one of `pjax.experiments.methods.LABELS`, perhaps with options.
        seeds: one run for each; a seed decides the initial parameters, the order of the data, and all else
            that is random.
        batch_size: samples in a batch; by default 256, 128 for the digits, 64 for data of your own, 32 for
            texts.
        steps_per_batch: projection steps on one batch, each of which counts as a step; by default 50, and 1
            for ``"ep"``. Methods that do not project always make one.
        max_steps: after how many steps to stop at the latest; by default as many as 40 checks need.
        check_every: steps between two checks of the accuracy; the last one is at ``max_steps``, whatever this
            is. By default about 1000, fewer for the digits and data of your own, and never more than
            ``max_steps``.
        patience: checks without a better validation accuracy after which to stop; 0 for never.
        learning_rate, schedule, warmup, decay_steps, weight_decay, clip: of methods with a learning rate, see
            `pjax.experiments.learners.Rates`; by default the paper's rate, and to decay ``max_steps``.
        loss_scale: of methods that project, the factor λ of the loss in its proximal operator; by default 5.
        consensus: of projection methods but ``"ep"``, ``"paper"``, the default, or ``"exact"``.
        sequence_length: of texts, the characters in a window; by default 64.
        init_scale: variance of initial weights times their fan-in; not for ``"rnn"``, which has 1.
        init_from: the folder of a run whose best parameters to begin with, of the same seed if it has it; by
            default new ones.
        target, ignore, categorical, task, validation, test, standardise: of data of your own, see
            `pjax.experiments.own_data.load`. Several columns are written with commas between them.
        log: where to write metrics beside ``metrics.jsonl``, some of ``"tensorboard"``, ``"csv"`` and
            ``"wandb"``, with commas between them.
        evaluated: on how many samples of each part of the data accuracies are measured; by default on all.
        quick: whether this is the small version of an experiment; only noted.
        study: the study that the run is part of; only noted.

    >>> config = Config(data="mnist", method="dr", max_steps=100)
    >>> config.model, config.widths, config.batch_size, config.steps_per_batch, config.check_every
    ('mlp', (128,), 256, 50, 100)
    """

    data: str = "digits"
    model: str = OPEN
    widths: tuple[int, ...] = OPEN
    skip: bool = OPEN
    levels: int = 0
    method: str = "ep"
    seeds: tuple[int, ...] = (0,)
    batch_size: int = OPEN
    steps_per_batch: int = OPEN
    max_steps: int = OPEN
    check_every: int = OPEN
    patience: int = 5
    learning_rate: float | None = None
    schedule: str | None = None
    warmup: int | None = None
    decay_steps: int | None = None
    weight_decay: float | None = None
    clip: float | None = None
    loss_scale: float | None = None
    consensus: str | None = None
    sequence_length: int | None = None
    init_scale: float = models.SCALE
    init_from: str = ""
    target: str | None = None
    ignore: str | None = None
    categorical: str | None = None
    task: str | None = None
    validation: float | None = None
    test: float | None = None
    standardise: bool | None = None
    log: str = ""
    evaluated: int | None = None
    quick: bool = False
    study: str = ""

    def __post_init__(self) -> None:
        given: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            if (value := getattr(self, field.name)) is not field.default:
                given[field.name] = of_kind(field.name, value, field.type)
        vars(self).update(given, _given=given)
        base, options = methods.split(self.method)
        if not own_data.is_own(self.data):
            check_name("data", self.data, [*data.names(), f"a file {' or '.join(own_data.SUFFIXES)}"])
        for name in loggers.names(self.log):
            check_name("log", name, loggers.KINDS)
        for name, (least, words) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise InputError(f"{name} must be {words}, got {value!r}")
        for name in ("validation", "test"):
            own_data.check_share(name, getattr(self, name))
        self._check_applies()
        self._fill()
        own = own_model.is_own(self.model)
        if not own:
            check_name("model", self.model, [*MODELS, "package.module:make"])
        for name in ("seeds", *["widths"] * (not own)):
            if not getattr(self, name):
                raise InputError(f"{name} must hold at least one number, got none")
        if min(self.widths, default=1) < 1:
            raise InputError(f"widths must be at least 1, got {min(self.widths)}")
        if not 0 <= min(self.seeds) <= max(self.seeds) < 2**32 or len(set(self.seeds)) < len(self.seeds):
            seeds = ", ".join(map(str, self.seeds))
            raise InputError(f"seeds must be from 0 to {2**32 - 1}, and differ; got {seeds}")
        for name, usual in (("widths", ()), ("skip", False), ("levels", 0), ("init_scale", models.SCALE)):
            if own and getattr(self, name) != usual:
                raise InputError(f"{name} does not apply to a model of your own, got it with {self.model}")
        if self.model == "rnn" and self.init_scale != models.SCALE:
            raise InputError(f"init_scale is for the models mlp and cnn, got {self.init_scale} with rnn")
        if not own and (self.model == "rnn") != (self.data == "shakespeare"):
            raise InputError(
                f"the model {self.model} does not take the data {self.data}: rnn goes with shakespeare, mlp "
                "and cnn with the others"
            )
        limited = base in methods.NO_SKIP
        if self.levels and (self.model != "mlp" or self.levels < 2 or limited):
            raise InputError(
                f"levels must be 0, or at least 2 for the model mlp with projections, sgd or adam; got "
                f"{self.levels} with {self.model} and {methods.LABELS[base]}"
            )
        fitting = ("mlp",) if base == "fa" else ("mlp", "cnn")
        if limited and (self.skip or self.model not in fitting):
            raise InputError(
                f"{methods.LABELS[base]} is for the model {' or '.join(fitting)}, got {self.model}"
                f"{' with skip' * self.skip}; it is not defined for recurrent networks and skip connections: "
                "use sgd, adam or a projection method"
            )
        check_multiple("batch_size", self.batch_size, options.get("groups", 1), "groups")
        for name in ("max_steps", "check_every"):
            check_multiple(name, getattr(self, name), self.steps_per_batch, "steps on one batch")

    def _check_applies(self) -> None:
        """Refuse settings that the method, or the data, would not look at."""
        used, fixed = _applying(self.method, self.data), methods.fixed(self.method)
        for name in (*methods.SETTINGS, *_OWN, *_COLUMNS, "sequence_length"):
            value = getattr(self, name)
            if value is None or (name in used and fixed.get(name, value) == value):
                continue
            if name in fixed:
                only = f"{fixed[name]} for the method {self.method}"
                raise InputError(f"{name} is {only}; got {value}: drop it")
            if name in methods.SETTINGS:
                base = self.method.partition(":")[0]
                own = methods.OPTIONS.get(base)
                more = f"; its own, as in {base}:{own[0]}=…, are {', '.join(own)}" if own else ""
                takes = [key for key in methods.settings(self.method) if key not in fixed]
                raise InputError(
                    f"{name} does not apply to the method {self.method}. Of these settings it takes "
                    f"{', '.join(takes) or 'none'}{more}"
                )
            if name == "sequence_length":
                raise InputError(f"{name} is for texts, such as shakespeare; {self.data} has none")
            if own_data.is_own(self.data):
                raise InputError(f"{name} is for the columns of a file .csv; got {self.data}")
            arrays = '. For arrays, in Python, say data="given"' if name in _OWN else ""
            raise InputError(f"{name} is for data of your own, a file .csv or .npz; got {self.data}{arrays}")
        if self.data.endswith(".csv") and self.target is None:
            raise InputError(f"target is missing: say which column of {self.data} is to be predicted")

    def _fill(self) -> None:
        """Put values where something was left open."""
        own = own_data.is_own(self.data)
        self._default(model="rnn" if self.data == "shakespeare" else "mlp")
        whole = self.widths is None and self.method not in methods.NO_SKIP
        self._default(skip=whole and self.model == "cnn")
        usual = _WIDTHS.get(self.model) or _WIDTHS.get(self.data) or (64 if own else 256,)
        self._default(widths=() if own_model.is_own(self.model) else usual)
        self._default(batch_size=64 if own else _BATCHES.get(self.data, 256))
        self._default(**(_applying(self.method, self.data) | {"decay_steps": None}))
        steps = self.steps_per_batch
        about = 1000 if not own and self.data != "digits" else 500 if steps > 1 else 100
        every = max(about // steps, 1) * steps
        self._default(check_every=every if self.max_steps is None else min(every, self.max_steps))
        self._default(max_steps=_CHECKS * self.check_every)
        if self.schedule in learners.SCHEDULES[1:]:
            self._default(decay_steps=self.max_steps)
            if self.warmup >= self.decay_steps:  # type: ignore[operator]  # both are filled in
                raise InputError(f"warmup must end before decay_steps, {self.decay_steps}; got {self.warmup}")
        elif self.decay_steps is not None:
            raise InputError("decay_steps is for a schedule that falls: give schedule, linear or cosine")

    def on(self, **changes: Any) -> "Config":
        """The same settings, and what else suits them, with some changed.

        >>> Config(method="dr").on(data="fruit.csv", target="fruit").batch_size
        64
        """
        return Config(**(self._given | changes))  # type: ignore[attr-defined]

    def _default(self, **values: Any) -> None:
        vars(self).update({name: value for name, value in values.items() if getattr(self, name) is None})

    def next_check(self, step: int) -> int:
        """The step of the first check after a step.

        >>> config = Config(method="adam", max_steps=250, check_every=100)
        >>> [config.next_check(step) for step in (0, 100, 200)]
        [100, 200, 250]
        """
        return min((step // self.check_every + 1) * self.check_every, self.max_steps)

    def own_data_options(self) -> dict[str, Any]:
        """What `own_data.load` is given beside the data."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _OWN}
        if self.data.endswith(".csv"):
            found["target"] = self.target
            found |= {name: loggers.names(getattr(self, name) or "") for name in ("ignore", "categorical")}
        return found

    def made_method(self) -> learners.Method:
        """The method, with its settings."""
        return methods.make(self.method, **{name: getattr(self, name) for name in methods.SETTINGS})

    @property
    def name(self) -> str:
        """What the run's folder is called by default.

        >>> Config(data="mnist", widths=(128,) * 4, skip=True).name
        'mnist-mlp-4x128+skip-ep'
        """
        own = own_model.is_own(self.model)  # which is its own architecture
        return "-".join([plain(self.data), *[self.model] * (not own), self.run_name])

    @property
    def run_name(self) -> str:
        """What the run's folder is called in a comparison.

        >>> Config(data="mnist", levels=4, method="ap:metric=balanced:steps=10").run_name
        '1x128+q4-ap_metric=balanced_steps=10'
        """
        return f"{self.architecture}-{self.method.replace(':', '_')}"

    @property
    def architecture(self) -> str:
        """How it is written, as in ``4x128+skip``."""
        return architecture(self.widths, self.skip, self.levels) or plain(self.model)

    def as_json(self) -> dict[str, Any]:
        """As JSON knows it, without what does not apply.

        >>> Config.from_json(Config().as_json()) == Config()
        True
        """
        values = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "the configuration") -> "Config":
        """Back from `as_json`; unknown names are refused.

        What the method or the data do not look at, or nothing any more, is left out: older files have it.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        method, data = (str(values.get(name, getattr(cls, name))) for name in ("method", "data"))
        left_out = {*methods.SETTINGS, "sequence_length"} - _applying(method, data).keys()
        left_out |= methods.fixed(method).keys()
        for name in values:
            check_name(f"{where}: a setting", name, [*known, *left_out])
        try:
            return cls(**{name: value for name, value in values.items() if name not in left_out})
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    def differences(self, other: "Config") -> dict[str, tuple[Any, Any]]:
        """The settings in which two runs differ, with both values.

        What only the data can say, if it was left open here, is no difference.
        """
        mine, theirs = dataclasses.asdict(self), dataclasses.asdict(other)
        return {
            k: (mine[k], theirs[k])
            for k in mine
            if mine[k] != theirs[k] and not (k == "task" and mine[k] is None)
        }


def read(path: Path, values: Mapping[str, Any] | None = None) -> Config:
    """The configuration in a run's folder, or among what its file held."""
    found = read_object(path) if values is None else values
    return Config.from_json({k: v for k, v in found.items() if k not in ("device", "versions")}, str(path))


def parse_widths(text: str) -> dict[str, Any]:
    """Widths, skip and levels from how an architecture is written.

    >>> parse_widths("4x128+skip")
    {'widths': (128, 128, 128, 128), 'skip': True, 'levels': 0}
    >>> parse_widths("64-32+q4")
    {'widths': (64, 32), 'skip': False, 'levels': 4}
    """
    match = re.fullmatch(r"((\d+)x(\d+)|\d+(?:-\d+)*)(\+skip)?(?:\+q(\d+))?", text.strip().lower())
    if match:
        name, layers, width, skip, levels = match.groups()
        widths = (int(width),) * int(layers) if layers else tuple(map(int, name.split("-")))
        if widths and min(widths) >= 1:
            return {"widths": widths, "skip": bool(skip), "levels": int(levels or 0)}
    raise InputError(
        f"an architecture is written as 4x128, 4x128+skip, 64-32, or 4x128+q16 with 16 levels; got {text!r}"
    )


# --- What depends on the shapes of a run's network alone, and needs no data ---


def example(config: Config) -> tuple[Callable[[Any], Any], dict[str, Any], Solver]:
    """The function that a run projects, the shapes of its parameters, and its method.

    >>> fn, params, solver = example(Config(data="digits", widths=(16,), method="ap"))
    >>> {name: leaf.shape for name, leaf in params.items()}
    {'hidden.0.weight': (64, 16), 'out.weight': (16, 10), 'relu.0.bias': (16,)}
    """
    method = config.made_method()
    if not isinstance(method, learners.Projections):
        raise InputError(f"only projection methods have a graph of constraints, got {config.method}")
    model, params, x, y = _network(config)
    return method.loss(model, x, y), params, method.optimiser


def exchanges(config: Config) -> tuple[Fraction, int]:
    """How often groups exchange their parameters, or what is to be done to them, on one batch.

    And the bytes that a device gives to one exchange: four for each parameter.

    >>> exchanges(Config(method="ap:steps=10:groups=8:sync_every=5", widths=(16,)))
    (Fraction(2, 1), 4800)
    >>> exchanges(Config(method="adam:groups=8:sync_every=100"))[0]
    Fraction(1, 100)
    """
    often = Fraction(config.steps_per_batch, methods.split(config.method)[1].get("sync_every", 1))
    return often, 4 * sum(leaf.size for leaf in jax.tree.leaves(_network(config)[1]))


def sent(run: Run) -> tuple[Fraction, float]:
    """Exchanges of a run on one batch, and bytes that each device sends, of which every group has one.

    They are sums over all groups, around a ring of n devices: each sends 2 (n - 1) / n times its message.
    """
    config = read(run.folder / "config.json", run.config)
    groups, (often, message) = methods.split(config.method)[1].get("groups", 1), exchanges(config)
    return often, 2 * (groups - 1) / groups * message * float(often)


def _network(config: Config) -> tuple[nn.Module, dict[str, Any], jax.Array, jax.Array]:
    """The network of a method that projects or backpropagates, shapes of its parameters, and a batch."""
    if own_data.is_own(config.data) or own_model.is_own(config.model):
        raise InputError(
            "this is for data and models that have a name; for your own: pjax.draw, pjax.summary"
        )
    x, y, classes = data.made_up(config.data, config.batch_size, config.sequence_length or 1)
    shape = (math.prod(x.shape[1:]),) if config.model == "mlp" else x.shape[1:]
    model = models.make(config.model, shape, config.widths, classes, skip=config.skip, levels=config.levels)
    params = jax.eval_shape(model.init, jax.random.key(0))
    return model, params, jnp.asarray(x.reshape(len(x), *shape)), jnp.asarray(y)
