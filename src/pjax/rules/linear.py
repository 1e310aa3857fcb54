"""Functions of whole arrays: linear ones, and any other that has a derivative."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from pjax.rules.arithmetic import weight_like, wide, wide_reals
from pjax.rules.base import Arrays, Primitive, Projection, Weight
from pjax.rules.scalar import Function

ROUNDS = 8
"""How many steps of Gauss and Newton are made."""
_PROBES = 2


@dataclasses.dataclass(frozen=True)
class _OfArrays(Primitive):
    """A function of whole arrays: of those that move, and after them of constants."""

    function: Function
    moving: int = 1

    joint: ClassVar[bool] = True
    smooth: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return self.function.label

    def of_moving(self, constants: Sequence[jax.Array]) -> Callable[..., jax.Array]:
        return lambda *moving: self.function.fn(*moving, *constants)


@dataclasses.dataclass(frozen=True)
class LinearMap(_OfArrays):
    r"""A linear function of whole arrays, :math:`z = A x`: sums over windows, scatters, transforms, solves.

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

    name: ClassVar[str] = "linear"

    def forward(self, *inputs: jax.Array) -> jax.Array:
        fn, moving = self._wide(inputs)
        return fn(*moving).astype(jnp.result_type(*inputs[: self.moving]))

    def displace(
        self, inputs: Arrays, shifts: Arrays, output: jax.Array, shift: jax.Array, weight: Weight = 1.0
    ) -> Projection:
        n, (fn, moving) = self.moving, self._wide(inputs)
        pull = jax.linear_transpose(fn, *moving)
        residual = wide(shift) - fn(*map(wide, shifts[:n]))
        w = jnp.broadcast_to(weight_like(weight, residual), residual.shape)
        # The diagonal of A Aᵀ: exact where there is nothing else, else a rough guess.
        probes = jax.random.rademacher(jax.random.key(0), (_PROBES, *residual.shape), residual.dtype)
        rows = jnp.mean(jax.lax.map(lambda v: v * fn(*pull(v)), probes), axis=0)
        rows = jnp.maximum(rows, jnp.mean(jnp.abs(rows)) / 16)
        pushed = _solved(fn, pull, residual, w, 1 + w * rows)
        moves = tuple(m.astype(x.dtype) for m, x in zip(pushed, inputs[:n], strict=True))
        back = fn(*pushed) - residual
        return (*moves, *map(jnp.zeros_like, inputs[n:])), back.astype(output.dtype)

    def _wide(self, inputs: Arrays) -> tuple[Callable[..., jax.Array], Arrays]:
        """The function of the arrays that move, and these, in float32 or wider."""
        constants = list(map(wide_reals, inputs[self.moving :]))
        return self.of_moving(constants), tuple(map(wide, inputs[: self.moving]))


def _solved(
    push: Callable[..., jax.Array],
    pull: Callable[[jax.Array], Any],
    residual: jax.Array,
    weight: jax.Array,
    diagonal: jax.typing.ArrayLike = 1.0,
) -> Arrays:
    """The moves that take a residual away, given a linear map and its transpose: see `LinearMap`.

    The diagonal is what the equation resembles.
    """
    from jax.scipy.sparse.linalg import cg  # takes long, and may not be needed

    root = jnp.sqrt(weight)

    # The unknown is W^(-1/2) mu: the equation is then symmetric for any weights.
    def equation(v: jax.Array) -> jax.Array:
        return v + root * push(*pull(root * v))

    right = root * residual
    size = jnp.max(jnp.abs(right), initial=0)
    size = jnp.where((size > 0) & jnp.isfinite(size), size, 1)  # squares must not overflow
    eps = float(jnp.finfo(right.dtype).eps)
    found, _ = cg(equation, right / size, tol=eps, maxiter=2 * right.size + 16, M=lambda v: v / diagonal)
    return tuple(pull(root * (found * size)))


@dataclasses.dataclass(frozen=True)
class Joint(_OfArrays):
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

    name: ClassVar[str] = "joint"

    def forward(self, *inputs: jax.Array) -> jax.Array:
        return self.function.fn(*inputs)

    def displace(
        self, inputs: Arrays, shifts: Arrays, output: jax.Array, shift: jax.Array, weight: Weight = 1.0
    ) -> Projection:
        n = self.moving
        fn = self.of_moving(inputs[n:])
        start = tuple(x + s for x, s in zip(inputs[:n], shifts[:n], strict=True))
        goal, w = output + shift, jnp.broadcast_to(weight_like(weight, output), output.shape)

        def cost(moves: Arrays) -> tuple[jax.Array, jax.Array]:
            gap = goal - fn(*(x + m for x, m in zip(start, moves, strict=True)))
            return sum((jnp.sum(m * m) for m in moves), jnp.sum(w * gap * gap)), gap

        def one(_: Any, carry: tuple[Arrays, jax.Array, jax.Array]) -> Any:
            moves, best, gap = carry
            at = tuple(x + m for x, m in zip(start, moves, strict=True))
            _, push = jax.linearize(fn, *at)
            to = _solved(push, jax.linear_transpose(push, *at), gap - push(*(-m for m in moves)), w)
            for part in (1.0, 0.5, 0.125, 1 / 64):
                trial = tuple(m + part * (t - m) for m, t in zip(carry[0], to, strict=True))
                value, missing = cost(trial)
                better = value < best
                moves = tuple(jnp.where(better, t, m) for t, m in zip(trial, moves, strict=True))
                best, gap = jnp.where(better, value, best), jnp.where(better, missing, gap)
            return moves, best, gap

        nothing = tuple(map(jnp.zeros_like, start))
        moves, _, gap = jax.lax.fori_loop(0, ROUNDS, one, (nothing, *cost(nothing)))
        return (*moves, *map(jnp.zeros_like, inputs[n:])), -gap
