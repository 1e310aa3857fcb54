r"""How much every constraint is violated, node by node and step by step.

After a step, the *consensus* of a node is the mean of the edges that leave it: what its readers, taken
together, say it is. At a solution it is the node's function of the consensus of its inputs. The violation of
a node :math:`v = f(u)` is how far it is from that, relative to its size:

.. math:: \frac{|\bar v - f(\bar u)|}{\max(|\bar v|, |f(\bar u)|)}

with Euclidean lengths over all numbers of the node that are read, and 0 where nothing is asked. So it is
between 0 and 2; a node that is asked for something and makes nothing, such as a dead layer, has 1. A target
has no output: its :math:`\bar v` is what its inputs are, its :math:`f(\bar u)` is where its operator takes
them. Parameters have no constraint.

Everything is computed from displacements: changes of products as sums of small terms, the others as
differences, which are exact to the rounding of the node's own values.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pjax.checks import check_finite, check_function, check_whole
from pjax.engines.point import Problem
from pjax.errors import InputError
from pjax.graph import read as tracing
from pjax.graph.nodes import Node
from pjax.optim.solver import Program, Solver, check_solver
from pjax.rules.arithmetic import usual_promotion
from pjax.tools.drawing import names
from pjax.tools.drawing.names import NodeInfo, info
from pjax.tools.plotting import FAINT, linear_scale, module, save, styled

HOLDS = 1e-6
"""Violations up to this are rounding, in float32."""
SMALL = 0.01
"""Nodes that are violated by less than this part of their size are not called stuck."""

# From what holds to what does not, four tones to a decade; and what is not a number.
COLOURS = ("#f4f5f6", "#fbe3b5", "#f5a65b", "#d6453d", "#5c1230")
NOT_FINITE = "#1f6feb"
LEAST, MOST, TONES = 1e-6, 1.0, 24

_NAMED = 60  # more rows than this cannot all be named
_TREND_WORDS = {"falls": "falls to", "stays": "stays at", "grows": "grows to"}


@dataclasses.dataclass(frozen=True)
class Violations:
    """What `violations` measured. Printed, it is a table; `save` draws it."""

    method: str
    nodes: tuple[NodeInfo, ...]
    """In the order of evaluation, from the inputs to the targets."""
    values: np.ndarray
    """The violation of each node after each step, of shape ``(steps, nodes)``."""

    @property
    def steps(self) -> int:
        return len(self.values)

    def trend(self, i: int) -> str:
        """How node i does: untouched, holds, falls, stays, grows, or not finite.

        It is the last step beside the one halfway: a tenth less is falling, a tenth more is growing.
        *Untouched* has never been violated: nothing that was asked of the network reached it.
        """
        column = self.values[:, i]
        if not np.isfinite(column).all():
            return "not finite"
        if column.max() <= HOLDS:
            return "untouched"
        half, last = column[(self.steps - 1) // 2], column[-1]
        if last <= HOLDS:
            return "holds"
        return "falls" if last < 0.9 * half else "grows" if last > 1.1 * half else "stays"

    @property
    def stuck(self) -> tuple[NodeInfo, ...]:
        """The nodes that do not converge, though violated by 1 % or more; the most violated first."""
        last = np.nan_to_num(self.values[-1], nan=np.inf)
        rank = [int(i) for i in np.argsort(-last, kind="stable") if last[i] >= SMALL]
        return tuple(self.nodes[i] for i in rank if self.trend(i) in ("stays", "grows", "not finite"))

    def __str__(self) -> str:
        half = (self.steps - 1) // 2
        rows: list[tuple[str, ...]] = [
            ("node", "shape", "step 1", f"step {half + 1}", f"step {self.steps}", "", "line")
        ]
        for i, node in enumerate(self.nodes):
            shape = "x".join(map(str, node.shape))
            numbers = (f"{x:.2g}" for x in self.values[[0, half, -1], i])
            rows.append((node.label, shape, *numbers, self.trend(i), node.line))
        if self.stuck:
            worst = self.stuck[0]
            end = f"{len(self.stuck)} of {len(self.nodes)} nodes stuck, most of all {worst}"
        else:
            end = f"none of {len(self.nodes)} nodes is stuck"
        return f"{names.table(rows)}\n{self.method}, {self.steps} steps: {end}"

    @styled
    def plot(self) -> Any:
        """A heat map over nodes and steps, as a matplotlib figure. Needs matplotlib."""
        number = len(self.nodes)
        down = max(min(0.42 * number, 14), 0.05 * number)
        figure = module("matplotlib.figure").Figure(figsize=(12, down + 2.6), layout="constrained")
        figure.suptitle("Which constraints hold", fontsize=21, fontweight="bold")
        axis = figure.add_subplot(xlabel="step")
        about = "distance of each node from its function, relative to its size"
        axis.set_title(f"{self.method}, {self.steps} steps: {about}", fontsize=14, color=FAINT)
        colours = module("matplotlib.colors")
        tones = colours.LinearSegmentedColormap.from_list("violation", COLOURS, N=TONES)
        image = axis.imshow(
            np.ma.masked_invalid(np.maximum(self.values.T, LEAST)),
            cmap=tones.with_extremes(bad=NOT_FINITE),
            norm=colours.LogNorm(LEAST, MOST, clip=True),
            aspect="auto",
            interpolation="nearest",
            extent=(0.5, self.steps + 0.5, number - 0.5, -0.5),
        )
        if number < 30:
            axis.hlines(np.arange(number - 1) + 0.5, 0.5, self.steps + 0.5, color="white", lw=1.6)
        linear_scale(axis.xaxis)
        named = range(0, number, -(-number // _NAMED))
        axis.set_yticks(named, [self.nodes[i].label for i in named])
        ends = axis.secondary_yaxis("right")
        ends.set_yticks(named, [f"{self._ending(i)}  {self.nodes[i].place}" for i in named], color=FAINT)
        for i, text in zip(named, ends.get_yticklabels(), strict=True):
            if self.nodes[i] in self.stuck:
                text.set(color=COLOURS[3], fontweight="bold")
        bar = figure.colorbar(image, orientation="horizontal", shrink=0.8, aspect=40)
        bar.set_ticks([1e-6, 1e-4, 1e-2, 1.0], labels=["≤ 0.0001 %", "0.01 %", "1 %", "100 %"])
        if not np.isfinite(self.values).all():
            bar.set_label("blue: not a number", color=NOT_FINITE)
        for part in (axis, ends, bar.ax):
            part.tick_params(length=0, pad=6, which="both")
        for side in (*axis.spines.values(), *ends.spines.values(), bar.outline):
            side.set_visible(False)
        return figure

    def _ending(self, i: int) -> str:
        trend = self.trend(i)
        return f"{_TREND_WORDS[trend]} {_percent(self.values[-1, i])}" if trend in _TREND_WORDS else trend

    def save(self, path: str | Path) -> Path:
        """Draw the heat map into a file, ``.png`` or ``.svg``. Needs matplotlib."""
        path = Path(path)
        if path.suffix not in (".png", ".svg"):
            raise InputError(f"plots are written to files that end in .png or .svg; got {path.name!r}")
        return save(self.plot(), path.with_suffix(""), (path.suffix[1:],))[0]


@usual_promotion()
def violations(
    fn: Callable[[Any], Any], params: Any, solver: Solver, *, steps: int | None = None
) -> Violations:
    """Measure how much every constraint is violated after each step of a method.

    Args:
        fn: an ordinary JAX function of the parameters that ends in a target.
        params: any pytree of floating-point arrays, the start.
        solver: a method of `pjax.optim`.
        steps: how many; by default as many as one update makes.

    >>> import pjax
    >>> x, y = jnp.ones((4, 3)), jnp.zeros((4, 2))
    >>> solver = pjax.optim.AlternatingProjections(steps_per_update=100)
    >>> found = violations(lambda w: pjax.squared_error(x @ w, y), jnp.ones((3, 2)), solver)
    >>> [node.op for node in found.nodes], found.values.shape
    (['dot', 'squared_error'], (100, 2))
    >>> bool(found.values[-1, 0] < found.values[0, 0])
    True
    """
    check_solver(solver)
    check_function(fn)
    count = solver.steps_per_update if steps is None else steps
    check_whole("steps", count)
    if solver.sweeps:
        raise InputError(
            f"{type(solver).__name__} evaluates the network anew in every step, so nothing but its targets is"
            " ever violated: look at the loss that `update` returns, or measure another method"
        )
    traced, leaves = tracing.read(fn, params), jax.tree.leaves(params)
    if solver.check:
        check_finite(traced, leaves)
    # Node by node; and not from the cache, where the same graph may come from other lines.
    program = Program(solver, traced, stack=False)
    graph = program.partition.graph
    nodes = [node for node in graph.nodes if not node.is_parameter]

    @jax.jit
    def run(leaves: list[Any], constants: tuple[Any, ...]) -> jax.Array:
        problem = program.problem(leaves, constants)
        iteration = solver.iteration(problem)

        def step(state: Any, _: None) -> tuple[Any, jax.Array]:
            state = iteration.step(state)
            values = iteration.values(state)
            return state, jnp.stack([_violation(problem, node, values) for node in nodes])

        return jax.lax.scan(step, iteration.start(), None, count)[1]

    found = np.asarray(run(leaves, traced.constants))
    return Violations(solver.name, tuple(info(graph, node) for node in nodes), found)


def _violation(problem: Problem, node: Node, values: dict[int, jax.Array]) -> jax.Array:
    """The violation of one node, given the displacements of all."""
    v = node.index
    shifts = problem.shifts(v, values)
    read = None
    if node.is_target:
        (move,) = problem.project(v, shifts, None).inputs
        assert move is not None and shifts[0] is not None
        said = problem.inputs[v][0] + shifts[0]
        made, gap = said + move, move
    else:
        assert node.rule is not None
        change = node.rule.change(problem.place(v), shifts)
        point = jnp.where(jnp.isinf(problem.points[v]), 0, problem.points[v])  # what stays has no size
        said, made, gap = point + values[v], point + change, change - values[v]
        read = problem.read(v)
    said, made, gap = (_length(x, read) for x in (said, made, gap))
    size = jnp.maximum(said, made)
    return jnp.where(gap == 0, 0, gap / jnp.where(size == 0, 1, size))


def _length(x: jax.Array, read: jax.Array | None) -> jax.Array:
    """The Euclidean length of what is read. Scaled first, so that squares do not overflow."""
    x = x if read is None else jnp.where(read, x, 0)
    largest = jnp.max(jnp.abs(x), initial=0)
    scale = jnp.where(largest > 0, largest, 1)
    return scale * jnp.sqrt(jnp.sum((x / scale) ** 2))


def _percent(x: float) -> str:
    """A part of a whole, to one digit or to the percent.

    >>> _percent(1.0), _percent(0.143), _percent(0.00512)
    ('100 %', '14 %', '0.5 %')
    """
    return f"{100 * x:.0f} %" if x >= 0.01 else f"{100 * x:.1g} %"
