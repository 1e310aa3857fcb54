"""Probabilities: vectors that are not negative and add up to one, and the corners among them."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from pjax.sets._set import Set, check_numbers


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

    name: ClassVar[str] = "simplex"

    def __post_init__(self) -> None:
        check_numbers("Simplex", "total", self.total, 0)

    def project(self, x: jax.Array) -> jax.Array:
        total = jnp.broadcast_to(jnp.asarray(self.total, x.dtype), x.shape[:-1])[..., None]
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

    name: ClassVar[str] = "one_hot"

    def project(self, x: jax.Array) -> jax.Array:
        return jax.nn.one_hot(jnp.argmax(x, axis=-1), x.shape[-1], dtype=x.dtype)

    def relaxed(self) -> Set:
        return Simplex()
