"""How much every constraint is violated: the numbers, what they show, and the picture."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import debug, nn, optim
from pjax.graph import read as _trace
from pjax.rules import Dot
from pjax.rules.contraction import Contraction
from tests import oracle

pytestmark = pytest.mark.usefixtures("quick_compilation")


def expected(solver, fn, params, steps):
    """The definition, from the state of an engine that writes out every edge."""
    traced = _trace.read(fn, params)
    partition = solver.partition(_trace.build(traced))
    engine = oracle.Oracle(
        partition,
        traced.constants,
        jax.tree.leaves(params),
        consensus=solver.consensus,
        fixed_constants=solver.constants == "fixed",
        metric=solver.metric,
    )
    step, shadow = oracle.method(solver)
    z, found = engine.start(), []
    for _ in range(steps):
        z = step(engine, z)
        found.append([violation(engine, v, shadow(engine, z)) for v in range(len(partition.graph.nodes))])
    operations = [n.index for n in partition.graph.nodes if not n.is_parameter]
    return np.array(found)[:, operations]


def violation(engine, v, z):
    node = engine.graph.nodes[v]
    if node.is_parameter:
        return 0.0
    means = [engine.mean(u, z) for u in range(len(engine.graph.nodes))]
    agreed = engine.value.copy()
    for u, edges in enumerate(engine.leaving):
        agreed[edges] = means[u][engine.scalar[edges]]
    inputs = engine.inputs(v, agreed)
    if node.is_target:
        said, made = inputs[0].ravel(), np.ravel(node.rule.project(inputs[0], *engine.labels[v]))
    else:
        rule = Dot() if isinstance(node.rule, Contraction) else node.rule
        read = engine.count[v] > 0
        said, made = means[v][read], np.ravel(oracle._forward(rule, *inputs))[read]
    size = max(np.linalg.norm(said), np.linalg.norm(made))
    return np.linalg.norm(said - made) / size if size else 0.0


def mixed(p):
    """Products, a sum inside a relu, an odd cycle, and numbers that nobody reads."""
    x = jnp.asarray([[0.5, -1.0], [2.0, 0.3]])
    h = x @ p["w"]
    h = h + jax.nn.relu(p["b"] - h)
    return pjax.squared_error(h[:, :2] * p["s"][1:], jnp.ones((2, 2)), scale=1.0)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "solver",
    [
        optim.AlternatingProjections(consensus="exact"),
        optim.AlternatingProjections(metric="balanced", constants="fixed"),
        optim.CyclicProjections(),
        optim.DouglasRachford(),
    ],
    ids=lambda solver: solver.name,
)
def test_the_numbers_are_those_of_the_definition(solver):
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(2, 3)), "b": rng.normal(size=3), "s": rng.normal(size=3)}
    found = debug.violations(mixed, params, solver, steps=2)
    np.testing.assert_allclose(found.values, expected(solver, mixed, params, 2), rtol=1e-9, atol=1e-12)
    assert found.values.max() > 1e-3
    assert any(node.op == "identity" for node in found.nodes) == (solver.name != "CP")


A = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)


def equations(x):
    return pjax.squared_error(A @ x, jnp.ones(3))


def test_where_all_constraints_hold_in_the_end():
    solver = optim.AlternatingProjections(constants="fixed", consensus="exact")
    found = debug.violations(equations, jnp.zeros(5), solver, steps=400)
    assert found.values.shape == (400, 2)
    assert found.values[0].max() > 0.1
    assert found.values[-1].max() < 1e-4
    assert found.stuck == ()
    assert "none of 2 nodes is stuck" in str(found)


def test_where_they_cannot():
    def impossible(x):
        return pjax.squared_error(x * 1.0, jnp.zeros(2)), pjax.squared_error(x * 1.0, jnp.ones(2))

    found = debug.violations(impossible, jnp.zeros(2), optim.AlternatingProjections(), steps=60)
    assert len(found.stuck) == len(found.nodes) == 4
    assert "4 of 4 nodes stuck" in str(found)
    assert str(found).count("test_debug_violations.py:") > 4


class Network(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.linear = [nn.Linear(6, 6) for _ in range(layers)]
        self.relu = [nn.ReLU(6) for _ in range(layers)]
        self.out = nn.Linear(6, 3)

    def __call__(self, x):
        for linear, relu in zip(self.linear, self.relu, strict=True):
            x = relu(linear(x))
        return self.out(x)


def test_a_dead_layer_is_seen():
    model = Network(2)
    params = model.init(jax.random.key(0))
    params["relu.0.bias"] = params["relu.0.bias"] - 100.0
    x = jax.random.normal(jax.random.key(1), (8, 6))

    def loss(p):
        return pjax.cross_entropy(model.apply(p, x), jnp.arange(8) % 3)

    found = debug.violations(loss, params, optim.AlternatingProjections(), steps=20)
    trend = {node.label: found.trend(i) for i, node in enumerate(found.nodes)}
    # Stacked or not, each layer is there under its own name.
    assert [label for label in trend if label.startswith("dot")] == [
        *(f"dot(linear.{i}.weight)" for i in range(2)),
        "dot(out.weight)",
    ]
    assert trend["dot(linear.0.weight)"] == "untouched"
    dead = next(i for i, node in enumerate(found.nodes) if node.label == "dot(linear.1.weight)")
    # What is asked for is all there is of it: the layer has nothing to make it from.
    assert found.values[:, dead].max() > 0.5
    assert all("test_debug_violations.py" in node.line for node in found.nodes)


@pytest.mark.parametrize(
    ("column", "trend"),
    [
        ([0, 1e-7, 1e-8, 0], "untouched"),
        ([0.5, 0.1, 1e-5, 1e-7], "holds"),
        ([0.5, 0.4, 0.3, 0.2], "falls"),
        ([0.5, 0.4, 0.4, 0.41], "stays"),
        ([0.1, 0.1, 0.2, 0.3], "grows"),
        ([0.1, np.nan, np.nan, np.nan], "not finite"),
    ],
)
def test_trends(column, trend):
    node = debug.NodeInfo("dot_3", "dot", (), (2,), "")
    found = debug.Violations("AP", (node,), np.array(column)[:, None])
    assert found.trend(0) == trend
    assert bool(found.stuck) == (trend in ("stays", "grows", "not finite"))


def test_the_picture(tmp_path):
    found = debug.violations(equations, jnp.zeros(5), optim.DouglasRachford(), steps=5)
    figure = found.plot()
    (image,) = figure.axes[0].get_images()
    assert image.get_array().shape == (2, 5)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [n.label for n in found.nodes]
    for name in ("map.png", "map.svg"):
        assert found.save(tmp_path / name) == tmp_path / name
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert (
        b"dot(params)" in (tmp_path / "map.svg").read_bytes()
        or b"<svg" in (tmp_path / "map.svg").read_bytes()
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["map.png", "map.svg"]
    with pytest.raises(pjax.InputError, match=r"end in \.png or \.svg; got 'map.pdf'"):
        found.save(tmp_path / "map.pdf")


def test_many_nodes_and_values_that_are_not_finite_can_be_drawn(tmp_path):
    nodes = tuple(debug.NodeInfo(f"dot_{i}", "dot", (), (2,), "") for i in range(200))
    values = np.full((3, 200), 0.1)
    values[1:, 7] = np.nan
    found = debug.Violations("AP", nodes, values)
    image = found.plot().axes[0].get_images()[0]
    assert image.get_array().mask.sum() == 2
    assert found.stuck[0] is nodes[7]
    assert found.save(tmp_path / "many.png").stat().st_size > 1000


def test_what_cannot_be_measured():
    with pytest.raises(pjax.InputError, match="evaluates the network anew in every step"):
        debug.violations(equations, jnp.zeros(5), optim.ExtrapolatedProjections())
    with pytest.raises(pjax.InputError, match="steps must be a whole number of at least 1, got 0"):
        debug.violations(equations, jnp.zeros(5), optim.AlternatingProjections(), steps=0)
    with pytest.raises(pjax.InputError, match="NaN or infinite"):
        debug.violations(equations, jnp.full(5, jnp.nan), optim.AlternatingProjections())
