"""The cross-entropy of softmax probabilities, and its proximal operator."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pjax.errors import InputError
from pjax.losses._labels import check_classes, check_probabilities, one_hot
from pjax.primitives._arithmetic import wide
from pjax.primitives._primitive import Target, apply

_UNROLLED = 6  # Newton steps that nearly always suffice; the loop after them runs for the rare rest
_MOST = 40


@dataclasses.dataclass(frozen=True)
class CrossEntropy(Target):
    r"""The cross-entropy loss and its proximal operator.

    Loss: :math:`\ell(x) = \log \sum_j e^{x_j} - \langle y, x \rangle`. The operator is
    :math:`\arg\min_x \tfrac12 |x - x_0|^2 + \lambda \ell(x)`, which solves

    .. math:: x = x_0 + \lambda (y - p), \quad p = \operatorname{softmax}(x).

    Given the normaliser :math:`L = \log \sum_j e^{x_j}`, each :math:`p_i` follows from
    :math:`\log p_i + \lambda p_i = x_{0,i} + \lambda y_i - L`, so one equation :math:`\sum_i p_i = 1` in
    :math:`L` is left. Its left side is convex and decreasing, so that Newton's method from below
    rises to the root whatever the logits, in O(classes) per step. The move returned is
    :math:`\lambda (y - p)` without cancellation, even where the prediction is nearly certain.

    Args:
        scale: :math:`\lambda > 0`.
        solver: ``"newton"``, or ``"fixed_point"`` for the paper's ten fixed-point steps, which need not
            converge for :math:`\lambda > 2`.

    >>> x = jnp.array([1.0, 0.0, -1.0])
    >>> moved = CrossEntropy(scale=5.0).project(x, jnp.array(2))
    >>> bool(jnp.allclose(moved, x + 5.0 * (jnp.eye(3)[2] - jax.nn.softmax(moved)), atol=1e-6))
    True

    Reference: the theorem "Proximal operator for cross-entropy loss" of the paper.
    """

    scale: float = 5.0
    solver: str = "newton"

    name: ClassVar[str] = "cross_entropy"
    core: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InputError(f"cross_entropy: scale must be a positive finite number; got {self.scale!r}.")
        if self.solver not in ("newton", "fixed_point"):
            raise InputError(f'cross_entropy: solver must be "newton" or "fixed_point"; got {self.solver!r}.')

    def forward(self, predictions: jax.Array, labels: jax.Array) -> jax.Array:
        x = wide(predictions)
        loss = -jnp.sum(one_hot(x, labels) * jax.nn.log_softmax(x, axis=-1), axis=-1)
        return loss.astype(predictions.dtype)

    def displace(self, predictions: jax.Array, labels: jax.Array) -> jax.Array:
        x = wide(predictions)
        solve = _newton if self.solver == "newton" else _fixed_point
        return solve(x, one_hot(x, labels), self.scale).astype(predictions.dtype)


def _fixed_point(x: jax.Array, y: jax.Array, scale: float) -> jax.Array:
    move = jnp.zeros_like(x)
    for _ in range(10):
        move = scale * (y - jax.nn.softmax(x + move, axis=-1))
    return move


def _newton(x: jax.Array, y: jax.Array, scale: float) -> jax.Array:
    place = jax.lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    lead = place == jnp.argmax(x + scale * y, axis=-1, keepdims=True)  # the most probable class

    def pick(v: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(lead, v, 0), axis=-1, keepdims=True)

    # log p_i + scale p_i = offset_i - ell, where ell >= 0 vanishes if the leader is certain
    offset = (x - pick(x)) + scale * (1 + (y - pick(y)))

    def solve(ell: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The other classes' ``scale p``, the leader's ``1 - p``, and how far ``ell`` is too low."""
        omega = jnp.where(lead, 0, _wright_omega(offset - ell + math.log(scale)))
        log_p = jnp.log(jnp.maximum(_wright_omega(scale - ell + math.log(scale)) / scale, 1e-37))
        for _ in range(2):  # polish: for a leader near certainty the logarithm has no digits left
            log_p = log_p - (log_p + scale * jnp.expm1(log_p) + ell) / (1 + scale * jnp.exp(log_p))
        short, p = -jnp.expm1(log_p), jnp.exp(log_p)
        total = jnp.sum(omega / scale, axis=-1, keepdims=True)
        slope = jnp.sum(omega / (1 + omega), axis=-1, keepdims=True) / scale + p / (1 + scale * p)
        excess = total - short
        # Two lower bounds of the distance to the root: by convexity, and as no log p falls faster than ell.
        ahead = jnp.maximum(excess / slope, jnp.log1p(jnp.maximum(excess, 0)))
        return omega, short, ahead

    ell = jnp.zeros_like(x[..., :1])
    for _ in range(_UNROLLED):
        ell = jnp.maximum(ell + solve(ell)[2], 0)
    tolerance = 16 * np.finfo(x.dtype).eps

    def unsettled(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        count, ell, ahead = state
        return (count < _MOST) & jnp.any(jnp.abs(ahead) > tolerance * ell)

    def rise(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        count, ell, ahead = state
        ell = jnp.maximum(ell + ahead, 0)
        return count + 1, ell, solve(ell)[2]

    _, ell, _ = jax.lax.while_loop(unsettled, rise, (jnp.array(_UNROLLED), ell, solve(ell)[2]))
    omega, short, _ = solve(ell)
    others = scale * y - omega
    # The leader's move, as what the others leave, keeps its digits where p is close to y = 1.
    drift = scale * (jnp.sum(y, axis=-1, keepdims=True) - 1)
    balance = drift - jnp.sum(jnp.where(lead, 0, others), axis=-1, keepdims=True)
    direct = scale * ((pick(y) - 1) + short)
    return jnp.where(lead, jnp.where(short < 0.5, balance, direct), others)


def _wright_omega(z: jax.Array) -> jax.Array:
    """The root of ``w + log(w) = z``."""
    e = jax.nn.softplus(z)
    w = e * (1 - jnp.log1p(e) / (2 + e))  # within one per cent (Winitzki)
    for _ in range(2 if z.dtype == jnp.float64 else 1):  # of order four (Fritsch, Shafer, Crowley)
        r = z - w - jnp.log(jnp.maximum(w, np.finfo(z.dtype).tiny))
        s = (1 + w) * (1 + w + 2 / 3 * r)
        w = w * (1 + r / (1 + w) * (s - r / 2) / (s - r))
    return jnp.where(z < -40, jnp.exp(jnp.minimum(z, 0)), w)


def cross_entropy(
    logits: jax.typing.ArrayLike, labels: jax.typing.ArrayLike, scale: float = 5.0, solver: str = "newton"
) -> jax.Array:
    """The cross-entropy of ``softmax(logits)``, one loss per copy.

    Args:
        logits: floating-point numbers of shape ``(..., classes)``.
        labels: integers of shape ``(...)``, or probabilities of the shape of the logits.
        scale: factor of the loss in its proximal operator; larger moves predictions further.
        solver: ``"newton"``, or ``"fixed_point"`` to reproduce the paper.

    >>> cross_entropy(jnp.zeros((2, 4)), jnp.array([0, 3]))
    Array([1.3862944, 1.3862944], dtype=float32)
    """
    rule = CrossEntropy(scale, solver)
    x, y = check_classes(rule.name, logits, labels)
    if y.ndim == x.ndim:
        check_probabilities(rule.name, y)
    return apply(rule, x, y)
