"""From functions to graphs: what becomes a node, a wire, a constant, an error; what projects together."""

import collections
import dataclasses
import functools
import logging
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import pjax
from pjax.graph import fan_out
from pjax.graph import read as _trace
from pjax.graph.partition import cyclic_layers, two_sets
from pjax.graph.wires import Wiring
from pjax.rules import Identity
from tests.graphs import GRAPHS, make

# --- Which nodes project together: two colours, identities on odd cycles, cyclic layers ---


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


def partition_forward(partition, traced, params):
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
    np.testing.assert_allclose(
        partition_forward(two, traced, params), partition_forward(layers, traced, params), rtol=1e-6
    )


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


# --- What becomes a node, what a wire, what a constant, and what an error ---

TRACE_MARK = pytest.mark.usefixtures("quick_compilation")


RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(3, 4)), jnp.float32)
W = jnp.asarray(RNG.normal(size=(4, 2)), jnp.float32)
B = jnp.asarray(RNG.normal(size=2), jnp.float32)
AP = pjax.optim.AlternatingProjections(steps_per_update=2)


def graph_of(fn, params):
    return _trace.build(_trace.read(fn, params))


def ops(fn, params):
    """The operations of a function that is followed by a target; the target itself is left out."""
    graph = graph_of(lambda p: pjax.squared_error(fn(p), jnp.zeros_like(fn(p))), params)
    names = [n.op for n in graph.nodes if not n.is_parameter]
    assert names[-1] == "squared_error"
    return names[:-1]


def forward(fn, params):
    """The values of the nodes that a target reads, evaluated by the graph."""
    traced = _trace.read(lambda p: pjax.squared_error(fn(p), jnp.zeros_like(fn(p))), params)
    graph = _trace.build(traced)
    evaluate, _ = graph.evaluator(traced.constants, jax.tree.leaves(params))
    (target,) = graph.targets
    return evaluate(target.inputs[0].expr)


# --- Nodes ---


@TRACE_MARK
def test_parts_without_parameters_are_folded():
    def fn(p):
        x = jnp.exp(jnp.sin(X)) / X.std()  # none of these has a projection
        labels = jnp.argmax(x[:, :2], -1)
        return pjax.cross_entropy(x @ p, labels)

    assert [n.op for n in graph_of(fn, W).nodes] == ["parameter", "dot", "cross_entropy"]


@TRACE_MARK
def test_layouts_are_absorbed():
    def fn(w):
        w = jnp.flip(w.T.reshape(2, 2, 2).swapaxes(0, 1), 0)
        w = jnp.concatenate([w, w[:1], jnp.zeros((1, 2, 2))])[1:, None]
        return jnp.broadcast_to(jnp.squeeze(w, 1), (2, 3, 2, 2))[0].ravel()

    assert ops(fn, W) == []
    np.testing.assert_array_equal(forward(fn, W), fn(W))


@TRACE_MARK
@pytest.mark.parametrize(
    ("fn", "signs"),
    [
        pytest.param(lambda p: jax.nn.relu(X @ p["w"] + p["b"]), (1, 1), id="bias"),
        pytest.param(lambda p: jax.nn.relu(X @ p["w"] + p["b"] + B), (1, 1, 1), id="two-biases"),
        pytest.param(lambda p: jax.nn.relu(p["b"] + (X @ p["w"] + B)), (1, 1, 1), id="other-order"),
        pytest.param(lambda p: jax.nn.relu(X @ p["w"] - p["b"]), (1, -1), id="subtract"),
        pytest.param(lambda p: jax.nn.relu(B - (X @ p["w"] - p["b"])), (1, -1, 1), id="subtract-twice"),
        pytest.param(lambda p: jax.nn.relu(-(X @ p["w"])), (-1,), id="negate"),
        pytest.param(lambda p: jax.nn.relu((X @ p["w"]).sum(0)), (1,), id="reduce-sum"),
        pytest.param(lambda p: jnp.maximum(0.0, X @ p["w"] + p["b"]), (1, 1), id="maximum"),
    ],
)
def test_sums_are_fused_into_the_relu(fn, signs):
    params = {"w": W, "b": B}
    graph = graph_of(lambda p: pjax.squared_error(fn(p), jnp.zeros_like(fn(p))), params)
    assert [n.op for n in graph.nodes if not n.is_parameter] == ["dot", "sum_relu", "squared_error"]
    (node,) = (n for n in graph.nodes if n.op == "sum_relu")
    assert node.rule.signs == signs
    np.testing.assert_allclose(forward(fn, params), fn(params), rtol=1e-6)


