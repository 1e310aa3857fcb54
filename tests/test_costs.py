"""What a step costs: counted without running it, measured node by node, beside a committed account."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import pjax
from benchmarks import costs
from pjax import nn, optim
from pjax.experiments import models
from pjax.graph import read as _trace
from pjax.optim.solver import compiled
from pjax.tools.profile import _alone
from pjax_command import app
from tests.graphs import make

# --- The compiler's account of a step, against the committed one: noise cannot fool it ---

ROOT = Path(__file__).parents[1]


def test_steps_cost_what_they_did():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "costs"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, (
        f"{done.stderr[-2000:]}\nIf this is meant: python -m benchmarks costs --update"
    )


def test_more_and_less_are_both_noticed():
    known = json.loads(costs.FILE.read_text())["costs"]
    name = next(iter(known))
    more = {name: known[name] | {"bytes": known[name]["bytes"] * 1.1}}
    less = {name: known[name] | {"operations": known[name]["operations"] * 0.9}}
    assert costs.compare(known, known) == []
    assert "bytes" in costs.compare(more, known)[0]
    assert "-10.0%" in costs.compare(less, known)[0]
    assert costs.compare({"new": known[name]}, known) == ["new: not in the file"]


# --- Summaries: nodes, edges, memory and operations of a graph, counted without running it ---

SUMMARY_MARK = pytest.mark.usefixtures("quick_compilation")


NAMES = ["sparse_conv", "embedding", "rnn_scan"]


@SUMMARY_MARK
@pytest.mark.parametrize("name", NAMES)
def test_edges_and_copies_are_those_of_the_engine(name):
    fn, params = make(name, jnp.float32)
    found = pjax.summary(fn, params)
    traced = _trace.read(fn, params)
    program = compiled(optim.AlternatingProjections(), traced)
    problem = program.problem(jax.tree.leaves(params), traced.constants)
    assert found.edges == problem.edges
    assert found.count == len(_trace.build(traced).nodes) + sum("identity" in n.name for n in found.nodes)
    for node, row in zip(program.partition.graph.nodes, found.nodes, strict=True):
        assert row.op == node.op
        if not node.is_target:
            counts = np.asarray(problem.counts[node.index])
            assert row.copies == (counts.min(), counts.max())
    assert {row.set for row in found.nodes} == {1, 2}


@SUMMARY_MARK
@pytest.mark.parametrize("name", ["mlp", "embedding"])
def test_stored_edges_take_the_memory_that_is_foretold(name):
    fn, params = make(name, jnp.float32)
    stored = pjax.summary(fn, params, optim.AlternatingProjections(edges="explicit"))
    assert [n.state_bytes for n in stored.nodes] == [n.edge_bytes for n in stored.nodes]
    implicit = pjax.summary(fn, params)
    assert implicit.edge_bytes == stored.edge_bytes
    assert implicit.state_bytes < stored.state_bytes


@SUMMARY_MARK
def test_figures_of_a_known_network():
    x, y = jnp.ones((32, 784)), jnp.zeros(32, int)
    model = nn.Sequential(nn.Linear(784, 16), nn.ReLU(16), nn.Linear(16, 10))
    params = jax.eval_shape(model.init, jax.random.key(0))  # nothing runs, so shapes are enough
    found = pjax.summary(lambda p: pjax.cross_entropy(model.apply(p, x), y), params)
    weight, readout, bias = (
        next(n for n in found.nodes if n.name == f"layers.{name}")
        for name in ("0.weight", "2.weight", "1.bias")
    )
    first, relu, second, target = (n for n in found.nodes if n.op != "parameter")
    assert (weight.copies, readout.copies, bias.copies) == ((32, 32),) * 3
    assert first.edges == 2 * 32 * 784 * 16  # of inputs and weights
    assert relu.edges == 2 * 32 * 16  # of sums and biases
    assert relu.copies == (10, 10)
    assert second.edges == 2 * 32 * 16 * 10
    assert target.edges == 32 * 10
    assert found.parameters == 784 * 16 + 16 + 16 * 10
    # Two values are kept for no node: the state is as large as parameters and outputs.
    assert found.state_bytes == 4 * (found.parameters + 2 * 32 * 16 + 32 * 10)
    # A product forwards and one to the weights, of two operations for each pair of numbers.
    assert first.operations == pytest.approx(2 * 2 * 32 * 784 * 16, rel=0.3)
    assert "test_costs.py:" in target.line


@SUMMARY_MARK
def test_operations_are_about_those_of_the_compiled_program():
    x, y, w = jnp.ones((16, 64)), jnp.zeros((16, 32)), jnp.ones((64, 32))

    def loss(w):
        return pjax.squared_error(x @ w, y)

    foretold = next(n.operations for n in pjax.summary(loss, w).nodes if n.op == "dot")
    traced = _trace.read(loss, w)
    program = compiled(optim.AlternatingProjections(), traced)
    (node,) = [n for n in program.partition.graph.nodes if n.op == "dot"]
    prepared, carry, rest = _alone(program, node, [w], traced.constants)
    step = jax.jit(lambda carry, *rest: prepared(*rest)(carry)).lower(carry, *rest).compile()
    assert foretold == pytest.approx(step.cost_analysis()["flops"], rel=0.2)


@SUMMARY_MARK
@pytest.mark.parametrize(
    "solver",
    [optim.DouglasRachford(), optim.CyclicProjections(), optim.ExtrapolatedProjections()],
    ids=lambda s: s.name,
)
def test_every_method_has_a_summary(solver):
    fn, params = make("rnn_scan", jnp.float32)
    found = pjax.summary(fn, params, solver)
    assert found.method == solver.name
    assert found.state_bytes > 0
    assert all(n.operations > 0 for n in found.nodes if n.op not in ("parameter", "identity"))


@SUMMARY_MARK
def test_stacked_nodes_are_counted():
    x, y = jnp.ones((4, 3)), jnp.zeros(4, int)
    model = nn.Sequential(nn.Linear(3, 3), *[nn.Sequential(nn.ReLU(3), nn.Linear(3, 3)) for _ in range(3)])
    params = model.init(jax.random.key(0))

    def loss(p):
        return pjax.cross_entropy(model.apply(p, x), y)

    stacked, apart = (
        pjax.summary(loss, params, optim.AlternatingProjections(stack=s)) for s in (True, False)
    )
    assert len(stacked.nodes) < len(apart.nodes) == apart.count == stacked.count
    assert (stacked.edges, stacked.edge_bytes, stacked.parameters) == (
        apart.edges,
        apart.edge_bytes,
        apart.parameters,
    )
    relus = next(n for n in stacked.nodes if n.op == "sum_relu")
    assert (relus.count, relus.shape) == (3, (4, 3))


@SUMMARY_MARK
def test_as_text_and_markdown():
    fn, params = make("mlp", jnp.float32)
    found = pjax.summary(fn, params)
    lines = str(found).splitlines()
    assert len(lines) == len(found.nodes) + 5  # a head, two rules, the total, a note
    assert lines[0].split()[:4] == ["node", "operation", "shape", "set"]
    assert f"{found.edges:,}" in lines[-2]
    assert lines[-1].startswith("AP: ")
    rows = found.markdown.splitlines()
    assert len(rows) == len(found.nodes) + 3
    assert {row.count("|") for row in rows} == {11}
    assert found._repr_markdown_() == found.markdown


@SUMMARY_MARK
def test_a_computation_has_a_summary():
    w = pjax.parameter(jnp.ones((3, 2)), name="w")
    loss = pjax.squared_error(pjax.dot(pjax.array(jnp.ones((4, 3))), w), jnp.zeros((4, 2)))
    assert [node.op for node in pjax.summary(loss).nodes] == ["parameter", "dot", "squared_error"]
    with pytest.raises(pjax.InputError, match="needs its parameters"):
        pjax.summary(lambda p: p)


@SUMMARY_MARK
def test_the_command_prints_a_table():
    small = ["summary", "--widths", "1x8", "--batch-size", "4"]
    printed = CliRunner().invoke(app, small)
    assert printed.exit_code == 0
    assert "hidden.0.weight" in printed.output
    assert CliRunner().invoke(app, [*small, "--markdown"]).output.startswith("| node |")


# --- Where the time of a step goes ---

PROFILE_MARK = pytest.mark.usefixtures("quick_compilation")


MODEL = models.MLP(12, [8], 3)
PARAMS = MODEL.init(jax.random.key(0))


def loss(params):
    x = jax.random.normal(jax.random.key(1), (16, 12))
    return pjax.cross_entropy(MODEL.apply(params, x), jnp.arange(16) % 3)


@PROFILE_MARK
@pytest.mark.parametrize(
    "solver",
    [
        optim.DouglasRachford(),
        optim.ExtrapolatedProjections(),
    ],
    ids=["DR", "EP"],
)
def test_every_node_is_measured(solver):
    found = pjax.profile(loss, PARAMS, solver, repeats=1)
    assert sum(node.share for node in found.nodes) == pytest.approx(1)
    assert [n.milliseconds for n in found.nodes] == sorted(
        (n.milliseconds for n in found.nodes), reverse=True
    )
    assert {"dot", "sum_relu", "cross_entropy"} == {node.op for node in found.nodes}
    assert all("test_costs.py" in node.line for node in found.nodes if node.op == "cross_entropy")
    dots = sum(node.operations for node in found.nodes if node.op == "dot")
    # Each layer needs a product back to its weights at least, and the last one another to what it reads.
    assert dots >= 2 * 16 * (12 * 8 + 2 * 8 * 3)
    assert found.milliseconds > 0
    assert found.roofline > 0
    lines = str(found).splitlines()
    assert len(lines) == 2 + len(found.nodes)
    assert lines[-1].startswith(f"{solver.name} on cpu:")


@PROFILE_MARK
def test_larger_products_cost_more():
    def costs(width):
        w = jnp.ones((width, width))
        x, y = jnp.ones((8, width)), jnp.ones((8, width))
        found = pjax.profile(lambda p: pjax.squared_error(x @ p, y), w, repeats=1)
        return next(node.operations for node in found.nodes if node.op == "dot")

    assert 8 < costs(256) / costs(64) < 17


@PROFILE_MARK
def test_repeats_are_checked():
    with pytest.raises(pjax.PjaxError, match="repeats must be a whole number"):
        pjax.profile(loss, PARAMS, repeats=0)
