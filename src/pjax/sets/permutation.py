"""Permutation matrices, and the assignment behind their projection."""

import dataclasses
from typing import Any, ClassVar

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
    :math:`\langle p, x\rangle`: an assignment of columns to rows, which shortest augmenting paths find in
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
        n = x.shape[-1]
        columns = jax.vmap(_assign)(-x.reshape(-1, n, n))
        return jax.nn.one_hot(columns, n, dtype=x.dtype).reshape(x.shape)

    def relaxed(self) -> Set:
        return Box(0.0, 1.0)


def _assign(cost: jax.Array) -> jax.Array:
    """For each row of a square matrix its column, such that the costs add up to the least.

    Rows come in one after the other. Each looks for the shortest path, in costs reduced by the prices of
    rows and columns, to a column that is free; then columns change hands. Column ``n`` is where paths start.
    """
    n = len(cost)

    def bring_in(row: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]) -> Any:
        owner, of_rows, of_columns = state  # n is no row
        owner = owner.at[n].set(row)

        def searching(search: Any) -> jax.Array:
            return search[0][search[1]] < n

        def look(search: Any) -> Any:
            owner, column, seen, least, before, of_rows, of_columns = search
            seen = seen.at[column].set(True)
            reduced = cost[owner[column]] - of_rows[owner[column]] - of_columns[:n]
            shorter = ~seen[:n] & (reduced < least)
            least, before = jnp.where(shorter, reduced, least), jnp.where(shorter, column, before)
            open_ = jnp.where(seen[:n], jnp.inf, least)
            nearest = jnp.argmin(open_)
            step = open_[nearest]
            paid = jnp.where(seen, step, 0)
            of_rows, of_columns = of_rows.at[owner].add(paid), of_columns - paid
            least = jnp.where(seen[:n], least, least - step)
            return owner, nearest, seen, least, before, of_rows, of_columns

        unseen, far = jnp.zeros(n + 1, bool), jnp.full(n, jnp.inf, cost.dtype)
        start = (owner, jnp.asarray(n), unseen, far, jnp.full(n, n), of_rows, of_columns)
        owner, column, _, _, before, of_rows, of_columns = jax.lax.while_loop(searching, look, start)

        def hand_on(path: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            owner, column = path
            return owner.at[column].set(owner[before[column]]), before[column]

        owner, _ = jax.lax.while_loop(lambda path: path[1] < n, hand_on, (owner, column))
        return owner, of_rows, of_columns

    none, free = jnp.zeros(n + 1, cost.dtype), jnp.full(n + 1, n)
    owner, _, _ = jax.lax.fori_loop(0, n, bring_in, (free, none, none))
    return jnp.argsort(owner[:n])