@TRACE_MARK
def test_a_sum_that_others_read_is_not_fused():
    def fn(w):
        s = X @ w + B
        return jax.nn.relu(s) + s

    assert ops(fn, W) == ["dot", "sum", "sum_relu", "sum"]


@TRACE_MARK
def test_a_sum_that_is_repeated_is_not_fused():
    assert ops(lambda w: jax.nn.relu(jnp.repeat(X @ w + B, 2, 0)), W) == ["dot", "sum", "sum_relu"]


@TRACE_MARK
def test_a_maximum_with_another_number_is_no_relu():
    assert ops(lambda w: jnp.maximum(w, 0.5), W) == ["max"]
    assert ops(lambda w: jnp.maximum(w, jnp.zeros_like(w) + X[0, 0]), W) == ["max"]


@TRACE_MARK
def test_nodes_know_the_lines_of_the_user():
    def fn(w):
        a = jax.nn.relu(w)
        a = jax.nn.relu(a * 2.0)
        return pjax.squared_error(jnp.clip(a, 0.1, 0.2), W)

    line = fn.__code__.co_firstlineno
    lines = [int(n.line.split("test_trace.py:")[1]) - line for n in graph_of(fn, W).nodes[1:]]
    assert lines == [1, 2, 2, 3, 3, 3]


@TRACE_MARK
def test_unused_parameters_and_dead_code():
    def fn(p):
        dead = jax.nn.relu(p["dead"] @ p["w"])
        del dead
        return pjax.squared_error(p["w"], jnp.zeros((4, 2)))

    graph = graph_of(fn, {"dead": X, "never": B, "w": W})
    assert graph.leaves == (None, None, 0)
    assert [n.name for n in graph.parameters] == ["w"]


# --- Functions that wrap functions ---


@jax.custom_jvp
def twice(x):
    return x + x


twice.defjvp(lambda primals, tangents: (twice(*primals), 2 * tangents[0]))


@jax.custom_vjp
def thrice(x):
    return x + x + x


thrice.defvjp(lambda x: (thrice(x), None), lambda _, g: (3 * g,))

CAPTURED = jnp.asarray(RNG.normal(size=(4, 2)), jnp.float32)


@TRACE_MARK
@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(jax.jit(lambda w: jax.jit(jnp.transpose)(w) + 1.0), id="nested-jit"),
        pytest.param(jax.jit(lambda w: w * CAPTURED), id="jit-captures"),
        pytest.param(twice, id="custom_jvp"),
        pytest.param(thrice, id="custom_vjp"),
        pytest.param(jax.checkpoint(lambda w: jax.nn.relu(w @ w.T)), id="remat"),
        pytest.param(jax.vmap(lambda row: row * row[0]), id="vmap"),
        pytest.param(jax.vmap(jax.vmap(lambda a: a + 1.0), in_axes=1, out_axes=1), id="vmap-vmap"),
        pytest.param(
            jax.vmap(jax.jit(lambda row: jax.vmap(lambda a: pjax.identity(a) * row)(row))), id="vmap-jit-vmap"
        ),
        pytest.param(functools.partial(jnp.einsum, "ij,kj->ik", CAPTURED), id="closure"),
        pytest.param(lambda w: lax.fori_loop(0, 3, lambda _, a: a + w, w), id="fori_loop"),
        pytest.param(lambda w: lax.map(lambda row: row.sum(), w), id="map"),
        pytest.param(
            lambda w: lax.scan(lambda c, x: (c + x, c), w[0], w, reverse=True)[1], id="scan-reverse"
        ),
        pytest.param(lambda w: lax.scan(lambda c, x: (c + x, c * 2.0), w[0], w[:0])[0], id="scan-nothing"),
    ],
)
def test_wrapped_functions_trace_to_their_values(fn):
    np.testing.assert_allclose(forward(fn, W), fn(W), rtol=1e-5, atol=1e-6)


@TRACE_MARK
def test_a_nested_jit_may_take_losses_and_parameters():
    def fn(p):
        loss = pjax.squared_error(p, jnp.ones_like(p)).sum()
        return jax.jit(lambda loss, p: loss + pjax.squared_error(2.0 * p, jnp.ones_like(p)).sum())(loss, p)

    assert len(graph_of(fn, W).targets) == 2


