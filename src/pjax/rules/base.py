"""What a rule is: a function, and the projection onto its graph.

A `Rule` is what a node of a graph computes. There are four kinds: primitives and targets (here), contractions
(`pjax.rules.contraction`) and scans (`pjax.rules.scan`). Engines and tools call the methods of `Rule`, and
never ask which kind they have.

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
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from pjax.devices import end_kernel
from pjax.rules.arithmetic import usual_promotion, wide, wide_reals

Arrays: TypeAlias = tuple[jax.Array, ...]
Asked: TypeAlias = tuple[jax.Array | None, ...]
"""What is asked of inputs; None of those that never move."""
Projection: TypeAlias = tuple[Arrays, jax.Array]
"""Inputs and output of a function: where they are projected to, or the moves that lead there."""
Weight: TypeAlias = jax.typing.ArrayLike
"""Of the output: a number, or one for each copy."""
Shifts: TypeAlias = tuple[jax.Array | None, ...]
"""Displacements of inputs; None of constants."""


class Moves(NamedTuple):
    """What a projection does to a node."""

    inputs: tuple[jax.Array | None, ...]
    """For each slot of each input, the sum of the moves of its edges; None for constants."""
    output: jax.Array | None
    squared: jax.Array
    """Numbers that add up to the squared moves of all edges of all inputs; of a contraction, one for each
    output."""
    squares: Callable[[int, bool], jax.Array] | None = None
    """A function of an input's number and a flag. It gives, for each slot of that input, the sum of the
    squared moves of its edges. With the flag it gives numbers that only have the same total, which is
    cheaper; their first axes are those of the output."""
    reach: Callable[[jax.Array], jax.Array] | None = None
    """From what was asked of the output to where it ends. None: at the sum of what was asked and `output`."""

    def over(self, unit: jax.Array) -> "Moves":
        """These moves in the original variables, where the metric had multiplied the output by ``unit``."""
        assert self.output is not None
        return self._replace(output=self.output / unit, squared=self.squared / unit, reach=None)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a node stands while it projects: all that its rule is told of the rest of the graph."""

    inputs: tuple[Any, ...]
    """At the forward evaluation, in the variables of the metric; with labels and constants."""
    point: jax.Array
    """The output there; zero for a target, whose losses nobody reads."""
    weight: Any = 1.0
    """The weight of the output in the projection."""
    read: jax.Array | None = None
    """Which scalars of the output are read at all; None where all are."""
    fixed: int | None = None
    """The input that must keep its value, where constants are fixed."""
    lengths: tuple[jax.Array, ...] = ()
    """What `Rule.lengths` found, next to constants."""
    factor: float | jax.Array = 1.0
    """Of a target: by how much its losses count, next to those that count most."""


