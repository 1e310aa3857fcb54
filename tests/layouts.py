"""Layouts: that a function only moves numbers."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def check_layout(fn: Callable[..., Any], *shapes: Sequence[int]) -> None:
    """Check that a function of arrays is a layout: that it only moves numbers.

    Every slot of the result must copy one scalar of an argument or hold a constant. Then the consensus of
    everything that reads a scalar is :math:`L^\\top v / L^\\top 1`, where :math:`L` is the linear part of the
    function, and no inverse need be written. Checked are:

    - each slot copies one scalar or is constant (the function is evaluated on the digits of the scalars'
      numbers, so rounding hides nothing);
    - the transpose that JAX derives adds up, for each scalar, exactly the slots that read it;
    - the transpose of ones counts them;
    - the consensus of unchanged copies is the scalar itself, and nothing for a scalar that nobody reads.

    Args:
        fn: a function of arrays that returns an array.
        shapes: the shapes of its arguments.

    Raises:
        AssertionError: if one of these does not hold; the message says which, and where.

    >>> check_layout(lambda x: jnp.concatenate([x.T, jnp.ones((1, 2))]), (2, 3))
    >>> check_layout(lambda x: 2 * x, (3,))
    Traceback (most recent call last):
        ...
    AssertionError: not a layout: slot (0,) is neither a copy of a scalar nor constant
    """
    shapes = tuple(tuple(shape) for shape in shapes)
    sizes = [math.prod(shape) for shape in shapes]
    total = sum(sizes)

    def flat(x: Any) -> Any:
        parts = np.cumsum([0, *sizes])
        given = (x[a:b].reshape(s) for a, b, s in zip(parts, parts[1:], shapes, strict=False))
        return jnp.asarray(fn(*given)).astype(jnp.float32)

    digits = [(np.arange(total) >> bit) & 1 for bit in range(total.bit_length())]
    inputs = jnp.asarray(np.stack([np.zeros(total), np.ones(total), *digits]), jnp.float32)
    seen = np.asarray(jax.vmap(flat)(inputs))
    shape = seen.shape[1:]
    seen = seen.reshape(len(seen), -1)
    copies = (seen[0] == 0) & (seen[1] == 1) & np.isin(seen, (0, 1)).all(0)
    number = (seen[2:] * (1 << np.arange(len(digits)))[:, None]).sum(0).astype(int)
    copies &= number < total
    # A constant 0 or 1 does not change between the first two evaluations; a copy does.
    constant = (seen == seen[0]).all(0)
    rng = np.random.default_rng(0)
    probe = rng.permutation(total).astype(np.float32) + 3
    for x in (probe, -probe):  # both orders, both signs: a maximum copies, too, but not always the same
        value = np.asarray(flat(jnp.asarray(x))).ravel()
        copies &= value == x[np.minimum(number, total - 1)]
        constant &= value == seen[0]
    bad = ~(copies | constant)
    if bad.any():
        place = tuple(int(i) for i in np.unravel_index(int(bad.argmax()), shape))
        raise AssertionError(f"not a layout: slot {place} is neither a copy of a scalar nor constant")

    def linear(x: Any) -> Any:
        return flat(x) - jnp.asarray(np.where(constant, seen[0], 0).reshape(shape), jnp.float32)

    transpose = jax.linear_transpose(
        lambda x: jax.jvp(linear, (jnp.asarray(probe),), (x,))[1], jax.ShapeDtypeStruct((total,), jnp.float32)
    )
    cotangent = rng.integers(-8, 9, shape).astype(np.float32)
    ones, same = np.ones(shape, np.float32), np.asarray(linear(jnp.asarray(probe)))
    # The mean over the copies of a scalar is the scalar itself if their sum is its count times it.
    for given, what in ((cotangent, "transpose"), (ones, "count"), (same, "sum of all copies")):
        expected = np.zeros(total, np.float32)
        np.add.at(expected, number[copies], given.ravel()[copies])
        found = np.asarray(transpose(jnp.asarray(given))[0])
        bad = found != expected
        if bad.any():
            at = int(bad.argmax())
            raise AssertionError(
                f"the {what} of scalar {at} is {found[at]:g}, but its readers add up to {expected[at]:g}"
            )
