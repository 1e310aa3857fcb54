"""Sliding windows as pure data movement, and the padding they need."""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from pjax.errors import InputError

Padding: TypeAlias = str | int | Sequence[tuple[int, int]]


def windows(
    x: jax.Array,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
    fill: jax.typing.ArrayLike = 0.0,
) -> jax.Array:
    """The sliding windows of an array over all its axes, one window per row of the last axis.

    Every slot of the result copies one scalar of ``x`` or holds ``fill``: with ``fill=0`` the function is
    linear in ``x`` with 0/1 entries. The windows are cut axis by axis, so a 3x3 window takes 6 slices.

    Settings are those of `lax.reduce_window`, along each axis; negative padding crops. The result has the
    shape that it would have there, and behind that the positions of a window, in row-major order.

    >>> windows(jnp.arange(5), (3,), (2,), ((0, 0),)).tolist()
    [[0, 1, 2], [2, 3, 4]]
    """
    dilation = (1,) * x.ndim if dilation is None else tuple(dilation)
    if any(lo or hi for lo, hi in padding):
        if any(n + lo + hi < 0 for n, (lo, hi) in zip(x.shape, padding, strict=True)):
            raise InputError(
                f"windows: padding {tuple(padding)} crops more than shape {x.shape} has; crop less."
            )
        x = lax.pad(x, jnp.asarray(fill, x.dtype), [(int(lo), int(hi), 0) for lo, hi in padding])
    out = tuple(map(_number, x.shape, window, strides, dilation))
    # Axes whose windows lie side by side need one crop, and axes of window 1 one strided slice: all at once.
    tiled = [w == s and d == 1 for w, s, d in zip(window, strides, dilation, strict=True)]
    limits, steps = list(x.shape), [1] * x.ndim
    for axis in range(x.ndim):
        if tiled[axis]:
            limits[axis] = out[axis] * window[axis]
        elif window[axis] == 1:
            limits[axis], steps[axis] = _span(out[axis], strides[axis]), strides[axis]
    if tuple(limits) != x.shape or any(s > 1 for s in steps):
        x = lax.slice(x, [0] * x.ndim, limits, steps)
    # Each remaining axis becomes (window, out), flattened: no new axis before the end.
    for axis in range(x.ndim):
        if window[axis] > 1 and not tiled[axis]:
            x = lax.concatenate(_cuts(x, axis, window[axis], strides[axis], dilation[axis]), axis)
    # Where windows lie side by side it is (out, window) as it stands.
    pairs = [(n, w) if side else (w, n) for n, w, side in zip(out, window, tiled, strict=True)]
    split = [size for pair in pairs for size in pair]
    order = [2 * axis + (inner == side) for inner in (False, True) for axis, side in enumerate(tiled)]
    if tuple(split) != x.shape:
        x = lax.reshape(x, split)
    if order != sorted(order):
        x = lax.transpose(x, order)
    return lax.reshape(x, (*out, math.prod(window)))


def box(
    x: jax.Array,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> jax.Array:
    """The sums over the sliding windows of an array, by slices along one axis after the other.

    The same as ``windows(...).sum(-1)``, without writing the windows out.

    >>> box(jnp.arange(5), (3,), (2,), ((0, 0),), (1,)).tolist()
    [3, 9]
    """
    x = lax.pad(x, jnp.zeros((), x.dtype), [(lo, hi, 0) for lo, hi in padding])
    for axis, settings in enumerate(zip(window, strides, dilation, strict=True)):
        x = functools.reduce(operator.add, _cuts(x, axis, *settings))
    return x


def _cuts(x: jax.Array, axis: int, window: int, stride: int, dilation: int) -> list[jax.Array]:
    """For each position in the windows along one axis, what lies there in all of them."""
    span = _span(_number(x.shape[axis], window, stride, dilation), stride)
    starts = (min(k * dilation, x.shape[axis] - span) for k in range(window))
    return [lax.slice_in_dim(x, k, k + span, stride, axis) for k in starts]


def _number(size: int, window: int, stride: int, dilation: int) -> int:
    """How many windows there are along an axis."""
    return max((size - (window - 1) * dilation - 1) // stride + 1, 0)


def explicit_padding(
    padding: Padding,
    window: Sequence[int],
    strides: Sequence[int],
    sizes: Sequence[int],
) -> tuple[tuple[int, int], ...]:
    """The padding before and after axes of some sizes that a word or an integer stands for.

    The words are ``"SAME"``, ``"SAME_LOWER"`` and ``"VALID"``; pairs for all axes stand for themselves.

    >>> explicit_padding("SAME", (3,), (2,), (6,))
    ((0, 1),)
    """
    _check(len(sizes), window=window, strides=strides)
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "SAME_LOWER", "VALID"):
            raise InputError(
                f"Unknown padding {padding!r}: use 'SAME', 'SAME_LOWER', 'VALID', or pairs (before, after)."
            )
        return tuple(lax.padtype_to_pads(tuple(sizes), tuple(window), tuple(strides), padding))
    try:
        given = [(padding, padding)] * len(sizes) if isinstance(padding, int) else list(padding)
        pairs = tuple((operator.index(lo), operator.index(hi)) for lo, hi in given)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Padding must be 'SAME', 'VALID', an integer or pairs (before, after), got {padding!r}."
        ) from error
    _check(len(sizes), padding=pairs)
    return pairs


def _span(out: int, stride: int) -> int:
    """How many values lie from the first of `out` strided values to the last."""
    return (out - 1) * stride + 1 if out else 0


def _check(ndim: int, **settings: Sequence[Any]) -> None:
    for name, setting in settings.items():
        if len(setting) != ndim:
            raise InputError(
                f"{name} needs one entry for each of the {ndim} axes, got {len(setting)}: {tuple(setting)}."
            )
        if name != "padding" and any(s < 1 for s in setting):
            raise InputError(f"{name} must be positive along every axis, got {tuple(setting)}.")