class Rule(abc.ABC):
    """What a node computes, and the projection onto it."""

    name: ClassVar[str]
    is_target: ClassVar[bool] = False
    """Whether it is a loss, with an operator in the place of an output."""
    many_edges: ClassVar[bool] = False
    """Whether several edges enter each slot of an input: a contraction, whose edges need not be stored."""
    windowed: ClassVar[bool] = False
    """Whether it sums over sliding windows, as a convolution: that costs more than a pass over the output."""
    moving: int | None = None
    """How many of the inputs have edges, the first ones; None: all. The others never move."""
    only_adds: ClassVar[bool] = False
    """Whether it is the sum of its `terms`."""

    @property
    def label(self) -> str:
        """What people call it."""
        return self.name

    @property
    def steps(self) -> int:
        """How many steps it has, if it is a loop; else 0. Drawings show it."""
        return 0

    @property
    def terms(self) -> tuple[int, ...] | None:
        """For a function of a signed sum of its inputs, the sign of each; None for all other functions."""
        return None

    @property
    def stackable(self) -> bool:
        """Whether several equal nodes can run as one batched node: see `stacked`."""
        return False

    @abc.abstractmethod
    def forward(self, *inputs: Any, **_: Any) -> jax.Array:
        """The function."""

    def move(self, at: Place, shifts: Shifts, goal: jax.Array | None) -> Moves:
        """Project a node whose inputs are in consensus: all edges of one scalar carry one value.

        By default there is one edge for each slot of an input. The goal is the mean displacement of the edges
        that leave it; None for a target.
        """
        full = tuple(
            jnp.zeros(x.shape, at.point.dtype) if s is None else s
            for x, s in zip(at.inputs, shifts, strict=False)
        )
        moves, move = self.move_edges(at, full, goal)
        return Moves(moves, move, total_squares(moves), lambda i, _: moves[i] ** 2)

    @abc.abstractmethod
    def move_edges(
        self, at: Place, shifts: Arrays, goal: jax.Array | None
    ) -> tuple[Arrays, jax.Array | None]:
        """Project a node given the displacements of all edges that enter it, written out: see `expand`.

        Returns the moves of the edges, and of the output.
        """

    def change(self, at: Place, shifts: Shifts) -> jax.Array:
        """How much the output changes when the inputs are displaced; zero where the output is infinite."""
        end = (x if s is None else x + s for x, s in itertools.zip_longest(at.inputs, shifts))
        before = self.forward(*at.inputs)
        return jnp.where(jnp.isinf(before), 0, self.forward(*end) - before)

    def soft(self, softness: float) -> Callable[..., jax.Array]:  # noqa: ARG002
        """The function to evaluate in a soft sweep; its ``jax.vjp`` gives what the node asks of its inputs.

        By default it is `forward`, so that the answer is the usual derivative: see `pjax.engines.soft`. Rules
        with kinks return a function whose derivative is replaced by a soft projection. With a softness of
        zero that softness is too small to matter, and a derivative is enough at kinks, too.
        """
        return self.forward

    @property
    def first_order(self) -> bool:
        """Whether a sweep with softness zero answers twice the wish by twice as much, as derivatives do."""
        return True

    def entering(self, i: int, shape: tuple[int, ...]) -> int:  # noqa: ARG002
        """The total number of edges that enter input i, an array of the given shape."""
        return math.prod(shape)

    def count(self, i: int) -> int | np.ndarray:  # noqa: ARG002
        """How many edges enter each slot of input i: one number, or an array that broadcasts to its shape."""
        return 1

    def expand(self, i: int, x: jax.Array) -> jax.Array:  # noqa: ARG002
        """Input i with a number for every edge. A layout."""
        return x

    def gather(self, i: int, edges: jax.Array) -> jax.Array:  # noqa: ARG002
        """The transpose of `expand`: for each slot of input i, the sum over its edges."""
        return edges

    def lengths(self, inputs: Sequence[jax.Array]) -> tuple[jax.Array, ...]:  # noqa: ARG002
        """Of a contraction: for each output, the squared lengths of its slots of either input."""
        return ()

    def balance(
        self,
        inputs: Sequence[jax.Array],  # noqa: ARG002
        axis: int | None = None,  # noqa: ARG002
    ) -> tuple[tuple[jax.Array | None, ...], jax.Array | None]:
        """For ``metric="balanced"``: a factor for each input, with which all have the same typical length.

        Returns these factors and one for the output; None, or no entry at all, means one. Where the output
        is multiplied by a factor, the caller divides its weight, and squared lengths, by the same.

        Args:
            inputs: the values of the inputs.
            axis: of a stack, the axis of the output along which its members lie: each has its own factors.
        """
        return (), None

    def stacked(self, number: int, differ: Sequence[bool]) -> "tuple[Rule, tuple[bool, ...], int]":
        """One rule for several equal nodes together.

        Args:
            number: how many nodes there are.
            differ: for each input, whether the nodes read different values there.

        Returns:
            The rule, for each input whether it is stacked along a new first axis, and the axis of the output
            along which the results of the nodes lie.
        """
        del number
        return self, (True,) * len(differ), 0

    def of_terms(self, signs: tuple[int, ...]) -> "Rule":
        """This rule for a sum of other inputs, with these signs: see `terms`."""
        return dataclasses.replace(self, signs=signs)  # type: ignore[type-var]

    def as_target(self) -> "Target | None":
        """The target that stands for this constraint at the end of a function; None if there is none."""
        return None


def total_squares(arrays: Iterable[jax.Array]) -> jax.Array:
    """The sum of the squares of all values."""
    return functools.reduce(operator.add, ((a * a).sum() for a in arrays), jnp.zeros(()))


