"""Stacked nodes: the same result, fewer nodes, and programs that do not grow."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pjax
from pjax import nn, optim
from pjax.experiments import models
from pjax.graph import read as _trace
from pjax.graph import read as tracing
from pjax.graph.partition import two_sets
from pjax.graph.stack import stacking
from pjax.graph.stack.stacking import StackedGraph, stacked
from pjax.optim import solver as _solver
from pjax.optim.solver import Program, compiled
from pjax.rules import SumRelu
from pjax.rules.dot_general import DotGeneral
from tests.graphs import GRAPHS, make

# --- Results ---

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


def unstacked(solver):
    """The same method without stacks."""
    if isinstance(solver, optim.Outer):
        return dataclasses.replace(solver, method=unstacked(solver.method))
    return dataclasses.replace(solver, stack=False)


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


def program_text(solver, fn, params):
    traced, (leaves, treedef) = tracing.read(fn, params), jax.tree.flatten(params)
    return compiled(solver, traced).update.lower(leaves, traced.constants, (), treedef).as_text()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("graph", list(GRAPHS)[3::20])
def test_graphs_without_equal_nodes_are_the_same_program(graph):
    """Those with equal nodes are stacked where they are compared with the definition."""
    fn, params = make(graph, np.float64)
    for name in ("AP", "DR", "AP+"):
        assert not is_stacked(SOLVERS[name], fn, params)
        assert program_text(SOLVERS[name], fn, params) == program_text(unstacked(SOLVERS[name]), fn, params)


# --- Options for which every node has numbers of its own: every member of a stack has ---


def residual(depth=4):
    keys = jax.random.split(KEY, depth + 2)
    params = {
        "in": jax.random.normal(keys[0], (7, 4)),
        "hidden": [0.4 * jax.random.normal(key, (4, 4)) for key in keys[1:-1]],
        "out": jax.random.normal(keys[-1], (4, 3)),
    }
    x, y = jax.random.normal(jax.random.key(1), (6, 7)), jnp.arange(6) % 3

    def fn(p):
        h = x @ p["in"]
        for w in p["hidden"]:
            h = h + jax.nn.relu(h @ w)
        return pjax.cross_entropy(h @ p["out"], y)

    return fn, params


def experts(number=3):
    """Layers side by side, which are in one set for all methods, and share what they read."""
    keys = jax.random.split(KEY, number + 2)
    params = {
        "in": jax.random.normal(keys[0], (7, 5)),
        "each": [jax.random.normal(key, (5, 4)) for key in keys[1:-1]],
        "out": jax.random.normal(keys[-1], (4 * number, 3)),
    }
    x, y = jax.random.normal(jax.random.key(1), (6, 7)), jnp.arange(6) % 3

    def fn(p):
        h = jax.nn.relu(x @ p["in"])
        h = jnp.concatenate([jax.nn.relu(h @ w) for w in p["each"]], axis=-1)
        return pjax.cross_entropy(h @ p["out"], y)

    return fn, params


def crossed(order):
    """Members that read those of two other stacks, in an order."""
    keys = jax.random.split(KEY, 6 + len(order))
    params = {
        "first": [jax.random.normal(key, (7, 4)) for key in keys[:6]],
        "second": [jax.random.normal(key, (4, 3)) for key in keys[6:]],
    }
    x, y = jax.random.normal(jax.random.key(1), (6, 7)), jnp.arange(6) % 3

    def fn(p):
        h = [jnp.maximum(x @ w, 0.2 * (k % 2)) for k, w in enumerate(p["first"])]
        pairs = zip(order, p["second"], strict=True)
        return jnp.stack([pjax.cross_entropy(h[k] @ w, y) for k, w in pairs])

    return fn, params


BOTH = {"metric": "balanced", "extrapolate": "tensor"}
BALANCED = optim.DouglasRachford(steps_per_update=8, metric="balanced")
OWN = {
    "AP balanced": optim.AlternatingProjections(steps_per_update=8, metric="balanced"),
    "AP extrapolated": optim.AlternatingProjections(steps_per_update=8, extrapolate="tensor"),
    "AP both": optim.AlternatingProjections(steps_per_update=8, consensus="exact", **BOTH),
    "AP fixed": optim.AlternatingProjections(steps_per_update=8, constants="fixed", **BOTH),
    "AP explicit": optim.AlternatingProjections(steps_per_update=4, edges="explicit", **BOTH),
    "AP outer": optim.Outer(optim.AlternatingProjections(steps_per_update=8, **BOTH), optax.sgd(0.5)),
    "CP balanced": optim.CyclicProjections(steps_per_update=3, metric="balanced"),
    "CP extrapolated": optim.CyclicProjections(steps_per_update=3, extrapolate="tensor"),
    "CP both": optim.CyclicProjections(steps_per_update=3, **BOTH),
    "DR balanced": BALANCED,
    "DR history": dataclasses.replace(BALANCED, steps_per_update=4, history=4),
    "DR explicit": dataclasses.replace(BALANCED, edges="explicit"),
    "DR outer": optim.Outer(BALANCED, optax.sgd(0.5)),
    "DM balanced": optim.DifferenceMap(steps_per_update=8, metric="balanced"),
}
TAKEN = {
    "deep": (lambda: mlp(4), ("AP both", "DR outer")),
    "residual": (residual, ("DR balanced",)),
    "rnn": (lambda: rnn([5], length=3), ("AP balanced", "CP both")),
    "crossed": (lambda: crossed((5, 2, 1, 4, 3, 0)), ("AP extrapolated",)),
    "twice": (lambda: crossed((0, 1, 2, 3, 4, 5, 3)), ("AP both",)),
    "experts": (
        experts,
        (
            "AP fixed",
            "AP explicit",
            "CP balanced",
            "DR history",
            "DM balanced",
        ),
    ),
}


def unequal(params):
    """Parameters in double precision, of different lengths."""
    leaves, treedef = jax.tree.flatten(params)
    sizes = np.random.default_rng(0).permutation(np.geomspace(0.7, 1.5, len(leaves)))
    return jax.tree.unflatten(
        treedef, [size * x.astype(jnp.float64) for size, x in zip(sizes, leaves, strict=True)]
    )


def is_stacked(solver, fn, params):
    graph = compiled(solver, tracing.read(fn, params)).partition.graph
    return max(map(len, stacking.unstacked(graph)[1])) > 1


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("network", "name"), [(n, s) for n, (_, names) in TAKEN.items() for s in names])
def test_members_have_numbers_of_their_own(network, name):
    fn, params = TAKEN[network][0]()
    params, solver = unequal(params), OWN[name]
    assert is_stacked(solver, fn, params)
    assert not is_stacked(unstacked(solver), fn, params)
    found, expected = (s.update(fn, params, s.init(params))[0] for s in (solver, unstacked(solver)))
    for start, a, b in zip(*map(jax.tree.leaves, (params, found, expected)), strict=True):
        move = float(jnp.abs(b - start).max())
        assert move > 1e-7
        # The last term is what adding a move to a parameter costs.
        assert float(jnp.abs(a - b).max()) < 1e-9 * move + 1e-15


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["AP both", "DR history"])
def test_violations_are_measured_the_same(name):
    """In the metric of each node, also where members share a factor."""
    fn, params = experts()
    params, solver = unequal(params), OWN[name]
    found, expected = (
        pjax.solve(fn, params, s, max_steps=4, tolerance=0.0).violations for s in (solver, unstacked(solver))
    )
    assert (expected > 0).all()
    np.testing.assert_allclose(found, expected, rtol=1e-9)


WORK = ("dot_general", "reduce", "divide", "sqrt", "maximum", "while")


@pytest.mark.parametrize("name", [n for n in OWN if n[:2] in ("AP", "DR") and "explicit" not in n])
def test_programs_are_as_large_for_twice_as_many_layers(name):
    def operations(depth):
        (fn, params), solver = mlp(depth), OWN[name]
        lowered = jax.jit(lambda p, s: solver.update(fn, p, s)).lower(params, solver.init(params))
        text = lowered.as_text()
        return {work: text.count(f"stablehlo.{work}") for work in WORK}, len(text.splitlines())

    (few, short), (many, long) = operations(8), operations(16)
    assert few == many
    assert long < 1.3 * short  # each parameter comes and goes by itself


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


# --- Values of stacked graphs are those of the graphs they were made of ---


def program(fn, params):
    return Program(optim.AlternatingProjections(), tracing.read(fn, params))


def values_agree(fn, params):
    """Compare all values, and return the stacked graph and the number of equations of its evaluation."""
    traced = tracing.read(fn, params)
    graph = Program(optim.AlternatingProjections(), traced).partition.graph
    leaves = jax.tree.leaves(params)
    _, found = graph.evaluator(traced.constants, leaves)
    _, right = graph.original.evaluator(traced.constants, leaves)
    for v, (unit, axis) in enumerate(zip(graph.members, graph.axes, strict=True)):
        wanted = right[unit[0]] if len(unit) == 1 else jnp.stack([right[m] for m in unit], axis)
        np.testing.assert_allclose(found[v], wanted, rtol=2e-5, atol=2e-5, err_msg=graph.nodes[v].name)
    jaxpr = jax.make_jaxpr(lambda xs: graph.evaluator(traced.constants, xs)[1])(leaves)
    return graph, [eqn.primitive.name for eqn in jaxpr.jaxpr.eqns]


def deep(depth, width=5, head=0, tail=0):
    keys = jax.random.split(jax.random.key(0), depth + 2)
    params = {
        "in": jax.random.normal(keys[0], (3, width)),
        "hidden": [0.5 * jax.random.normal(key, (width, width)) for key in keys[1:-1]],
        "out": jax.random.normal(keys[-1], (width, 2)),
    }
    x = jax.random.normal(jax.random.key(1), (4, 3))

    def fn(p):
        h = jax.nn.relu(x @ p["in"])
        for i, w in enumerate(p["hidden"]):
            z = h @ w
            h = jax.nn.relu(z) if head <= i < depth - tail else jnp.maximum(z, 0.5)
        return pjax.squared_error(h @ p["out"], jnp.zeros((4, 2)))

    return fn, params


def recurrent(steps, back=1):
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "in": jax.random.normal(keys[0], (2, 5)),
        "state": 0.5 * jax.random.normal(keys[1], (5, 5)),
        "out": jax.random.normal(keys[2], (5, 2)),
    }
    x = jax.random.normal(jax.random.key(1), (4, steps, 2))

    def fn(p):
        states, losses = [jnp.ones((4, 5))] * back, []
        for t in range(steps):
            states.append(jax.nn.relu(x[:, t] @ p["in"] + states[-back] @ p["state"]))
            losses.append(pjax.squared_error(states[-1] @ p["out"], x[:, t]))
        return jnp.stack(losses)

    return fn, params


@pytest.mark.parametrize("make", [deep, recurrent])
def test_the_program_does_not_grow(make):
    _, short = values_agree(*make(8))
    _, long = values_agree(*make(24))
    assert short.count("scan") == long.count("scan") == 1
    work = [
        [name for name in names if name in ("dot_general", "max", "custom_jvp_call")]
        for names in (short, long)
    ]
    assert len(work[0]) == len(work[1]) < 12


@pytest.mark.parametrize(("head", "tail"), [(2, 0), (0, 2), (2, 3)])
def test_steps_that_differ_are_evaluated_alone(head, tail):
    _, names = values_agree(*deep(12, head=head, tail=tail))
    assert names.count("scan") == 1


def test_what_reads_further_back_is_evaluated_step_by_step():
    _, names = values_agree(*recurrent(10, back=3))
    assert "scan" not in names


def test_the_head_may_hold_several_nodes_of_a_stack():
    """Before the first maximum there are two tanh, of which the first step reads the last."""

    def fn(p):
        h = jnp.tanh(p)
        h = jnp.tanh(h + 0.5 * h[::-1])
        for _ in range(6):
            h = jnp.tanh(jnp.maximum(h, h[::-1]))
        for _ in range(4):
            h = jnp.maximum(h, h[::-1])
            h = h + 0.5 * h[::-1]
        return pjax.squared_error(h, jnp.ones(4))

    graph, _ = values_agree(fn, jax.random.normal(KEY, (4,)))
    assert {8, 10} <= set(map(len, graph.members))


def test_layers_may_read_what_cannot_be_batched():
    x, shifts = jax.random.normal(KEY, (4, 5)), jnp.arange(30.0).reshape(6, 5)

    def fn(p):
        h = x
        for w, shift in zip(p, shifts, strict=True):
            h = jax.nn.relu(h @ w + jax.pure_callback(np.cos, jax.typeof(shift), shift))
        return pjax.squared_error(h, x)

    values_agree(fn, list(0.5 * jax.random.normal(jax.random.key(0), (6, 5, 5))))


def test_layers_that_read_a_constant_and_what_is_held():
    x = jax.random.normal(KEY, (3, 4))

    def fn(p):
        h = x * p
        for known in (lambda _: x, jax.lax.stop_gradient, lambda _: 2 * x, jax.lax.stop_gradient):
            h = jnp.maximum(h, h[:, ::-1])
            h = h * known(h)
        return pjax.squared_error(h, x)

    values_agree(fn, jnp.ones(4))


def test_the_tail_may_read_what_lies_far_back():
    _, params = deep(10)
    x = jax.random.normal(jax.random.key(1), (4, 3))

    def wired(p):
        hs = [jax.nn.relu(x @ p["in"])]
        for w in p["hidden"]:
            hs.append(jax.nn.relu(hs[-1] @ w))
        last = jax.nn.relu(hs[-1] @ p["hidden"][0] + hs[4])
        return pjax.squared_error(last @ p["out"], jnp.zeros((4, 2)))

    values_agree(wired, params)


def test_layers_that_read_the_same_constant_and_different_ones():
    keys = jax.random.split(jax.random.key(0), 9)
    params = [0.5 * jax.random.normal(key, (4, 4)) for key in keys]
    offsets = jax.random.normal(jax.random.key(2), (9, 4))
    x = jax.random.normal(jax.random.key(1), (3, 4))

    def fn(p):
        h = x
        for i, w in enumerate(p):
            h = jax.nn.relu(h @ w + offsets[i] + x)
        return pjax.squared_error(h, x)

    values_agree(fn, params)


@pytest.mark.parametrize("solver", [optim.AlternatingProjections, optim.DouglasRachford])
def test_updates_are_those_without_stacks(solver):
    fn, params = deep(8, head=1, tail=1)
    one, two = (solver(steps_per_update=5, stack=stack).update(fn, params)[0] for stack in (True, False))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_what_steps_take_from_constants_is_taken_at_once():
    def operations(length):
        model = models.make("rnn", (length,), (4,), 5)
        x = jnp.arange(2 * length).reshape(2, length) % 5
        params, solver = model.init(jax.random.key(0)), optim.AlternatingProjections(steps_per_update=2)

        def update(params, x):
            return solver.update(
                lambda p: pjax.cross_entropy(model.apply(p, x), (x + 1) % 5), params, solver.init(params)
            )

        return jax.jit(update).lower(params, x).as_text().count("stablehlo.slice")

    assert operations(6) == operations(12)


# --- Layers whose parameters are entries of one array ---


def scanned(p, h, apply):
    return jax.lax.scan(lambda h, own: (apply(h, own), None), h, p)[0]


def reversed_scan(p, h, apply):
    return jax.lax.scan(lambda h, own: (apply(h, own), None), h, p, reverse=True)[0]


def indexed(p, h, apply):
    for i in range(len(p["w"])):
        h = apply(h, {"w": p["w"][i], "b": p["b"][i]})
    return h


def iterated(p, h, apply):
    for w, b in zip(p["w"], jnp.unstack(p["b"]), strict=True):
        h = apply(h, {"w": w, "b": b})
    return h


def of_last_axis(p, h, apply):
    wide = jnp.moveaxis(p["w"], 0, -1)
    for i in range(wide.shape[-1]):
        h = apply(h, {"w": wide[..., i], "b": p["b"][i]})
    return h


def some_of_them(p, h, apply):
    """Every second one, the first two again, and the last twice."""
    for i in (*range(0, len(p["w"]), 2), 0, 1, -1, -1):
        h = apply(h, {"w": p["w"][i], "b": p["b"][i]})
    return h


THROUGH = (scanned, reversed_scan, indexed, iterated, of_last_axis, some_of_them)


def in_one_array(through, depth, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "in": jax.random.normal(keys[0], (3, 5)),
        "layers": {
            "w": 0.5 * jax.random.normal(keys[1], (depth, 5, 5)),
            "b": 0.1 * jax.random.normal(keys[2], (depth, 5)),
        },
    }
    params = jax.tree.map(lambda x: x.astype(dtype), params)
    x = jax.random.normal(keys[3], (4, 3))

    def fn(p):
        h = through(p["layers"], x @ p["in"], lambda h, own: jax.nn.relu(h @ own["w"] + own["b"]))
        return pjax.squared_error(h, jnp.zeros((4, 5)))

    return fn, params


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("through", "solver"),
    [*((through, "AP") for through in THROUGH), (indexed, "AP+"), (scanned, "DR"), (some_of_them, "DR")],
)
def test_entries_of_one_array_move_the_same(through, solver, one_by_one):
    fn, params = in_one_array(through, 3, jnp.float64)
    assert is_stacked(SOLVERS[solver], fn, params)
    expected = one_by_one(indexed if through in IN_ORDER else through, solver)
    found = SOLVERS[solver].update(fn, params)[0]
    for start, a, b in zip(*map(jax.tree.leaves, (params, found, expected)), strict=True):
        assert bool(jnp.any(b != start))
        assert float(jnp.abs(a - b).max()) < 1e-11


IN_ORDER = (scanned, indexed, iterated, of_last_axis)
"""However they are written, these are one network."""


@pytest.fixture(scope="module")
def one_by_one():
    """Parameters after an update without stacks, computed once for each network."""

    @functools.cache
    def moved(through, solver):
        return unstacked(SOLVERS[solver]).update(*in_one_array(through, 3, jnp.float64))[0]

    return moved


@pytest.mark.parametrize("through", THROUGH)
def test_values_of_entries_of_one_array(through):
    values_agree(*in_one_array(through, 9))


@pytest.mark.parametrize("through", [scanned, indexed, iterated])
@pytest.mark.parametrize("solver", ["AP", "DR"])
def test_programs_do_not_grow_with_an_array_of_layers(through, solver):
    def lines(depth):
        fn, params = in_one_array(through, depth)
        update = jax.jit(lambda p: SOLVERS[solver].update(fn, p))
        return len(update.lower(params).as_text().splitlines())

    assert lines(16) == lines(8)
