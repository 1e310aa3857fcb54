"""Maxima over windows and over whole images."""

from collections.abc import Sequence
from typing import Any

from pjax.containers import numpy as pnp
from pjax.containers.computation import Operand
from pjax.nn._check import check_image, padding_setting, pair
from pjax.nn._module import Module
from pjax.rules.windows import Padding


class MaxPool(Module):
    r"""The maximum over windows of the two axes of space, :math:`y_{ijc} = \max_{uv} x_{is+u,\,js+v,\,c}`.

    Args:
        window: height and width of the window; one number for both.
        strides: step along each axis; by default the window's size.
        padding: ``"SAME"``, ``"VALID"``, a number, or a pair (before, after) for each axis.

    >>> import numpy as np
    >>> MaxPool(2).apply({}, np.arange(16.0).reshape(1, 4, 4, 1)).ravel().tolist()
    [5.0, 7.0, 13.0, 15.0]
    """

    def __init__(
        self,
        window: int | Sequence[int],
        strides: int | Sequence[int] | None = None,
        padding: Padding = "VALID",
    ) -> None:
        self.window = pair("MaxPool", "window", window)
        self.strides = self.window if strides is None else pair("MaxPool", "strides", strides)
        self.padding = padding_setting("MaxPool", padding)

    def __call__(self, x: Operand) -> Any:
        """The output of shape ``(…, height, width, channels)``."""
        check_image(self._place(), x, None)
        return pnp.max_pool(x, self.window, self.strides, self.padding)

    def _label(self) -> str:
        size = f"{self.window[0]}x{self.window[1]}"
        rest = "" if self.strides == self.window else f", strides {self.strides}"
        rest += "" if self.padding == "VALID" else f", {self.padding}"
        return f"MaxPool({size}{rest})"


class GlobalMaxPool(Module):
    r"""The maximum over both axes of space, :math:`y_c = \max_{ij} x_{ijc}`.

    >>> import numpy as np
    >>> GlobalMaxPool().apply({}, np.arange(8.0).reshape(1, 2, 2, 2)).tolist()
    [[6.0, 7.0]]
    """

    def __call__(self, x: Operand) -> Any:
        """The output of shape ``(…, channels)``."""
        check_image(self._place(), x, None)
        return pnp.max(x, axis=(-3, -2))

    def _label(self) -> str:
        return "GlobalMaxPool()"
