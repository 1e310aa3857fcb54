"""The paper's definition, edge by edge: an engine in NumPy and float64 that shares little with pjax's.

One number per edge; constants are nodes whose edges are reset; absolute values instead of displacements;
explicit loops instead of layouts, transposes and contractions. What it takes from pjax is the graph (which
node reads what, through which wire), the sets of the partition, and the projection rules of primitives.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pjax import optim
from pjax.graph import read as _trace
from pjax.graph.partition import Partition
from pjax.graph.wires import Evaluator
from pjax.rules import Dot, Target
from pjax.rules.contraction import Contraction
from pjax.rules.convolution import Convolution
from pjax.rules.dot_general import DotGeneral
from pjax.sets import Constrain

CONSTANT = -1
SOLVERS = {
    "AP": optim.AlternatingProjections,
    "CP": optim.CyclicProjections,
    "DR": optim.DouglasRachford,
    "DM": functools.partial(optim.DifferenceMap, beta=0.7),
}
"""The methods that it knows."""


@functools.partial(jax.jit, static_argnums=0)
def _project(rule: Any, inputs: Any, output: Any, weight: Any) -> Any:
    return rule.project(inputs, output, weight)


@functools.partial(jax.jit, static_argnums=0)
def _move(rule: Any, factor: Any, predictions: Any, *labels: Any) -> Any:
    return rule.weighted(factor, predictions, *labels)


def _factors(graph: Any, constants: Sequence[Any]) -> dict[int, np.ndarray]:
    """By which factor each loss counts, next to the largest of those with a scale, by a derivative."""

    def total(losses: dict[int, Any]) -> Any:
        known = Evaluator(constants, losses)
        return sum(jax.numpy.sum(known(out)) for out in graph.outputs)

    targets = {n.index: n for n in graph.nodes if n.is_target}
    found = jax.grad(total)({v: jax.numpy.zeros(n.shape, n.dtype) for v, n in targets.items()})
    scaled = {v: getattr(n.rule, "scale", None) is not None for v, n in targets.items()}
    most = max((float(abs(f).max()) for v, f in found.items() if scaled[v]), default=1.0)
    return {v: np.asarray(f / most if scaled[v] else f) for v, f in found.items()}


@functools.partial(jax.jit, static_argnums=0)
def _forward(rule: Any, *inputs: Any) -> Any:
    return rule.forward(*inputs)


def slots(wire: Any, graph: Any, constants: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each slot of a wire: the node and the scalar that it copies, or CONSTANT and a value.

    The scalars are numbered, and the wire is evaluated on one binary digit of their numbers after the other,
    so that no cast can round them.
    """
    sizes = [math.prod(graph.nodes[s].shape) for s in wire.sources]
    starts = np.cumsum([0, *sizes])
    bits = max(int(starts[-1]).bit_length(), 1)

    def evaluate(digits: Any) -> Any:
        return Evaluator(constants, dict(zip(wire.sources, digits, strict=True)))(wire.expr)

    def planes(values: np.ndarray) -> list[jax.Array]:
        return [
            jnp.asarray(values[:, a : a + n].reshape(-1, *graph.nodes[s].shape), graph.nodes[s].dtype)
            for s, a, n in zip(wire.sources, starts, sizes, strict=False)
        ]

    if not wire.sources:
        fixed = np.asarray(evaluate([])).astype(np.float64).ravel()
        return np.full(fixed.shape, CONSTANT), np.zeros(fixed.shape, int), fixed
    numbers = np.arange(starts[-1])
    digits = (numbers >> np.arange(bits)[:, None]) & 1
    rows = np.concatenate([np.zeros((1, starts[-1])), np.ones((1, starts[-1])), digits])
    seen = np.asarray(jax.vmap(evaluate)(planes(rows)).astype(jnp.float64)).reshape(len(rows), -1)
    copies = seen[0] != seen[1]
    assert set(np.unique(seen[1:, copies])) <= {0.0, 1.0}, "a wire must only move numbers"
    assert (seen[:, ~copies] == seen[0, ~copies]).all(), "a wire must only move numbers"
    number = (seen[2:].astype(np.int64) * (1 << np.arange(bits))[:, None]).sum(0)
    number = np.where(copies, number, 0)
    place = np.searchsorted(starts, number, side="right") - 1
    node = np.where(copies, np.asarray(wire.sources)[np.minimum(place, len(sizes) - 1)], CONSTANT)
    return node, number - starts[place], seen[0]


def written_out(rule: Contraction) -> tuple[np.ndarray, np.ndarray]:
    """For each output of a contraction and each k, the flat places of its two factors; -1 for padding."""
    return _written_conv(rule) if isinstance(rule, Convolution) else _written_dot(rule)


