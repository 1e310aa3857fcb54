r"""One sweep of soft projections, from the targets back to the parameters.

Nodes are projected in the reverse order of evaluation, each after all that read it. A node :math:`v = f(u)`
whose readers want it to move by :math:`m_v` is projected with the weight :math:`w` on its output:

.. math:: \min_{\delta} \; |\delta|^2 + w \, |f(u + \delta) - f(u) - m_v|^2 .

To first order the inputs move by :math:`\delta = J^\top \mu` with the multiplier
:math:`\mu = w \, m_v / (1 + w |J|^2)`. Two things make plain projections learn slowly; both are choices of a
metric:

- With :math:`w = 1` the damping :math:`1 + w |J|^2` is large, differs from copy to copy, and is applied anew
  in every layer. Here :math:`w = \tau / |J|^2` with a small softness :math:`\tau`: all copies are damped by
  :math:`1 + \tau`, which is taken out again.
- A mean over readers divides what one of them wants by their number. Here moves are divided by :math:`w`,
  and *summed*: an extrapolation of the mean by the number of readers over :math:`w`.

For a product, a quotient or a smooth function the answer differs from :math:`J^\top m_v` by about
:math:`\tau` times the relative move that is asked for, less than a thousandth; so they ask for
:math:`J^\top m_v` itself, with as many products as backpropagation has. Relus, maxima, bounds, rounding and
sets are projected as they are. They answer small wishes better than large ones, which reach across their
kinks; so the targets ask for a step that is small next to the predictions (the *reach*), and the answer is
divided by its length. Where all nodes ask by derivatives, the length of the step makes no difference, and it
is as long as the losses want.

JAX's reverse mode carries what nodes ask, through loops, too, and with as little kept as in backpropagation:
a node's function is `pjax.rules.base.Rule.soft`, whose derivative, as JAX sees it, is what the node asks.

A target asks by how much its loss falls, times the factor with which it enters what the function returns.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pjax.devices import end_kernel
from pjax.engines.point import Problem
from pjax.rules.arithmetic import TINY
from pjax.rules.base import per_loss


def sweep(
    problem: Problem, softness: float, reach: float, *, alone: bool = True
) -> tuple[list[jax.Array], jax.Array]:
    """How far each leaf is asked to move, summed over all of its readers, times a scale; and that scale.

    Args:
        problem: with the graph at the forward evaluation of the parameters.
        softness: τ, the weight of an output next to what its inputs can do, where a node has a kink.
        reach: the length of the step that targets ask for, next to the size of the predictions. The scale is
            that length next to what they want; or one, where the answer is a derivative whatever they ask.
        alone: whether nobody else will answer the leaves.
    """
    targets = problem.graph.targets
    softness = vanishing(softness, reach)
    shortened = bool(softness) or not (alone and problem.graph.first_order)
    predictions, answer = problem.answering([node.inputs[0] for node in targets], softness)
    falls, sizes = [], []
    for node, found in zip(targets, predictions, strict=True):
        factor = problem.factor(node)
        if factor is None:
            falls.append(jnp.zeros(found.shape, problem.dtype))
            continue
        predicted, *labels = problem.read_by(node)
        rule: Any = node.rule
        fall = rule.descent(predicted, *labels).astype(problem.dtype)
        if problem.is_masked(node):  # what does not count may be anything, such as NaN
            counts = per_loss(factor, predicted) != 0
            predicted, fall = (jnp.where(counts, x, 0) for x in (predicted, fall))
        # Written out, or a compiler finds it again, with all its sums, for everything that reads it.
        fall = end_kernel(per_loss(factor, predicted) * fall)
        if shortened:
            sizes.append((jnp.sqrt(jnp.mean(predicted**2)), jnp.sqrt(jnp.mean(fall**2))))
        falls.append(fall)
    if not shortened:
        return answer(falls), jnp.ones((), problem.dtype)
    # Small numbers stand for nothing at all, which asks for nothing.
    scale = functools.reduce(
        jnp.minimum, (reach * (s + SHORT) / (f + TINY) for s, f in sizes), jnp.float32(1e6)
    )
    scale = jnp.maximum(scale, 1e-12).astype(problem.dtype)
    return answer([scale * fall for fall in falls]), scale


def vanishing(softness: float, reach: float) -> float:
    """The softness, or zero where kinks need not be looked at beyond the first order.

    A relu is asked to cross its kink, and a number to be a maximum beside the largest, only within the
    softness times what is asked: of the predictions, a part of the product with the reach.
    """
    return softness if softness * reach > NEGLIGIBLE else 0.0


NEGLIGIBLE = 1e-4
"""Which part of the size of predictions may be neglected."""

SHORT = 1e-4
"""Predictions are taken for at least as large: a network may start with none."""
