"""Linear functions of whole arrays: sums over windows, scatters, transforms, solves."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from pjax.rules.arithmetic import conjugate_gradients, weight_like, wide, wide_reals
from pjax.rules.base import Arrays, Primitive
from pjax.rules.scalar import Function


@dataclasses.dataclass(frozen=True)
class LinearMap(Primitive):
    r"""A linear function of whole arrays, :math:`z = A x`.

    Set: :math:`\{(x, z) : z = A x\}`. With the residual :math:`r = z_0 - A x_0` and the weights :math:`W` on
    the output, the projection is

    .. math:: x \leftarrow x_0 + A^\top \mu, \quad z \leftarrow z_0 - W^{-1} \mu, \quad
        (A A^\top + W^{-1}) \mu = r .

    The equation is solved by conjugate gradients, with :math:`A` by evaluation and :math:`A^\top` by
    `jax.linear_transpose`. An array is one copy of the function: there are no leading axes.

    Args:
        function: the function: linear in the inputs that move, given the others.
        moving: how many inputs move; those after them are constants.

    >>> total = LinearMap(Function("cumsum", "cumsum", jnp.cumsum))
    >>> (x,), z = total.project((jnp.zeros(2),), jnp.array([1.0, 3.0]))
    >>> [[round(float(v), 2) for v in a] for a in (x, z)]
    [[1.0, 1.0], [1.0, 2.0]]
    """

    function: Function
    moving: int = 1

    name: ClassVar[str] = "linear"
    joint: ClassVar[bool] = True
    smooth: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return self.function.label

    def forward(self, *inputs: jax.Array) -> jax.Array:
        moving, apply, _ = self._maps(inputs)
        return apply(moving).astype(jnp.result_type(*inputs[: self.moving]))

    def displace(
        self,
        inputs: Arrays,
        shifts: Arrays,
        output: jax.Array,
        shift: jax.Array,
        weight: jax.typing.ArrayLike = 1.0,
    ) -> tuple[Arrays, jax.Array]:
        n = self.moving
        _, apply, pull = self._maps(inputs)
        residual = wide(shift) - apply(tuple(map(wide, shifts[:n])))
        root = jnp.broadcast_to(jnp.sqrt(weight_like(weight, residual)), residual.shape)

        def equation(v: jax.Array) -> jax.Array:
            return v + root * apply(pull(root * v))

        # The unknown is W^(-1/2) mu: the equation is then symmetric for any weights.
        rows = _row_norms(lambda v: apply(pull(v)), residual)
        solved = conjugate_gradients(equation, root * residual, 1 + root * root * rows)
        pushed = pull(root * solved)
        moves = tuple(m.astype(x.dtype) for m, x in zip(pushed, inputs[:n], strict=True))
        back = apply(pushed) - residual
        return (*moves, *(jnp.zeros_like(c) for c in inputs[n:])), back.astype(output.dtype)

    def _maps(self, inputs: Arrays) -> tuple[Arrays, Callable[[Arrays], jax.Array], Callable[[Any], Arrays]]:
        """The arrays that move, the function of them, and its transpose."""
        n = self.moving
        moving = tuple(map(wide, inputs[:n]))
        constants = list(map(wide_reals, inputs[n:]))

        def apply(moving: Arrays) -> jax.Array:
            return self.function.fn(*moving, *constants)

        return moving, apply, lambda v: jax.linear_transpose(apply, moving)(v)[0]


def _row_norms(square: Callable[[jax.Array], jax.Array], like: jax.Array) -> jax.Array:
    """The diagonal of a symmetric positive matrix: exact where there is nothing else, else a rough guess."""
    probes = jax.random.rademacher(jax.random.key(0), (_PROBES, *like.shape), like.dtype)
    found = jnp.mean(jax.lax.map(lambda v: v * square(v), probes), axis=0)
    return jnp.maximum(found, jnp.mean(jnp.abs(found)) / 16)


_PROBES = 2
