"""Attention whose scores are relus."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pjax.checks import check_whole
from pjax.containers import numpy as pnp
from pjax.containers.computation import Operand
from pjax.containers.lift import lift
from pjax.errors import InputError
from pjax.nn._module import Module
from pjax.nn.layers import Linear, ReLU, check_shape


class MultiHeadAttention(Module):
    r"""Attention of a sequence to itself, with relus in place of the softmax.

    Each head has queries, keys and values :math:`q = x W_q, k = x W_k, v = x W_v` of :math:`d` features:

    .. math:: y_i = \frac{1}{n_i} \sum_{j \in N_i} \max\!\left(\frac{q_i \cdot k_j}{\sqrt d}, 0\right) v_j,

    where :math:`N_i` holds the :math:`n_i` positions that position :math:`i` may read. Because of the mean,
    the size of the outputs does not depend on the length of the sequence, as with a softmax. The heads side
    by side are multiplied by :math:`W_o`.

    Args:
        features: length of the last axis of the input and of the output.
        heads: how many heads, of ``features / heads`` features each.
        causal: whether a position may read only itself and those before.

    Parameters: ``query.weight``, ``key.weight``, ``value.weight``, ``out.weight``.

    >>> layer = MultiHeadAttention(8, heads=2, causal=True)
    >>> params = layer.init(jax.random.key(0))
    >>> layer.apply(params, jnp.ones((3, 5, 8))).shape
    (3, 5, 8)
    """

    def __init__(self, features: int, heads: int, *, causal: bool = False) -> None:
        self.features = check_whole("MultiHeadAttention: features", features)
        self.heads = check_whole("MultiHeadAttention: heads", heads)
        if self.features % self.heads:
            raise InputError(
                f"MultiHeadAttention: {self.features} features cannot be divided among {self.heads} heads; "
                "choose another number."
            )
        self.head_features = self.features // self.heads
        self.causal = bool(causal)
        self.query, self.key, self.value, self.out = (Linear(features, features) for _ in range(4))
        self.relu = ReLU()

    def __call__(self, x: Operand) -> Any:
        """An array of the shape of the input, ``(…, time, features)``."""
        shape = check_shape(self._place(), x, "time", self.features)
        length = shape[-2]
        query, key, value = (
            pnp.reshape(project(x), (*shape[:-1], self.heads, self.head_features))
            for project in (self.query, self.key, self.value)
        )
        # The factors are where arrays are smallest. Between them stand numbers of the size of the inputs.
        query = pnp.multiply(query, 1 / math.sqrt(self.head_features))
        scores = self.relu(pnp.einsum("...qhd,...khd->...hqk", query, key))
        counts = np.full(length, length)
        if self.causal:
            scores = _keep(scores, np.tri(length, dtype=bool))
            counts = np.arange(1, length + 1)
        heads = pnp.einsum("...hqk,...khd->...qhd", scores, value)
        heads = pnp.multiply(heads, (1 / counts).astype(heads.dtype)[:, None, None])
        return self.out(pnp.reshape(heads, shape))

    def _label(self) -> str:
        sizes = f"{self.features}, {self.heads} heads of {self.head_features}"
        return f"MultiHeadAttention({sizes}{', causal' * self.causal})"


@lift("x", "mask", expects="an array and a mask that broadcast")
def _keep(x: Operand, mask: Operand) -> jax.Array:
    """The array with zeros where the mask is false."""
    return jnp.where(mask, x, 0)
