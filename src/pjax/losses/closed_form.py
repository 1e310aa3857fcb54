"""Losses with operators in closed form: the squared error, the margin loss, and any number as it is."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from pjax.checks import check_float, check_positive
from pjax.errors import InputError
from pjax.losses._labels import check_classes, check_finite, one_hot
from pjax.rules.arithmetic import wide
from pjax.rules.base import Target, apply, per_loss


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
    x, y = check_float(f"{rule.name}: predictions", predictions), jnp.asarray(targets)
    if x.shape != y.shape:
        raise InputError(
            f"squared_error: predictions and targets must have the same shape; got {x.shape} and {y.shape}. "
            f"Reshape or broadcast one of them."
        )
    check_finite(rule.name, "targets", y)
    return apply(rule, x, y.astype(x.dtype))


@dataclasses.dataclass(frozen=True)
class MarginLoss(Target):
    r"""Logits at most 0 for negative labels and at least ``margin`` for positive ones.

    Set: :math:`C = \{x : x_i \le 0 \text{ if } y_i \le 0, \ x_i \ge m \text{ otherwise}\}`. The loss is the
    squared distance to it, :math:`\sum_i \max(0, x_i)^2` or :math:`\sum_i \max(0, m - x_i)^2` by label. The
    projection clips: :math:`\min(x_i, 0)` or :math:`\max(x_i, m)`.

    Args:
        margin: :math:`m > 0`.

    >>> MarginLoss().project(jnp.array([0.5, 0.5, -2.0]), jnp.array(1))
    Array([ 0.,  1., -2.], dtype=float32)

    Reference: the theorem "Margin loss constraint" of the paper.
    """

    margin: float = 1.0

    name: ClassVar[str] = "margin_loss"
    core: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_positive(f"{self.name}: margin", self.margin)

    def forward(self, predictions: jax.Array, labels: jax.Array) -> jax.Array:
        gap = wide(self.displace(predictions, labels))
        return jnp.sum(gap * gap, axis=-1).astype(predictions.dtype)

    def displace(self, predictions: jax.Array, labels: jax.Array) -> jax.Array:
        positive = one_hot(predictions, labels) > 0
        return jnp.where(
            positive, jnp.maximum(self.margin - predictions, 0), jnp.minimum(-predictions, 0)
        ).astype(predictions.dtype)


def margin_loss(logits: jax.typing.ArrayLike, labels: jax.typing.ArrayLike, margin: float = 1.0) -> jax.Array:
    """The squared distance of the logits to the right side of the margin, one loss per copy.

    Args:
        logits: floating-point numbers of shape ``(..., classes)``.
        labels: integers of shape ``(...)`` (the one positive class), or numbers of the shape of the logits,
            positive where the logit should be at least ``margin``.
        margin: a positive number.

    >>> margin_loss(jnp.array([[0.5, 0.5]]), jnp.array([1]))
    Array([0.5], dtype=float32)
    """
    rule = MarginLoss(margin)
    x, y = check_classes(rule.name, logits, labels)
    check_finite(rule.name, "labels", y)
    return apply(rule, x, y)


@dataclasses.dataclass(frozen=True)
class Minimise(Target):
    r"""A number that is to be small: what a function ends in that returns any scalar.

    Loss: :math:`\ell(z) = z`, number by number. The proximal operator with the scale :math:`\lambda` is
    :math:`\arg\min_z \tfrac12 (z - z_0)^2 + \lambda z = z_0 - \lambda`.

    Args:
        scale: :math:`\lambda > 0`, by how much each projection lowers the number.

    >>> Minimise(scale=0.5).project(jnp.array([1.0, 2.0]))
    Array([0.5, 1.5], dtype=float32)
    """

    scale: float = 1.0

    name: ClassVar[str] = "minimise"
    core: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_positive(f"{self.name}: scale", self.scale)

    def forward(self, predictions: jax.Array, *_: Any, **__: Any) -> jax.Array:
        return predictions

    def displace(self, predictions: jax.Array, *_: Any, **__: Any) -> jax.Array:
        return jnp.full_like(predictions, -self.scale)

    def weighted(self, factor: jax.typing.ArrayLike, predictions: jax.Array, *_: Any, **__: Any) -> jax.Array:
        return (self.displace(predictions) * per_loss(factor, predictions)).astype(predictions.dtype)


def minimise(x: jax.typing.ArrayLike, scale: float = 1.0) -> jax.Array:
    """Numbers that are to be small, each a loss of its own.

    A function that returns a scalar need not say so: it is minimised, with ``scale=1``. By
    `ExtrapolatedProjections` the scale makes no difference.

    Args:
        x: floating-point numbers.
        scale: by how much each projection lowers them.

    >>> minimise(jnp.array([0.25, 4.0]))
    Array([0.25, 4.  ], dtype=float32)
    """
    rule = Minimise(scale)
    return apply(rule, check_float(f"{rule.name}: values", x))
