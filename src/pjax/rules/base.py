"""What a primitive is: a function, and the projection onto its graph.

A primitive is a frozen dataclass: its fields are static settings, its methods are pure. It works in
*vector form*: every input is an array whose trailing ``core`` axes belong to one copy of the function
and whose leading axes count the copies; the output has the leading axes only.

The projection is written in *residual form*. The engine knows a point of the graph (the forward
evaluation) and how far the current values have moved away from it. Passing both lets a primitive
compute its residual from the small shifts, instead of as the difference of two nearly equal numbers.
"""

import abc
import dataclasses
import functools
from typing import Any, ClassVar, TypeAlias

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

Arrays: TypeAlias = tuple[jax.Array, ...]
Asked: TypeAlias = tuple[jax.Array | None, ...]
"""What is asked of inputs; None of those that never move."""


@dataclasses.dataclass(frozen=True)
class Primitive(abc.ABC):
    """A function with a projection onto its graph.

    Subclass it as a frozen dataclass, set `name` and `core`, and write `forward` and one of `project`
    (simple) and `displace` (accurate for tiny residuals). Each is the default of the other.
    """

    name: ClassVar[str]
    core: ClassVar[int] = 0
    """How many trailing axes of every input belong to one copy of the function."""
    joint: ClassVar[bool] = False
    """Whether the whole of its inputs makes one copy, with an output of any shape."""

    @property
    def moving(self) -> int | None:
        """How many of the inputs have edges, the first ones; None: all. The others never move."""
        return None

    @property
    def label(self) -> str:
        """What people call it."""
        return self.name

    @abc.abstractmethod
    def forward(self, *inputs: jax.Array) -> jax.Array:
        """The function: inputs of shape ``(..., *core)`` to an output of shape ``(...)``."""

    def project(
        self, inputs: Arrays, output: jax.Array, weight: jax.typing.ArrayLike = 1.0
    ) -> tuple[Arrays, jax.Array]:
        """The point ``(x, f(x))`` that minimises ``|x - inputs|^2 + weight * (f(x) - output)^2``."""
        point = self.forward(*inputs)
        still = tuple(jnp.zeros_like(x) for x in inputs)
        moves, move = self.displace(inputs, still, point, output - point, weight)
        return tuple(x + m for x, m in zip(inputs, moves, strict=True)), output + move

    def displace(
        self,
        inputs: Arrays,
        shifts: Arrays,
        output: jax.Array,
        shift: jax.Array,
        weight: jax.typing.ArrayLike = 1.0,
    ) -> tuple[Arrays, jax.Array]:
        """The projection of ``(inputs + shifts, output + shift)``, as the moves that lead there.

        ``(inputs, output)`` lies on the graph. Returns the moves of the inputs and of the output.
        """
        start = tuple(x + s for x, s in zip(inputs, shifts, strict=True))
        goal = output + shift
        ends, end = self.project(start, goal, weight)
        return tuple(e - s for e, s in zip(ends, start, strict=True)), end - goal

    def ask(self, inputs: Arrays, output: jax.Array, goal: jax.Array, softness: float) -> Asked:
        """What a soft sweep asks of the inputs, given what is asked of the output: see `pjax.engines.soft`.

        The multipliers of the soft projection, exact for what is linear; by default those of `dithered`.
        """
        rule = self.dithered()
        point = output if rule is self else rule.forward(*inputs)
        still = tuple(jnp.zeros_like(x) for x in inputs)
        weight = softness / rule.sensitivity(inputs, goal)
        moves, _ = rule.displace(inputs, still, point, goal, weight)
        return tuple(move * ((1 + softness) / weight) for move in moves)

    def sensitivity(self, inputs: Arrays, output: jax.Array) -> float | jax.Array:  # noqa: ARG002
        """The typical sum of squared derivatives of one output."""
        return 1.0

    def as_target(self) -> "Target | None":
        """What asks for this constraint at the end of a function; None where that means nothing."""
        return None

    def dithered(self) -> "Primitive":
        """The mean of the function over small random changes of its input, where a step of it is steep.

        Methods that take small steps project onto the graph of this one: the graph of a staircase does not
        answer them. By default the function itself.
        """
        return self


