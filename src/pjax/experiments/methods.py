"""Methods by name: which there are, the options and settings that they take, and making them."""

import dataclasses
from collections.abc import Callable
from typing import Any

from pjax import optim
from pjax.checks import check_multiple, check_name
from pjax.errors import InputError
from pjax.experiments.baselines import FeedbackAlignment, ForwardForward
from pjax.experiments.learners import PRECISIONS, Apart, Gradient, Method, Projections, Rates, transformation

SOLVERS: dict[str, Callable[..., optim.Solver]] = {
    "ep": optim.ExtrapolatedProjections,
    "dr": optim.DouglasRachford,
    "ap": optim.AlternatingProjections,
    "cp": optim.CyclicProjections,
    "dm": optim.DifferenceMap,
}

LABELS = {
    "ep": "EP",
    "sgd": "SGD",
    "adam": "Adam",
    "fa": "FA",
    "ff-sgd": "FF (SGD)",
    "ff-adam": "FF (Adam)",
    "dr": "DR",
    "ap": "AP",
    "cp": "CP",
    "dm": "DM",
} | {f"{name}-fp": f"{name.upper()}, fixed point" for name in ("dr", "ap", "cp", "dm")}
"""What a method is called in tables. EP is extrapolated projections; the others are the paper's. ``-fp``: the
proximal operator of the cross-entropy by the paper's ten fixed-point steps, which do not converge at its
λ = 5, instead of Newton's."""

NO_SKIP = ("fa", "ff-sgd", "ff-adam")
"""Methods that are not defined for recurrent networks and skip connections, nor for rounding."""

CLASSES_ONLY = (*NO_SKIP, *(name for name in LABELS if name.endswith("-fp")))
"""Methods that are for labels, not for numbers to predict."""

_ALL = ("groups", "precision", "sync_every")
_SHARED = (*_ALL, "edges", "loss_scale", "metric", "outer", "state_dtype", "steps")
OPTIONS = {
    "ep": (*_ALL, "loss_scale", "outer", "reach", "softness", "steps"),
    "dr": (*_SHARED, "relaxation"),
    "ap": (*_SHARED, "extrapolate"),
    "cp": (*_SHARED, "extrapolate"),
    "dm": (*_SHARED, "beta"),
    "sgd": _ALL,
    "adam": _ALL,
}
"""What may follow the name of a method, as in ``"ap:metric=balanced:extrapolate=tensor:outer=adam"``: options
of the solver, the number of ``steps`` on a batch, the loss's ``loss_scale``, the ``precision``, and into how
many ``groups`` a batch is divided that exchange their parameters in every ``sync_every`` steps. These divide
the steps on a batch, or are a multiple of them: then groups train apart for several batches."""
OPTIONS |= {f"{name}-fp": OPTIONS[name] for name in ("dr", "ap", "cp", "dm")}
_COUNTS = ("groups", "steps", "sync_every")
_NUMBERS: dict[str, Any] = dict.fromkeys(_COUNTS, int) | dict.fromkeys(
    ("beta", "loss_scale", "reach", "relaxation", "softness"), float
)
RATES = {field.name: field.default for field in dataclasses.fields(Rates)}
"""Settings of methods that have a learning rate, and their values where nothing is said."""
SETTINGS = (*RATES, "steps_per_batch", "loss_scale", "consensus")
"""Settings of a run that only some methods look at."""


def split(name: str) -> tuple[str, dict[str, Any]]:
    """The name of a method, and the options that follow it.

    >>> split("ap:extrapolate=tensor:steps=10")
    ('ap', {'extrapolate': 'tensor', 'steps': 10})
    """
    base, *parts = name.split(":")
    check_name("method", base, LABELS)
    chosen: dict[str, Any] = {}
    for part in parts:
        key, _, value = part.partition("=")
        if not (allowed := OPTIONS.get(base)):
            raise InputError(f"the method {base} has no options, got {part!r}")
        check_name(f"an option of {base}", key, allowed)
        if key in chosen:
            raise InputError(f"{name}: {key} is given twice")
        try:
            chosen[key] = _NUMBERS.get(key, str)(value)
        except ValueError:
            raise InputError(f"{name}: {key} must be a number, got {value!r}") from None
    for key, known in (("precision", PRECISIONS), ("outer", ("sgd", "adam"))):
        if key in chosen:
            check_name(key, chosen[key], known)
    for key in _COUNTS:
        if chosen.get(key, 1) < 1:
            raise InputError(f"{name}: {key} must be at least 1, got {chosen[key]}")
    if chosen.get("sync_every", 1) > 1 and chosen.get("groups", 1) == 1:
        raise InputError(
            f"{name}: sync_every is how often groups exchange, and there is only one: give groups, too"
        )
    return base, chosen


