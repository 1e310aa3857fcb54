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

Both are exact to first order only, so the targets ask for a small part of the moves that their proximal
operators make (the *reach*: that part of the scale of the loss), and what comes of it is divided by it.

In a product the two factors share the move by their balance: it is projected in the variables :math:`s x` and
:math:`y / s` with :math:`s^2 = |y| / |x|`, typical lengths.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pjax.devices import end_kernel
from pjax.engines.point import TINY, Problem, add, balance
from pjax.graph.nodes import Graph, Node
from pjax.graph.partition import Partition
from pjax.rules import Dot, Primitive, Sum, SumRelu, Target
from pjax.rules.contraction import Contraction
from pjax.rules.dot import multiplier, sum_and_difference
from pjax.rules.scan import Loop


def sweep(problem: Problem, softness: float, reach: float) -> dict[int, jax.Array]:
    """How far each parameter is asked to move, summed over all of its readers.

    Args:
        problem: with the graph at the forward evaluation of the parameters.
        softness: τ; what a node asks of its inputs is damped by 1 + τ.
        reach: what part of their own moves the targets ask for. What comes of it is divided by it.
    """
    found = _sweep(problem, softness, reach, {})
    return {v: move / reach for v, move in found.items()}


def _sweep(
    problem: Problem, softness: float, reach: float, wanted: dict[int, jax.Array]
) -> dict[int, jax.Array]:
    """The same, where more is wanted of some nodes, and nothing is divided."""
    for node in reversed(problem.graph.nodes):
        if node.is_parameter or not (node.is_target or node.index in wanted):
            continue
        moves: Sequence[jax.Array | None]
        if isinstance(node.rule, Target):
            predictions, *labels = problem.inputs[node.index]
            # Written out, or a compiler finds it again, with all its sums, for everything that reads it.
            moves = (end_kernel(node.rule.ask(reach, predictions, *labels).astype(problem.dtype)),)
        else:
            moves = _ask(problem, node, wanted.pop(node.index), softness)
        for i, total in enumerate(moves):
            add(wanted, problem.pull(node.index, i, total))
    still = {n.index: jnp.zeros(n.shape, problem.dtype) for n in problem.graph.parameters}
    return {v: wanted.get(v, zero) for v, zero in still.items()}


def _ask(problem: Problem, node: Node, goal: jax.Array, softness: float) -> Sequence[jax.Array | None]:
    """What an operation asks of its inputs: their multipliers; None for constants."""
    if isinstance(node.rule, Contraction):
        return _contract(problem, node, node.rule, goal, softness)
    if isinstance(node.rule, Loop):
        return node.rule.wishes(
            problem.inputs[node.index],
            problem.points[node.index],
            goal,
            functools.partial(_ask_body, softness, problem.fixed_constants),
        )
    return _project(problem, node, goal, softness)


def _ask_body(
    softness: float,
    fixed_constants: bool,
    graph: Graph,
    constants: Sequence[Any],
    leaves: Sequence[Any],
    goals: Sequence[jax.Array],
) -> list[jax.Array]:
    """What one step of a loop asks of its leaves, given what is asked of its outputs."""
    order = Partition(graph, tuple((node.index,) for node in reversed(graph.nodes)))
    problem = Problem(order, constants, leaves, fixed_constants=fixed_constants)
    found = _sweep(problem, softness, 1.0, problem.asked(goals))
    return [
        jnp.zeros(jnp.shape(leaf), problem.dtype) if v is None else found[v]
        for v, leaf in zip(graph.leaves, leaves, strict=True)
    ]


def _project(problem: Problem, node: Node, goal: jax.Array, softness: float) -> tuple[jax.Array, ...]:
    """The multipliers of a node's inputs."""
    still = tuple(problem.zeros(node.index, i) for i in range(len(node.wires)))
    rule, inputs = node.rule, problem.inputs[node.index]
    assert isinstance(rule, Primitive)
    fixed = problem.fixed(node)
    if isinstance(rule, Dot) and fixed is not None:
        rule = Dot(fixed)
    point = problem.points[node.index]
    smooth = rule.dithered()
    if smooth is not rule:
        rule, point = smooth, smooth.forward(*inputs)
    weight = softness / _sensitivity(rule, inputs, goal)
    moves, _ = rule.displace(inputs, still, point, goal, weight)
    return tuple(move / weight for move in moves)


def _sensitivity(rule: Primitive, inputs: tuple[jax.Array, ...], output: jax.Array) -> float | jax.Array:
    """The typical sum of squared derivatives of one output."""
    if isinstance(rule, Dot):
        return sum(jnp.sum(x * x) for x in inputs) / max(output.size, 1) + TINY
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
        weight = softness / jnp.maximum(jnp.mean(held), TINY)
        lam = goal / (1 + weight * held)
        return (None, rule.pull(1, x, lam)) if constant[0] else (rule.pull(0, y, lam), None)
    square = balance(xx, yy)
    weight = softness / (jnp.mean(xx) * square + jnp.mean(yy) / square + TINY)
    total, product = xx * square + yy / square, problem.points[node.index]
    plus, minus = sum_and_difference(total, product)
    m = multiplier(plus, minus, goal, weight)
    own, other = m.own / weight, m.other / weight
    moves: list[jax.Array | None] = []
    for i, (this, partner, scale) in enumerate(((x, y, square), (y, x, 1 / square))):
        if constant[i]:
            moves.append(None)
            continue
        # In the balanced variables it moves by own * s x + other * y / s; times s this is a multiplier.
        grown = rule.scatter(i, own)
        moves.append(scale * grown * this + rule.pull(i, partner, other))
    return tuple(moves)


def copies(problem: Problem) -> int:
    """How many losses the targets hold."""
    return sum(math.prod(target.shape) for target in problem.graph.targets)