def _written_dot(rule: DotGeneral) -> tuple[np.ndarray, np.ndarray]:
    shapes = rule.shapes
    free = [
        [d for d in range(len(shapes[i])) if d not in rule.contract[i] and d not in rule.batch[i]]
        for i in (0, 1)
    ]
    batch_ranges = [range(shapes[0][d]) for d in rule.batch[0]]
    free_ranges = [[range(shapes[i][d]) for d in free[i]] for i in (0, 1)]
    contract_ranges = [range(shapes[0][d]) for d in rule.contract[0]]
    tables: list[list[list[int]]] = [[], []]
    for b in itertools.product(*batch_ranges):
        for f0 in itertools.product(*free_ranges[0]):
            for f1 in itertools.product(*free_ranges[1]):
                rows: list[list[int]] = [[], []]
                for k in itertools.product(*contract_ranges):
                    for i, f in ((0, f0), (1, f1)):
                        at = [0] * len(shapes[i])
                        for axes, values in ((rule.batch[i], b), (free[i], f), (rule.contract[i], k)):
                            for axis, value in zip(axes, values, strict=True):
                                at[axis] = value
                        rows[i].append(int(np.ravel_multi_index(at, shapes[i])) if at else 0)
                tables[0].append(rows[0])
                tables[1].append(rows[1])
    return np.asarray(tables[0]), np.asarray(tables[1])


