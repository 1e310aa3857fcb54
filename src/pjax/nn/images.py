"""Convolutions and maxima of images."""

from collections.abc import Sequence
from typing import Any

from pjax.checks import check_whole
from pjax.containers import numpy as pnp
from pjax.containers.computation import Operand
from pjax.nn._module import Initialiser, Module, Parameter, keeping_size
from pjax.nn.layers import check_shape, padding_setting, pair
from pjax.rules.windows import Padding


class Conv2D(Module):
    r"""The convolution of neural networks over two axes of space.

    .. math:: y_{ijo} = b_o + \sum_{uvc} x_{i s + u,\, j s + v,\, c}\, W_{uvco}

    Args:
        in_features: channels of the input.
        out_features: channels of the output.
        kernel_size: height and width of the kernel; one number for both.
        strides: step along each axis; one number for both.
        padding: ``"SAME"``, ``"VALID"``, a number, or a pair (before, after) for each axis.
        bias: whether to add a bias, which starts at zero. A relu after the layer has its own.
        initialiser: for the weight of shape ``(height, width, in_features, out_features)``; by default
            normal with variance ``1 / (height * width * in_features)``.

    Parameters: ``weight``, and ``bias`` if asked for.

    >>> import jax, numpy as np
    >>> layer = Conv2D(1, 4, kernel_size=3, strides=2)
    >>> params = layer.init(jax.random.key(0))
    >>> layer.apply(params, np.ones((5, 8, 8, 1), np.float32)).shape
    (5, 4, 4, 4)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: Padding = "SAME",
        bias: bool = False,
        *,
        initialiser: Initialiser | None = None,
    ) -> None:
        self.in_features = check_whole("Conv2D: in_features", in_features)
        self.out_features = check_whole("Conv2D: out_features", out_features)
        self.kernel_size = pair("Conv2D", "kernel_size", kernel_size)
        self.strides = pair("Conv2D", "strides", strides)
        self.padding = padding_setting("Conv2D", padding)
        shape = (*self.kernel_size, self.in_features, self.out_features)
        self.weight = Parameter(shape, initialiser or keeping_size)
        self.bias = Parameter(self.out_features) if bias else None

    def __call__(self, x: Operand) -> Any:
        """The output of shape ``(…, height, width, out_features)``."""
        check_shape(self._place(), x, "height", "width", self.in_features)
        y = self._convolve(x)
        return y if self.bias is None else pnp.add(y, self.bias)

    def _convolve(self, x: Operand) -> Any:
        return pnp.conv(x, self.weight, self.strides, self.padding)

    def _label(self) -> str:
        size = f"{self.kernel_size[0]}x{self.kernel_size[1]}"
        rest = "" if self.strides == (1, 1) else f", strides {self.strides}"
        rest += "" if self.padding == "SAME" else f", {self.padding}"
        rest += "" if self.bias is None else ", bias"
        return f"Conv2D({self.in_features} → {self.out_features}, {size}{rest})"


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
        check_shape(self._place(), x, "height", "width", "channels")
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
        check_shape(self._place(), x, "height", "width", "channels")
        return pnp.max(x, axis=(-3, -2))

    def _label(self) -> str:
        return "GlobalMaxPool()"
