"""The NumPy-like functions of pjax.

Each takes plain arrays and returns a plain array, by ordinary JAX code: inside a function that is handed to
an optimiser they are no different from ``jax.numpy``. If an argument is a `Computation`, so is the result.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pjax import losses, sets
from pjax import rules as primitives
from pjax.containers.computation import FUNCTIONS, Array, Computation, Operand
from pjax.containers.lift import lift
from pjax.containers.vmap import vmap as vmap
from pjax.errors import InputError
from pjax.rules.windows import Padding, explicit_padding, windows

Axes = int | Sequence[int] | None

_AXES = "axes between -ndim and ndim - 1, each at most once"
_BROADCAST = "arrays whose shapes broadcast: equal lengths, or 1, counted from the last axis"
_DOT = "the last axis of the first array as long as the last but one (or only) axis of the second"
_WINDOWS = "an input (..., *spatial, channels), and padding 'SAME', 'VALID' or pairs"
_KERNEL = "an input (..., *spatial, channels), a kernel (*spatial, channels, features) with the same channels"
_INDEX = "an index that NumPy takes, within the shape, of integers, slices, None, ... and arrays"
_WIDTHS = "a width of 0 or more: an integer, a pair (before, after), or a pair for each axis; and a number"

# Operations.

identity = lift("x", expects="an array of floating point")(primitives.identity)
quantize = lift("x", expects="an array of floating point, and at least 2 levels")(primitives.quantize)
constrain = lift("x", expects="an array of floating point, a set of pjax.sets, and axes of the array")(
    sets.constrain
)


def apply(rule: primitives.Primitive | primitives.Target, *inputs: Operand) -> Any:
    """Evaluate a primitive or a target so that `pjax.trace` sees it as one node.

    >>> apply(primitives.Clip(), [0.5, 2.0]).tolist()
    [0.5, 1.0]
    """

    def function(*inputs: jax.Array) -> jax.Array:
        return primitives.apply(rule, *inputs)

    function.__name__ = rule.name
    return lift("*inputs", expects=f"what {type(rule).__name__}.forward takes")(function)(*inputs)


@lift("x", "y", expects=_BROADCAST)
def add(x: Operand, y: Operand) -> jax.Array:
    """The sum of two arrays, elementwise."""
    return jnp.add(x, y)


@lift("x", "y", expects=_BROADCAST)
def subtract(x: Operand, y: Operand) -> jax.Array:
    """The difference of two arrays, elementwise."""
    return jnp.subtract(x, y)


@lift("x", expects="an array of numbers")
def negative(x: Operand) -> jax.Array:
    """The opposite of an array, elementwise."""
    return jnp.negative(x)


@lift("x", "y", expects=_BROADCAST)
def multiply(x: Operand, y: Operand) -> jax.Array:
    """The product of two arrays, elementwise."""
    return jnp.multiply(x, y)


@lift("x", expects="an array of numbers")
def square(x: Operand) -> jax.Array:
    """The product of an array with itself, elementwise."""
    return jnp.multiply(x, x)


@lift("x", expects=_AXES)
def sum(x: Operand, axis: Axes = None, keepdims: bool = False) -> jax.Array:
    """The sum over some axes.

    Args:
        x: an array.
        axis: one axis or several, negative ones counted from the end; all by default.
        keepdims: keep the axes, with length 1.

    >>> sum([[1.0, 2.0], [3.0, 4.0]], axis=-1).tolist()
    [3.0, 7.0]
    """
    return jnp.sum(x, _axes(axis), keepdims=keepdims)


@lift("x", expects=_AXES)
def mean(x: Operand, axis: Axes = None, keepdims: bool = False) -> jax.Array:
    """The mean over some axes, which are given as to `sum`.

    >>> mean([[1.0, 2.0], [3.0, 4.0]], axis=-1).tolist()
    [1.5, 3.5]
    """
    return jnp.mean(x, _axes(axis), keepdims=keepdims)


@lift("x", expects=_AXES + ", none of them empty")
def max(x: Operand, axis: Axes = None, keepdims: bool = False) -> jax.Array:
    """The maximum over some axes, which are given as to `sum`.

    >>> max([[1.0, 2.0], [3.0, 4.0]], axis=-1).tolist()
    [2.0, 4.0]
    """
    return jnp.max(x, _axes(axis), keepdims=keepdims)


@lift("x", expects=_AXES + ", none of them empty")
def min(x: Operand, axis: Axes = None, keepdims: bool = False) -> jax.Array:
    """The minimum over some axes, which are given as to `sum`.

    >>> min([[1.0, 2.0], [3.0, 4.0]], axis=-1).tolist()
    [1.0, 3.0]
    """
    return jnp.min(x, _axes(axis), keepdims=keepdims)


@lift("x", "y", expects=_BROADCAST)
def maximum(x: Operand, y: Operand) -> jax.Array:
    """The larger of two arrays, elementwise."""
    return jnp.maximum(x, y)


@lift("x", "y", expects=_BROADCAST)
def minimum(x: Operand, y: Operand) -> jax.Array:
    """The smaller of two arrays, elementwise."""
    return jnp.minimum(x, y)


@lift("x", expects="an array of numbers")
def relu(x: Operand) -> jax.Array:
    """The positive part of an array, elementwise. Its derivative at zero is zero."""
    return jax.nn.relu(x)


@lift("*inputs", expects="at least one array, " + _BROADCAST)
def sum_relu(*inputs: Operand, axis: Axes = None) -> jax.Array:
    """The positive part of the sum of all inputs.

    Args:
        inputs: arrays whose shapes broadcast.
        axis: sum each input over these axes first; none by default.

    >>> sum_relu([1.0, -5.0], 2.0, [0.0, 1.0]).tolist()
    [3.0, 0.0]
    """
    if not inputs:
        raise InputError("needs at least one input.")
    sums = inputs if axis is None else [jnp.sum(x, _axes(axis)) for x in inputs]
    return jax.nn.relu(functools.reduce(jnp.add, sums))


@lift("x", "y", expects=_DOT)
def dot(x: Operand, y: Operand) -> jax.Array:
    """The dot product over the last axis of `x` and the last but one of `y`, as in NumPy.

    >>> dot([[1.0, 2.0]], [3.0, 4.0]).tolist()
    [11.0]
    """
    return jnp.dot(x, y)


@lift("x", "y", expects=_DOT + ", and leading axes that broadcast")
def matmul(x: Operand, y: Operand) -> jax.Array:
    """The matrix product over the last two axes; leading axes broadcast, as in NumPy.

    >>> matmul([[1.0, 2.0]], [[3.0], [4.0]]).tolist()
    [[11.0]]
    """
    return jnp.matmul(x, y)


@lift("*operands", expects="subscripts such as 'bi,ij->bj', with one letter for each axis of each array")
def einsum(subscripts: str, *operands: Operand) -> jax.Array:
    """Sums of products in Einstein's notation, as in NumPy.

    Three and more arrays are contracted pair by pair, in the order that costs least.

    Args:
        subscripts: such as ``"...i,ij->...j"``; without ``->`` the letters that occur once are kept.
        operands: the arrays.

    >>> einsum("i,ij->j", [1.0, 2.0], [[3.0], [4.0]]).tolist()
    [11.0]
    """
    if not isinstance(subscripts, str):
        raise InputError(f"subscripts must be a string, got {type(subscripts).__name__}.")
    return jnp.einsum(subscripts, *operands, optimize="optimal")


@lift("x", "kernel", expects=_KERNEL + ", and padding 'SAME', 'VALID' or pairs")
def conv(
    x: Operand, kernel: Operand, strides: int | Sequence[int] = 1, padding: Padding = "SAME"
) -> jax.Array:
    """The convolution of neural networks (a correlation) over the axes before the last.

    Args:
        x: input of shape ``(..., *spatial, channels)``, with any number of leading axes.
        kernel: of shape ``(*spatial, channels, features)``; its axes decide how many are spatial.
        strides: one for all spatial axes, or one for each.
        padding: ``"SAME"``, ``"VALID"``, an integer, or a pair (before, after) for each spatial axis.

    >>> conv(jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 5)), strides=2).shape
    (1, 2, 2, 5)
    """
    n = kernel.ndim - 2
    _need_axes(x, n)
    dtype = jnp.promote_types(x.dtype, kernel.dtype)
    strides = _per_axis("strides", strides, n)
    lead, sizes = x.shape[: -n - 1], x.shape[-n - 1 : -1]
    pads = explicit_padding(padding, kernel.shape[:n], strides, sizes)
    spatial = "".join(map(chr, range(ord("0"), ord("0") + n)))
    batch = x if len(lead) == 1 else jnp.reshape(x, (math.prod(lead), *x.shape[-n - 1 :]))
    out = lax.conv_general_dilated(
        batch.astype(dtype),
        kernel.astype(dtype),
        strides,
        pads,
        dimension_numbers=(f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"),
    )
    return out if len(lead) == 1 else jnp.reshape(out, (*lead, *out.shape[1:]))


@lift("x", expects=_WINDOWS)
def max_pool(
    x: Operand,
    window: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> jax.Array:
    """The maximum over windows of the axes before the last.

    Args:
        x: input of shape ``(..., *spatial, channels)``.
        window: length along each spatial axis; one integer means two spatial axes.
        strides: one for all spatial axes, or one for each; by default those of the window.
        padding: ``"SAME"``, ``"VALID"``, an integer, or a pair (before, after) for each spatial axis.

    >>> max_pool(jnp.arange(16.0).reshape(4, 4, 1), 2).ravel().tolist()
    [5.0, 7.0, 13.0, 15.0]
    """
    lowest = -np.inf if jnp.issubdtype(x.dtype, jnp.floating) else np.iinfo(x.dtype).min
    settings = _all_axes(x, "window", window, strides, padding)
    out: jax.Array = lax.reduce_window(x, np.asarray(lowest, x.dtype), lax.max, *settings)
    return out


# Data movement.


def index(x: Operand, idx: Any) -> Any:
    """Part of an array, ``x[idx]`` as in NumPy.

    Args:
        x: an array.
        idx: integers, slices, ``None``, ``...``, arrays of integers or booleans, or a tuple of those. It
            must not depend on parameters.

    >>> index(jnp.arange(6).reshape(2, 3), (1, slice(None, None, -1))).tolist()
    [5, 4, 3]
    """
    parts = idx if isinstance(idx, tuple) else (idx,)
    for part in jax.tree.leaves(parts):
        if isinstance(part, Computation) and not isinstance(part, Array):
            raise InputError(
                f"pjax.index: the index holds {part!r}, which is computed. An index is static: pass "
                "integers, slices and arrays, or the .value of a computation."
            )
    # Arrays whose values may be known only later are inputs, like x; all the rest is static.
    free = [isinstance(part, Computation | jax.core.Tracer) for part in parts]
    form = tuple(_HOLE if hole else part for part, hole in zip(parts, free, strict=True))
    arrays = [part for part, hole in zip(parts, free, strict=True) if hole]
    return _index(x, arrays, form if isinstance(idx, tuple) else form[0])


_HOLE = "<input>"  # where an input goes in a static index, in which words have no meaning


@lift("x", "*arrays", expects=_INDEX)
def _index(x: Operand, arrays: Sequence[Operand], idx: Any) -> jax.Array:
    rest = iter(arrays)
    form = idx if isinstance(idx, tuple) else (idx,)
    parts = tuple(_index_part(next(rest) if part is _HOLE else part) for part in form)
    if not any(isinstance(part, jax.core.Tracer) for part in parts):
        # NumPy judges the index on an array without contents, because JAX clips what is out of range.
        np.broadcast_to(np.int8(0), x.shape)[parts]
    return jnp.asarray(x[parts])


@lift("x", expects="as many scalars in the new shape as in the old, with at most one -1")
def reshape(x: Operand, shape: int | Sequence[int]) -> jax.Array:
    """The same scalars in another shape, in row-major order.

    >>> reshape([[1, 2], [3, 4]], -1).tolist()
    [1, 2, 3, 4]
    """
    return jnp.reshape(x, shape)


@lift("x", expects="every axis once, between -ndim and ndim - 1")
def transpose(x: Operand, axes: Sequence[int] | None = None) -> jax.Array:
    """The axes in another order, reversed by default.

    >>> transpose(jnp.ones((2, 3, 4)), (-1, 0, 1)).shape
    (4, 2, 3)
    """
    return jnp.transpose(x, axes)


@lift("x", expects=_AXES)
def swapaxes(x: Operand, axis1: int, axis2: int) -> jax.Array:
    """Two axes exchanged.

    >>> swapaxes(jnp.ones((2, 3, 4)), 0, -1).shape
    (4, 3, 2)
    """
    return jnp.swapaxes(x, axis1, axis2)


@lift("x", expects="as many sources as destinations, and " + _AXES)
def moveaxis(x: Operand, source: int | Sequence[int], destination: int | Sequence[int]) -> jax.Array:
    """Some axes moved to other places; the others keep their order.

    >>> moveaxis(jnp.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    return jnp.moveaxis(x, source, destination)


@lift("x", expects="axes of the result, each at most once")
def expand_dims(x: Operand, axis: int | Sequence[int]) -> jax.Array:
    """New axes of length 1, at these places of the result.

    >>> expand_dims(jnp.ones((2, 3)), (0, -1)).shape
    (1, 2, 3, 1)
    """
    return jnp.expand_dims(x, _axes(axis))


@lift("x", expects="axes of length 1")
def squeeze(x: Operand, axis: Axes = None) -> jax.Array:
    """Without these axes of length 1, by default all of them.

    >>> squeeze(jnp.ones((1, 3, 1)), -1).shape
    (1, 3)
    """
    return jnp.squeeze(x, _axes(axis))


@lift("x", expects="repeats of 0 or more, static: one integer, or one for each entry of the axis")
def repeat(x: Operand, repeats: int | Sequence[int], axis: int | None = None) -> jax.Array:
    """Every entry repeated, next to itself.

    Args:
        x: an array.
        repeats: how often; one integer, or one for each entry along the axis.
        axis: the axis; by default `x` is flattened first.

    >>> repeat([1, 2], 2).tolist(), repeat([1, 2], [0, 3]).tolist()
    ([1, 1, 2, 2], [2, 2, 2])
    """
    counts = np.asarray(repeats)
    if not np.issubdtype(counts.dtype, np.integer) or counts.ndim > 1 or (counts < 0).any():
        raise InputError(f"repeats must be integers of 0 or more, got {repeats!r:.120}.")
    if counts.size == 1:
        return jnp.repeat(x, counts.item(), axis)
    if axis is None:
        x, axis = jnp.reshape(x, -1), 0
    length = x.shape[axis]
    if counts.size != length:
        raise InputError(f"{counts.size} repeats for an axis of length {length}.")
    where = np.repeat(np.arange(length), counts)
    return jnp.asarray(x[(slice(None),) * (axis % x.ndim) + (where,)])


@lift("x", expects="a shape in which every axis is as long as that of the array, or that is 1 there")
def broadcast_to(x: Operand, shape: int | Sequence[int]) -> jax.Array:
    """The array repeated along new axes and axes of length 1.

    >>> broadcast_to([1, 2], (2, 2)).tolist()
    [[1, 2], [1, 2]]
    """
    return jnp.broadcast_to(x, shape)


@lift("*arrays", expects="at least one array, all with the same shape except along the axis")
def concatenate(arrays: Sequence[Operand], axis: int | None = 0) -> jax.Array:
    """Arrays one after the other along an axis; flattened first if `axis` is None.

    >>> concatenate([[1, 2], [3]]).tolist()
    [1, 2, 3]
    """
    return jnp.concatenate(arrays, axis)


@lift("*arrays", expects="at least one array, all with the same shape")
def stack(arrays: Sequence[Operand], axis: int = 0) -> jax.Array:
    """Arrays side by side along a new axis.

    >>> stack([[1, 2], [3, 4]], axis=-1).tolist()
    [[1, 3], [2, 4]]
    """
    return jnp.concatenate([jnp.expand_dims(x, axis) for x in arrays], axis)


@lift("x", expects=_WIDTHS)
def pad(x: Operand, pad_width: int | Sequence[Any], constant_values: float = 0) -> jax.Array:
    """The array with constant values around it.

    Args:
        x: an array.
        pad_width: how many before and after: an integer, a pair, or a pair for each axis.
        constant_values: a number.

    >>> pad([1, 2], (1, 2)).tolist()
    [0, 1, 2, 0, 0]
    """
    widths = np.asarray(pad_width)
    if not np.issubdtype(widths.dtype, np.integer) or (widths < 0).any():
        raise InputError(f"pad_width must be integers of 0 or more, got {pad_width!r:.120}.")
    if np.ndim(constant_values):
        raise InputError(f"constant_values must be one number, got {constant_values!r:.120}.")
    pairs = np.broadcast_to(widths, (x.ndim, 2)).tolist()
    return lax.pad(x, jnp.asarray(constant_values, x.dtype), [(lo, hi, 0) for lo, hi in pairs])


@lift("x", expects=_WINDOWS)
def conv_patch(
    x: Operand, kernel_size: int | Sequence[int], strides: int | Sequence[int] = 1, padding: Padding = "SAME"
) -> jax.Array:
    """The patches that a convolution reads, one for each place of the kernel.

    Args:
        x: input of shape ``(..., *spatial, channels)``.
        kernel_size: length along each spatial axis; one integer means two spatial axes.
        strides: one for all spatial axes, or one for each.
        padding: ``"SAME"``, ``"VALID"``, an integer, or a pair (before, after) for each spatial axis.

    Returns:
        Patches of shape ``(..., *out, prod(kernel_size) * channels)``, the channels varying fastest: their
        product with ``kernel.reshape(-1, features)`` is the convolution.

    >>> conv_patch(jnp.ones((7, 7, 2)), 3, strides=2).shape
    (4, 4, 18)
    """
    cut = windows(x, *_all_axes(x, "kernel_size", kernel_size, strides, padding))
    return jnp.reshape(jnp.swapaxes(cut, -1, -2), (*cut.shape[:-2], cut.shape[-1] * cut.shape[-2]))


# Losses.

_LABELS = "predictions (..., classes), and labels that are integers (...) or one-hot (..., classes)"
cross_entropy = lift("logits", "labels", expects=_LABELS)(losses.cross_entropy)
margin_loss = lift("logits", "labels", expects=_LABELS)(losses.margin_loss)
minimise = lift("x", expects="floating-point numbers")(losses.minimise)
squared_error = lift("predictions", "targets", expects="predictions and targets of one shape")(
    losses.squared_error
)


# Helpers.


def _axes(axis: Any) -> Any:
    """A list of axes as a tuple, for JAX takes only those."""
    return tuple(axis) if isinstance(axis, list) else axis


def _per_axis(name: str, setting: int | Sequence[int], n: int) -> tuple[int, ...]:
    given = tuple(map(operator.index, (setting,) * n if isinstance(setting, int | np.integer) else setting))
    if len(given) != n:
        raise InputError(f"{name} needs one integer, or one for each of the {n} spatial axes, got {given}.")
    return given


def _all_axes(
    x: jax.Array,
    name: str,
    window: int | Sequence[int],
    strides: int | Sequence[int] | None,
    padding: Padding,
) -> tuple[Any, Any, Any]:
    """Window, strides and padding for all axes of an array, from those for the spatial ones."""
    n = 2 if isinstance(window, int | np.integer) else len(window)
    if not n:
        raise InputError(f"{name} needs at least one spatial axis.")
    _need_axes(x, n)
    window = _per_axis(name, window, n)
    strides = window if strides is None else _per_axis("strides", strides, n)
    pads = explicit_padding(padding, window, strides, x.shape[-n - 1 : -1])
    lead = x.ndim - n - 1
    one, none = (1,), ((0, 0),)
    return lead * one + window + one, lead * one + strides + one, lead * none + pads + none


def _need_axes(x: jax.Array, spatial: int) -> None:
    if spatial < 1 or x.ndim < spatial + 1:
        raise InputError(
            f"{spatial} spatial axes and one of channels do not fit an input of shape {x.shape}."
        )


def _index_part(part: Any) -> Any:
    """One entry of an index: known arrays as NumPy's, everything else as it is."""
    if isinstance(part, bool | np.bool):
        raise InputError("a single boolean is no index here; use an array of booleans.")
    if part is None or part is Ellipsis or isinstance(part, int | np.integer | slice | jax.core.Tracer):
        return part
    array = np.asarray(part)
    if array.size == 0 and isinstance(part, list | tuple):
        return array.astype(np.intp)
    if array.dtype != bool and not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"an index must be integers or booleans, got {array.dtype}.")
    return array if array.dtype == bool else array.astype(np.intp)


_BEHIND_OPERATORS = add, subtract, multiply, matmul, negative, index, reshape, transpose, sum, mean, max, min
FUNCTIONS.update({function.__name__: function for function in _BEHIND_OPERATORS})
