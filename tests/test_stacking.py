"""Stacked nodes: the same result, fewer nodes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import nn, optim
from pjax.experiments import models
from pjax.graph import read as _trace
from pjax.graph.partition import two_sets
from pjax.graph.stack import stacking
from pjax.graph.stack.stacking import StackedGraph, stacked
from pjax.optim import solver as _solver
from pjax.rules import SumRelu
from pjax.rules.dot_general import DotGeneral
from tests.graphs import GRAPHS, make

KEY = jax.random.key(0)


def mlp(depth):
    model = models.MLP(7, [5] * depth, 3, skip=depth % 2 == 1)
    x, y = jax.random.normal(KEY, (6, 7)), jnp.arange(6) % 3
    return lambda p: pjax.cross_entropy(model.apply(p, x), y), model.init(KEY)


def rnn(widths, skip=False, length=6):
    model = models.RNN(4, widths, skip=skip)
    x = jax.random.randint(KEY, (5, length), 0, 4)
    return lambda p: pjax.cross_entropy(model.apply(p, x), (x + 1) % 4), model.init(KEY)


def attention():
    model = nn.Sequential(nn.MultiHeadAttention(4, 2), nn.Linear(4, 3))
    x, y = jax.random.normal(KEY, (3, 5, 4)), jnp.zeros((3, 5), int)
    return lambda p: pjax.cross_entropy(model.apply(p, x), y), model.init(KEY)


NETWORKS = {
    "deep": lambda: mlp(6),
    "deep+skip": lambda: mlp(5),
    "rnn": lambda: rnn([5]),
    "deep_rnn": lambda: rnn([5, 5, 5], skip=True),
    "attention": attention,
}
SOLVERS = {
    "AP": optim.AlternatingProjections(steps_per_update=4),
    "AP+": optim.AlternatingProjections(
        steps_per_update=4, metric="balanced", extrapolate="tensor", consensus="exact"
    ),
    "CP": optim.CyclicProjections(steps_per_update=4),
    "DR": optim.DouglasRachford(steps_per_update=4),
    "DR explicit": optim.DouglasRachford(steps_per_update=4, edges="explicit"),
    "DM": optim.DifferenceMap(steps_per_update=4, constants="fixed"),
}


def apart(solver, fn, params):
    found = [dataclasses.replace(solver, stack=stack).update(fn, params)[0] for stack in (True, False)]
    assert any(bool(jnp.any(a != b)) for a, b in zip(*map(jax.tree.leaves, (found[1], params)), strict=True))
    return max(float(jnp.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, found), strict=True))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("network", "solver"),
    [(n, s) for i, n in enumerate(NETWORKS) for j, s in enumerate(SOLVERS) if (i + j) % 9 == 0],
)
def test_networks_move_the_same(network, solver):
    fn, params = NETWORKS[network]()
    params = jax.tree.map(lambda x: x.astype(jnp.float64), params)
    assert apart(SOLVERS[solver], fn, params) < 1e-11


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("graph", list(GRAPHS)[3::20])
def test_graphs_move_the_same(graph):
    fn, params = make(graph, np.float64)
    for name in ("AP", "DR"):
        assert apart(SOLVERS[name], fn, params) < 1e-11


def graph_of(network, **changes):
    fn, params = network(**changes) if changes else network()
    return stacked(two_sets(_trace.build(_trace.read(fn, params)))).graph


def test_layers_are_one_node():
    graph = graph_of(NETWORKS["deep"])
    assert isinstance(graph, StackedGraph)
    shapes = [node.shape for node in graph.nodes if isinstance(node.rule, DotGeneral)]
    assert sorted(shapes) == [(5, 6, 5), (6, 3), (6, 5)]  # five equal layers, the first and the last
    assert [node.shape for node in graph.nodes if isinstance(node.rule, SumRelu)] == [(6, 6, 5)]
    weights = [node.shape for node in graph.nodes if node.is_parameter]
    assert sorted(weights) == [(5, 3), (5, 5, 5), (6, 5), (7, 5)]  # with their weights and biases


def test_the_graph_does_not_grow_with_length_or_depth():
    short, long = (graph_of(lambda n=n: rnn([5], length=n)) for n in (4, 20))
    assert len(short.nodes) == len(long.nodes)
    shallow, deep = (graph_of(lambda n=n: mlp(n)) for n in (4, 20))
    assert len(shallow.nodes) == len(deep.nodes)


def test_a_shared_factor_is_not_copied():
    """Time steps share their weights: one larger product."""
    graph = graph_of(NETWORKS["rnn"])
    products = [node for node in graph.nodes if isinstance(node.rule, DotGeneral)]
    assert all(node.rule.batch == ((), ()) for node in products)
    inner = next(node for node in products if len(node.shape) == 3 and node.shape[0] == 6)
    assert inner.inputs[1].expr.node is not None  # the parameter itself


def test_the_program_is_smaller():
    fn, params = mlp(24)

    def lines(stack):
        solver = optim.AlternatingProjections(stack=stack)
        return len(jax.jit(lambda p: solver.update(fn, p)).lower(params).as_text().splitlines())

    assert lines(True) < 0.4 * lines(False)


def cnn():
    model = models.make("cnn", (6, 6, 1), (4, 4, 4), 3, skip=True)
    x, y = jax.random.normal(KEY, (5, 6, 6, 1)), jnp.arange(5) % 3
    return lambda p: pjax.cross_entropy(model.apply(p, x), y), model.init(KEY)


def test_large_arrays_next_to_convolutions_stay_apart(monkeypatch):
    """On one GPU; what is small there, or large but next to stacks, is stacked."""
    fn, params = cnn()
    together = grouped(fn, params)
    assert max(map(len, together)) > 1
    monkeypatch.setattr(stacking, "separate_arrays", lambda: True)
    assert grouped(fn, params) == together
    monkeypatch.setattr(stacking, "LARGE", 5 * 6 * 6 * 4)
    assert max(map(len, grouped(fn, params))) == 1
    assert max(map(len, grouped(*rnn([5])))) > 1

    def moved():
        monkeypatch.setattr(_solver, "_PROGRAMS", type(_solver._PROGRAMS)())
        return SOLVERS["AP"].update(fn, params)[0]

    apart = moved()
    monkeypatch.setattr(stacking, "LARGE", 10**9)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), apart, moved())


def grouped(fn, params):
    """The nodes that each node of the stacked graph stands for."""
    return stacking.unstacked(graph_of(lambda: (fn, params)))[1]
