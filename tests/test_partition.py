"""Which nodes project together: two colours, identities on odd cycles, cyclic layers."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pjax
from pjax.graph import read as _trace
from pjax.graph.partition import cyclic_layers, two_sets
from tests.graphs import GRAPHS, make


def graph_of(fn, params):
    return _trace.build(_trace.read(fn, params))


def check_sets(partition):
    """Each node is in exactly one set, and no edge lies inside a set."""
    nodes = sorted(v for group in partition.sets for v in group)
    assert nodes == list(range(len(partition.graph.nodes)))
    place = partition.set_of()
    for v, near in enumerate(partition.graph.neighbours):
        assert v not in near
        assert all(place[u] != place[v] for u in near)


def identities(partition):
    return [n for n in partition.graph.nodes if n.name.endswith(".identity")]


def is_bipartite(graph):
    colour = {}
    for root in range(len(graph.nodes)):
        stack = [root] if root not in colour else []
        colour.setdefault(root, 0)
        while stack:
            v = stack.pop()
            for u in graph.neighbours[v]:
                if u not in colour:
                    colour[u] = 1 - colour[v]
                    stack.append(u)
                elif colour[u] == colour[v]:
                    return False
    return True


def forward(partition, traced, params):
    evaluate, _ = partition.graph.evaluator(traced.constants, jax.tree.leaves(params))
    return partition.graph.loss(evaluate)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_graphs_of_the_table(name):
    fn, params = make(name, np.float32)
    traced = _trace.read(fn, params)
    graph = _trace.build(traced)
    two, layers = two_sets(graph), cyclic_layers(graph)
    check_sets(two)
    check_sets(layers)
    assert len(two.sets) == 2
    assert layers.graph is graph
    if is_bipartite(graph):
        assert identities(two) == []
        assert two.graph is graph
        # The first target, and all that an even number of edges lies between.
        assert two.set_of()[graph.targets[0].index] == 0
    else:
        assert identities(two)
    np.testing.assert_allclose(forward(two, traced, params), forward(layers, traced, params), rtol=1e-6)


@st.composite
def programs(draw):
    """A random function: each step applies an operation to values made before."""
    steps = draw(st.integers(1, 12))
    return [
        (
            draw(st.sampled_from(["add", "mul", "relu", "identity", "concat", "max"])),
            draw(st.integers(0, 100)),
            draw(st.integers(0, 100)),
        )
        for _ in range(steps)
    ], draw(st.integers(1, 3))


def run(program, params):
    steps, targets = program
    values = list(params)
    for op, i, j in steps:
        a, b = values[i % len(values)], values[j % len(values)]
        if op == "add":
            out = a + b
        elif op == "mul":
            out = a * b
        elif op == "relu":
            out = jax.nn.relu(a)
        elif op == "max":
            out = jnp.maximum(a, b)
        elif op == "identity":
            out = pjax.identity(a)
        else:
            out = jnp.concatenate([a[:1], b[1:]])
        values.append(out)
    return [pjax.squared_error(v, jnp.zeros(2)) for v in values[-targets:]]


@settings(max_examples=60, deadline=None)
@given(programs())
def test_random_graphs(program):
    params = [jnp.ones(2), jnp.ones(2)]
    traced = _trace.read(lambda p: run(program, p), params)
    graph = _trace.build(traced)
    two, layers = two_sets(graph), cyclic_layers(graph)
    check_sets(two)
    check_sets(layers)
    assert (identities(two) == []) == is_bipartite(graph)
    # An identity has one source, a reader, and keeps shape and type.
    for node in identities(two):
        (source,) = node.wires[0].sources
        assert two.graph.nodes[source].shape == node.shape
        assert two.graph.readers[node.index]
    order = {n.index: i for i, n in enumerate(two.graph.nodes)}
    assert all(order[s] < order[n.index] for n in two.graph.nodes for w in n.wires for s in w.sources)
    assert [n.op for n in graph.nodes] == [n.op for n in two.graph.nodes if not n.name.endswith(".identity")]


def test_one_identity_for_one_odd_cycle():
    def fn(w):
        h = w * 2.0
        return pjax.squared_error(h + jax.nn.relu(h), jnp.ones(3))

    assert len(identities(two_sets(graph_of(fn, jnp.ones(3))))) == 1


def test_one_identity_for_many_odd_cycles_through_one_node():
    def fn(w):
        h = w * 2.0
        total = h
        for i in range(5):
            total = total + jax.nn.relu(h - float(i))
        return pjax.squared_error(jnp.concatenate([total, h]), jnp.ones(6))

    graph = graph_of(fn, jnp.ones(3))
    assert not is_bipartite(graph)
    check_sets(two_sets(graph))
    assert len(identities(two_sets(graph))) <= 4


def test_tied_weights_that_make_an_odd_cycle():
    def fn(w):  # w -> dot -> dot <- w has three nodes
        return pjax.squared_error((jnp.ones((2, 3)) @ w) @ w, jnp.ones((2, 3)))

    graph = graph_of(fn, jnp.ones((3, 3)))
    two = two_sets(graph)
    check_sets(two)
    assert len(identities(two)) == 1


def test_the_log_tells_of_identities(caplog):
    def fn(w):
        h = w * 2.0
        return pjax.squared_error(h + jax.nn.relu(h), jnp.ones(3))

    graph = graph_of(fn, {"weight": jnp.ones(3)}["weight"])
    with caplog.at_level(logging.DEBUG, logger="pjax"):
        two_sets(graph)
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert "1 identity nodes inserted behind" in record.getMessage()


def test_no_log_where_none_are_needed(caplog):
    graph = graph_of(*make("mlp", np.float32))
    with caplog.at_level(logging.DEBUG, logger="pjax"):
        two_sets(graph)
    assert not caplog.records


def test_cyclic_layers_follow_the_backward_search():
    graph = graph_of(*make("mlp", np.float32))
    layers = cyclic_layers(graph)
    names = [[graph.nodes[v].op for v in group] for group in layers.sets]
    assert names[0] == ["cross_entropy"]
    assert names[1] == ["sum"]
    assert sorted(names[2]) == ["dot", "parameter"]  # the second product and its bias
    assert sorted(names[3]) == ["parameter", "sum_relu"]
    assert sorted(names[4]) == ["dot", "parameter"]
    assert names[5] == ["parameter"]


@settings(max_examples=30, deadline=None)
@given(programs())
def test_cyclic_layers_never_go_forwards(program):
    """A node comes after the first of its readers: distances to the targets never fall."""
    graph = graph_of(lambda p: run(program, p), [jnp.ones(2), jnp.ones(2)])
    place = cyclic_layers(graph).set_of()
    for v, pairs in enumerate(graph.readers):
        if pairs:
            assert place[v] > min(place[r] for r, _ in pairs)