@dataclasses.dataclass(frozen=True)
class Target(abc.ABC):
    """A loss at the end of a function, with the operator that lowers it.

    The operator is the proximal operator of the loss, with its ``scale``; or, where it has none, the
    projection onto its minimisers, and the loss then is the squared distance to them.
    """

    name: ClassVar[str]
    core: ClassVar[int] = 1
    """How many trailing axes of the predictions belong to one loss."""
    moving: ClassVar[int | None] = 1

    @abc.abstractmethod
    def forward(self, predictions: jax.Array, *labels: Any, **_: Any) -> jax.Array:
        """The losses, one for each copy: shape ``(...)``. Take as many arrays of labels as there are."""

    @abc.abstractmethod
    def displace(self, predictions: jax.Array, *labels: Any, **_: Any) -> jax.Array:
        """How the predictions move. Same shape as ``predictions``."""

    def project(self, predictions: jax.Array, *labels: jax.Array) -> jax.Array:
        """The predictions after the move."""
        return predictions + self.displace(predictions, *labels)

    def weighted(
        self, factor: jax.typing.ArrayLike, predictions: jax.Array, *labels: Any, **_: Any
    ) -> jax.Array:
        """How the predictions move where the losses count by factors, of at most one in size.

        Without a ``scale`` the minimisers are a constraint: it holds for any factor but zero.
        """
        return jnp.where(per_loss(factor, predictions) == 0, 0, self.displace(predictions, *labels))

    def descent(self, predictions: jax.Array, *labels: Any, **_: Any) -> jax.Array:
        """The direction in which the loss falls, by how much it falls: what small steps ask for.

        By default twice the move: that of a squared distance. Of a loss with a ``scale``, what its proximal
        operator does for a small scale, over the scale.
        """
        scale = getattr(self, "scale", None)
        if scale is None:
            return 2 * self.displace(predictions, *labels)
        small: Any = dataclasses.replace(self, scale=SMALL)  # type: ignore[call-arg]
        return small.displace(predictions, *labels) / SMALL


def per_loss(factor: jax.typing.ArrayLike, predictions: jax.Array) -> jax.Array:
    """Numbers for losses, to multiply predictions by."""
    factor = jnp.asarray(factor)
    return factor.reshape(factor.shape + (1,) * (predictions.ndim - factor.ndim)) if factor.ndim else factor


SMALL = 1e-3
"""A scale for which a proximal operator is a step along the gradient, to a part in a thousand."""


def apply(rule: Primitive | Target, *inputs: jax.Array) -> jax.Array:
    """Evaluate a primitive or a target so that `pjax.trace` sees it as one node."""
    return _apply_p.bind(*map(jnp.asarray, inputs), rule=rule)


def _forward(*inputs: jax.Array, rule: Primitive | Target) -> jax.Array:
    return rule.forward(*inputs)


def _abstract(*avals: Any, rule: Primitive | Target) -> Any:
    out = jax.eval_shape(rule.forward, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))
    return jax.core.ShapedArray(out.shape, out.dtype)


def _batch(inputs: Any, dims: Any, *, rule: Primitive | Target) -> Any:
    pairs = list(zip(inputs, dims, strict=True))
    size = next(x.shape[d] for x, d in pairs if d is not None)
    front = (jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0) for x, d in pairs)
    return _apply_p.bind(*front, rule=rule), 0


def _jvp(primals: Any, tangents: Any, *, rule: Primitive | Target) -> Any:
    tangents = tuple(map(ad.instantiate_zeros, tangents))
    return jax.jvp(functools.partial(_forward, rule=rule), tuple(primals), tangents)


_apply_p = jex.Primitive("pjax")
_apply_p.def_impl(jax.jit(_forward, static_argnames="rule"))
_apply_p.def_abstract_eval(_abstract)
mlir.register_lowering(_apply_p, mlir.lower_fun(_forward, multiple_results=False))
batching.primitive_batchers[_apply_p] = _batch
ad.primitive_jvps[_apply_p] = _jvp
