"""Rounding between layers."""

from typing import Any

from pjax.containers import numpy as pnp
from pjax.containers.computation import Operand
from pjax.nn._module import Module
from pjax.rules import Quantize as _Quantize


class Quantize(Module):
    r"""The nearest of ``levels`` equidistant points in ``[-scale, scale]``, elementwise.

    .. math:: y = \operatorname{argmin}_{z_i} |x - z_i|, \quad z_i = \frac{2 i - (n - 1)}{n - 1} s

    Its derivative is zero wherever it has one, so layers before it learn by projections only: by those of
    Douglas-Rachford, which add up moves until they reach another level. Alternating projections undo each.

    Args:
        levels: how many points, at least 2.
        scale: the largest of them.

    >>> import numpy as np
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