@TRACE_MARK
def test_losses_may_be_collected_by_a_scan():
    def fn(p):
        def step(total, x):
            return total + pjax.squared_error(x @ p, B).sum(), None

        return lax.scan(step, 0.0, X)[0] / 3

    assert len(graph_of(fn, W).targets) == 3
    loss = AP.update(fn, W)[1]
    np.testing.assert_allclose(loss, ((X @ W - B) ** 2).sum() / 3, rtol=1e-5)


# --- Constants ---


@TRACE_MARK
def test_two_constants_of_equal_shape_stay_different():
    a, b = jnp.ones((4, 2)), 2 * jnp.ones((4, 2))
    out = forward(lambda w: jnp.stack([w * a, w * b]), W)
    np.testing.assert_allclose(out, np.stack([W, 2 * W]))


@TRACE_MARK
def test_a_new_closure_over_a_batch_is_the_same_graph():
    def closure(x, y):
        return lambda w: pjax.squared_error(jax.nn.relu(x @ w), y)

    first = _trace.read(closure(X, jnp.ones((3, 2))), W)
    second = _trace.read(closure(2 * X, jnp.zeros((3, 2))), W)
    assert first.key == second.key
    assert _trace.read(closure(X[:2], jnp.ones((2, 2))), W).key != first.key


@TRACE_MARK
def test_the_same_graph_with_other_numbers_gives_other_results():
    def closure(x):
        return lambda w: pjax.squared_error(x @ w, jnp.ones((3, 2)))

    loss = [float(AP.update(closure(s * X), W)[1]) for s in (1.0, 2.0)]
    np.testing.assert_allclose(loss, [((s * X @ W - 1) ** 2).mean() for s in (1, 2)], rtol=1e-5)


@TRACE_MARK
@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(lambda w: w * 2.0, lambda w: w * 3.0, id="literal"),
        pytest.param(lambda w: w.reshape(2, 4), lambda w: w.T, id="layout"),
        pytest.param(lambda w: w[:2], lambda w: w[2:], id="slice"),
        pytest.param(lambda w: pjax.quantize(w, 2), lambda w: pjax.quantize(w, 4), id="rule"),
        pytest.param(jax.jit(lambda w: w * CAPTURED), jax.jit(lambda w: w * (CAPTURED + 1)), id="captured"),
        pytest.param(lambda w: lax.scan(lambda c, _: (c + 1.0, None), w, length=2)[0],
                     lambda w: lax.scan(lambda c, _: (c + 1.0, None), w, length=3)[0], id="length"),
        pytest.param(lambda w: w - w.T.T, lambda w: w.T.T - w, id="order"),
    ],
)  # fmt: skip
def test_different_functions_have_different_keys(one, other):
    def target(fn):
        return lambda w: pjax.squared_error(fn(w), jnp.zeros_like(fn(w)))

    assert _trace.read(target(one), W).key != _trace.read(target(other), W).key


def test_functions_that_capture_are_told_apart_by_where_they_are_called():
    first, second = (jax.jit(lambda w, c=c: w * c) for c in (CAPTURED, 2 * CAPTURED))
    for fn in (lambda w: second(first(first(w))), lambda w: second(second(first(w)))):
        np.testing.assert_allclose(AP.update(lambda w, fn=fn: (fn(w) ** 2).mean(), W)[1], (fn(W) ** 2).mean())


# --- Parameters ---

Pair = collections.namedtuple("Pair", "left right")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: jax.Array
    b: jax.Array


@TRACE_MARK
@pytest.mark.parametrize(
    ("params", "names"),
    [
        pytest.param({"b": B, "a": {"w": W}}, ["a.w", "b"], id="dict"),
        pytest.param([W, (B, X)], ["0", "1.0", "1.1"], id="list"),
        pytest.param(Pair(W, B), ["left", "right"], id="namedtuple"),
        pytest.param([Layer(W, B)], ["0.w", "0.b"], id="dataclass"),
        pytest.param({"w": W, "none": None}, ["w"], id="none"),
        pytest.param(W, ["params"], id="array"),
    ],
)
def test_pytrees_of_parameters(params, names):
    def fn(p):
        return [pjax.squared_error(x, jnp.zeros_like(x)) for x in jax.tree.leaves(p)]

    assert [n.name for n in graph_of(fn, params).parameters] == names
    new, _ = AP.update(fn, params)
    assert jax.tree.structure(new) == jax.tree.structure(params)
    assert all(not leaf.any() for leaf in jax.tree.leaves(new))


