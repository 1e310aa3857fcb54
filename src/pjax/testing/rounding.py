"""How inexact a function of one number is as it is written: first-order analysis of rounding."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal


def rounding(fn: Callable[[Any], Any], x: jax.Array) -> jax.Array:
    r"""How far off a value may be, in units of rounding: :math:`\sum_k |v_k \, \partial f / \partial v_k|`.

    The sum is over all that is computed on the way, each of which may be off by one part in the last digit.
    It is large where a function cancels inside: :math:`\log(1 + x^2)` is off by a unit of 1, not of itself.

    Args:
        fn: the function, row by row.
        x: where, one row for each value.

    >>> round(float(rounding(lambda x: jnp.log(1 + x * x), jnp.array([1e-3]))[0]), 3)
    1.0
    """
    closed = jax.make_jaxpr(fn)(x)
    seen: list[jax.Array] = []

    def note(value: jax.Array) -> jax.Array:
        seen.append(jnp.zeros_like(value))
        return value

    _run(closed, [x], note)

    def bumped(*bumps: jax.Array) -> Any:
        left = iter(bumps)
        return _run(closed, [x], lambda value: value * (1 + next(left)))[0]

    value, pull = jax.vjp(bumped, *seen)
    parts = (jnp.abs(part.reshape(len(x), -1)) for part in pull(jnp.ones_like(value)) if part.ndim)
    return sum((jnp.sum(jnp.where(part < jnp.inf, part, 0), axis=-1) for part in parts), jnp.zeros(len(x)))


def _run(closed: Any, inputs: list[Any], change: Callable[[jax.Array], jax.Array]) -> list[Any]:
    """Evaluate equations, those inside of calls too, and change every number that comes out of one."""
    values = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values |= dict(zip(closed.jaxpr.invars, inputs, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in closed.jaxpr.eqns:
        given = [read(v) for v in equation.invars]
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        if hasattr(inner, "consts"):
            found = _run(inner, given, change)
        else:
            found = equation.primitive.bind(*given, **equation.params)
            found = found if equation.primitive.multiple_results else [found]
            found = [change(v) if jnp.issubdtype(jnp.result_type(v), jnp.floating) else v for v in found]
        values |= dict(zip(equation.outvars, found, strict=True))
    return [read(v) for v in closed.jaxpr.outvars]
