"""The cross-entropy of softmax probabilities, and its proximal operator."""

import dataclasses
import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.checks import check_positive
from pjax.devices import by_platform, in_each_step, in_rows
from pjax.errors import InputError
from pjax.losses._labels import check_classes, check_probabilities, one_hot
from pjax.rules.arithmetic import first, wide
from pjax.rules.base import Target, apply, per_loss


@dataclasses.dataclass(frozen=True)
class CrossEntropy(Target):
    r"""The cross-entropy loss and its proximal operator.

    Loss: :math:`\ell(x) = \log \sum_j e^{x_j} - \langle y, x \rangle`. The operator is
    :math:`\arg\min_x \tfrac12 |x - x_0|^2 + \lambda \ell(x)`, which solves

    .. math:: x = x_0 + \lambda (y - p), \quad p = \operatorname{softmax}(x).

    In :math:`q_i = \log p_i` and the normaliser :math:`L = \log \sum_j e^{x_j}` these are the equations
    :math:`q_i + \lambda e^{q_i} = x_{0,i} + \lambda y_i - L` and :math:`\sum_i e^{q_i} = 1`. Their Jacobian
    is diagonal but for one row and one column, so Newton's method takes O(classes) and one exponential per
    class and step. The move returned is :math:`\lambda (y - p)` without cancellation, even where the
    prediction is nearly certain.

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
        check_positive(f"{self.name}: scale", self.scale)
        if self.solver not in ("newton", "fixed_point"):
            raise InputError(f'cross_entropy: solver must be "newton" or "fixed_point"; got {self.solver!r}.')

    def forward(self, predictions: jax.Array, labels: jax.Array) -> jax.Array:
        x = wide(predictions)
        y = one_hot(x, labels)
        loss = -jnp.sum(y * jax.nn.log_softmax(x, axis=-1), axis=-1, where=y != 0)
        return loss.astype(predictions.dtype)

    def displace(self, predictions: jax.Array, labels: jax.Array) -> jax.Array:
        return self.weighted(1.0, predictions, labels)

    def weighted(self, factor: jax.typing.ArrayLike, predictions: jax.Array, labels: jax.Array) -> jax.Array:
        x, labels = in_each_step(in_rows(wide(predictions)), labels)
        y, steps = one_hot(x, labels), _steps(self.scale)
        solve = _newton if self.solver == "newton" else _fixed_point
        scale: float | jax.Array = self.scale
        sign: float | jax.Array = 1.0
        if not (isinstance(factor, float) and factor == 1):
            # A loss that is to grow has no nearest point: its prediction goes as far the other way.
            signed = self.scale * per_loss(factor, predictions)
            scale, sign = jnp.abs(signed).astype(x.dtype), jnp.where(signed < 0, -1, 1).astype(x.dtype)
        move = solve(x, y, scale, steps)
        if labels.ndim == predictions.ndim:  # where they add up to zero, the loss is linear
            move = jnp.where(jnp.sum(y, axis=-1, keepdims=True) == 0, scale * y, move)
        return (sign * move).astype(predictions.dtype)

    def descent(self, predictions: jax.Array, labels: jax.Array) -> jax.Array:
        x = wide(predictions)
        y = one_hot(x, labels)
        total = jnp.sum(y, axis=-1, keepdims=True)
        return (y - total * jax.nn.softmax(x, axis=-1)).astype(predictions.dtype)


def _fixed_point(x: jax.Array, y: jax.Array, scale: float | jax.Array, _: int) -> jax.Array:
    move = jnp.zeros_like(x)
    for _ in range(10):
        move = scale * (y - jax.nn.softmax(x + move, axis=-1))
    return move


def _newton(x: jax.Array, y: jax.Array, scale: float | jax.Array, steps: int) -> jax.Array:
    offset = x + scale * y
    offset = offset - jnp.max(offset, axis=-1, keepdims=True)
    offset = jnp.maximum(offset, jnp.finfo(x.dtype).min / 8)  # a logit of -inf is as good as that
    leads = first(offset == 0)  # of the most probable classes
    # A softmax of about the right spread: exact for small scales and for two certain classes.
    start = offset / (1 + scale / 4)
    start = start - jnp.log(jnp.sum(jnp.exp(start), axis=-1, keepdims=True))

    def step(_: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        q, level = state
        p = jnp.exp(q)
        damp = 1 / (1 + scale * p)
        gap = q + scale * p - offset + level
        total = jnp.sum(p, axis=-1, keepdims=True)
        pull = jnp.sum(p * damp * gap, axis=-1, keepdims=True)
        rise = (total - 1 - pull) / jnp.sum(p * damp, axis=-1, keepdims=True)
        return jnp.minimum(q - (gap + rise) * damp, 0), level + rise  # no probability exceeds one

    steps += x.dtype == jnp.float64  # one more doubles the digits

    def repeat(q: jax.Array, *, unroll: int) -> jax.Array:
        return jax.lax.fori_loop(0, steps, step, (q, jnp.zeros_like(x[..., :1])), unroll=unroll)[0]

    # On a CPU a loop is as fast. Elsewhere many steps, for large scales only, would take long to compile.
    whole = functools.partial(repeat, unroll=steps if steps <= 8 else 4)
    q = by_platform(start, cpu=functools.partial(repeat, unroll=1), default=whole)
    others = jnp.where(leads, 0, jnp.exp(q))
    # The leader has what the others leave: that keeps its digits where it is nearly certain.
    short = jnp.sum(others, axis=-1, keepdims=True)
    return scale * jnp.where(leads, (y - 1) + short, y - others)


def _steps(scale: float) -> int:
    """How many Newton steps reach float32 precision from the start above, whatever the logits."""
    return math.ceil(2.6 + 1.6 * math.log1p(scale) + 0.25 * math.log1p(scale) ** 2)


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
