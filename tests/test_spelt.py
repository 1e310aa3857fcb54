"""Cross-entropies that are spelt with optax or log_softmax are the same target as pjax.cross_entropy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pjax
from pjax.engines.point import Problem
from pjax.graph import read
from pjax.graph.partition import two_sets

X = jax.random.normal(jax.random.key(0), (6, 4))
Y = jnp.array([0, 1, 2, 0, 1, 2])
HOT = jax.nn.one_hot(Y, 3)
PARAMS = {
    "w": 0.5 * jax.random.normal(jax.random.key(1), (4, 5)),
    "v": jax.random.normal(jax.random.key(2), (5, 3)),
}
log_softmax, cross_entropies = jax.nn.log_softmax, optax.softmax_cross_entropy_with_integer_labels


def logits(p):
    return jnp.tanh(X @ p["w"]) @ p["v"]


def ops(loss, params=PARAMS):
    graph = read.build(read.read(loss, params))
    return [node.op for node in graph.nodes if node.is_target]


SPELLINGS = {
    "optax_classes": lambda x: cross_entropies(x, Y).mean(),
    "optax_one_hot": lambda x: optax.softmax_cross_entropy(x, HOT).mean(),
    "sum": lambda x: -jnp.sum(HOT * log_softmax(x)) / 6,
    "sum_of_rows": lambda x: -(log_softmax(x) * HOT).sum(-1).mean(),
    "rows": lambda x: -jnp.mean(log_softmax(x)[jnp.arange(6), Y]),
    "taken": lambda x: -jnp.take_along_axis(log_softmax(x), Y[:, None], axis=-1).squeeze(-1).mean(),
    "jit": lambda x: jax.jit(lambda z: cross_entropies(z, Y))(x).mean(),
    "counted_from_the_end": lambda x: cross_entropies(x, Y - 3).mean(),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_are_cross_entropies(name):
    spelt = SPELLINGS[name]
    assert ops(lambda p: spelt(logits(p))) == ["cross_entropy"]
    traced = read.read(lambda p: spelt(logits(p)), PARAMS)
    problem = Problem(two_sets(read.build(traced)), traced.constants, jax.tree.leaves(PARAMS))
    np.testing.assert_allclose(problem.loss, spelt(logits(PARAMS)), rtol=1e-5)


@pytest.mark.parametrize("method", [pjax.optim.DouglasRachford, pjax.optim.AlternatingProjections])
@pytest.mark.parametrize("name", ["optax_classes", "optax_one_hot", "rows", "counted_from_the_end"])
def test_moves_are_the_same(name, method):
    solver = method(steps_per_update=3)
    want, _ = solver.update(lambda p: pjax.cross_entropy(logits(p), Y).mean(), PARAMS)
    got, _ = solver.update(lambda p: SPELLINGS[name](logits(p)), PARAMS)
    for key in PARAMS:
        assert not jnp.allclose(want[key], PARAMS[key], atol=1e-3)
        np.testing.assert_allclose(got[key], want[key], rtol=2e-5, atol=2e-5)


def test_weights_are_factors():
    weights = jnp.array([1.0, 0.5, 0.0, 2.0, 1.0, 1.0])
    solver = pjax.optim.AlternatingProjections(steps_per_update=3)
    want, _ = solver.update(lambda p: (weights * pjax.cross_entropy(logits(p), Y)).sum(), PARAMS)
    weighted = weights[:, None] * HOT  # a row of zeros is a sample that does not count
    got, _ = solver.update(lambda p: optax.softmax_cross_entropy(logits(p), weighted).sum(), PARAMS)
    for key in PARAMS:
        np.testing.assert_allclose(got[key], want[key], rtol=2e-5, atol=2e-5)


def test_labels_that_add_up_to_zero():
    """Their loss is linear; zeros do not count."""
    signed = jnp.array([[1.0, -1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, -1.0]])
    x = {"x": X[:4, :3]}

    def loss(p):
        return -jnp.sum(signed * log_softmax(p["x"]))

    assert ops(loss, x) == ["cross_entropy"]
    traced = read.read(loss, x)
    problem = Problem(two_sets(read.build(traced)), traced.constants, jax.tree.leaves(x))
    np.testing.assert_allclose(problem.loss, loss(x), rtol=1e-5)
    extrapolated = pjax.optim.ExtrapolatedProjections(outer=optax.sgd(0.1))
    for solver in (pjax.optim.AlternatingProjections(steps_per_update=1), extrapolated):
        move = solver.update(loss, x, solver.init(x))[0]["x"] - x["x"]
        assert not move[1].any()
        for row in (0, 3):
            share = move[row] @ signed[row] / jnp.sum(signed[row] ** 2)
            np.testing.assert_allclose(move[row], share * signed[row], atol=1e-5)
            assert share > 0


def test_smoothed_labels_are_labels():
    labels = optax.smooth_labels(HOT, 0.1)
    assert ops(lambda p: optax.softmax_cross_entropy(logits(p), labels).mean()) == ["cross_entropy"]


MASK = jnp.ones((6, 3), bool).at[:, 2].set(False)
NEAR = {
    "other_axis": lambda x: -jnp.sum(HOT * log_softmax(x, axis=0)),
    "mask": lambda x: optax.softmax_cross_entropy(x, HOT, where=MASK).mean(),
    "one_number_for_labels": lambda x: -jnp.sum(0.1 * log_softmax(x)),
    "another_normaliser": lambda x: (jax.nn.logsumexp(2 * x, -1) - jnp.sum(HOT * x, -1)).mean(),
    "labels_that_move": lambda x: -jnp.sum(jax.nn.softmax(x) * log_softmax(x)),
    "perplexity": lambda x: jnp.exp(cross_entropies(x, Y).mean()),
    "focal": lambda x: ((1 - jnp.exp(-cross_entropies(x, Y))) ** 2 * cross_entropies(x, Y)).mean(),
    "sum_over_samples": lambda x: jnp.sum(jnp.abs(jnp.sum(HOT * log_softmax(x), axis=0))),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_are_read_as_they_are(name):
    assert ops(lambda p: NEAR[name](logits(p))) == ["minimise"]


def test_the_line_is_the_users():
    graph = read.build(read.read(lambda p: cross_entropies(logits(p), Y).mean(), PARAMS))
    (target,) = [node for node in graph.nodes if node.is_target]
    assert "test_spelt.py" in target.line


def test_a_loss_in_a_loop_stays_inside_of_it():
    def loss(p):
        def step(total, xy):
            return total + cross_entropies(jnp.tanh(xy[0] @ p["w"]) @ p["v"], xy[1]), None

        return jax.lax.scan(step, jnp.zeros(()), (X, Y))[0]

    graph = read.build(read.read(loss, PARAMS), keep_loops=True)
    assert [node.op for node in graph.nodes if node.is_target] == ["minimise"]
    assert any(node.op == "scan" for node in graph.nodes)
