"""Checks of the settings and inputs of layers."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from pjax.errors import InputError
from pjax.rules.windows import Padding


def whole(owner: str, name: str, value: Any, least: int = 1) -> int:
    """A setting as an integer; `InputError` unless it is one of at least `least`.

    >>> whole("Linear", "in_features", np.int64(3))
    3
    """
    if isinstance(value, bool | np.bool) or not hasattr(value, "__index__"):
        raise InputError(
            f"{owner}: {name} must be a whole number, got {type(value).__name__} {value!r:.120}."
        )
    number = operator.index(value)
    if number < least:
        raise InputError(f"{owner}: {name} must be at least {least}, got {number}.")
    return number


def pair(owner: str, name: str, value: int | Sequence[int]) -> tuple[int, int]:
    """A setting for the two axes of space, from one integer or two.

    >>> pair("Conv2D", "strides", 2), pair("Conv2D", "strides", (1, 2))
    ((2, 2), (1, 2))
    """
    given = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value] * 2
    if len(given) != 2:
        raise InputError(f"{owner}: {name} must be one whole number or a pair, got {value!r:.120}.")
    first, second = (whole(owner, name, x) for x in given)
    return first, second


def padding_setting(owner: str, padding: Any) -> Padding:
    """A padding; `InputError` unless it is one that `pjax.conv` takes for two axes.

    >>> padding_setting("Conv2D", "same")
    'SAME'
    """
    if isinstance(padding, str):
        if padding.upper() in ("SAME", "SAME_LOWER", "VALID"):
            return padding.upper()
    elif isinstance(padding, Sequence):
        if len(padding) == 2 and all(isinstance(x, Sequence) and len(x) == 2 for x in padding):
            return [(operator.index(before), operator.index(after)) for before, after in padding]
    elif not isinstance(padding, bool):
        return whole(owner, "padding", padding, least=0)
    raise InputError(
        f"{owner}: padding must be 'SAME', 'VALID', a whole number or a pair (before, after) for each of the "
        f"two axes, got {padding!r:.120}."
    )


def shape_of(place: str, x: Any, expected: str) -> tuple[int, ...]:
    """The shape of an input; `InputError` if it is no array."""
    shape = getattr(x, "shape", None)
    if shape is None:
        try:
            shape = np.shape(x)
        except ValueError as error:  # a list of lists of different lengths
            raise InputError(f"{place}: expected {expected}, got {type(x).__name__}.") from error
    return tuple(shape)


def check_last_axis(place: str, x: Any, features: int) -> None:
    """Raise an `InputError` unless the last axis of an input has the given length."""
    expected = f"an input of shape (…, {features})"
    shape = shape_of(place, x, expected)
    if not shape or shape[-1] != features:
        raise InputError(f"{place}: expected {expected}, got {shape}.")


def check_image(place: str, x: Any, channels: int | None) -> None:
    """Raise an `InputError` unless an input is an image with the given channels."""
    expected = f"an input of shape (…, height, width, {'channels' if channels is None else channels})"
    shape = shape_of(place, x, expected)
    if len(shape) < 3 or channels not in (None, shape[-1]):
        raise InputError(f"{place}: expected {expected}, got {shape}.")
