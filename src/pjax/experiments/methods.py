"""Methods by name: which there are, the options and settings that they take, and making them."""

from collections.abc import Callable
from typing import Any

from pjax import optim
from pjax.checks import check_name
from pjax.errors import InputError
from pjax.experiments.baselines import FeedbackAlignment, ForwardForward
from pjax.experiments.learners import PRECISIONS, TINY, Apart, Gradient, Rates, transformation
from pjax.experiments.learners import Method as Method
from pjax.experiments.learners import Params as Params
from pjax.experiments.learners import Projections as Projections
from pjax.experiments.learners import mean_cross_entropy as mean_cross_entropy
from pjax.experiments.learners import products as products

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
_SHARED = (*_ALL, "loss_scale", "metric", "outer", "state_dtype", "steps")
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
_COUNTS = ("groups", "steps", "sync_every")
_NUMBERS: dict[str, Any] = dict.fromkeys(_COUNTS, int) | dict.fromkeys(
    ("beta", "loss_scale", "reach", "relaxation", "softness"), float
)
RATES = ("learning_rate", "schedule", "warmup", "decay_steps", "weight_decay", "clip")
"""Settings of methods that have a learning rate."""
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
        if not (allowed := options(base)):
            raise InputError(f"the method {base} has no options, got {part!r}")
        check_name(f"an option of {base}", key, allowed)
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


def options(base: str) -> tuple[str, ...]:
    """What may follow the name of a method.

    >>> options("adam"), options("fa")
    (('groups', 'precision', 'sync_every'), ())
    """
    return OPTIONS.get(base.removesuffix("-fp"), ())


def label(name: str) -> str:
    """What a method is called in tables.

    >>> label("ap-fp"), label("ap:metric=balanced:steps=10")
    ('AP, fixed point', 'AP, metric balanced, steps 10')
    """
    base, *parts = name.split(":")
    return ", ".join([LABELS.get(base, base), *(part.replace("=", " ") for part in parts)])


def settings(name: str) -> dict[str, Any]:
    """Those of `SETTINGS` that a method looks at, each with the value that its options give it, or None.

    >>> settings("ap:loss_scale=1")
    {'steps_per_batch': None, 'loss_scale': 1.0, 'consensus': None}
    """
    base, chosen = split(name)
    found: dict[str, Any] = {"steps_per_batch": chosen.get("steps") if projects(name) else 1}
    if not projects(name) or base == "ep" or "outer" in chosen:
        found |= dict.fromkeys(RATES)
    if projects(name):
        found["loss_scale"] = chosen.get("loss_scale")
        if base != "ep":
            found["consensus"] = None
    return found


def default(name: str, setting: str) -> Any:
    """The value of one of `SETTINGS`, for a method that looks at it, where nothing but its name is given.

    >>> [default(name, "steps_per_batch") for name in ("dr", "ep", "adam", "ap:steps=10")]
    [50, 1, 1, 10]
    """
    base, chosen = split(name)
    known = {"learning_rate": 1e-4 if base == "fa" else 1e-3, "loss_scale": 5.0, "consensus": "paper"}
    known |= {"schedule": "constant", "warmup": 0, "decay_steps": 0, "weight_decay": 0.0, "clip": 0.0}
    known["steps_per_batch"] = chosen.get("steps", 50 if projects(name) and base != "ep" else 1)
    return known[setting]


def make(name: str, **given: Any) -> Method:
    """A method by name, one of `LABELS`, with `OPTIONS`.

    Args:
        name: such as ``"dr"``, ``"ff-adam"`` or ``"ap:metric=balanced"``.
        given: some of `SETTINGS`; those that the method does not look at, or that its options say, and those
            that are None, do nothing.
    """
    full, chosen = split(name)
    used = {
        key: next(v for v in (fixed, given.get(key), default(name, key)) if v is not None)
        for key, fixed in settings(name).items()
    }
    base, _, rest = full.partition("-")
    steps = used["steps_per_batch"]
    rates = Rates(*(used[key] for key in RATES if key in used))
    precision = chosen.pop("precision", None)
    groups, sync_every = chosen.pop("groups", 1), chosen.pop("sync_every", 1)
    if sync_every > steps:
        if sync_every % steps:
            raise InputError(
                f"{name}: sync_every must divide the {steps} steps on a batch, or be a multiple of them; got "
                f"{sync_every}"
            )
        alone = ":".join(part for part in name.split(":") if not part.startswith(("groups=", "sync_every=")))
        return Apart(make(alone, **given), groups, sync_every // steps)
    if base == "fa":
        return FeedbackAlignment(learning_rate=rates)
    if base == "ff":
        return ForwardForward(rest, rates)
    if base not in SOLVERS:
        return Gradient(full, rates, precision)
    for key in ("steps", "loss_scale"):
        chosen.pop(key, None)
    outer = chosen.pop("outer", None)
    if base == "ep":  # which makes a step of it after each of its own; the others make one on each batch
        chosen["outer"] = transformation(outer, rates, eps=TINY) if outer else transformation("adam", rates)
    else:
        chosen["consensus"] = used["consensus"]
    solver = SOLVERS[base](steps_per_update=steps, **chosen)
    if outer and base != "ep":
        solver = optim.Outer(solver, transformation(outer, rates, eps=TINY, each=steps))
    if groups > 1:
        solver = optim.Groups(solver, groups, sync_every)
    return Projections(solver, used["loss_scale"], "fixed_point" if rest == "fp" else "newton", precision)
