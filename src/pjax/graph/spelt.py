"""Losses that are spelt with other functions: recognised by comparison with known spellings.

A spelling is a function of JAX. It is traced for logits of the shape at hand, and its equations are compared
with those from which a value was computed, one by one, with all static arguments and all numbers in them.
Whatever differs, be it an axis, a mask, a temperature or a smoothed label, is another function, and is read
equation by equation like any other.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from pjax.graph import jaxprs
from pjax.graph.wires import Expr

_NEAR = 48
"""How many values to look through for logits."""


class Made(NamedTuple):
    """Which equation a value of a graph comes from."""

    out: Expr
    eqn: jex.JaxprEqn
    result: int
    operands: tuple[Expr, ...]


class Spelling(NamedTuple):
    """A way to write a cross-entropy."""

    spelt: Callable[..., jax.Array]
    """The function of logits and labels."""
    labels: Callable[..., jax.Array]
    """The labels of the cross-entropy, from logits and labels."""
    value: Callable[..., jax.Array]
    """The function's value, from the losses and the labels."""


def _counted(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Classes, where negative ones are counted from the end."""
    return jnp.where(labels < 0, labels + logits.shape[-1], labels)


def _shares(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Labels that add up to one: their sum is a factor of the loss. If they add up to zero, as they are."""
    del logits
    total = jnp.sum(labels, axis=-1, keepdims=True)
    return labels / jnp.where(total == 0, 1, total)


def _scores(losses: jax.Array, labels: jax.Array) -> jax.Array:
    total = jnp.sum(labels, axis=-1)
    return -losses * jnp.where(total == 0, jnp.any(labels != 0, axis=-1), total)


def _score(losses: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.sum(_scores(losses, labels))


def _by_optax(logits: jax.Array, labels: jax.Array) -> jax.Array:
    import optax  # takes long, and may not be needed

    found: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return found


CLASSES = (
    Spelling(_by_optax, _counted, lambda losses, _: losses),
    # Of one row for each label.
    Spelling(lambda x, y: jax.nn.log_softmax(x)[jnp.arange(len(x)), y], _counted, lambda losses, _: -losses),
    Spelling(
        lambda x, y: jnp.take_along_axis(jax.nn.log_softmax(x), y[..., None], -1),
        _counted,
        lambda losses, _: -losses[..., None],
    ),
)
"""How cross-entropies are spelt whose labels are classes."""

PROBABILITIES = (
    Spelling(lambda x, y: jnp.sum(y * jax.nn.log_softmax(x), -1), _shares, _scores),
    Spelling(lambda x, y: jnp.sum(jax.nn.log_softmax(x) * y, -1), _shares, _scores),
    Spelling(lambda x, y: jnp.sum(y * jax.nn.log_softmax(x)), _shares, _score),
    Spelling(lambda x, y: jnp.sum(jax.nn.log_softmax(x) * y), _shares, _score),
)
"""How they are spelt where labels are probabilities, or those times a weight."""

ENDS = frozenset({"sub", "gather", "reduce_sum"})
"""The equations in which all spellings end."""


def cross_entropy(out: Expr, made: Mapping[int, Made]) -> tuple[Spelling, Expr, Expr] | None:
    """In which of the known spellings a value is a cross-entropy, and its logits and labels; None if in none.

    ``made`` says how values are made, by their identity.
    """
    for logits in _candidates(out, made):
        for spelling, pattern in _patterns(logits.shape, logits.dtype, jnp.result_type(int) == jnp.int64):
            origins = {var: (eqn, i) for eqn in pattern.eqns for i, var in enumerate(eqn.outvars)}
            seen: dict[Any, Expr] = {}
            if _same(pattern.outvars[0], out, origins, made, seen):
                x, y = (seen[var] for var in pattern.invars)
                if not (x.from_loss or y.depends):
                    return spelling, x, y
    return None


def _candidates(out: Expr, made: Mapping[int, Made]) -> Iterator[Expr]:
    """Values whose largest entry is computed on the way to another: a softmax begins like this."""
    queue = {id(out): out}
    for _ in range(_NEAR):
        if not queue:
            return
        here = made.get(id(queue.pop(next(iter(queue)))))
        if here is None:
            continue
        if here.eqn.primitive.name == "reduce_max":
            yield here.operands[0]
        queue.update((id(e), e) for e in here.operands)


@functools.lru_cache(maxsize=64)
def _patterns(shape: tuple[int, ...], dtype: Any, wide: bool) -> list[tuple[Spelling, jex.Jaxpr]]:
    """The spellings for logits of a shape and type."""
    logits = jax.ShapeDtypeStruct(shape, dtype)
    kinds = (jnp.int32, jnp.int64) if wide else (jnp.int32,)
    classes = [spelling for spelling in CLASSES if len(shape) == 2 or spelling is not CLASSES[1]]
    cases = [(s, jax.ShapeDtypeStruct(shape[:-1], kind)) for s in classes for kind in kinds]
    cases += [(s, logits) for s in PROBABILITIES]
    return [(spelling, jaxprs.flat(spelling.spelt, logits, labels).jaxpr) for spelling, labels in cases]


def _same(
    var: Any,
    expr: Expr,
    origins: Mapping[Any, tuple[jex.JaxprEqn, int]],
    made: Mapping[int, Made],
    seen: dict[Any, Expr],
) -> bool:
    """Whether a value is made as a variable of a spelling is. What stands for variables is noted.

    Where it is a result, ``origins`` says of which equation, and which of its results.
    """
    if isinstance(var, jex.Literal):
        return expr.literal is not None and np.array_equal(expr.literal, var.val)
    if var in seen:
        return seen[var] is expr
    seen[var] = expr
    if var not in origins:
        return (expr.shape, expr.dtype) == (var.aval.shape, var.aval.dtype)
    eqn, result = origins[var]
    here = made.get(id(expr))
    if here is None or here.result != result or len(here.operands) != len(eqn.invars):
        return False
    if here.eqn.primitive != eqn.primitive or jaxprs.params_key(here.eqn) != jaxprs.params_key(eqn):
        return False
    pairs = zip(eqn.invars, here.operands, strict=True)
    return all(_same(v, e, origins, made, seen) for v, e in pairs)