def projects(name: str) -> bool:
    """Whether a method projects.

    >>> projects("ap:steps=10"), projects("adam")
    (True, False)
    """
    return name.partition(":")[0].partition("-")[0] in SOLVERS


def label(name: str) -> str:
    """What a method is called in tables.

    >>> label("ap-fp"), label("ap:metric=balanced:steps=10")
    ('AP, fixed point', 'AP, metric balanced, steps 10')
    """
    base, *parts = name.split(":")
    return ", ".join([LABELS.get(base, base), *(part.replace("=", " ") for part in parts)])


def settings(name: str) -> dict[str, Any]:
    """Those of `SETTINGS` that a method looks at, with their values where nothing but its name is given.

    >>> settings("ap:loss_scale=1"), settings("fa")["learning_rate"]
    ({'steps_per_batch': 50, 'loss_scale': 1.0, 'consensus': 'paper'}, 0.0001)
    """
    base, chosen = split(name)
    found: dict[str, Any] = {}
    if projects(name):
        found = {"steps_per_batch": 1 if base == "ep" else 50, "loss_scale": 5.0}
        found |= {} if base == "ep" else {"consensus": "paper"}
    if not projects(name) or base == "ep" or "outer" in chosen:
        found |= RATES | ({"learning_rate": 1e-4} if base == "fa" else {})
    return found | fixed(name)


def fixed(name: str) -> dict[str, Any]:
    """Those of `settings` that the name of a method decides, with its options.

    >>> fixed("ap:steps=10"), fixed("adam")
    ({'steps_per_batch': 10}, {'steps_per_batch': 1})
    """
    if not projects(name):
        return {"steps_per_batch": 1}
    settings = {"steps": "steps_per_batch", "loss_scale": "loss_scale"}
    return {settings[key]: value for key, value in split(name)[1].items() if key in settings}


def make(name: str, **given: Any) -> Method:
    """A method by name, one of `LABELS`, with `OPTIONS`.

    Args:
        name: such as ``"dr"``, ``"ff-adam"`` or ``"ap:metric=balanced"``.
        given: some of `SETTINGS`; those that the method does not look at, or that its options say, and those
            that are None, do nothing.
    """
    full, chosen = split(name)
    used = settings(name)
    used |= {key: given[key] for key in used if given.get(key) is not None} | fixed(name)
    base, _, rest = full.partition("-")
    steps = used["steps_per_batch"]
    rates = Rates(*(used[key] for key in RATES if key in used))
    precision = chosen.pop("precision", None)
    groups, sync_every = chosen.pop("groups", 1), chosen.pop("sync_every", 1)
    if sync_every > steps:
        check_multiple("sync_every", sync_every, steps, "steps on a batch, or divide them")
        alone = ":".join(part for part in name.split(":") if not part.startswith(("groups=", "sync_every=")))
        return Apart(make(alone, **given), groups, sync_every // steps)
    if base == "fa":
        return FeedbackAlignment(transformation("adam", rates))
    if base == "ff":
        return ForwardForward(transformation(rest, rates))
    if base not in SOLVERS:
        return Gradient(transformation(full, rates), precision)
    for key in ("steps", "loss_scale"):
        chosen.pop(key, None)
    outer = chosen.pop("outer", None)
    if base == "ep":  # which makes a step of it after each of its own; the others make one on each batch
        chosen["outer"] = transformation(outer or "adam", rates, moves=bool(outer))
    else:
        chosen["consensus"] = used["consensus"]
    solver = SOLVERS[base](steps_per_update=steps, **chosen)
    if outer and base != "ep":
        solver = optim.Outer(solver, transformation(outer, rates, moves=True, each=steps))
    if groups > 1:
        solver = optim.Groups(solver, groups, sync_every)
    return Projections(solver, used["loss_scale"], "fixed_point" if rest == "fp" else "newton", precision)
