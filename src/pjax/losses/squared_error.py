"""The squared error."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.checks import check_float, check_positive
from pjax.errors import InputError
from pjax.losses._labels import check_finite, real
from pjax.rules.base import Target, apply


@dataclasses.dataclass(frozen=True)
class SquaredError(Target):
    r"""The squared difference between a prediction and its label, number by number.

    Loss: :math:`(x - y)^2`. Without a scale the operator is the projection onto the only minimiser,
    :math:`x = y`. With the scale :math:`\lambda` it is the proximal operator
    :math:`\arg\min_x \tfrac12 (x - x_0)^2 + \tfrac\lambda2 (x - y)^2 = (x_0 + \lambda y) / (1 + \lambda)`.

    Args:
        scale: ``None``, or :math:`\lambda > 0`.

    >>> SquaredError().project(jnp.array([1.0, 2.0]), jnp.array([0.0, 5.0]))
    Array([0., 5.], dtype=float32)
    >>> SquaredError(scale=1.0).project(jnp.array([1.0, 2.0]), jnp.array([0.0, 5.0]))
    Array([0.5, 3.5], dtype=float32)
    """

    scale: float | None = None

    name: ClassVar[str] = "squared_error"
    core: ClassVar[int] = 0
    of_difference: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.scale is not None:
            check_positive(f"{self.name}: scale", self.scale)

    def forward(self, predictions: jax.Array, labels: jax.Array) -> jax.Array:
        gap = predictions - labels.astype(predictions.dtype)
        return gap * gap

    def displace(self, predictions: jax.Array, labels: jax.Array) -> jax.Array:
        gap = labels.astype(predictions.dtype) - predictions
        return gap if self.scale is None else gap * (self.scale / (1 + self.scale))

    def weighted(self, factor: jax.typing.ArrayLike, predictions: jax.Array, labels: jax.Array) -> jax.Array:
        if self.scale is None:
            return super().weighted(factor, predictions, labels)
        scale = jnp.asarray(factor) * self.scale
        gap = labels.astype(predictions.dtype) - predictions
        return (gap * (scale / (1 + jnp.abs(scale)))).astype(predictions.dtype)

    def descent(self, predictions: jax.Array, labels: jax.Array) -> jax.Array:
        return 2 * (labels.astype(predictions.dtype) - predictions)


def squared_error(
    predictions: jax.typing.ArrayLike, targets: jax.typing.ArrayLike, scale: float | None = None
) -> jax.Array:
    """The squared error, number by number.

    Args:
        predictions: floating-point numbers.
        targets: numbers of the same shape.
        scale: ``None`` to ask for the targets themselves, or a number: how strongly to pull towards them.

    >>> squared_error(jnp.array([1.0, 2.0]), jnp.array([0.0, 5.0]))
    Array([1., 9.], dtype=float32)
    """
    rule = SquaredError(scale)
    x, y = check_float(f"{rule.name}: predictions", predictions), real(rule.name, targets)
    if x.shape != y.shape:
        raise InputError(
            f"squared_error: predictions and targets must have the same shape; got {x.shape} and {y.shape}. "
            f"Reshape or broadcast one of them."
        )
    check_finite(rule.name, "targets", y)
    return apply(rule, x, y.astype(x.dtype))
