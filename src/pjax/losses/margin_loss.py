"""The margin loss."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.checks import check_positive
from pjax.losses._labels import check_classes, check_finite, one_hot
from pjax.rules.arithmetic import wide
from pjax.rules.base import Target, apply


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