@TRACE_MARK
def test_a_parameter_used_twice_is_one_node():
    graph = graph_of(lambda w: pjax.squared_error(X @ w @ w.T, X), W)
    assert [n.op for n in graph.nodes] == ["parameter", "dot", "dot", "squared_error"]
    assert graph.readers[0] == ((1, 1), (2, 1))


@TRACE_MARK
def test_numbers_may_be_parameters():
    new, loss = AP.update(
        lambda p: pjax.squared_error(p["a"] * 2.0 + p["b"], 3.0), {"a": 0.5, "b": np.float32(1)}
    )
    assert float(loss) == 1
    assert new["a"] > 0.5
    assert new["b"] > 1


# --- For people ---


@TRACE_MARK
def test_trace_shows_the_graph():
    params = {"w": W, "b": B}
    labels = np.array([0, 1, 1])

    def fn(p):
        return pjax.cross_entropy(jax.nn.relu(X @ p["w"] + p["b"]), labels).mean()

    loss = pjax.trace(fn, params)
    assert isinstance(loss, pjax.Computation)
    assert (loss.op, loss.shape, loss.dtype) == ("cross_entropy", (3,), jnp.float32)
    np.testing.assert_allclose(loss.value.mean(), fn(params), rtol=1e-6)
    relu, given = loss.inputs
    assert isinstance(given, pjax.Array)
    np.testing.assert_array_equal(given.value, labels)
    assert relu.op == "sum_relu"
    np.testing.assert_allclose(relu.value, jax.nn.relu(X @ W + B), rtol=1e-6)
    dot, bias = relu.inputs
    assert isinstance(bias, pjax.Parameter)
    assert bias.name == "b"
    assert dot.op == "dot"
    assert dot.name
    assert "test_trace.py" in dot.kwargs["line"]
    batch, weight = dot.inputs
    np.testing.assert_array_equal(batch.value, X)
    assert weight.name == "w"
    assert weight.value is W


@TRACE_MARK
def test_trace_of_several_targets_is_a_tuple():
    found = pjax.trace(lambda w: (pjax.squared_error(w, CAPTURED), pjax.margin_loss(w, np.zeros(4, int))), W)
    assert [t.op for t in found] == ["squared_error", "margin_loss"]
    assert found[0].inputs[0] is found[1].inputs[0]


@TRACE_MARK
def test_computations_built_by_hand_are_functions():
    w, b = pjax.parameter(W, name="w"), pjax.parameter(B)
    hidden = pjax.relu(pjax.dot(pjax.array(X), w) + b)
    loss = pjax.squared_error(hidden - b, jnp.ones((3, 2)))
    fn, params = pjax.as_function(loss)
    assert set(params) == {"w", "parameter_0"}
    graph = graph_of(fn, params)
    assert [n.op for n in graph.nodes if not n.is_parameter] == ["dot", "sum_relu", "sum", "squared_error"]
    assert len(graph.parameters) == 2
    new, mean = AP.update(fn, params)
    np.testing.assert_allclose(mean, loss.value.mean(), rtol=1e-6)
    assert new["w"].shape == (4, 2)


@TRACE_MARK
def test_computations_inside_a_traced_function():
    def fn(p):
        return pjax.squared_error(pjax.dot(pjax.array(X), p) * 2.0, jnp.zeros((3, 2)))

    assert [n.op for n in graph_of(fn, W).nodes] == ["parameter", "dot", "dot", "squared_error"]


# --- Equations without a rule ---


@TRACE_MARK
def test_unsupported_equations_are_named_together_with_their_lines():
    """Those that JAX cannot differentiate either."""

    shape = jax.ShapeDtypeStruct(W.shape, W.dtype)

    def fn(w):
        first = jax.pure_callback(lambda x: x, shape, w)
        second = jax.pure_callback(lambda x: x, shape, 2 * w)
        return (first + second).sum()

    with pytest.raises(pjax.UnsupportedEquationError) as error:
        AP.update(fn, W)
    message = str(error.value)
    assert message.count("'pure_callback'") == 2
    assert "test_trace.py:" in message
    assert "float32[4,2]" in message
    assert "jax.lax.stop_gradient" in message


