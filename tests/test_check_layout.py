"""The check of layouts, over the data movement of pjax.numpy, and on functions that are none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import pjax
from pjax.testing import check_layout

MASK = np.array([[True, False, True], [False, False, True]])

LAYOUTS = {
    "reshape": (lambda x: pjax.reshape(x, (3, 2)), (2, 3)),
    "transpose": (lambda x: pjax.transpose(x, (-1, 0, 1)), (2, 3, 4)),
    "swapaxes": (lambda x: pjax.swapaxes(x, 0, -1), (2, 3)),
    "moveaxis": (lambda x: pjax.moveaxis(x, 0, -1), (2, 3, 1)),
    "expand_dims": (lambda x: pjax.expand_dims(x, (0, -1)), (2, 3)),
    "squeeze": (lambda x: pjax.squeeze(x), (2, 1, 3)),
    "repeat": (lambda x: pjax.repeat(x, 3, axis=0), (2, 3)),
    "repeat-unequal": (lambda x: pjax.repeat(x, (1, 0, 2), axis=1), (2, 3)),
    "broadcast_to": (lambda x: pjax.broadcast_to(x, (4, 2, 3)), (1, 3)),
    "concatenate": (lambda x, y: pjax.concatenate([x, y, x], axis=1), (2, 3), (2, 1)),
    "stack": (lambda x, y: pjax.stack([x, y], axis=-1), (2, 3), (2, 3)),
    "pad": (lambda x: pjax.pad(x, ((1, 0), (0, 2)), 0.5), (2, 3)),
    "pad-with-one": (lambda x: pjax.pad(x, 1, 1.0), (2, 3)),
    "conv_patch-same": (lambda x: pjax.conv_patch(x, 3, 2), (1, 5, 5, 2)),
    "conv_patch-sparse": (lambda x: pjax.conv_patch(x, 2, 3, "VALID"), (1, 7, 7, 1)),
    "index-slices": (lambda x: pjax.index(x, (slice(None, None, 2), -1)), (5, 3)),
    "index-repeated": (lambda x: pjax.index(x, np.array([0, 2, 2])), (4, 2)),
    "index-mask": (lambda x: pjax.index(x, MASK), (2, 3)),
    "where": (lambda x, y: jnp.where(MASK, x, y), (2, 3), (2, 3)),
    "roll-flip-tile": (lambda x: jnp.tile(jnp.flip(jnp.roll(x, 1)), 2), (5,)),
    "update": (lambda x, y: lax.dynamic_update_slice(x, y, (1,)), (5,), (2,)),
    "identity": (lambda x: x, (4,)),
    "bfloat16": (lambda x: x.astype(jnp.bfloat16), (3,)),
    "constant": (lambda x: jnp.ones((2,)) + 0 * x[:0].sum(), (3,)),
    "scalar": (lambda x: x[None], ()),
}


@pytest.mark.parametrize("case", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts(case):
    fn, *shapes = case
    check_layout(fn, *shapes)


NOT_LAYOUTS = {
    "scaled": (lambda x: x * 2, (3,)),
    "shifted": (lambda x: x + 1, (3,)),
    "sum": (lambda x: x.sum(keepdims=True), (3,)),
    "square": (lambda x: x * x, (3,)),  # the same on zeros and ones
    "maximum": (lambda x: jnp.maximum(x[0], x[1])[None], (2,)),
    "product": (lambda x, y: x * y, (3,), (3,)),
    "relu": (jax.nn.relu, (3,)),
    "sort": (jnp.sort, (5,)),
    "step": (lambda x: jnp.where(x > 2, 1.0, 0.0), (3,)),
    "negated": (lambda x: -x, (3,)),
    "one-bad-slot": (lambda x: jnp.concatenate([x[:2], x[2:] / 2]), (3,)),
}


@pytest.mark.parametrize("case", NOT_LAYOUTS.values(), ids=NOT_LAYOUTS)
def test_other_functions_are_refused(case):
    fn, *shapes = case
    with pytest.raises(AssertionError, match=r"not a layout: slot \("):
        check_layout(fn, *shapes)


def test_a_wrong_transpose_is_found():
    @jax.custom_jvp
    def first_two(x):
        return x[:2]

    @first_two.defjvp
    def _(primals, tangents):
        return first_two(*primals), tangents[0][1:3]

    with pytest.raises(AssertionError, match="the transpose of scalar 0"):
        check_layout(first_two, (3,))
