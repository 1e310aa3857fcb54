"""Labels: what is accepted, and how it is checked."""

import jax
import jax.numpy as jnp
import numpy as np

from pjax.checks import check_float, look_later
from pjax.errors import InputError


def one_hot(predictions: jax.Array, labels: jax.Array) -> jax.Array:
    """Labels of the shape and type of the predictions; class indices are one-hot encoded.

    A class that is not there gives NaN: inside `jit`, where nobody can look at it before.
    """
    if labels.ndim == predictions.ndim:
        return labels.astype(predictions.dtype)
    classes = jax.lax.broadcasted_iota(jnp.int32, predictions.shape, predictions.ndim - 1)
    known = (labels >= 0) & (labels < predictions.shape[-1])
    return jnp.where(known[..., None], classes == labels[..., None], jnp.nan).astype(predictions.dtype)


def real(name: str, labels: jax.typing.ArrayLike) -> jax.Array:
    """Labels as an array of real numbers."""
    y = jnp.asarray(labels)
    if jnp.iscomplexobj(y):
        raise InputError(
            f"{name}: labels must be real numbers, got {y.dtype}; ask for real and imaginary parts apart."
        )
    return y


def check_classes(
    name: str, logits: jax.typing.ArrayLike, labels: jax.typing.ArrayLike
) -> tuple[jax.Array, jax.Array]:
    """Logits and labels as arrays that fit together; `InputError` if they do not."""
    x = check_float(f"{name}: logits", logits)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise InputError(f"{name}: logits need a last axis of at least one class, got shape {x.shape}.")
    y = real(name, labels)
    if jnp.issubdtype(y.dtype, jnp.integer) and y.shape == x.shape[:-1]:
        _check_values(name, y, 0, x.shape[-1] - 1, f"class indices in 0..{x.shape[-1] - 1}")
    elif y.shape != x.shape:
        raise InputError(
            f"{name}: labels must be integers of shape {x.shape[:-1]} (class indices) or numbers of shape "
            f"{x.shape} (one per logit); got {y.dtype} of shape {y.shape} for logits of shape {x.shape}."
        )
    return x, y  # in their own type: only what is given can be looked at


def check_finite(name: str, what: str, values: jax.Array) -> None:
    """Raise `InputError` if values that are known now are not finite."""
    _check_values(name, values, -np.inf, np.inf, f"finite {what}")


def _check_values(name: str, values: jax.Array, low: float, high: float, expected: str) -> None:
    if isinstance(values, jax.core.Tracer):
        return look_later(values, lambda values: _check_values(name, values, low, high, expected))
    known = np.asarray(values).astype(np.float64)
    bad = ~(np.isfinite(known) & (known >= low) & (known <= high))
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise InputError(
            f"{name}: expected {expected}, got {known[place]:g} at index {place} "
            f"({int(bad.sum())} such values); check them."
        )


def check_probabilities(name: str, labels: jax.Array) -> None:
    """Raise `InputError` if labels that are known now are no probabilities over the last axis."""
    if isinstance(labels, jax.core.Tracer):
        return look_later(labels, lambda labels: check_probabilities(name, labels))
    _check_values(name, labels, 0, 1, "probabilities in [0, 1]")
    totals = np.asarray(labels).astype(np.float64).sum(-1)
    if totals.size and np.abs(totals - 1).max() > 0.02:
        worst = totals.flat[np.abs(totals - 1).argmax()]
        raise InputError(
            f"{name}: labels of the shape of the logits must be probabilities that add up to 1 over the last "
            f"axis; some add up to {worst:g}. Normalise them, or pass class indices."
        )
