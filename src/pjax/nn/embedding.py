"""Vectors for characters, words and the like."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pjax.containers.computation import Computation, Operand
from pjax.containers.lift import describe, lift
from pjax.errors import InputError
from pjax.nn import initialisers
from pjax.nn._check import whole
from pjax.nn._module import Module
from pjax.nn._parameter import Initialiser, Parameter


class Embedding(Module):
    r"""A vector for each of a number of codes, :math:`y = W_x`.

    Args:
        num: how many codes there are: ``0, …, num - 1``.
        features: length of a vector.
        initialiser: for the weight of shape ``(num, features)``; by default normal with variance 1, because
            each output reads one entry.
        dtype: type of the weight.

    Parameters: ``weight``.

    >>> layer = Embedding(3, 2)
    >>> layer.apply({"weight": np.arange(6.0).reshape(3, 2)}, np.array([2, 0])).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """

    def __init__(
        self, num: int, features: int, *, initialiser: Initialiser | None = None, dtype: Any = np.float32
    ) -> None:
        self.num = whole("Embedding", "num", num)
        self.features = whole("Embedding", "features", features)
        self.weight = Parameter(
            (self.num, self.features), initialiser or initialisers.normal(fan_in=1), dtype
        )

    def __call__(self, x: Operand) -> Any:
        """The vectors of the codes, of shape ``(*x.shape, features)``."""
        self.check(x)
        return _take(self.weight, x)

    def check(self, x: Operand) -> None:
        """Raise an `InputError` unless these are codes, as far as their values are known."""
        values = x.value if isinstance(x, Computation) else x
        known = None if isinstance(values, jax.core.Tracer) else np.asarray(values)
        expected = f"{self._place()}: expected whole numbers from 0 to {self.num - 1}"
        if not np.issubdtype(values.dtype if known is None else known.dtype, np.integer):
            raise InputError(f"{expected}, got {describe(values)}.")
        if known is not None and known.size and (known.min() < 0 or known.max() >= self.num):
            raise InputError(f"{expected}, got numbers from {known.min()} to {known.max()}.")

    def _label(self) -> str:
        return f"Embedding({self.num} x {self.features})"


@lift("weight", "codes", expects="a weight (num, features), and codes that are whole numbers")
def _take(weight: Operand, codes: Operand) -> jax.Array:
    # Codes that are known only later may be out of range: they give NaN.
    rows = jnp.asarray(weight).at[jnp.asarray(codes)]
    return rows.get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