@dataclasses.dataclass(frozen=True)
class Absolute(pjax.Primitive):
    """|x|, the union of two half-lines."""

    name: ClassVar[str] = "abs"
    core: ClassVar[int] = 0

    def forward(self, *inputs):
        return jnp.abs(inputs[0])

    def project(self, inputs, output, weight=1.0):
        (x,) = inputs
        sign = jnp.where(x >= 0, 1.0, -1.0)
        z = jnp.maximum((sign * x + weight * output) / (1 + weight), 0.0)
        return (sign * z,), z


@dataclasses.dataclass(frozen=True)
class Stubborn(Absolute):
    """Never moves its input."""

    def project(self, inputs, output, weight=1.0):  # noqa: ARG002
        return inputs, jnp.abs(inputs[0])


@TRACE_MARK
@pytest.mark.usefixtures("registries")
def test_register_equation():
    start = jnp.array([1.0, -2.0, 3.0])

    def fn(x):
        return pjax.squared_error(jnp.abs(x), jnp.array([4.0, 4.0, 1.0]))

    pjax.register_equation("abs", Absolute())
    solver = pjax.optim.AlternatingProjections()
    np.testing.assert_allclose(solver.update(fn, start)[0], [4, -4, 1], rtol=1e-5)
    # A newer rule replaces the old one, also for functions that were traced before.
    pjax.register_equation("abs", Stubborn())
    np.testing.assert_array_equal(solver.update(fn, start)[0], start)


@TRACE_MARK
@pytest.mark.usefixtures("registries")
def test_register_equation_by_its_parameters():
    pjax.register_equation("round", lambda rounding_method: Identity())  # noqa: ARG005
    assert ops(jnp.round, W) == ["identity"]


# --- Spellings of jax.numpy ---

V = jnp.asarray(RNG.normal(size=(2, 4, 4, 2)), jnp.float32)
K = jnp.asarray(RNG.normal(size=(3, 3, 2, 2)), jnp.float32)
IDS = np.array([2, 0, 2])

LAYOUTS = {
    "stack": lambda w: jnp.stack([w, w], 1),
    "split": lambda w: jnp.split(w, 2)[1],
    "array_split": lambda w: jnp.array_split(w, 3)[0],
    "tile": lambda w: jnp.tile(w, (2, 3)),
    "repeat": lambda w: jnp.repeat(w, 3, axis=1),
    "repeat-unequal": lambda w: jnp.repeat(w, np.array([1, 0, 2, 1]), axis=0, total_repeat_length=4),
    "roll": lambda w: jnp.roll(w, 1, 0),
    "flip": lambda w: jnp.flip(w),
    "rot90": lambda w: jnp.rot90(w),
    "take": lambda w: jnp.take(w, IDS, axis=0),
    "take-clip": lambda w: jnp.take(w, IDS, axis=0, mode="clip"),
    "take_along_axis": lambda w: jnp.take_along_axis(w, np.array([[0], [1], [1], [0]]), 1),
    "index": lambda w: w[IDS, np.array([1, 1, 0])],
    "negative-index": lambda w: w[-1, ::-1],
    "boolean-mask": lambda w: w[np.array([True, False, True, True])],
    "ellipsis": lambda w: w[..., None, 0],
    "where": lambda w: jnp.where(X[0, :2] > 0, w, 1.5),
    "pad": lambda w: jnp.pad(w, ((1, 0), (0, 2)), constant_values=2.0),
    "pad-edge": lambda w: jnp.pad(w, ((1, 0), (0, 2)), mode="edge"),
    "pad-wrap": lambda w: jnp.pad(w, 1, mode="wrap"),
    "concatenate": lambda w: jnp.concatenate([w, X[:, :2]]),
    "moveaxis": lambda w: jnp.moveaxis(w, 0, -1),
    "ravel": lambda w: w.ravel(),
    "triu": lambda w: jnp.triu(w),
    "diagonal": lambda w: jnp.diagonal(w),
    "meshgrid": lambda w: jnp.meshgrid(w[0], w[:, 0])[0],
    "block": lambda w: jnp.block([[w, w], [w, w]]),
    "dynamic_slice": lambda w: lax.dynamic_slice(w, (1, 0), (2, 2)),
    "astype": lambda w: w.astype(jnp.bfloat16).astype(jnp.float32),
    "conv_patches": lambda w: pjax.conv_patch(w[None, :, :, None], 2),
}


@TRACE_MARK
@pytest.mark.parametrize("fn", LAYOUTS.values(), ids=LAYOUTS)
def test_data_movement_makes_no_node(fn):
    assert ops(fn, W) == []
    np.testing.assert_array_equal(forward(fn, W), fn(W))


