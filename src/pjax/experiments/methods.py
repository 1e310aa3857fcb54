"""Ways of training a network, behind one interface: projections, and backpropagation with SGD and Adam.

Feedback Alignment and Forward-Forward are in files of their own. All are pure functions on a state that is a
pytree of arrays, so that one loop compiles, times and saves any of them.
"""

import abc
import contextlib
import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import pjax
from pjax import nn, optim
from pjax.errors import InputError

Params = dict[str, jax.Array]
State = Any


class Method(abc.ABC):
    """A way of training a network. Implementations are frozen dataclasses of hyperparameters."""

    steps_per_batch: int = 1
    """How many steps one update counts for."""
    differentiates: bool = False
    """Whether it needs derivatives, and so a stand-in for those of a staircase."""
    divided: tuple[str, ...] = ()
    """Entries of the state whose arrays may be divided over devices along their first axis."""

    def inputs(self, shape: tuple[int, ...], classes: int) -> tuple[int, ...]:  # noqa: ARG002
        """The shape of one input that the network must take, given that of the data."""
        return shape

    @abc.abstractmethod
    def init(self, model: nn.Module, key: jax.Array) -> State:
        """The state before the first update."""

    def params(self, state: State) -> Params:
        """The network's parameters in a state."""
        found: Params = state["params"]
        return found

    def with_params(self, state: State, params: Params) -> State:
        """A state with other parameters of the network."""
        return {**state, "params": params}

    @abc.abstractmethod
    def update(
        self, model: nn.Module, state: State, x: jax.Array, y: jax.Array, key: jax.Array
    ) -> tuple[State, jax.Array]:
        """Train on one batch. Returns the new state, and the mean loss before the update."""

    def scores(self, model: nn.Module, params: Params, x: jax.Array) -> jax.Array:
        """One score per class; the largest is the prediction."""
        logits: jax.Array = model.apply(params, x)
        return logits


