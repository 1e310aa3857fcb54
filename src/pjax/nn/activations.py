"""Functions between layers: relu, with and without a bias, and rounding."""

from typing import Any

import jax
import numpy as np

from pjax.containers import numpy as pnp
from pjax.containers.computation import Operand
from pjax.containers.lift import lift
from pjax.nn import initialisers
from pjax.nn._check import check_last_axis, whole
from pjax.nn._module import Module
from pjax.nn._parameter import Initialiser, Parameter
from pjax.rules import Quantize as _Quantize


class ReLU(Module):
    r"""The positive part, :math:`y = \max(x + b, 0)`, elementwise.

    The bias belongs to the relu because the two make one constraint. The derivative at zero is zero.

    Args:
        features: length of the bias, and of the last axis of the input; without it there is no bias.
        initialiser: for the bias; zeros by default.
        dtype: type of the bias.

    Parameters: ``bias`` if `features` is given.

    >>> ReLU(2).apply({"bias": np.array([1.0, -3.0])}, np.array([[2.0, 2.0]])).tolist()
    [[3.0, 0.0]]
    >>> ReLU().apply({}, np.array([2.0, -2.0])).tolist()
    [2.0, 0.0]
    """

    def __init__(
        self,
        features: int | None = None,
        *,
        initialiser: Initialiser = initialisers.zeros,
        dtype: Any = np.float32,
    ) -> None:
        self.features = None if features is None else whole("ReLU", "features", features)
        self.bias = None if self.features is None else Parameter((self.features,), initialiser, dtype)

    def __call__(self, x: Operand) -> Any:
        """An array of the shape of the input."""
        if self.features is None:
            return _relu(x)
        check_last_axis(self._place(), x, self.features)
        return _sum_relu(x, self.bias)

    def _label(self) -> str:
        return f"ReLU({'' if self.features is None else self.features})"


# With jax.nn.relu, because the derivative of a maximum is one half where both are equal.


@lift("x", expects="an array of numbers")
def _relu(x: Operand) -> jax.Array:
    return jax.nn.relu(x)


@lift("x", "bias", expects="an array of numbers")
def _sum_relu(x: Operand, bias: Operand) -> jax.Array:
    return jax.nn.relu(x + bias)


class Quantize(Module):
    r"""The nearest of ``levels`` equidistant points in ``[-scale, scale]``, elementwise.

    .. math:: y = \operatorname{argmin}_{z_i} |x - z_i|, \quad z_i = \frac{2 i - (n - 1)}{n - 1} s

    Its derivative is zero wherever it has one, so layers before it learn by projections only: by those of
    Douglas-Rachford, which add up moves until they reach another level. Alternating projections undo each.

    Args:
        levels: how many points, at least 2.
        scale: the largest of them.

    >>> Quantize(levels=3).apply({}, np.array([-3.0, 0.1, 0.9])).tolist()
    [-1.0, 0.0, 1.0]
    """

    def __init__(self, levels: int = 2, scale: float = 1.0) -> None:
        rule = _Quantize(levels, scale)  # checks both
        self.levels, self.scale = rule.levels, rule.scale

    def __call__(self, x: Operand) -> Any:
        """An array of the shape of the input."""
        return pnp.quantize(x, self.levels, self.scale)

    def _label(self) -> str:
        return f"Quantize({self.levels} levels, scale {self.scale:g})"