@dataclasses.dataclass(frozen=True)
class Primitive(Rule):
    """A function with a projection onto its graph.

    Subclass it as a frozen dataclass, set `name` and `core`, and write `forward` and one of `project`
    (simple) and `displace` (accurate for tiny residuals). Each is the default of the other.
    """

    core: ClassVar[int] = 0
    """How many trailing axes of every input belong to one copy of the function."""
    joint: ClassVar[bool] = False
    """Whether its inputs as a whole are one copy, with an output of any shape, as for a cumulative sum."""
    smooth: ClassVar[bool] = False
    """Whether a soft sweep uses its derivative instead of `ask`."""

    @property
    def stackable(self) -> bool:
        return not self.joint

    @property
    def first_order(self) -> bool:
        return self.smooth

    @abc.abstractmethod
    def forward(self, *inputs: jax.Array) -> jax.Array:
        """The function: inputs of shape ``(..., *core)`` to an output of shape ``(...)``."""

    def project(self, inputs: Arrays, output: jax.Array, weight: Weight = 1.0) -> Projection:
        """The point ``(x, f(x))`` that minimises ``|x - inputs|^2 + weight * (f(x) - output)^2``."""
        point = self.forward(*inputs)
        point = jnp.where(jnp.isfinite(point), point, 0)  # as in a quotient by zero
        still = tuple(jnp.zeros_like(x) for x in inputs)
        moves, move = self.displace(inputs, still, point, output - point, weight)
        return tuple(x + m for x, m in zip(inputs, moves, strict=True)), output + move

    def displace(
        self, inputs: Arrays, shifts: Arrays, output: jax.Array, shift: jax.Array, weight: Weight = 1.0
    ) -> Projection:
        """The projection of ``(inputs + shifts, output + shift)``, as the moves that lead there.

        ``(inputs, output)`` lies on the graph. Returns the moves of the inputs and of the output.
        """
        start = tuple(x + s for x, s in zip(inputs, shifts, strict=True))
        goal = output + shift
        ends, end = self.project(start, goal, weight)
        return tuple(e - s for e, s in zip(ends, start, strict=True)), end - goal

    def move_edges(self, at: Place, shifts: Arrays, goal: jax.Array | None) -> tuple[Arrays, jax.Array]:
        assert goal is not None
        weight, read = at.weight, at.read
        if read is not None and self.joint:
            weight, read = jnp.where(read, weight, 0), None
        still = tuple(jnp.zeros(x.shape, at.point.dtype) for x in at.inputs[len(shifts) :])
        moves, move = self.displace(at.inputs, (*shifts, *still), at.point, goal, weight)
        moves = moves[: len(shifts)]
        if read is not None:  # an output that nobody reads constrains nothing
            moves = tuple(
                jnp.where(read.reshape(read.shape + (1,) * (m.ndim - read.ndim)), m, 0) for m in moves
            )
        return moves, move

    def soft(self, softness: float) -> Callable[..., jax.Array]:
        if self.smooth:
            return self.forward
        return answering(self.forward, functools.partial(self.ask, softness=softness or SOFT))

    def ask(self, inputs: Arrays, output: jax.Array, goal: jax.Array, softness: float) -> Asked:
        """What a soft sweep asks of the inputs, given what is asked of the output: see `pjax.engines.soft`.

        By default the moves of a soft projection onto the graph of `dithered`, divided by its weight. Where
        `sensitivity` is right, a linear function asks exactly by its transpose.
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

    def dithered(self) -> "Primitive":
        """A primitive for methods that take small steps to project onto instead; by default this one.

        A staircase, such as rounding, does not change for small moves of its input. Its mean over small
        random changes of the input (a dither) does: return the primitive for that.
        """
        return self


SOFT = 0.01
"""What rules without a special case for a softness of zero use in its place."""


def answering(
    forward: Callable[..., jax.Array], ask: Callable[..., Asked], *, keep_output: bool = True
) -> Callable[..., jax.Array]:
    """A function whose derivative, for JAX, is replaced by ``ask``.

    Args:
        forward: the function.
        ask: from the inputs, the output and what is asked of the output, in float32 or wider, to what is
            asked of each input. Inputs such as constants may be left out at the end, or be None.
        keep_output: whether ``ask`` is given the output; if not, it need not be kept in memory.
    """

    def forwards(*inputs: jax.Array) -> tuple[jax.Array, Any]:
        output = forward(*inputs)
        return output, (inputs, [output] if keep_output else [])

    def backwards(kept: Any, goal: jax.Array) -> tuple[jax.Array | None, ...]:
        inputs, output = kept
        asked = ask(tuple(map(wide_reals, inputs)), *map(wide, output), wide(goal))
        real = [x if jnp.issubdtype(x.dtype, jnp.floating) else None for x in inputs]
        pairs = itertools.zip_longest(asked, real)
        return tuple(None if a is None or x is None else a.astype(x.dtype) for a, x in pairs)

    fn = jax.custom_vjp(forward)
    fn.defvjp(forwards, backwards)
    return fn


@dataclasses.dataclass(frozen=True)
class Target(Rule):
    """A loss at the end of a function, with the operator that lowers it.

    With a field ``scale`` the operator is the proximal operator of the loss, times that scale. Without one it
    is the projection onto the minimisers of the loss, which is the squared distance to them.
    """

    core: ClassVar[int] = 1
    """How many trailing axes of the predictions belong to one loss."""
    is_target: ClassVar[bool] = True
    of_difference: ClassVar[bool] = False
    """Whether it depends only on predictions minus labels. Then labels, too, may depend on parameters."""
    moving = 1

    @abc.abstractmethod
    def forward(self, predictions: jax.Array, *labels: Any, **_: Any) -> jax.Array:
        """The losses, one for each copy: shape ``(...)``. Take as many arrays of labels as there are."""

    @abc.abstractmethod
    def displace(self, predictions: jax.Array, *labels: Any, **_: Any) -> jax.Array:
        """How the predictions move. Same shape as ``predictions``."""

    def project(self, predictions: jax.Array, *labels: jax.Array) -> jax.Array:
        """The predictions after the move."""
        return predictions + self.displace(predictions, *labels)

    def move_edges(self, at: Place, shifts: Arrays, goal: jax.Array | None) -> tuple[Arrays, None]:
        del goal  # nobody reads it
        predictions, *labels = at.inputs
        now, factor = predictions + shifts[0], at.factor
        if isinstance(factor, float) and factor == 1:
            moved = self.displace(now, *labels)
        elif isinstance(factor, float) and factor == 0:
            moved = jnp.zeros_like(now)
        else:  # what does not count may be anything, such as NaN
            moved = jnp.where(per_loss(factor, now) == 0, 0, self.weighted(factor, now, *labels))
        # Written out: it ends with sums, which would be found again wherever it is read.
        return (end_kernel(moved.astype(shifts[0].dtype)),), None

    def weighted(
        self, factor: jax.typing.ArrayLike, predictions: jax.Array, *labels: Any, **_: Any
    ) -> jax.Array:
        """How the predictions move where each loss is multiplied by a factor between -1 and 1.

        A target without a ``scale`` is a constraint: it ignores the factor, unless that is zero.
        """
        return jnp.where(per_loss(factor, predictions) == 0, 0, self.displace(predictions, *labels))

    def descent(self, predictions: jax.Array, *labels: Any, **_: Any) -> jax.Array:
        """The negative gradient of the losses: what methods that take small steps ask of the predictions.

        By default, without a ``scale``, it is twice the move, the negative gradient of a squared distance.
        With one it is the move of the proximal operator for a small scale, divided by that scale.
        """
        scale = getattr(self, "scale", None)
        if scale is None:
            return 2 * self.displace(predictions, *labels)
        small: Any = dataclasses.replace(self, scale=SMALL)  # type: ignore[call-arg]
        return small.displace(predictions, *labels) / SMALL


def per_loss(factor: jax.typing.ArrayLike, predictions: jax.Array) -> jax.Array:
    """One factor for each loss, with the axes that it needs to be multiplied with predictions."""
    factor = jnp.asarray(factor)
    return factor.reshape(factor.shape + (1,) * (predictions.ndim - factor.ndim)) if factor.ndim else factor


SMALL = 1e-3
"""A scale for which a proximal operator is a step along the gradient, to a part in a thousand."""


def apply(rule: Primitive | Target, *inputs: jax.Array) -> jax.Array:
    """Evaluate a primitive or a target so that `pjax.trace` sees it as one node."""
    return _apply_p.bind(*map(jnp.asarray, inputs), rule=rule)


@usual_promotion()
def _forward(*inputs: jax.Array, rule: Primitive | Target) -> jax.Array:
    return rule.forward(*inputs)


def _abstract(*avals: Any, rule: Primitive | Target) -> Any:
    shapes = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals)
    out = jax.eval_shape(functools.partial(_forward, rule=rule), *shapes)
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
