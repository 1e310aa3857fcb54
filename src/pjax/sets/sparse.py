"""Vectors with few entries that are not zero."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.errors import InputError
from pjax.sets._set import STATIC, Set, check_whole


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

    name: ClassVar[str] = "sparse"

    def __post_init__(self) -> None:
        check_whole("Sparse", "k", self.k, 1)

    def check(self, shape: tuple[int, ...]) -> None:
        if shape[0] < self.k:
            raise InputError(f"Sparse: k = {self.k} of vectors of length {shape[0]} constrains nothing.")

    def project(self, x: jax.Array) -> jax.Array:
        _, kept = jax.lax.top_k(jnp.abs(x), self.k)
        mask = jax.nn.one_hot(kept, x.shape[-1], dtype=bool).any(axis=-2)
        return jnp.where(mask, x, 0)

    def relaxed(self) -> None:
        return None
