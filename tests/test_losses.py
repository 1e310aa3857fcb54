"""The losses and their operators."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pjax
from pjax.engines.point import Problem
from pjax.errors import InputError
from pjax.graph import read
from pjax.graph.partition import two_sets
from pjax.losses import (
    CrossEntropy,
    MarginLoss,
    SquaredError,
    cross_entropy,
    margin_loss,
    squared_error,
)
from pjax.testing import check_projection

# --- Operators ---


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def logits(rng, count, classes):
    """Logits of many kinds: all sizes up to 1e6, ties, a few leaders, evenly spaced."""
    size = 10 ** rng.uniform(-4, 6, (count, 1))
    kinds = [
        size * rng.normal(size=(count, classes)),
        -(10 ** rng.uniform(-3, 5, (count, classes))),
        np.where(rng.random((count, classes)) < 0.5, 0, -size),
        -np.arange(classes) * size,
    ]
    return np.concatenate(kinds)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("scale", "classes"),
    [(1e-3, 10), (0.1, 10), (5.0, 1), (5.0, 2), (5.0, 10), (5.0, 200), (100.0, 10), (1e3, 10)],
)
def test_cross_entropy_solves_its_equation(scale, classes):
    """x = x0 + scale (y - softmax(x)) for every x0, with class indices and with probabilities."""
    rng = np.random.default_rng(0)
    x = logits(rng, 200, classes)
    hard = rng.integers(0, classes, len(x))
    soft = rng.dirichlet(np.full(classes, 0.3), len(x))
    move = jax.jit(CrossEntropy(scale).displace)
    for labels, y in ((hard, np.eye(classes)[hard]), (soft, soft)):
        got = np.asarray(move(jnp.asarray(x), jnp.asarray(labels)))
        want = scale * (y - softmax(x + got))
        # softmax(x + got) itself is known to the rounding of x + got, times its slope
        slack = 1e-14 * scale * (1 + np.abs(x).max(-1, keepdims=True) + scale)
        assert (np.abs(got - want) <= 1e-9 * scale + slack).all()


@pytest.mark.parametrize("scale", [0.1, 5.0, 300.0])
def test_cross_entropy_in_float32_agrees_with_float64(scale):
    rng = np.random.default_rng(1)
    x = (np.array([1e-3, 1.0, 30.0, 1e3]).repeat(100)[:, None] * rng.normal(size=(400, 10))).astype(
        np.float32
    )
    y = rng.integers(0, 10, 400).astype(np.int32)
    got = np.asarray(CrossEntropy(scale).displace(jnp.asarray(x), jnp.asarray(y)))
    with jax.enable_x64(True):
        want = np.asarray(CrossEntropy(scale).displace(jnp.asarray(x.astype(np.float64)), jnp.asarray(y)))
    assert np.abs(got - want).max() <= 1e-5 * scale


def test_cross_entropy_keeps_the_digits_of_a_certain_prediction():
    """Where p is within 1e-9 of y, the move is tiny but right."""
    x = jnp.array([0.0, 20.0, -1.0])
    move = CrossEntropy(scale=5.0).displace(x, jnp.array(1))
    want = 5 * np.exp([-20.0, 0.0, -21.0])
    np.testing.assert_allclose(move[jnp.array([0, 2])], -want[[0, 2]], rtol=1e-4)
    np.testing.assert_allclose(move[1], want[0] + want[2], rtol=1e-4)


def test_cross_entropy_fixed_point_is_the_papers_iteration():
    x, y = jnp.array([[0.3, -1.0, 2.0]]), jnp.array([0])
    want = x
    for _ in range(10):
        want = x + 0.5 * (jax.nn.one_hot(y, 3) - jax.nn.softmax(want))
    np.testing.assert_allclose(CrossEntropy(0.5, "fixed_point").project(x, y), want, rtol=1e-6)


def test_the_checker_catches_the_fixed_point():
    with pytest.raises(AssertionError, match="no better point"):
        check_projection(
            CrossEntropy(5.0, "fixed_point"), [[(10,)]], scale=5.0, samples=64, scales=(0.1, 10.0)
        )


@pytest.mark.parametrize("loss", [cross_entropy, margin_loss])
@pytest.mark.parametrize("lead", [(), (6,), (2, 3)])
def test_class_indices_and_one_hot_labels_agree(loss, lead):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(*lead, 5)), jnp.float32)
    y = jnp.asarray(rng.integers(0, 5, lead))
    got = loss(x, y)
    assert got.shape == lead
    np.testing.assert_array_equal(got, loss(x, jax.nn.one_hot(y, 5)))
    np.testing.assert_array_equal(got, loss(x, jax.nn.one_hot(y, 5, dtype=jnp.int32)))
    rule = CrossEntropy() if loss is cross_entropy else MarginLoss()
    np.testing.assert_array_equal(rule.project(x, y), rule.project(x, jax.nn.one_hot(y, 5)))


@pytest.mark.parametrize("loss", [cross_entropy, margin_loss])
def test_losses_under_transformations(loss):
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32), jnp.array([0, 2, 1, 1])
    plain = loss(x, y)
    np.testing.assert_allclose(jax.jit(loss)(x, y), plain, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(loss)(x, y), plain, rtol=1e-6)
    np.testing.assert_allclose(
        jax.vmap(loss, in_axes=(0, None))(x, jnp.array(1)), loss(x, jnp.ones(4, int)), rtol=1e-6
    )
    slope = jax.grad(lambda v: loss(v, y).sum())(x)
    step = 1e-2 * jnp.ones_like(x)
    change = (loss(x + step, y) - loss(x - step, y)).sum() / 2
    np.testing.assert_allclose(jnp.vdot(slope, step), change, rtol=1e-2, atol=1e-4)


def test_cross_entropy_is_the_usual_loss():
    x = jnp.array([[1.0, 2.0, 3.0], [1e6, 0.0, -1e6]])
    np.testing.assert_allclose(cross_entropy(x, jnp.array([2, 1])), [0.40760595, 1e6], rtol=1e-6)
    np.testing.assert_allclose(
        jax.grad(lambda v: cross_entropy(v, 2))(x[0]), softmax(np.array(x[0])) - [0, 0, 1], rtol=1e-5
    )


def test_margin_loss_clips():
    x = jnp.array([[0.5, -0.5, 2.0]])
    np.testing.assert_array_equal(MarginLoss(margin=1.5).project(x, jnp.array([1])), [[0.0, 1.5, 0.0]])
    np.testing.assert_array_equal(MarginLoss().project(x, jnp.array([[1.0, -1.0, 1.0]])), [[1.0, -0.5, 2.0]])
    np.testing.assert_allclose(margin_loss(x, jnp.array([1])), [0.25 + 2.25 + 4.0])


def test_squared_error():
    x, y = jnp.array([1.0, 4.0]), jnp.array([3.0, 4.0])
    np.testing.assert_array_equal(squared_error(x, y), [4.0, 0.0])
    np.testing.assert_array_equal(SquaredError().project(x, y), y)
    np.testing.assert_array_equal(SquaredError(scale=3.0).project(x, y), [2.5, 4.0])
    np.testing.assert_array_equal(squared_error(x, jnp.array([3, 4])), [4.0, 0.0])
    np.testing.assert_array_equal(jax.grad(lambda v: squared_error(v, y).sum())(x), [-4.0, 0.0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_types_are_kept(dtype):
    x = jnp.ones((2, 3), dtype)
    assert cross_entropy(x, jnp.array([0, 1])).dtype == dtype
    assert margin_loss(x, jnp.array([0, 1])).dtype == dtype
    assert squared_error(x, x).dtype == dtype


X = np.zeros((2, 3), np.float32)
BAD = {
    "labels of another length": (lambda: cross_entropy(X, np.zeros(3, int)), "shape"),
    "floating-point class indices": (lambda: cross_entropy(X, np.zeros(2, np.float32)), "integers"),
    "label too large": (lambda: cross_entropy(X, np.array([0, 3])), r"0\.\.2"),
    "negative label": (lambda: margin_loss(X, np.array([0, -1])), r"index \(1,\)"),
    "NaN in labels": (lambda: cross_entropy(X, np.full((2, 3), np.nan, np.float32)), "nan"),
    "NaN in margin labels": (lambda: margin_loss(X, np.full((2, 3), np.nan, np.float32)), "nan"),
    "no probabilities": (lambda: cross_entropy(X, np.ones((2, 3), np.float32)), "add up to"),
    "integer logits": (lambda: cross_entropy(X.astype(int), np.zeros(2, int)), "floating-point"),
    "no classes": (
        lambda: cross_entropy(np.zeros((2, 0), np.float32), np.zeros(2, int)),
        "at least one class",
    ),
    "scalar logits": (lambda: margin_loss(np.float32(1.0), 0), "at least one class"),
    "scale": (lambda: cross_entropy(X, np.zeros(2, int), scale=0.0), "scale"),
    "infinite scale": (lambda: squared_error(X, X, scale=float("inf")), "scale"),
    "solver": (lambda: cross_entropy(X, np.zeros(2, int), solver="adam"), "newton"),
    "margin": (lambda: margin_loss(X, np.zeros(2, int), margin=-1.0), "margin"),
    "targets of another shape": (lambda: squared_error(X, X[0]), "same shape"),
    "NaN in targets": (lambda: squared_error(X, X + np.nan), "finite"),
    "integer predictions": (lambda: squared_error(np.arange(3), np.arange(3)), "floating-point"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case):
    call, message = BAD[case]
    with pytest.raises(InputError, match=message):
        call()


TYPES = [np.float32, np.float16, np.int32, np.bool_]


@pytest.mark.parametrize("dtype", TYPES)
def test_labels_of_every_type_are_looked_at(dtype):
    """By a method, which traces the function: several classes at once are no probabilities."""
    solver, x = pjax.optim.AlternatingProjections(steps_per_update=1), jnp.asarray(X)
    labels = np.ones(X.shape, dtype)
    with pytest.raises(InputError, match="add up to"):
        solver.update(lambda x: pjax.cross_entropy(x, labels), x)
    with pytest.raises(InputError, match="add up to"):
        solver.update(pjax.cross_entropy, x, batch=labels)


@pytest.mark.parametrize("loss", [cross_entropy, margin_loss])
@pytest.mark.parametrize("name", ["AlternatingProjections", "ExtrapolatedProjections"])
def test_labels_mean_the_same_in_every_type(loss, name):
    """One-hot, as numbers, whole numbers and booleans."""
    solver, start = getattr(pjax.optim, name)(steps_per_update=1), jnp.asarray(X) + 0.5
    batches = [np.eye(3)[:2].astype(dtype) for dtype in TYPES]
    first, *others = (solver.update(loss, start, solver.init(start), batch=y)[0] for y in batches)
    assert not np.array_equal(first, start)
    for other in others:
        np.testing.assert_array_equal(other, first)


# --- Cross-entropies that are spelt with optax or log_softmax are the same target as pjax.cross_entropy ---

SPELT_X = jax.random.normal(jax.random.key(0), (6, 4))
Y = jnp.array([0, 1, 2, 0, 1, 2])
HOT = jax.nn.one_hot(Y, 3)
PARAMS = {
    "w": 0.5 * jax.random.normal(jax.random.key(1), (4, 5)),
    "v": jax.random.normal(jax.random.key(2), (5, 3)),
}
log_softmax, cross_entropies = jax.nn.log_softmax, optax.softmax_cross_entropy_with_integer_labels


def spelt_logits(p):
    return jnp.tanh(SPELT_X @ p["w"]) @ p["v"]


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
    assert ops(lambda p: spelt(spelt_logits(p))) == ["cross_entropy"]
    traced = read.read(lambda p: spelt(spelt_logits(p)), PARAMS)
    problem = Problem(two_sets(read.build(traced)), traced.constants, jax.tree.leaves(PARAMS))
    np.testing.assert_allclose(problem.loss, spelt(spelt_logits(PARAMS)), rtol=1e-5)


@pytest.mark.parametrize("method", [pjax.optim.DouglasRachford, pjax.optim.AlternatingProjections])
@pytest.mark.parametrize("name", ["optax_classes", "optax_one_hot", "rows", "counted_from_the_end"])
def test_moves_are_the_same(name, method):
    solver = method(steps_per_update=3)
    want, _ = solver.update(lambda p: pjax.cross_entropy(spelt_logits(p), Y).mean(), PARAMS)
    got, _ = solver.update(lambda p: SPELLINGS[name](spelt_logits(p)), PARAMS)
    for key in PARAMS:
        assert not jnp.allclose(want[key], PARAMS[key], atol=1e-3)
        np.testing.assert_allclose(got[key], want[key], rtol=2e-5, atol=2e-5)


def test_weights_are_factors():
    weights = jnp.array([1.0, 0.5, 0.0, 2.0, 1.0, 1.0])
    solver = pjax.optim.AlternatingProjections(steps_per_update=3)
    want, _ = solver.update(lambda p: (weights * pjax.cross_entropy(spelt_logits(p), Y)).sum(), PARAMS)
    weighted = weights[:, None] * HOT  # a row of zeros is a sample that does not count
    got, _ = solver.update(lambda p: optax.softmax_cross_entropy(spelt_logits(p), weighted).sum(), PARAMS)
    for key in PARAMS:
        np.testing.assert_allclose(got[key], want[key], rtol=2e-5, atol=2e-5)


IGNORED = jnp.array([0, -100, 2, 0, -100, 2])
MASKED = {
    "where": lambda x: jnp.where(IGNORED >= 0, cross_entropies(x, IGNORED), 0).sum() / 4,
    "mean_where": lambda x: jnp.mean(cross_entropies(x, IGNORED), where=IGNORED >= 0),
    "taken": lambda x: jnp.where(
        IGNORED >= 0, -jnp.take_along_axis(log_softmax(x), IGNORED[:, None], -1)[:, 0], 0
    ).mean(),
    "squares": lambda x: jnp.where(
        IGNORED >= 0, pjax.squared_error(x[:, 0], jnp.log(IGNORED + 1.0)), 0
    ).mean(),
}
"""Losses of which some are not there, and do not count."""


@pytest.mark.parametrize("name", MASKED)
def test_losses_that_do_not_count_may_be_nan(name):
    counts = jnp.flatnonzero(IGNORED >= 0)
    sweep = pjax.optim.ExtrapolatedProjections(outer=optax.sgd(1.0), check=False)

    def loss(p):
        return MASKED[name](spelt_logits(p))

    @jax.jit
    def without(p):
        if name == "squares":
            return jnp.square((spelt_logits(p)[:, 0] - jnp.log(IGNORED + 1.0))[counts]).sum() / 6
        found = cross_entropies(spelt_logits(p)[counts], IGNORED[counts])
        return found.sum() / (6 if name == "taken" else 4)

    new, _, found = jax.jit(lambda p: sweep.update(loss, p, sweep.init(p)))(PARAMS)
    np.testing.assert_allclose(found, without(PARAMS), rtol=1e-5)
    for key, slope in jax.grad(without)(PARAMS).items():
        np.testing.assert_allclose(PARAMS[key] - new[key], slope, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "method"),
    [("where", pjax.optim.AlternatingProjections), ("squares", pjax.optim.DouglasRachford)],
)
def test_losses_that_do_not_count_may_be_nan_in_projections(name, method):
    new, _ = method(steps_per_update=2, check=False).update(
        lambda p: MASKED[name](p["w"]), {"w": 0.1 * jnp.arange(18.0).reshape(6, 3)}
    )
    assert bool(jnp.isfinite(new["w"]).all())


@pytest.mark.parametrize("method", ["ExtrapolatedProjections", "AlternatingProjections"])
@pytest.mark.parametrize("spelt", [cross_entropies, lambda x, y: -jax.nn.log_softmax(x)[jnp.arange(3), y]])
def test_classes_that_are_masked_by_infinity_have_no_share(method, spelt):
    z, labels = SPELT_X[:3, :4], jnp.array([0, 2, 3])
    possible = jnp.arange(4) != 1
    solver = getattr(pjax.optim, method)()

    def moved(loss):
        new, _, found = solver.update(loss, {"z": z}, solver.init({"z": z}))
        return new["z"][:, possible], found

    masked = moved(lambda p: spelt(jnp.where(possible, p["z"], -jnp.inf), labels).mean())
    alone = moved(lambda p: spelt(p["z"][:, possible], jnp.array([0, 1, 2])).mean())
    for got, want in zip(masked, alone, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_numbers_to_minimise_count_by_their_factor():
    start, solver = jnp.array([1.0, 2.0]), pjax.optim.AlternatingProjections(steps_per_update=1)

    def moved(factor):
        def loss(p):
            return pjax.squared_error(p, jnp.zeros(2), scale=1.0).sum() + factor * pjax.minimise(p).sum()

        return solver.update(loss, start)[0]

    for factor in (1.0, 0.1):  # the mean of what the two losses ask for
        np.testing.assert_allclose(moved(factor), (start / 2 + start - factor) / 2, rtol=1e-6)


def test_labels_that_add_up_to_zero():
    """Their loss is linear; zeros do not count."""
    signed = jnp.array([[1.0, -1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, -1.0]])
    x = {"x": SPELT_X[:4, :3]}

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
    assert ops(lambda p: optax.softmax_cross_entropy(spelt_logits(p), labels).mean()) == ["cross_entropy"]


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
    assert ops(lambda p: NEAR[name](spelt_logits(p))) == ["minimise"]


def test_the_line_is_the_users():
    graph = read.build(read.read(lambda p: cross_entropies(spelt_logits(p), Y).mean(), PARAMS))
    (target,) = [node for node in graph.nodes if node.is_target]
    assert "test_losses.py" in target.line


def test_a_loss_in_a_loop_stays_inside_of_it():
    def loss(p):
        def step(total, xy):
            return total + cross_entropies(jnp.tanh(xy[0] @ p["w"]) @ p["v"], xy[1]), None

        return jax.lax.scan(step, jnp.zeros(()), (SPELT_X, Y))[0]

    graph = read.build(read.read(loss, PARAMS), sweeps=True)
    assert [node.op for node in graph.nodes if node.is_target] == ["minimise"]
    assert any(node.op == "scan" for node in graph.nodes)


@pytest.mark.parametrize("made", ["spectrum", "imaginary part"])
def test_losses_may_go_through_complex_numbers(made):
    """They were held there, so that what is made of them asked for nothing."""

    def loss(z):
        losses = cross_entropy(z, Y)
        beside = jnp.abs(jnp.fft.fft(losses)) if made == "spectrum" else (losses * (2 + 1j)).imag
        return losses.sum() + beside.sum()

    start = spelt_logits(PARAMS)
    solver = pjax.optim.ExtrapolatedProjections(outer=optax.sgd(1.0))
    moved, _, _ = solver.update(loss, start, solver.init(start))
    np.testing.assert_allclose(start - moved, jax.grad(loss)(start), atol=2e-3)
