r"""One sweep of soft projections, from the targets back to the parameters.

Nodes are projected in the reverse order of evaluation, each after all that read it. A node :math:`v = f(u)`
whose readers want it to move by :math:`m_v` is projected with the weight :math:`w` on its output:

.. math:: \min_{\delta} \; |\delta|^2 + w \, |f(u + \delta) - f(u) - m_v|^2 .

To first order the inputs move by :math:`\delta = J^\top \mu` with the multiplier
:math:`\mu \approx w \, m_v`, damped by :math:`1 + w |J|^2`.
Two things make plain projections learn slowly; both are choices of a metric:

- With :math:`w = 1` the damping is large, differs from copy to copy, and is applied anew in every layer. Here
  :math:`w = \tau / N`, where :math:`N` is the typical :math:`|J|^2` of the node: every copy of every node is
  damped by about :math:`1 + \tau`.
- A mean over readers divides what one of them wants by their number. Here moves are divided by :math:`w`,
  and *summed*: an extrapolation of the mean by the number of readers over :math:`w`.

In a product the two factors share the move by their balance: it is projected in the variables :math:`s x` and
:math:`y / s` with :math:`s^2 = |y| / |x|`, typical lengths.
"""

import math

import jax
import jax.numpy as jnp

from pjax.contraction import Contraction
from pjax.graph import Node
from pjax.primitives import Dot, Primitive, Sum, SumRelu
from pjax.primitives.dot import multiplier
from pjax.problem import Problem

_TINY = 1e-12


def sweep(problem: Problem, softness: float) -> dict[int, jax.Array]:
    """How far each parameter is asked to move, summed over all of its readers.

    Args:
        problem: with the graph at the forward evaluation of the parameters.
        softness: τ, how much of its wish a node passes on to its inputs is damped by 1 + τ.
    """
    wanted: dict[int, jax.Array] = {}
    for node in reversed(problem.graph.nodes):
        if node.is_parameter or not (node.is_target or node.index in wanted):
            continue
        goal = None if node.is_target else wanted.pop(node.index)
        if isinstance(node.rule, Contraction):
            assert goal is not None
            moves = _contract(problem, node, node.rule, goal, softness)
        else:
            moves = _project(problem, node, goal, softness)
        for i, total in enumerate(moves):
            wiring = problem.wirings.get((node.index, i))
            if wiring is None or total is None:
                continue
            for source, part in zip(wiring.wire.sources, wiring.pull(total), strict=True):
                wanted[source] = wanted[source] + part if source in wanted else part
    still = {n.index: jnp.zeros(n.shape, problem.dtype) for n in problem.graph.parameters}
    return {v: wanted.get(v, zero) for v, zero in still.items()}


def _project(
    problem: Problem, node: Node, goal: jax.Array | None, softness: float
) -> tuple[jax.Array | None, ...]:
    """The multipliers of a node's inputs."""
    still = tuple(problem.zeros(node.index, i) for i in range(len(node.wires)))
    if goal is None:
        return problem.displace(node, still, None)[0]
    rule, inputs = node.rule, problem.inputs[node.index]
    assert isinstance(rule, Primitive)
    fixed = problem.fixed(node)
    if isinstance(rule, Dot) and fixed is not None:
        rule = Dot(fixed)
    weight = softness / _sensitivity(rule, inputs, goal)
    moves, _ = rule.displace(inputs, still, problem.points[node.index], goal, weight)
    return tuple(move / weight for move in moves)


def _sensitivity(rule: Primitive, inputs: tuple[jax.Array, ...], output: jax.Array) -> float | jax.Array:
    """The typical sum of squared derivatives of one output."""
    if isinstance(rule, Dot):
        return sum(jnp.sum(x * x) for x in inputs) / max(output.size, 1) + _TINY
    if isinstance(rule, Sum | SumRelu):
        return sum(x.size for x in inputs) / max(output.size, 1)
    return 1.0


def _contract(
    problem: Problem, node: Node, rule: Contraction, goal: jax.Array, softness: float
) -> tuple[jax.Array | None, ...]:
    """The multipliers of a product's factors."""
    x, y = problem.inputs[node.index]
    constant = [wire.constant for wire in node.wires]
    xx, yy = rule.reduce(0, x * x), rule.reduce(1, y * y)
    if problem.fixed(node) is not None:
        held = yy if constant[1] else xx
        weight = softness / jnp.maximum(jnp.mean(held), _TINY)
        lam = goal / (1 + weight * held)
        return (None, rule.pull(1, x, lam)) if constant[0] else (rule.pull(0, y, lam), None)
    # A factor that is nearly zero, such as weights that start there, is taken for larger: it must move.
    mean_x, mean_y = jnp.mean(xx), jnp.mean(yy)
    least = _TINY + 1e-6 * jnp.maximum(mean_x, mean_y)
    balance = jnp.sqrt(jnp.maximum(mean_y, least) / jnp.maximum(mean_x, least))
    weight = softness / (mean_x * balance + mean_y / balance + _TINY)
    total, product = xx * balance + yy / balance, problem.points[node.index]
    plus, minus = jnp.maximum(total + 2 * product, 0), jnp.maximum(total - 2 * product, 0)
    m = multiplier(plus, minus, goal, weight)
    own, other = m.own / weight, m.other / weight
    moves: list[jax.Array | None] = []
    for i, (this, partner, scale) in enumerate(((x, y, balance), (y, x, 1 / balance))):
        if constant[i]:
            moves.append(None)
            continue
        # In the balanced variables it moves by own * s x + other * y / s; times s this is a multiplier.
        (grown,) = rule.scatter(i, own)
        moves.append(scale * grown * this + rule.pull(i, partner, other))
    return tuple(moves)


def copies(problem: Problem) -> int:
    """How many losses the targets hold."""
    return sum(math.prod(target.shape) for target in problem.graph.targets)
