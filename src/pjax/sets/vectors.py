"""Sets of vectors: of a length, probabilities, few entries; and of matrices: permutations."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from pjax.checks import check_whole
from pjax.errors import InputError
from pjax.sets._set import STATIC, Set
from pjax.sets.numbers import Box


def _length(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The largest entry in size, and vectors and their lengths in units of it: no square overflows."""
    top = jnp.max(jnp.abs(x), axis=-1)
    # Compilers multiply by the inverse, which of the largest numbers is zero on some devices.
    less = jnp.where(top > 1, 0.25, 1).astype(x.dtype)
    unit = (x * less[..., None]) / jnp.where(top > 0, top * less, 1)[..., None]
    return top, unit, jnp.linalg.norm(unit, axis=-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ball(Set):
    r"""Vectors of bounded length: :math:`\{x : |x| \le r\}`.

    Args:
        radius: a number, or one for each member.

    >>> Ball(1.0).project(jnp.array([3.0, 4.0])).round(6).tolist()
    [0.6000000238418579, 0.800000011920929]
    """

    radius: Any = 1.0

    def __post_init__(self) -> None:
        self.known_numbers("radius", 0)

    def project(self, x: jax.Array) -> jax.Array:
        top, unit, length = _length(x)
        inside = top * length <= self.radius
        shrink = jnp.asarray(self.radius, x.dtype) / jnp.where(inside, 1, length)
        return jnp.where(inside[..., None], x, unit * shrink[..., None])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sphere(Set):
    r"""Vectors of one length: :math:`\{x : |x| = r\}`. Not convex.

    For a vector of zeros, to which all members are equally near, the first axis is chosen.

    Args:
        radius: a number, or one for each member.

    >>> Sphere(2.0).project(jnp.array([[0.0, 0.5], [0.0, 0.0]])).tolist()
    [[0.0, 2.0], [2.0, 0.0]]
    """

    radius: Any = 1.0

    def __post_init__(self) -> None:
        self.known_numbers("radius", 0)

    def project(self, x: jax.Array) -> jax.Array:
        top, unit, length = _length(x)
        some = top > 0
        first = jnp.zeros_like(x).at[..., 0].set(1)
        unit = unit / jnp.where(some, length, 1)[..., None]
        return jnp.where(some[..., None], unit, first) * jnp.asarray(self.radius, x.dtype)[..., None]

    def relaxed(self) -> Set:
        return Ball(self.radius)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Simplex(Set):
    r"""Vectors that are not negative and add up to a total: :math:`\{x : x \ge 0, \sum_i x_i = t\}`.

    The projection lowers all entries by one number, and what would be negative is zero. Which entries stay
    follows from their order.

    Args:
        total: :math:`t`; a number, or one for each member.

    >>> Simplex().project(jnp.array([0.5, 1.0, -2.0])).tolist()
    [0.25, 0.75, 0.0]
    """

    total: Any = 1.0

    def __post_init__(self) -> None:
        self.known_numbers("total", 0)

    def project(self, x: jax.Array) -> jax.Array:
        total = jnp.broadcast_to(jnp.asarray(self.total, x.dtype), x.shape[:-1])[..., None]
        total = jnp.where(total < 0, jnp.nan, total)  # inside `jit`, where it was not seen before
        # Below the largest by more than the total nothing stays: sums are of numbers of one size.
        low = jnp.maximum(x - jnp.max(x, axis=-1, keepdims=True), -total)
        order = -jnp.sort(-low, axis=-1)
        count = jnp.arange(1, x.shape[-1] + 1, dtype=x.dtype)
        level = (jnp.cumsum(order, axis=-1) - total) / count
        stays = jnp.sum(order > level, axis=-1, keepdims=True)
        last = jnp.maximum(stays, 1) - 1
        level = jnp.take_along_axis(level, last, axis=-1)
        return jnp.maximum(low - level, 0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OneHot(Set):
    r"""Vectors with one entry of one and zeros elsewhere: the corners of the simplex. Not convex.

    The nearest has its one where the largest entry is; of several, the first.

    >>> OneHot().project(jnp.array([0.5, 1.0, 1.0])).tolist()
    [0.0, 1.0, 0.0]
    """

    def project(self, x: jax.Array) -> jax.Array:
        return jax.nn.one_hot(jnp.argmax(x, axis=-1), x.shape[-1], dtype=x.dtype)

    def relaxed(self) -> Set:
        return Simplex()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sparse(Set):
    r"""Vectors with at most k entries that are not zero. Not convex.

    The nearest keeps the k largest in size; of equal ones, the first.

    Args:
        k: at least 1.

    >>> Sparse(2).project(jnp.array([1.0, -3.0, 2.0, 2.0])).tolist()
    [0.0, -3.0, 2.0, 0.0]
    """

    k: int = dataclasses.field(metadata=STATIC)

    def __post_init__(self) -> None:
        check_whole("Sparse: k", self.k)

    def check(self, shape: tuple[int, ...]) -> None:
        if shape[0] < self.k:
            raise InputError(f"Sparse: k = {self.k} of vectors of length {shape[0]} constrains nothing.")

    def project(self, x: jax.Array) -> jax.Array:
        _, kept = jax.lax.top_k(jnp.abs(x), self.k)
        entries = jnp.take_along_axis(x, kept, -1)
        return jnp.put_along_axis(jnp.zeros_like(x), kept, entries, -1, inplace=False)

    def relaxed(self) -> None:
        return None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Permutation(Set):
    r"""Square matrices with a single one in every row and column, and zeros elsewhere. Not convex.

    All have the same length, so the nearest to :math:`x` is the :math:`p` with the largest
    :math:`\langle p, x\rangle`: an assignment of columns to rows, which the Hungarian algorithm finds in
    :math:`O(n^3)` steps.

    >>> Permutation().project(jnp.array([[2.0, 3.0], [0.0, 3.0]])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    core = 2

    def check(self, shape: tuple[int, ...]) -> None:
        if shape[0] != shape[1]:
            raise InputError(
                f"Permutation: the matrices must be square; got {shape[0]} rows, {shape[1]} columns."
            )

    def project(self, x: jax.Array) -> jax.Array:
        import optax  # takes long, and may not be needed

        def nearest(x: jax.Array) -> jax.Array:
            return jnp.zeros_like(x).at[optax.assignment.hungarian_algorithm(-x)].set(1)

        n = x.shape[-1]
        return jax.vmap(nearest)(x.reshape(-1, n, n)).reshape(x.shape)

    def relaxed(self) -> Set:
        return Box(0.0, 1.0)