def _written_conv(rule: Convolution) -> tuple[np.ndarray, np.ndarray]:
    x_shape, k_shape = rule.shapes
    (nb, nf, *ns), (ko, ki, *ks), (ob, of, *os_) = rule.axes
    taps, depth, features = [k_shape[d] for d in ks], k_shape[ki], k_shape[ko]
    size = []
    for d, axis in enumerate(ns):
        spread = (x_shape[axis] - 1) * rule.input_dilation[d] + 1 + sum(rule.padding[d])
        reach = (taps[d] - 1) * rule.kernel_dilation[d] + 1
        size.append((spread - reach) // rule.strides[d] + 1)
    out_shape = [0] * len(x_shape)
    out_shape[ob], out_shape[of] = x_shape[nb], features
    for d, axis in enumerate(os_):
        out_shape[axis] = size[d]
    first, second = [], []
    for at in np.ndindex(*out_shape):
        row: list[int] = []
        kernel_row: list[int] = []
        group = at[of] // (features // rule.groups)
        for c in range(depth):
            for tap in np.ndindex(*taps):
                place, inside = [0] * len(x_shape), True
                place[nb], place[nf] = at[ob], group * depth + c
                for d, axis in enumerate(ns):
                    position = (
                        at[os_[d]] * rule.strides[d] + tap[d] * rule.kernel_dilation[d] - rule.padding[d][0]
                    )
                    inside &= position >= 0 and position % rule.input_dilation[d] == 0
                    position //= rule.input_dilation[d]
                    inside &= position < x_shape[axis]
                    place[axis] = position
                row.append(int(np.ravel_multi_index(place, x_shape)) if inside else -1)
                where = [0] * len(k_shape)
                where[ko], where[ki] = at[of], c
                for d, axis in enumerate(ks):
                    where[axis] = tap[d]
                kernel_row.append(int(np.ravel_multi_index(where, k_shape)))
        first.append(row)
        second.append(kernel_row)
    return np.asarray(first), np.asarray(second)


class Oracle:
    """A graph written out to scalar edges, and the projections onto its sets."""

    def __init__(
        self,
        partition: Partition,
        constants: Sequence[Any],
        leaves: Sequence[Any],
        *,
        consensus: str = "paper",
        fixed_constants: bool = False,
        metric: str = "unit",
    ) -> None:
        self.graph, self.sets = partition.graph, partition.sets
        self.place = {v: k for k, nodes in enumerate(self.sets) for v in nodes}
        self.consensus, self.fixed_constants = consensus, fixed_constants
        nodes = self.graph.nodes
        assert all(n.index == v for v, n in enumerate(nodes))
        self.leaves = [np.asarray(jnp.asarray(x).astype(jnp.float64)) for x in leaves]
        source, scalar, value, self.where = [], [], [], {}
        self.labels: dict[int, list[Any]] = {}
        self.shapes: dict[tuple[int, int], tuple[int, ...]] = {}
        self.fixed: dict[int, int | None] = {}
        total = 0
        for node in nodes:
            tables = written_out(node.rule) if isinstance(node.rule, Contraction) else None
            for i, wire in enumerate(node.wires):
                u, s, c = slots(wire, self.graph, constants)
                if tables is not None:
                    pad = tables[i].ravel() < 0
                    u, s, c = (
                        np.where(pad, fill, a[tables[i].ravel()])
                        for a, fill in ((u, CONSTANT), (s, 0), (c, 0))
                    )
                self.where[node.index, i] = slice(total, total + len(u))
                self.shapes[node.index, i] = wire.shape if tables is None else tables[i].shape
                total += len(u)
                source.append(u)
                scalar.append(s)
                value.append(c)
            known = Evaluator(constants, {})
            still = node.inputs[len(node.wires) :]
            self.labels[node.index] = [np.asarray(known(wire.expr)) for wire in still]
            constant = [i for i, wire in enumerate(node.wires) if wire.constant]
            product = isinstance(node.rule, (Contraction, Dot))
            held = fixed_constants or isinstance(node.rule, Dot)
            self.fixed[node.index] = constant[0] if held and product and constant else None
        self.factors = _factors(partition.graph, constants)
        self.source, self.scalar, self.value = map(np.concatenate, (source, scalar, value))
        self.reader = np.empty(total, int)
        for (v, _), at in self.where.items():
            self.reader[at] = v
        self.leaving = [np.flatnonzero(self.source == v) for v in range(len(nodes))]
        self.count = []
        for v, node in enumerate(nodes):
            count = np.zeros(math.prod(node.shape))
            np.add.at(count, self.scalar[self.leaving[v]], 1)
            self.count.append(count)
        self.writes = np.zeros(total, int)
        self.scale = np.ones(total)
        if metric == "balanced":
            z = self.start()
            for v, node in enumerate(nodes):
                if isinstance(node.rule, Contraction):
                    x, y = (np.mean((edges**2).sum(-1)) for edges in self.inputs(v, z))
                    least = 1e-12 + 1e-6 * max(x, y)
                    s = (max(y, least) / max(x, least)) ** 0.25
                    self.scale[self.where[v, 0]], self.scale[self.where[v, 1]] = s, 1 / s

    def start(self) -> np.ndarray:
        """All edges at the forward evaluation."""
        z = np.where(self.source == CONSTANT, self.value, np.nan)
        for v, node in enumerate(self.graph.nodes):
            if node.is_parameter:
                out = self.leaves[self.graph.leaves.index(v)]
            elif node.is_target:
                continue
            else:
                rule = Dot() if isinstance(node.rule, Contraction) else node.rule
                out = np.asarray(_forward(rule, *self.inputs(v, z), *self.labels[v]))
            z[self.leaving[v]] = out.ravel()[self.scalar[self.leaving[v]]]
        assert np.isfinite(z).all()
        return z

    def inputs(self, v: int, z: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(
            z[self.where[v, i]].reshape(self.shapes[v, i]) for i in range(len(self.graph.nodes[v].wires))
        )

    def mean(self, v: int, z: np.ndarray) -> np.ndarray:
        """The mean of the edges that leave each scalar of a node; NaN where there are none."""
        total = np.zeros(len(self.count[v]))
        np.add.at(total, self.scalar[self.leaving[v]], z[self.leaving[v]])
        with np.errstate(invalid="ignore"):
            return total / self.count[v]

    def project(self, k: int, z: np.ndarray) -> np.ndarray:
        """The projection onto set k."""
        new = z.copy()
        self.writes[:] = 0
        for v in self.sets[k]:
            self._project(v, z, new)
        # Constants project with the set after their reader's.
        readers = [v for v, at in self.place.items() if (at + 1) % len(self.sets) == k]
        resets = np.flatnonzero((self.source == CONSTANT) & np.isin(self.reader, readers))
        self._write(new, resets, self.value[resets])
        assert self.writes.max() <= 1, "nodes of one set share an edge"
        return new

    def _write(self, z: np.ndarray, edges: Any, values: np.ndarray) -> None:
        z[edges] = values
        self.writes[edges] += 1

    def _project(self, v: int, z: np.ndarray, new: np.ndarray) -> None:
        node, inputs = self.graph.nodes[v], self.inputs(v, z * self.scale)
        if isinstance(node.rule, Target):
            moved = inputs[0] + np.asarray(_move(node.rule, self.factors[v], inputs[0], *self.labels[v]))
            self._write(new, self.where[v, 0], moved.ravel())
            return
        mean = self.mean(v, z)
        read = self.count[v] > 0
        if node.rule is None:
            out = mean
        else:
            rule = Dot(self.fixed[v]) if isinstance(node.rule, (Contraction, Dot)) else node.rule
            shape = self.shapes[v, 0][:-1] if isinstance(node.rule, Contraction) else node.shape
            weight = np.where(read, self.count[v], 1) if self.consensus == "exact" else np.ones(len(mean))
            goal = np.where(read, mean, 0.0)
            if isinstance(rule, Constrain):  # a member is one, read or not
                goal, read = np.where(read, mean, inputs[0].ravel()), np.full(len(mean), True)
            given = (*inputs, *self.labels[v])
            ends, out = _project(rule, given, goal.reshape(shape), weight.reshape(shape))
            out, ends = np.asarray(out).ravel(), ends[: len(inputs)]
            for i, (end, old) in enumerate(zip(ends, inputs, strict=True)):
                keep = read.reshape(*shape, *(1 for _ in range(old.ndim - len(shape))))
                end = np.asarray(end) if read.all() else np.where(keep, np.asarray(end), old)
                end = end.ravel()
                self._write(new, self.where[v, i], end / self.scale[self.where[v, i]])
        self._write(new, self.leaving[v], out[self.scalar[self.leaving[v]]])

    def extrapolate(self, k: int, z: np.ndarray, new: np.ndarray) -> np.ndarray:
        """The edges into set k move on: the mean of the edges of each source then moves by a factor more."""
        mine = np.isin(self.reader, self.sets[k])
        moved = np.where(mine, new - z, 0)
        result = new.copy()
        for v, edges in enumerate(self.leaving):
            if not len(edges):
                continue
            mean = np.nan_to_num(self.mean(v, moved))[self.scalar[edges]]
            share = np.nan_to_num(self.mean(v, mine.astype(float)))[self.scalar[edges]]
            below = (mean**2).sum()
            if below > 0:
                factor = np.clip((moved[edges] ** 2).sum() / below, 1, self.count[v].max())
                more = (factor - 1) * mean / np.where(share > 0, share, 1)
                result[edges] += np.where(mine[edges], more, 0)
        return result

    def parameters(self, z: np.ndarray) -> list[np.ndarray]:
        """The leaves of the parameters; scalars that nobody reads keep their values."""
        found = []
        for leaf, v in zip(self.leaves, self.graph.leaves, strict=True):
            if v is None:
                found.append(leaf)
                continue
            mean = self.mean(v, z)
            found.append(np.where(self.count[v] > 0, mean, leaf.ravel()).reshape(leaf.shape))
        return found


def _cycle(extrapolate: str | None) -> Callable[[Oracle, np.ndarray], np.ndarray]:
    def step(oracle: Oracle, z: np.ndarray) -> np.ndarray:
        for k in range(len(oracle.sets)):
            new = oracle.project(k, z)
            z = oracle.extrapolate(k, z, new) if extrapolate else new
        return z

    return step


def _shadow(oracle: Oracle, z: np.ndarray) -> np.ndarray:
    return oracle.project(0, z)


def _relaxed(rho: float) -> Callable[[Oracle, np.ndarray], np.ndarray]:
    def step(oracle: Oracle, z: np.ndarray) -> np.ndarray:
        first = oracle.project(0, z)
        return z + 2 * rho * (oracle.project(1, 2 * first - z) - first)

    return step


def _difference_map(beta: float) -> tuple[Any, Any]:
    def behind(oracle: Oracle, z: np.ndarray) -> np.ndarray:
        second = oracle.project(1, z)
        return oracle.project(0, second - (second - z) / beta)

    def step(oracle: Oracle, z: np.ndarray) -> np.ndarray:
        first = oracle.project(0, z)
        ahead = oracle.project(1, first + (first - z) / beta)
        return z + beta * (ahead - behind(oracle, z))

    return step, behind


def method(solver: Any) -> tuple[Any, Any]:
    """The step of a solver, and how the solution follows from its state."""
    if solver.name in ("AP", "CP"):
        return _cycle(solver.extrapolate), lambda _, z: z
    if solver.name == "DR":
        return _relaxed(solver.relaxation), _shadow
    assert solver.name == "DM"
    return _difference_map(solver.beta)


def update(solver: Any, fn: Any, params: Any) -> Any:
    """What `solver.update(fn, params)` should return as parameters, in float64."""
    leaves, tree = jax.tree.flatten(params)
    traced = _trace.read(fn, params)
    partition = solver.partition(_trace.build(traced))
    oracle = Oracle(
        partition,
        traced.constants,
        leaves,
        consensus=solver.consensus,
        fixed_constants=solver.constants == "fixed",
        metric=solver.metric,
    )
    step, shadow = method(solver)
    z = oracle.start()
    for _ in range(solver.steps_per_update):
        z = step(oracle, z)
    return jax.tree.unflatten(tree, oracle.parameters(shadow(oracle, z)))
