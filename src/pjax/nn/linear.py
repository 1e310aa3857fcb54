"""The linear layer."""

from typing import Any

import numpy as np

from pjax.containers import numpy as pnp
from pjax.containers.computation import Operand
from pjax.nn import initialisers
from pjax.nn._check import check_last_axis, whole
from pjax.nn._module import Module
from pjax.nn._parameter import Initialiser, Parameter


class Linear(Module):
    r"""The product with a matrix, :math:`y = x W + b`, along the last axis.

    Args:
        in_features: length of the last axis of the input.
        out_features: length of the last axis of the output.
        bias: whether to add a bias, which starts at zero. A relu after the layer has its own.
        initialiser: for the weight of shape ``(in_features, out_features)``; by default normal with variance
            ``1 / in_features``.
        dtype: type of the parameters.

    Parameters: ``weight``, and ``bias`` if asked for.

    >>> import jax
    >>> layer = Linear(3, 2)
    >>> params = layer.init(jax.random.key(0))
    >>> layer.apply(params, np.ones((5, 3), np.float32)).shape
    (5, 2)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        initialiser: Initialiser | None = None,
        dtype: Any = np.float32,
    ) -> None:
        self.in_features = whole("Linear", "in_features", in_features)
        self.out_features = whole("Linear", "out_features", out_features)
        shape = (self.in_features, self.out_features)
        self.weight = Parameter(shape, initialiser or initialisers.normal(), dtype)
        self.bias = Parameter((self.out_features,), dtype=dtype) if bias else None

    def __call__(self, x: Operand) -> Any:
        """The output of shape ``(…, out_features)``."""
        check_last_axis(self._place(), x, self.in_features)
        y = pnp.matmul(x, self.weight)
        return y if self.bias is None else pnp.add(y, self.bias)

    def _label(self) -> str:
        return f"Linear({self.in_features} → {self.out_features}{', bias' * (self.bias is not None)})"
