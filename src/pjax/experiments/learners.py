"""Ways of training a network, behind one interface: projections, and backpropagation with SGD and Adam.

Feedback Alignment and Forward-Forward are in `pjax.experiments.baselines`. All are pure functions on a state
that is a pytree of arrays, so that one loop compiles, times and saves any of them.
"""

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pjax import nn, optim
from pjax.checks import check_name
from pjax.optim.solver import check_transformation

Params = dict[str, Array]
State = Any


class Method(abc.ABC):
    """A way of training a network. Implementations are frozen dataclasses of hyperparameters."""

    steps_per_batch: int = 1
    """How many steps one update counts for."""
    differentiates: bool = False
    """Whether it needs derivatives."""
    divided: tuple[str, ...] = ()
    """Entries of the state whose arrays may be divided over devices along their first axis."""
    optimiser: Any
    """What has a state of its own for the parameters: a solver, or a transformation of optax."""

    def inputs(self, shape: tuple[int, ...], classes: int) -> tuple[int, ...]:  # noqa: ARG002
        """The shape of one input that the network must take, given that of the data."""
        return shape

    def init(self, model: nn.Module, key: Array) -> State:
        """The state before the first update."""
        params = model.init(key)
        return {"params": params, "optimizer": self.optimiser.init(params)}

    def with_params(self, state: State, params: Params) -> State:
        """A state with other parameters of the network."""
        return {**state, "params": params}

    @abc.abstractmethod
    def update(self, model: nn.Module, state: State, x: Array, y: Array, key: Array) -> tuple[State, Array]:
        """Train on one batch. Returns the new state, and the mean loss before the update."""

    def scores(self, model: nn.Module, params: Params, x: Array) -> Array:
        """One score per class; the largest is the prediction."""
        logits: Array = model.apply(params, x)
        return logits


@dataclasses.dataclass(frozen=True)
class Projections(Method):
    """A projection method of `pjax.optim` on the cross-entropy of labels, or the squared error of numbers."""

    optimiser: optim.Solver
    loss_scale: float = 5.0
    """The factor λ of the loss in its proximal operator."""
    prox: str = "newton"
    """The exact proximal operator, or ``"fixed_point"``, the paper's iteration."""
    precision: str | None = None
    """Of the network's arithmetic, see `evaluated`."""

    @property
    def steps_per_batch(self) -> int:  # type: ignore[override]
        return self.optimiser.steps_per_update

    def update(self, model: nn.Module, state: State, x: Array, y: Array, key: Array) -> tuple[State, Array]:
        del key

        def loss(params: Params, batch: tuple[Array, Array]) -> Array:
            return self.loss(model, *batch)(params)

        with products(self.precision):
            params, optimizer, value = self.optimiser.update(
                loss, state["params"], state["optimizer"], batch=(x, y)
            )
        return {"params": params, "optimizer": optimizer}, value

    def loss(self, model: nn.Module, x: Array, y: Array) -> Callable[[Params], Array]:
        """The function of the parameters that is projected, on one batch."""

        def losses(params: Params) -> Array:
            outputs = evaluated(model, params, x, self.precision)
            if jnp.issubdtype(y.dtype, jnp.floating):
                return nn.squared_error(outputs, y, self.loss_scale)
            return nn.cross_entropy(outputs, y, self.loss_scale, self.prox)

        return losses


@dataclasses.dataclass(frozen=True)
class Descent(Method):
    """A gradient, or what stands for one, with an optimiser of optax."""

    optimiser: Any

    differentiates = True

    def __post_init__(self) -> None:
        check_transformation(self.optimiser, f"{type(self).__name__}: optimiser")

    def update(self, model: nn.Module, state: State, x: Array, y: Array, key: Array) -> tuple[State, Array]:
        value, gradient = self.gradient(model, state, x, y, key)
        updates, optimizer = self.optimiser.update(gradient, state["optimizer"], state["params"])
        params = jax.tree.map(jnp.add, state["params"], updates)
        return {**state, "params": params, "optimizer": optimizer}, value

    @abc.abstractmethod
    def gradient(
        self, model: nn.Module, state: State, x: Array, y: Array, key: Array
    ) -> tuple[Array, Params]:
        """The mean loss, and where it grows."""


@dataclasses.dataclass(frozen=True)
class Gradient(Descent):
    """Backpropagation of the mean loss; ``precision`` is that of the network, see `evaluated`."""

    precision: str | None = None

    def gradient(
        self, model: nn.Module, state: State, x: Array, y: Array, key: Array
    ) -> tuple[Array, Params]:
        del key

        def loss(params: Params) -> Array:
            return mean_loss(evaluated(model, params, x, self.precision), y)

        with products(self.precision):
            return jax.value_and_grad(loss)(state["params"])