COUNTED = LAYOUTS | {
    "slices joined": lambda w: jnp.concatenate([w[1:3], w[::2], w[:, ::-1][2:]]),
    "joined, then cut": lambda w: jnp.concatenate([w, w, X[:, :2]])[2:9, :1],
    "cut twice": lambda w: w[1:][:, 1][::2],
    "parts of a repeated one": lambda w: jnp.broadcast_to(w[:, None], (4, 3, 2))[1:, :2].reshape(-1, 2),
    "nothing joined": lambda w: jnp.concatenate([w[:0], w[1:]]),
    "the second part alone": lambda w: jnp.split(w, 2)[1][:, :1],
    "one row, squeezed": lambda w: jnp.stack([w[0], w[3], w[0]])[:, None],
    "padded": lambda w: jnp.pad(w, ((1, 0), (0, 2)))[:, 1:3],
}


@TRACE_MARK
@pytest.mark.parametrize("fn", COUNTED.values(), ids=COUNTED)
def test_readers_are_counted_as_the_transpose_counts_them(fn):
    traced = _trace.read(lambda w: pjax.squared_error(fn(w), jnp.zeros_like(fn(w))), W)
    graph = _trace.build(traced)
    (target,), known = graph.targets, graph.evaluator(traced.constants, [W])[0]
    (found,) = fan_out.leaving(graph, target, 0, known).values()
    (expected,) = jax.vjp(fn, W)[1](jnp.ones_like(fn(W)))
    np.testing.assert_array_equal(np.broadcast_to(found, W.shape), expected)
    # Of slots that are read unequally, too, as those of convolutions are.
    edges = np.arange(1.0, 1 + fn(W).shape[0], dtype=np.float32).reshape(-1, *(1,) * (fn(W).ndim - 1))
    (found,) = Wiring(target.inputs[0], [jax.ShapeDtypeStruct(W.shape, W.dtype)], known).counts(edges)
    (expected,) = jax.vjp(fn, W)[1](jnp.broadcast_to(edges, fn(W).shape))
    np.testing.assert_array_equal(np.broadcast_to(found, W.shape), expected)


def conv(x, k, strides=(1, 1), padding="SAME", **settings):
    return lax.conv_general_dilated(
        x, k, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), **settings
    )


def pool(init, op, padding="VALID"):
    return lambda v: lax.reduce_window(v, init, op, (1, 2, 2, 1), (1, 1, 2, 1), padding)


