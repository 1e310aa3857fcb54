"""Any number that is to be small."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from pjax.checks import check_float, check_positive
from pjax.rules.base import Target, apply, per_loss


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