@dataclasses.dataclass(frozen=True)
class Apart(Method):
    """A method that groups of samples follow apart. After some batches they average their parameters.

    The state's parameters are those of the last exchange. What else a group has, as Adam's moments, it keeps.
    """

    method: Method
    groups: int
    batches: int

    divided = ("groups",)

    @property
    def steps_per_batch(self) -> int:  # type: ignore[override]
        return self.method.steps_per_batch

    @property
    def differentiates(self) -> bool:  # type: ignore[override]
        return self.method.differentiates

    def init(self, model: nn.Module, key: Array) -> State:
        one = self.method.init(model, key)
        return {"params": one["params"], "groups": self._each(one), "batches": jnp.zeros((), jnp.int32)}

    def with_params(self, state: State, params: Any) -> State:
        groups = {**state["groups"], "params": self._each(params)}
        return {**state, "params": params, "groups": groups}

    def update(self, model: nn.Module, state: State, x: Array, y: Array, key: Array) -> tuple[State, Array]:
        x, y = (a.reshape(self.groups, -1, *a.shape[1:]) for a in (x, y))

        def one(group: State, x: Array, y: Array) -> tuple[State, Array]:
            return self.method.update(model, group, x, y, key)

        groups, losses = jax.vmap(one)(state["groups"], x, y)
        batches = state["batches"] + 1

        def exchange(state: State) -> State:
            means = jax.tree.map(lambda leaf: jnp.mean(leaf, 0), state["groups"]["params"])
            return self.with_params(state, means)

        state = {"params": state["params"], "groups": groups, "batches": batches}
        return jax.lax.cond(batches % self.batches == 0, exchange, lambda s: s, state), jnp.mean(losses)

    def _each(self, tree: Any) -> Any:
        """For every group the same."""
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.groups, *jnp.shape(leaf))), tree)


PRECISIONS = {"float32": "highest", "tf32": "tensorfloat32", "bfloat16": "bfloat16"}
"""What products are computed in, by the name of a precision."""


def products(precision: str | None) -> Any:
    """A context in which products have a precision; by default the device's own."""
    if precision is None:
        return contextlib.nullcontext()
    return jax.default_matmul_precision(PRECISIONS[precision])


def evaluated(model: nn.Module, params: Params, x: Array, precision: str | None) -> Array:
    """The logits of a network; with ``"bfloat16"`` all values of the network are of that type."""

    def narrow(x: Array) -> Array:
        return x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x

    if precision == "bfloat16":
        params, x = jax.tree.map(narrow, (params, x))
    logits: Array = model.apply(params, x)
    return logits.astype(jnp.float32)


def mean_loss(outputs: Array, y: Array) -> Array:
    """The mean cross-entropy of labels, or the mean squared error of numbers.

    >>> float(mean_loss(jnp.array([[1.0], [2.0]]), jnp.array([[1.0], [4.0]])))
    2.0
    """
    if jnp.issubdtype(y.dtype, jnp.floating):
        return jnp.mean((outputs - y) ** 2)
    return mean_cross_entropy(outputs, y)


def mean_cross_entropy(logits: Array, labels: Array) -> Array:
    """The mean over all samples, and positions, of the cross-entropy.

    >>> round(float(mean_cross_entropy(jnp.zeros((2, 4)), jnp.array([0, 3]))), 4)
    1.3863
    """
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -jnp.mean(chosen)


SCHEDULES = ("constant", "linear", "cosine")


@dataclasses.dataclass(frozen=True)
class Rates:
    """A learning rate over the steps of a run, and what else is done to gradients, or moves.

    Args:
        learning_rate: after the warm-up.
        schedule: ``"constant"``, or how the rate falls to 0: ``"linear"`` or ``"cosine"``.
        warmup: steps in which the rate rises from 0.
        decay_steps: the step at which it has fallen to 0.
        weight_decay: how much of a parameter is taken away in every step, times the rate.
        clip: the largest norm of all gradients together; 0: any.

    >>> [round(float(Rates(0.1, "linear", 2, 6).at(step)), 3) for step in (0, 1, 2, 4, 6)]
    [0.0, 0.05, 0.1, 0.05, 0.0]
    """

    learning_rate: float = 1e-3
    schedule: str = "constant"
    warmup: int = 0
    decay_steps: int = 0
    weight_decay: float = 0.0
    clip: float = 0.0

    def __post_init__(self) -> None:
        check_name("schedule", self.schedule, SCHEDULES)

    def at(self, step: Any) -> Any:
        """The rate of a step, from 0."""
        rising = jnp.minimum(step / self.warmup, 1.0) if self.warmup else 1.0
        if self.schedule == "constant":
            return self.learning_rate * rising
        over = jnp.clip((step - self.warmup) / max(self.decay_steps - self.warmup, 1), 0.0, 1.0)
        falling = 1 - over if self.schedule == "linear" else (1 + jnp.cos(jnp.pi * over)) / 2
        return self.learning_rate * rising * falling


@functools.cache  # so that equal settings are equal optimisers
def transformation(optimiser: str, rates: Rates, moves: bool = False, each: int = 1) -> Any:
    """SGD or Adam of optax, for gradients or for moves; each of its steps counts as so many of the run."""
    import optax  # not every command waits for it

    eps = 1e-16 if moves else 1e-8  # moves may be much smaller than gradients: few of the many copies move
    moving = rates.schedule != "constant" or rates.warmup
    rate: Any = (lambda count: rates.at(count * each)) if moving else rates.learning_rate
    parts = [optax.clip_by_global_norm(rates.clip)] if rates.clip else []
    if optimiser == "sgd":
        parts += [optax.add_decayed_weights(rates.weight_decay)] if rates.weight_decay else []
        parts.append(optax.sgd(rate))
    elif rates.weight_decay:
        parts.append(optax.adamw(rate, eps=eps, weight_decay=rates.weight_decay))
    else:
        parts.append(optax.adam(rate, eps=eps))
    return parts[0] if len(parts) == 1 else optax.chain(*parts)
