"""A loop over time whose derivatives in its weights are taken after it, for all times at once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pjax.nn.rnn import WRITTEN_OUT


def scan(step: Callable[[Any, Any], tuple[Any, Any]], state: jax.Array, xs: Any) -> tuple[jax.Array, Any]:
    """`jax.lax.scan`, for a step whose weights are larger than what goes through it.

    Its derivative goes back through time with the errors of states alone. Then it takes those of what the
    step closes over in one product for all times, where `jax.lax.scan` adds up one for each: on a GPU these
    are half of all kernels. For that it computes each step a second time.

    >>> weight = jnp.array(2.0)
    >>> def last(weight):
    ...     return scan(lambda state, x: (weight * state + x, state), jnp.array(1.0), jnp.arange(3.0))[0]
    >>> last(weight), jax.grad(last)(weight)
    (Array(12., dtype=float32), Array(13., dtype=float32))
    """
    step, weights = jax.closure_convert(step, state, jax.tree.map(lambda x: x[0], xs))

    def run(weights: Any, state: jax.Array, moves: Any, xs: Any) -> tuple[jax.Array, Any]:
        """The last state, all states that steps read, and all outputs; states are moved before they are read."""

        def one(state: jax.Array, given: Any) -> tuple[jax.Array, Any]:
            x, move = given
            read = state if move is None else state + move
            state, y = step(read, x, *weights)
            return state, (read, y)

        return jax.lax.scan(one, state, (xs, moves), unroll=WRITTEN_OUT)

    @jax.custom_vjp
    def whole(weights: Any, state: jax.Array, xs: Any) -> tuple[jax.Array, Any]:
        last, (_, ys) = run(weights, state, None, xs)
        return last, ys

    def forward(weights: Any, state: jax.Array, xs: Any) -> Any:
        moves = jnp.zeros((len(jax.tree.leaves(xs)[0]), *state.shape), state.dtype)
        (last, (read, ys)), back = jax.vjp(lambda moves: run(weights, state, moves, xs), moves)
        return (last, ys), (weights, xs, read, back)

    def backward(saved: Any, errors: Any) -> tuple[Any, jax.Array, None]:
        weights, xs, read, back = saved
        last, ys = errors
        (before,) = back((last, (jnp.zeros_like(read), ys)))
        after = jnp.concatenate([before[1:], last[None]])
        _, all_at_once = jax.vjp(
            lambda weights: jax.vmap(lambda state, x: step(state, x, *weights))(read, xs), weights
        )
        return *all_at_once((after, ys)), before[0], None

    whole.defvjp(forward, backward)
    return whole(weights, state, xs)
