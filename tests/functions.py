"""Functions of one number that are checked: those of JAX, and those that people write with them."""

import dataclasses

import jax
import jax.numpy as jnp

from pjax.rules import Example, Function, Scalar, elementary
from pjax.rules.scalar import TABLE

WRITTEN = {
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "elu": jax.nn.elu,
    "leaky_relu": lambda x: jnp.where(x > 0, x, 0.1 * x),
    "mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)),
    "hard_swish": jax.nn.hard_swish,
    "log_square": lambda x: jnp.log(1 + x * x),
    "root": jnp.sqrt,
    "reciprocal": lambda x: 1 / x,
}


def positive(rule: Scalar) -> Scalar:
    """The function of positive numbers only: for those that have a pole at every integer below.

    There JAX has no right derivative of digamma below about -10, and the values of lgamma beside its poles
    are such as hardly any number comes near enough to have.
    """
    function = rule.function

    def fn(x: jax.Array) -> jax.Array:
        return function.fn(jnp.where(x > 0, x, jnp.nan))

    return Scalar(dataclasses.replace(function, key=(function.key, "positive"), fn=fn))


POWERS = [elementary("integer_pow", y=y) for y in (-2, -1, 3, 4)]
OTHERS = [elementary(name) for name in sorted(TABLE) if name not in ("digamma", "integer_pow", "lgamma")]
GAMMAS = [positive(elementary(name)) for name in ("digamma", "lgamma")]
RULES = [*OTHERS, *POWERS, *GAMMAS, *(Scalar(Function(name, name, fn)) for name, fn in WRITTEN.items())]
EXAMPLES = [Example(rule, (((),),)) for rule in RULES]
