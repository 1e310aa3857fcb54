"""Functions of whole arrays without a rule of their own: by their derivative."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from pjax.rules.arithmetic import conjugate_gradients
from pjax.rules.base import Arrays, Primitive
from pjax.rules.scalar import Function

ROUNDS = 8
"""Of Gauss and Newton."""


@dataclasses.dataclass(frozen=True)
class Joint(Primitive):
    r"""A smooth function of whole arrays to one array.

    Set: :math:`\{(x, z) : z = f(x)\}`. The distance :math:`|x - x_0|^2 + w |f(x) - z_0|^2` is lowered by the
    method of Gauss and Newton: with the derivative :math:`J` at :math:`x`, the step leads to

    .. math:: x_0 + J^\top \mu, \quad (J J^\top + W^{-1}) \mu = z_0 - f(x) - J (x_0 - x) ,

    and is shortened where it does not help. The result lies on the graph, and no small move brings it nearer;
    whether there is a nearer point far away is not known.

    Args:
        function: of the inputs that move, then of the others.
        moving: how many inputs move; those after them are constants.
    """

    function: Function
    moving: int = 1

    name: ClassVar[str] = "joint"
    joint: ClassVar[bool] = True
    smooth: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return self.function.label

    def forward(self, *inputs: jax.Array) -> jax.Array:
        return self.function.fn(*inputs)

    def displace(
        self,
        inputs: Arrays,
        shifts: Arrays,
        output: jax.Array,
        shift: jax.Array,
        weight: jax.typing.ArrayLike = 1.0,
    ) -> tuple[Arrays, jax.Array]:
        fn, n = self._of_moving(inputs), self.moving
        start = tuple(x + s for x, s in zip(inputs[:n], shifts[:n], strict=True))
        goal, w = output + shift, jnp.broadcast_to(jnp.asarray(weight, output.dtype), output.shape)

        def cost(moves: Arrays) -> tuple[jax.Array, jax.Array]:
            gap = goal - fn(*(x + m for x, m in zip(start, moves, strict=True)))
            return sum((jnp.sum(m * m) for m in moves), jnp.sum(w * gap * gap)), gap

        def one(_: Any, carry: tuple[Arrays, jax.Array, jax.Array]) -> Any:
            moves, best, gap = carry
            back = tuple(-m for m in moves)
            to = _towards(fn, tuple(x + m for x, m in zip(start, moves, strict=True)), back, gap, w)
            for part in (1.0, 0.5, 0.125, 1 / 64):
                trial = tuple(m + part * (t - m) for m, t in zip(carry[0], to, strict=True))
                value, missing = cost(trial)
                better = value < best
                moves = tuple(jnp.where(better, t, m) for t, m in zip(trial, moves, strict=True))
                best, gap = jnp.where(better, value, best), jnp.where(better, missing, gap)
            return moves, best, gap

        nothing = tuple(jnp.zeros_like(x) for x in start)
        moves, _, gap = jax.lax.fori_loop(0, ROUNDS, one, (nothing, *cost(nothing)))
        return (*moves, *(jnp.zeros_like(c) for c in inputs[n:])), -gap

    def _of_moving(self, inputs: Arrays) -> Callable[..., jax.Array]:
        return lambda *moving: self.function.fn(*moving, *inputs[self.moving :])


def _towards(
    fn: Callable[..., jax.Array], at: Arrays, back: Arrays, gap: jax.Array, weight: jax.Array
) -> Arrays:
    """The moves from the start that a step of Gauss and Newton leads to."""
    _, push = jax.linearize(fn, *at)
    pull = jax.linear_transpose(push, *at)
    root = jnp.sqrt(weight)
    found = conjugate_gradients(lambda v: v + root * push(*pull(root * v)), root * (gap - push(*back)))
    return tuple(pull(root * found))
