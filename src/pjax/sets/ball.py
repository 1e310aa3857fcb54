"""Vectors of a length: at most, or exactly."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from pjax.sets._set import Set, check_numbers


def _length(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The largest entry in size, and the length in units of it: squares of huge numbers do not overflow."""
    top = jnp.max(jnp.abs(x), axis=-1)
    return top, jnp.linalg.norm(x / jnp.where(top > 0, top, 1)[..., None], axis=-1)


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

    name: ClassVar[str] = "ball"

    def __post_init__(self) -> None:
        check_numbers("Ball", "radius", self.radius, 0)

    def project(self, x: jax.Array) -> jax.Array:
        top, length = _length(x)
        inside = top * length <= self.radius
        shrink = (self.radius / jnp.where(inside, 1, top)) / jnp.where(inside, 1, length)
        return jnp.where(inside[..., None], x, x * shrink[..., None])


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

    name: ClassVar[str] = "sphere"

    def __post_init__(self) -> None:
        check_numbers("Sphere", "radius", self.radius, 0)

    def project(self, x: jax.Array) -> jax.Array:
        top, length = _length(x)
        some = top > 0
        first = jnp.zeros_like(x).at[..., 0].set(1)
        unit = (x / jnp.where(some, top, 1)[..., None]) / jnp.where(some, length, 1)[..., None]
        return jnp.where(some[..., None], unit, first) * jnp.asarray(self.radius, x.dtype)[..., None]

    def relaxed(self) -> Set:
        return Ball(self.radius)