@dataclasses.dataclass(frozen=True)
class Projections(Method):
    """A projection method of `pjax.optim` on the cross-entropy.

    Args:
        solver: the method; it makes ``steps_per_update`` steps on a batch.
        loss_scale: the factor λ of the loss in its proximal operator.
        prox: ``"newton"``, the exact proximal operator, or ``"fixed_point"``, the paper's iteration.
        precision: of the network's arithmetic, see `evaluated`.
    """

    solver: optim.Solver
    loss_scale: float = 5.0
    prox: str = "newton"
    precision: str | None = None

    @property
    def steps_per_batch(self) -> int:  # type: ignore[override]
        return self.solver.steps_per_update

    def init(self, model: nn.Module, key: jax.Array) -> State:
        params = model.init(key)
        return {"params": params, "optimizer": self.solver.init(params)}

    def update(
        self,
        model: nn.Module,
        state: State,
        x: jax.Array,
        y: jax.Array,
        key: jax.Array,  # noqa: ARG002
    ) -> tuple[State, jax.Array]:
        def loss(params: Params, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
            return self.loss(model, *batch)(params)

        with products(self.precision):
            params, optimizer, value = self.solver.update(
                loss, state["params"], state["optimizer"], batch=(x, y)
            )
        return {"params": params, "optimizer": optimizer}, value

    def loss(self, model: nn.Module, x: jax.Array, y: jax.Array) -> Callable[[Params], jax.Array]:
        """The function of the parameters that is projected, on one batch."""

        def losses(params: Params) -> jax.Array:
            found: jax.Array = pjax.cross_entropy(
                evaluated(model, params, x, self.precision), y, self.loss_scale, self.prox
            )
            return found

        return losses


@dataclasses.dataclass(frozen=True)
class Gradient(Method):
    """Backpropagation of the mean cross-entropy, with SGD or Adam of optax.

    Args:
        optimiser: ``"sgd"`` or ``"adam"``.
        learning_rate: its learning rate.
        precision: of the network's arithmetic, see `evaluated`.
    """

    optimiser: str = "adam"
    learning_rate: float = 1e-3
    precision: str | None = None

    differentiates = True

    def init(self, model: nn.Module, key: jax.Array) -> State:
        params = model.init(key)
        return {
            "params": params,
            "optimizer": transformation(self.optimiser, self.learning_rate).init(params),
        }

    def update(
        self,
        model: nn.Module,
        state: State,
        x: jax.Array,
        y: jax.Array,
        key: jax.Array,  # noqa: ARG002
    ) -> tuple[State, jax.Array]:
        def loss(params: Params) -> jax.Array:
            return mean_cross_entropy(evaluated(model, params, x, self.precision), y)

        with products(self.precision):
            value, gradient = jax.value_and_grad(loss)(state["params"])
        return descend(transformation(self.optimiser, self.learning_rate), gradient, state), value


PRECISIONS = {"float32": "highest", "tf32": "tensorfloat32", "bfloat16": "bfloat16"}
"""What products are computed in, by the name of a precision."""


def products(precision: str | None) -> Any:
    """A context in which products have a precision; by default the device's own."""
    if precision is None:
        return contextlib.nullcontext()
    return jax.default_matmul_precision(PRECISIONS[precision])


def evaluated(model: nn.Module, params: Params, x: jax.Array, precision: str | None) -> jax.Array:
    """The logits of a network; with ``"bfloat16"`` all values of the network are of that type."""
    if precision == "bfloat16":
        params, x = jax.tree.map(_narrow, (params, x))
    logits: jax.Array = model.apply(params, x)
    return logits.astype(jnp.float32)


def _narrow(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x


def mean_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean over all samples, and positions, of the cross-entropy.

    >>> round(float(mean_cross_entropy(jnp.zeros((2, 4)), jnp.array([0, 3]))), 4)
    1.3863
    """
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -jnp.mean(chosen)


TINY = 1e-16
"""Adam's ``eps`` for moves, which may be much smaller than gradients: few of the many copies move."""


def transformation(optimiser: str, learning_rate: float, eps: float = 1e-8) -> Any:
    """An optax transformation by name."""
    import optax

    return optax.sgd(learning_rate) if optimiser == "sgd" else optax.adam(learning_rate, eps=eps)


def descend(optimiser: Any, gradient: Params, state: State) -> State:
    """The state after a step of an optax transformation; what else it holds stays."""
    updates, optimizer = optimiser.update(gradient, state["optimizer"], state["params"])
    params = jax.tree.map(jnp.add, state["params"], updates)
    return {**state, "params": params, "optimizer": optimizer}


# --- Methods by name ---

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
    "dr-fp": "DR, fixed point",
    "ap-fp": "AP, fixed point",
    "cp-fp": "CP, fixed point",
    "dm-fp": "DM, fixed point",
}
"""What a method is called in tables. EP is extrapolated projections; the others are the paper's. ``-fp``: the
proximal operator of the cross-entropy by the paper's ten fixed-point steps, which do not converge at its
λ = 5, instead of Newton's."""


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
_NUMBERS = {
    "beta": float,
    "groups": int,
    "loss_scale": float,
    "reach": float,
    "relaxation": float,
    "softness": float,
    "steps": int,
    "sync_every": int,
}


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
    for key in ("groups", "steps", "sync_every"):
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


SETTINGS = ("learning_rate", "steps_per_batch", "loss_scale", "consensus")
"""Settings of a run that only some methods look at."""


def options(base: str) -> tuple[str, ...]:
    """What may follow the name of a method.

    >>> options("adam"), options("fa")
    (('groups', 'precision', 'sync_every'), ())
    """
    return OPTIONS.get(base.removesuffix("-fp"), ())


def settings(name: str) -> dict[str, Any]:
    """Those of `SETTINGS` that a method looks at, each with the value that its options give it, or None.

    >>> settings("ap:loss_scale=1")
    {'steps_per_batch': None, 'loss_scale': 1.0, 'consensus': None}
    """
    base, chosen = split(name)
    found: dict[str, Any] = {"steps_per_batch": chosen.get("steps") if projects(name) else 1}
    if not projects(name) or base == "ep" or "outer" in chosen:
        found["learning_rate"] = None
    if projects(name):
        found["loss_scale"] = chosen.get("loss_scale")
        if base != "ep":
            found["consensus"] = None
    return found


def default(name: str, setting: str) -> Any:
    """The value of one of `SETTINGS` where nothing is said, for a method that looks at it."""
    rate = 1e-4 if name == "fa" else 1e-3
    known = {"learning_rate": rate, "loss_scale": 5.0, "consensus": "paper"}
    return default_steps(name) if setting == "steps_per_batch" else known[setting]


def label(name: str) -> str:
    """What a method is called in tables.

    >>> label("ap-fp"), label("ap:metric=balanced:steps=10")
    ('AP, fixed point', 'AP, metric balanced, steps 10')
    """
    base, *parts = name.split(":")
    return ", ".join([LABELS.get(base, base), *(part.replace("=", " ") for part in parts)])


def default_steps(name: str) -> int:
    """Steps on one batch: the paper's 50 for its projection methods, else one.

    >>> default_steps("dr"), default_steps("ep"), default_steps("adam"), default_steps("ap:steps=10")
    (50, 1, 1, 10)
    """
    base, options = split(name)
    steps: int = options.get("steps", 50 if projects(name) and base != "ep" else 1)
    return steps


def check_name(kind: str, name: str, names: Any) -> None:
    """Refuse a name that is not one of several, with the nearest ones."""
    if name not in names:
        near = difflib.get_close_matches(str(name), names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"{kind} must be one of {', '.join(names)}; got {name!r}.{hint}")


def make(
    name: str,
    *,
    learning_rate: float | None = None,
    steps_per_batch: int | None = None,
    loss_scale: float | None = None,
    consensus: Any = None,
) -> Method:
    """A method by name, one of `LABELS`, with `OPTIONS`.

    Args:
        name: such as ``"dr"``, ``"ff-adam"`` or ``"ap:metric=balanced"``.
        learning_rate: for methods that have one; by default 1e-3, and 1e-4 for ``"fa"``, as in the paper.
        steps_per_batch: projection steps on one batch; by default see `default_steps`.
        loss_scale: the factor λ of the loss in its proximal operator; by default 5.
        consensus: of the projection methods, see `pjax.optim.Solver`.
    """
    full, chosen = split(name)
    given = {
        "learning_rate": learning_rate,
        "steps_per_batch": steps_per_batch,
        "loss_scale": loss_scale,
        "consensus": consensus,
    }
    used = {
        key: next(value for value in (fixed, given[key], default(name, key)) if value is not None)
        for key, fixed in settings(name).items()
    }
    rate = {k: used[k] for k in ("learning_rate",) if k in used}
    precision = {k: chosen.pop(k) for k in ("precision",) if k in chosen}
    base, _, rest = full.partition("-")
    groups, sync_every = chosen.pop("groups", 1), chosen.pop("sync_every", 1)
    steps = used["steps_per_batch"]
    if sync_every > steps:
        from pjax.experiments.apart import Apart

        if sync_every % steps:
            raise InputError(
                f"{name}: sync_every must divide the {steps} steps on a batch, or be a multiple of them; got "
                f"{sync_every}"
            )
        alone = ":".join(part for part in name.split(":") if not part.startswith(("groups=", "sync_every=")))
        return Apart(make(alone, **given), groups, sync_every // steps)
    if base in SOLVERS:
        for key in ("steps", "loss_scale"):
            chosen.pop(key, None)
        if "outer" in chosen:
            chosen["outer"] = transformation(chosen["outer"], used["learning_rate"], eps=TINY)
        elif base == "ep":
            chosen |= rate
        if base != "ep":
            chosen |= {"consensus": used["consensus"], "sync_every": sync_every}
        elif sync_every > 1:
            raise InputError(
                f"{name}: ep hands the moves of every step to its outer optimiser, so that groups exchange"
                f" them in every step; sync_every must be 1, or a multiple of the {steps} steps on a batch"
            )
        solver = SOLVERS[base](steps_per_update=steps, groups=groups, **chosen)
        prox = "fixed_point" if rest == "fp" else "newton"
        return Projections(solver, used["loss_scale"], prox, **precision)
    if base == "fa":
        from pjax.experiments.feedback_alignment import FeedbackAlignment

        return FeedbackAlignment(**rate)
    if base == "ff":
        from pjax.experiments.forward_forward import ForwardForward

        return ForwardForward(optimiser=rest, **rate)
    return Gradient(full, **rate, **precision)
