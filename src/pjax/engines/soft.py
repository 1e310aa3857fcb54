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

What is neglected of a product, a quotient or a smooth function is of the order of :math:`\tau` times the
relative move that is asked for, less than a thousandth; so they ask for :math:`J^\top m_v`, with as many
products as backpropagation has. Relus, maxima, bounds, rounding and sets are projected as they are. They
answer small wishes better than large ones, which reach beyond their kinks; so the targets ask for a step that
is small next to the predictions (the *reach*), and what comes of it is divided by it.

A target asks by how much its loss falls, times the factor with which it enters what the function returns.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pjax.devices import end_kernel
from pjax.engines.point import Problem
from pjax.graph.nodes import Graph, Node
from pjax.graph.partition import last_to_first
from pjax.rules.arithmetic import TINY
from pjax.rules.base import per_loss


def sweep(problem: Problem, softness: float, reach: float) -> dict[int, jax.Array]:
    """How far each parameter is asked to move, summed over all of its readers.

    Args:
        problem: with the graph at the forward evaluation of the parameters.
        softness: τ, the weight of an output next to what its inputs can do, where a node has a kink.
        reach: the length of the step that targets ask for, next to the size of the predictions. What comes of
            it is divided by that length.
    """
    asked, step = asked_by_targets(problem, reach)
    found = _sweep(problem, softness, asked)
    return {v: move / step for v, move in found.items()}


def asked_by_targets(problem: Problem, reach: float) -> tuple[dict[int, jax.Array], jax.Array]:
    """What the targets ask of what they read, and by which factor that is smaller than what they want."""
    wanted: dict[int, jax.Array] = {}
    sizes = []
    for node in problem.graph.targets:
        predictions, *labels = problem.inputs[node.index]
        rule: Any = node.rule
        factor = problem.factor(node)
        if factor is None:
            continue
        fall = rule.descent(predictions, *labels).astype(problem.dtype)
        # Written out, or a compiler finds it again, with all its sums, for everything that reads it.
        fall = end_kernel(per_loss(factor, predictions) * fall)
        sizes.append((jnp.sqrt(jnp.mean(predictions**2)), jnp.sqrt(jnp.mean(fall**2))))
        problem.send(node.index, [fall], to=wanted)
    # Small numbers stand for nothing at all, which asks for nothing.
    step = functools.reduce(
        jnp.minimum, (reach * (s + SHORT) / (f + TINY) for s, f in sizes), jnp.float32(1e6)
    )
    step = jnp.maximum(step, 1e-12).astype(problem.dtype)
    return {v: step * wish for v, wish in wanted.items()}, step


SHORT = 1e-4
"""Predictions are taken for at least as large: a network may start with none."""


def answered(problem: Problem, softness: float, wanted: dict[int, jax.Array]) -> dict[int, jax.Array]:
    """What is asked of those parameters of which something is, given what is asked of some nodes."""
    for node in reversed(problem.graph.nodes):
        if node.is_parameter or node.index not in wanted:
            continue
        problem.send(node.index, _ask(problem, node, wanted.pop(node.index), softness), to=wanted)
    return wanted


def _sweep(problem: Problem, softness: float, wanted: dict[int, jax.Array]) -> dict[int, jax.Array]:
    """What is asked of parameters, given what is asked of some nodes."""
    wanted = answered(problem, softness, wanted)
    still = {n.index: jnp.zeros(n.shape, problem.dtype) for n in problem.graph.parameters}
    return {v: wanted.get(v, zero) for v, zero in still.items()}


def _ask(problem: Problem, node: Node, goal: jax.Array, softness: float) -> Sequence[jax.Array | None]:
    """What an operation asks of its inputs: their multipliers; None for constants."""
    inputs, output = problem.inputs[node.index], problem.points[node.index]
    assert node.rule is not None
    return node.rule.wishes(inputs, output, goal, softness, functools.partial(_ask_body, softness))


def _ask_body(
    softness: float, graph: Graph, constants: Sequence[Any], leaves: Sequence[Any], goals: Sequence[jax.Array]
) -> list[jax.Array]:
    """What one step of a loop asks of its leaves, given what is asked of its outputs."""
    problem = Problem(last_to_first(graph), constants, leaves, sweeps=True)
    found = _sweep(problem, softness, problem.asked(goals))
    return [
        jnp.zeros(jnp.shape(leaf), problem.dtype) if v is None else found[v]
        for v, leaf in zip(graph.leaves, leaves, strict=True)
    ]
