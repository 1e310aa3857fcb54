"""Values in sets: as a node in the middle of a function, and as a target at its end."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pjax.checks import check_float
from pjax.errors import InputError
from pjax.losses._labels import check_finite
from pjax.rules.arithmetic import weight_like, wide
from pjax.rules.base import Arrays, Place, Primitive, Projection, Target, Weight, apply
from pjax.sets._set import Set


@dataclasses.dataclass(frozen=True)
class Constrain(Primitive):
    r"""Passes on a value that must be in a set.

    Set: :math:`\{(x, z) : z = x \in C\}`. With the average :math:`m = (x_0 + w z_0) / (1 + w)`, the nearest
    is :math:`x = z = P_C(m)`. Where the numbers of one member have different weights, their mean is taken.
    The function itself is :math:`P_C`: what reads the value always finds it in the set.

    The inputs are the value, in vector form, and the arrays of the set, which stay what they are.

    Args:
        kind: the class of the set. For JAX the structures of two classes with the same fields are equal.
        structure: the set without its arrays, as `jax.tree.structure` gives it.
        relaxed: whether to go by the convex set around it, as methods that take small steps do: they pass on
            what is asked for as it is, but not what leads away from that set.
    """

    kind: type[Set]
    structure: Any
    relaxed: bool = False

    name: ClassVar[str] = "constrain"

    moving = 1

    def set_of(self, arrays: Sequence[jax.Array]) -> Set:
        """The set, with its arrays in float32 or wider."""
        found: Set = jax.tree.unflatten(self.structure, [a if a.dtype == bool else wide(a) for a in arrays])
        return found

    def forward(self, *inputs: jax.Array) -> jax.Array:
        x, *arrays = inputs
        into: Set | None = self.set_of(arrays)
        if self.relaxed and into is not None:
            into = into.relaxed()
        return x if into is None else into.project(wide(x)).astype(x.dtype)

    def displace(
        self, inputs: Arrays, shifts: Arrays, output: jax.Array, shift: jax.Array, weight: Weight = 1.0
    ) -> Projection:
        x0, dx, z0, dz = map(wide, (inputs[0], shifts[0], output, shift))
        into = self.set_of(inputs[1:])
        w = weight_like(weight, x0)
        if into.core and w.ndim:  # one for each member
            w = jnp.mean(jnp.broadcast_to(w, x0.shape), axis=tuple(range(-into.core, 0)), keepdims=True)
        if self.relaxed:
            back = (dz - dx) / (1 + w)
            move = _not_outwards(into.relaxed(), x0, w * back)
            out = -back
        else:
            # The move to the average, and on to the set: nothing, exactly, where the average is in it.
            residual = (dz - dx) + (z0 - x0)
            back = residual / (1 + w)
            middle = x0 + dx + w * back
            beyond = into.project(middle) - middle
            move, out = w * back + beyond, beyond - back
        still = tuple(jnp.zeros(a.shape, output.dtype) for a in inputs[1:])
        return (move.astype(inputs[0].dtype), *still), out.astype(output.dtype)

    def move_edges(self, at: Place, shifts: Arrays, goal: jax.Array | None) -> tuple[Arrays, jax.Array]:
        if at.read is not None and goal is not None:
            # A member is one, read or not; what nobody reads of it has no wish but the input's.
            goal = jnp.where(at.read, goal, at.inputs[0] + shifts[0] - at.point)
        return super().move_edges(dataclasses.replace(at, read=None), shifts, goal)

    def as_target(self) -> "Member":
        return Member(self)

    def dithered(self) -> Primitive:
        return dataclasses.replace(self, relaxed=True)


def _not_outwards(around: Set | None, x: jax.Array, move: jax.Array) -> jax.Array:
    """The move without the part that leads a value outside of a convex set further away from it."""
    if around is None:
        return move
    away = x - around.project(x)
    axes = tuple(range(-around.core, 0))
    along, square = (jnp.sum(away * y, axis=axes, keepdims=True) for y in (move, away))
    return move - away * (jnp.maximum(along, 0) / jnp.where(square > 0, square, 1))


@dataclasses.dataclass(frozen=True)
class Member(Target):
    r"""Asks for a value in a set: what `Constrain` is at the end of a function.

    The loss is the squared distance to the set, and the operator the projection onto it.

    Args:
        rule: what it stands for.
    """

    rule: Constrain

    name: ClassVar[str] = "member"

    def forward(self, predictions: jax.Array, *labels: Any, **_: Any) -> jax.Array:
        gap = wide(self.displace(predictions, *labels))
        axes = tuple(range(-self.rule.set_of(labels).core, 0))
        return jnp.sum(gap * gap, axis=axes).astype(predictions.dtype)

    def displace(self, predictions: jax.Array, *labels: Any, **_: Any) -> jax.Array:
        x = wide(predictions)
        return (self.rule.set_of(labels).project(x) - x).astype(predictions.dtype)


def constrain(x: jax.typing.ArrayLike, into: Set, axis: int | Sequence[int] | None = None) -> jax.Array:
    """Put a value into a set: the result is the nearest point of the set.

    So whatever reads the result finds it in the set at any time. In a traced function it is also a constraint
    on ``x`` itself: solvers of `pjax.optim` move ``x`` into the set. `ExtrapolatedProjections` does not; it
    hands on to ``x`` what is asked of the result, but for moves away from the set. A function may end in such
    values instead of losses: then each is a target, with the squared distance to the set as its loss.

    Args:
        x: floating-point numbers.
        into: a set of `pjax.sets`.
        axis: the axis or axes along which the members of the set lie. By default ``x`` as a whole is one
            vector; for sets of matrices the last two axes are one matrix. Sets of numbers take no axis.

    >>> from pjax import sets
    >>> constrain(jnp.array([[0.5, 2.0], [3.0, 0.0]]), sets.Simplex(), axis=0).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    if not isinstance(into, Set):
        raise InputError(
            f"constrain: expected a set, such as pjax.sets.Box(0.0, 1.0), got {into!r:.120}; a projection of "
            "your own becomes one by pjax.sets.Own."
        )
    value = check_float("constrain: values", x)
    check_finite("constrain", "values", value)
    axes = _member_axes(into, value.ndim, axis)
    last = tuple(range(-len(axes), 0))
    members = jnp.moveaxis(value, axes, last)
    outer, shape = members.shape[: value.ndim - len(axes)], members.shape[value.ndim - len(axes) :]
    core = (math.prod(shape),) if into.core == 1 else shape
    into.check(core)
    fitted = into.fitted(value.shape, outer, value.dtype)

    def vector_form(y: jax.Array) -> jax.Array:
        return jnp.moveaxis(y, axes, last).reshape(*outer, *core)

    entries = {name: getattr(fitted, name) for name in fitted.entries if axes}
    moved = {name: vector_form(array) for name, array in entries.items() if array is not None}
    arrays, structure = jax.tree.flatten(dataclasses.replace(fitted, **moved))
    found = apply(Constrain(type(into), structure), vector_form(value), *arrays)
    return jnp.moveaxis(found.reshape(members.shape), last, axes)


def _member_axes(into: Set, ndim: int, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    """The axes of a member, counted from the first."""
    kind = type(into).__name__
    if into.core == 0:
        if axis is not None:
            raise InputError(
                f"constrain: {kind} takes numbers one by one and has no axis; got axis={axis!r}."
            )
        return ()
    chosen = (range(ndim) if into.core == 1 else (-2, -1)) if axis is None else axis
    try:
        places = np.lib.array_utils.normalize_axis_tuple(chosen, ndim)
    except ValueError:  # one that is not there, or twice the same
        places = ()
    if not places or (into.core == 2 and len(places) != 2):
        wanted = "one axis or several" if into.core == 1 else "two axes"
        raise InputError(
            f"constrain: members of {kind} lie along {wanted} of the value, each between {-ndim} and "
            f"{ndim - 1}; got axis={axis!r} for {ndim} axes."
        )
    return places
