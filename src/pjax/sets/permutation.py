"""Permutation matrices."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.errors import InputError
from pjax.sets._set import Set
from pjax.sets.numbers import Box


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

    name: ClassVar[str] = "permutation"
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