OPERATIONS = {
    "mean": (lambda v: v.mean(), V, ["sum", "dot"]),
    "mean-axis": (lambda v: jnp.mean(v, -1, keepdims=True), V, ["sum", "dot"]),
    "sum-axes": (lambda v: v.sum((0, -1)), V, ["sum"]),
    "average": (lambda v: jnp.average(v, 0, weights=np.array([0.3, 0.7])), V, ["dot", "sum", "dot"]),
    "clip": (lambda v: jnp.clip(v, -0.5, 0.5), V, ["max", "max"]),
    "relu6": (jax.nn.relu6, V, ["sum_relu", "max"]),
    "leaky_relu-like": (lambda v: jnp.maximum(v, 0.1 * v), V, ["max"]),
    "square": (jnp.square, V, ["square"]),
    "power": (lambda v: v**3, V, ["integer_pow"]),
    "dot": (lambda w: jnp.dot(X, w), W, ["dot"]),
    "vdot": (lambda w: jnp.vdot(w, CAPTURED), W, ["dot"]),
    "inner": (lambda w: jnp.inner(w.T, X), W, ["dot"]),
    "outer": (lambda w: jnp.outer(w[:, 0], w[:, 1]), W, ["dot"]),
    "matmul-batch": (lambda v: v @ jnp.swapaxes(v, -1, -2), V, ["dot"]),
    "tensordot": (lambda v: jnp.tensordot(v, v, axes=([1, 2], [1, 2])), V, ["dot"]),
    "einsum": (lambda v: jnp.einsum("nhwc,nhwd->ncd", v, v), V, ["dot"]),
    "einsum-trace": (lambda v: jnp.einsum("nhhc->nc", v), V, None),
    "einsum-three": (lambda w: jnp.einsum("ij,jk,kl->il", X, w, w.T), W, ["dot", "dot"]),
    "linear-flax": (lambda w: lax.dot_general(X, w, (((1,), (0,)), ((), ()))) + B, W, ["dot", "sum"]),
    "conv-same": (lambda k: conv(V, k), K, ["conv"]),
    "conv-valid-strided": (lambda k: conv(V, k, (2, 1), "VALID"), K, ["conv"]),
    "conv-dilated": (lambda k: conv(V, k, rhs_dilation=(2, 1)), K, ["conv"]),
    "conv-grouped": (lambda k: conv(V, k[:, :, :1], feature_group_count=2), K, ["conv"]),
    "conv-transpose": (lambda k: lax.conv_transpose(V, k, (2, 2), "SAME"), K, ["conv"]),
    "lax-conv": (
        lambda k: lax.conv(V.transpose(0, 3, 1, 2), k.transpose(3, 2, 0, 1), (1, 1), "SAME"),
        K,
        ["conv"],
    ),
    "max_pool": (pool(-np.inf, lax.max), V, ["max"]),
    "max_pool-same": (pool(-np.inf, lax.max, "SAME"), V, ["max"]),
    "min_pool": (pool(np.inf, lax.min), V, ["max"]),
    "avg_pool": (lambda v: pool(0.0, lax.add, "SAME")(v) / 4, V, ["sum", "dot"]),
    "max-of-many": (lambda v: jnp.max(v, (1, 2)), V, ["max"]),
    "amin": (lambda v: jnp.min(v), V, ["max"]),
    "norm-squared": (lambda w: (w * w).sum(), W, ["mul", "sum"]),
    "scalar-times-number": (lambda w: 3.0 * w[0, 0], W, ["dot"]),
    "number-minus-scalar": (lambda w: 1.0 - w[0, 0], W, ["sum"]),
    "bfloat16": (lambda w: jnp.concatenate([X @ w, X @ w]).astype(jnp.bfloat16), W, ["dot", "dot"]),
}


@TRACE_MARK
@pytest.mark.parametrize(("fn", "start", "expected"), OPERATIONS.values(), ids=OPERATIONS)
def test_operations_of_jax_numpy(fn, start, expected):
    found = ops(fn, start)
    if expected is not None:
        assert found == expected
    value = forward(fn, start)
    np.testing.assert_allclose(value, fn(start), rtol=1e-5, atol=1e-5)


@TRACE_MARK
def test_scatter_moves_numbers():
    fn = lambda w: w.at[IDS[:2], 0].set(0.5)  # noqa: E731
    assert ops(fn, W) == []
    np.testing.assert_array_equal(forward(fn, W), fn(W))


@TRACE_MARK
def test_a_jitted_function_that_captures_the_batch_compiles_once(programs):
    optimizer = pjax.optim.AlternatingProjections(steps_per_update=2)
    params = {"w": jnp.full((3, 2), 0.1)}
    y = jnp.array([0, 1, 0, 1])
    for seed in range(3):
        x = jax.random.normal(jax.random.key(seed), (4, 3))

        def nested(p, x=x):
            scale = jax.jit(lambda: x.max())()
            return pjax.cross_entropy(jax.jit(lambda p: x @ p["w"] * scale)(p), y)

        def flat(p, x=x):
            return pjax.cross_entropy(x @ p["w"] * x.max(), y)

        assert jnp.allclose(optimizer.update(nested, params)[0]["w"], optimizer.update(flat, params)[0]["w"])
    assert len(programs) == 2


@TRACE_MARK
def test_states_of_a_scan_may_be_complex():
    x, params = jnp.array([[1.0, -0.5], [0.3, 2.0], [-1.0, 0.7]]), {"angle": jnp.array([0.3, 0.8])}

    def loss(p, scan):
        turn = jnp.exp(1j * p["angle"])
        _, states = scan(lambda h, u: (turn * h + u,) * 2, jnp.zeros(2, jnp.complex64), x * turn)
        return jnp.sum(jnp.real(states) ** 2) + jnp.sum(jnp.imag(states[-1]))

    def by_hand(step, state, xs):
        states = []
        for u in xs:
            state, _ = step(state, u)
            states.append(state)
        return state, jnp.stack(states)

    solver = pjax.optim.AlternatingProjections(steps_per_update=3)
    got, want = (solver.update(lambda p, s=s: loss(p, s), params)[0] for s in (lax.scan, by_hand))
    np.testing.assert_allclose(got["angle"], want["angle"], rtol=1e-6)
