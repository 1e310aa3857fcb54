"""Extrapolated projections and outer optimisers."""

import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pjax
from pjax import nn, optim
from pjax.experiments import models
from pjax.optim import ExtrapolatedProjections
from pjax.rules.max import Max
from pjax.rules.sum import SumRelu
from tests.graphs import Numbers, conv

KEY = jax.random.key(0)


def cases():
    """Networks with their inputs, all paths and kinds of nodes that have derivatives."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    labels = jnp.asarray(rng.integers(3, size=8), jnp.int32)
    return {
        "mlp": (models.MLP(5, [6, 4], 3), normal(8, 5), labels),
        "mlp+skip": (models.MLP(5, [6, 4, 4], 3, skip=True), normal(8, 5), labels),
        "cnn": (models.CNN(2, [3, 4], 3), normal(8, 5, 5, 2), labels),
        "cnn+skip": (models.CNN(2, [3, 4], 3, skip=True), normal(8, 5, 5, 2), labels),
        "strides": (
            nn.Sequential(nn.Conv2D(2, 3, 3, strides=2, bias=True), nn.ReLU(), nn.GlobalMaxPool()),
            normal(8, 6, 6, 2),
            labels,
        ),
        "rnn": (
            models.RNN(3, [5], skip=False),
            jnp.asarray(rng.integers(3, size=(8, 4))),
            jnp.asarray(rng.integers(3, size=(8, 4))),
        ),
        "attention": (
            nn.Sequential(nn.MultiHeadAttention(4, 2), nn.Linear(4, 3)),
            normal(8, 3, 4),
            jnp.asarray(rng.integers(3, size=(8, 3))),
        ),
    }


CASES = cases()


def pseudo_gradient(optimizer, loss, params):
    """What the outer optimiser is given."""
    optimizer = dataclasses.replace(optimizer, outer=optax.sgd(1.0))
    new, _, _ = optimizer.update(loss, params, optimizer.init(params))
    return jax.tree.map(jnp.subtract, params, new)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("x64")
def test_small_soft_moves_are_gradients(name):
    """Of the mean loss, whatever the scale of its proximal operator: a loss that asks for little."""
    model, x, y = CASES[name]
    params = model.init(KEY, dtype=jnp.float64)
    x = x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x
    optimizer = ExtrapolatedProjections(softness=1e-5, reach=1e-5)
    moves = pseudo_gradient(optimizer, lambda p: pjax.cross_entropy(model.apply(p, x), y, 3.0), params)
    gradient = jax.jit(jax.grad(lambda p: jnp.mean(pjax.cross_entropy(model.apply(p, x), y))))(params)
    for key, expected in gradient.items():
        size = float(jnp.max(jnp.abs(expected)))
        np.testing.assert_allclose(moves[key], expected, atol=1e-4 * size, err_msg=key)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e6])
def test_large_residuals_do_not_turn_it_away_from_the_gradient(size):
    rng = np.random.default_rng(6)
    x, t = jnp.asarray(rng.normal(size=(32, 5)), jnp.float32), jnp.asarray(rng.normal(size=(32, 2)) * size)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(16), nn.Linear(16, 2))
    params = model.init(KEY)

    def loss(p):
        return pjax.squared_error(model.apply(p, x), t.astype(jnp.float32))

    moves = pseudo_gradient(ExtrapolatedProjections(), loss, params)
    gradient = jax.jit(jax.grad(lambda p: jnp.mean(loss(p))))(params)
    a, b = (np.concatenate([np.ravel(v) for v in jax.tree.leaves(tree)]) for tree in (moves, gradient))
    assert a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) > 0.999


def test_equal_and_opposed_gradients_of_different_losses_cancel():
    """A cross-entropy and a squared error count as they do in the sum."""
    w = jnp.zeros((1, 2))

    def loss(w):
        return pjax.cross_entropy(w, jnp.array([0])).sum() + pjax.squared_error(w[0, 0] - w[0, 1], -0.5)

    gradient = jax.grad(loss)(w)
    np.testing.assert_allclose(gradient[0, 0] + gradient[0, 1], 0, atol=1e-7)
    moves = pseudo_gradient(ExtrapolatedProjections(), loss, w)
    np.testing.assert_allclose(moves, gradient, atol=1e-5)


# --- Loops and staircases ---


def scans():
    """Functions of parameters with a scan, each of another kind."""
    xs, y = jnp.asarray(np.random.default_rng(2).normal(size=(5, 4, 3))), jnp.array([0, 1, 2, 0])

    def cell(p, h, x):
        return jnp.maximum(x @ p["w"] + h @ p["u"] + p["b"], 0)

    def last(p, **how):
        h, _ = jax.lax.scan(lambda h, x: (cell(p, h, x), None), jnp.zeros((4, 3)), xs, **how)
        return h

    def states_as_outputs(p):
        _, hs = jax.lax.scan(lambda h, x: (cell(p, h, x), h), jnp.zeros((4, 3)), xs)
        return hs.sum(0)

    def scanned_parameters(p):
        h, _ = jax.lax.scan(lambda h, b: (jnp.maximum(h @ p["u"] + b, 0), None), xs[0], p["bs"])
        return h

    def start_and_two_states(p):
        def step(state, x):
            h, total = state
            h = cell(p, h, x)
            return (h, total + h @ p["u"]), h

        (h, total), hs = jax.lax.scan(step, (p["h"], jnp.zeros((4, 3))), xs)
        return h + total + hs[2]

    def nested(p):
        def outer(h, x):
            h, _ = jax.lax.scan(lambda h, _: (jnp.maximum(h @ p["u"] + x, 0), None), h, None, length=3)
            return h, None

        h, _ = jax.lax.scan(outer, jnp.zeros((4, 3)), xs)
        return h

    def counter(p):
        def step(state, x):
            h, i = state
            return (cell(p, h, x * (i % 2)), i + 1), (h, h.argmax(-1))

        (h, i), (hs, largest) = jax.lax.scan(step, (jnp.zeros((4, 3)), 0), xs)
        return h * i + hs[2] + p["b"][largest[3], None]

    def key(p):
        def step(state, x):
            h, key = state
            key, own = jax.random.split(key)
            return (cell(p, h, x + jax.random.normal(own, x.shape)), key), None

        (h, key), _ = jax.lax.scan(step, (jnp.zeros((4, 3)), jax.random.key(0)), xs)
        return h * jax.random.uniform(key)

    def triangle(p):  # how long the inner loop is only the number of the outer step says: unrolled
        def step(i, h):
            return jax.lax.fori_loop(0, i, lambda j, h: cell(p, h, xs[j]), h)

        return jax.lax.fori_loop(0, 4, step, jnp.zeros((4, 3)))

    kinds = {
        "last": last,
        "reverse": lambda p: last(p, reverse=True),
        "unroll": lambda p: last(p, unroll=2),
        "outputs": states_as_outputs,
        "parameters": scanned_parameters,
        "two_states": start_and_two_states,
        "nested": nested,
        "counter": counter,
        "key": key,
        "triangle": triangle,
    }
    return {name: (lambda p, fn=fn: pjax.cross_entropy(fn(p), y)) for name, fn in kinds.items()}


@pytest.mark.parametrize("name", scans())
@pytest.mark.usefixtures("x64")
def test_moves_through_a_scan_are_gradients(name):
    rng = np.random.default_rng(3)
    shapes = {"w": (3, 3), "u": (3, 3), "b": (3,), "bs": (2, 4, 3), "h": (4, 3)}
    params = {k: jnp.asarray(rng.normal(size=shape) * 0.6) for k, shape in shapes.items()}
    loss = scans()[name]
    moves = pseudo_gradient(ExtrapolatedProjections(softness=1e-5, reach=1e-5), loss, params)
    slope = jax.jacfwd if name == "triangle" else jax.grad
    gradient = jax.jit(slope(lambda p: jnp.mean(loss(p))))(params)
    for key, expected in gradient.items():
        size = float(jnp.max(jnp.abs(expected)))
        np.testing.assert_allclose(moves[key], expected, atol=2e-3 * size + 1e-12, err_msg=key)


def test_results_of_a_scan_have_types_of_their_own():
    def loss(p):
        def step(total, x):
            y = jnp.tanh(x @ p)
            return total + y.sum(), y.astype(jnp.bfloat16)

        total, ys = jax.lax.scan(step, jnp.zeros(()), jnp.eye(3))
        return total + jnp.concatenate([ys, jnp.ones((1, 2), jnp.bfloat16)]).astype(jnp.float32).sum()

    start = jnp.full((3, 2), 0.5)
    moves = pseudo_gradient(ExtrapolatedProjections(), loss, start)
    np.testing.assert_allclose(moves, jax.grad(loss)(start), rtol=1e-2)


# --- Branches ---


BRANCHES = {
    "overflow": lambda x: jax.lax.cond(x[0] < 50, jnp.exp, jnp.square, x).sum(),
    "quotient": lambda x: jax.lax.cond(x[1] > 1, lambda x: jnp.exp(x / (x[1] - 1)), jnp.square, x).sum(),
    "loss": lambda x: jax.lax.cond(
        x[1] > 1, lambda x: pjax.squared_error(x / (x[1] - 1), jnp.ones(2)).sum(), lambda x: (x**2).sum(), x
    ),
    "loop": lambda x: jax.lax.scan(
        lambda x, i: (jax.lax.cond(i > 1, lambda x: jnp.exp(50 * x), lambda x: 2 * x, x), None),
        x,
        jnp.zeros(2),
    )[0].sum(),
    "complex": lambda x: jnp.abs(jax.lax.cond(x[0] < 50, jnp.square, lambda z: 3 * z, x + 1j)).sum(),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_of_branches_only_the_one_that_is_taken_asks(name):
    start = jnp.array([100.0, 1.0])
    moves = pseudo_gradient(ExtrapolatedProjections(), BRANCHES[name], start)
    np.testing.assert_allclose(moves, jax.grad(BRANCHES[name])(start), rtol=1e-5)


def test_a_scan_is_unrolled_as_it_says():
    params = {"w": jnp.eye(3), "u": jnp.eye(3), "b": jnp.zeros(3)}
    optimizer = ExtrapolatedProjections()

    def update(loss):
        return str(jax.make_jaxpr(lambda p: optimizer.update(loss, p, optimizer.init(p)))(params))

    assert "unroll=2" in update(scans()["unroll"])
    assert "unroll=2" not in update(scans()["last"])


@pytest.mark.parametrize("loop", ["scan", "fori_loop"])
def test_a_scan_compiles_to_one_loop(loop):
    """The program does not grow with the length."""

    def size(length):
        x, start = jnp.zeros((length, 2, 3)), jnp.zeros((2, 3))

        def loss(p):
            step = lambda h, x: jnp.maximum(h @ p + x, 0)  # noqa: E731
            if loop == "scan":
                h, _ = jax.lax.scan(lambda h, x: (step(h, x), None), start, x)
            else:
                h = jax.lax.fori_loop(0, length, lambda i, h: step(h, x[i]), start)
            return pjax.cross_entropy(h, jnp.zeros(2, int))

        optimizer = ExtrapolatedProjections()
        params = jnp.eye(3)
        update = jax.jit(lambda p, s: optimizer.update(loss, p, s))
        return len(update.lower(params, optimizer.init(params)).as_text().splitlines())

    assert size(64) == size(4)


@pytest.mark.parametrize("levels", [2, 16])
@pytest.mark.usefixtures("x64")
def test_moves_through_rounding_are_those_through_its_dithered_mean(levels):
    rng = np.random.default_rng(4)
    x, y = jnp.asarray(rng.normal(size=(8, 5))), jnp.asarray(rng.integers(3, size=8))
    params = {"a": jnp.asarray(rng.normal(size=(5, 6))), "b": jnp.asarray(rng.normal(size=(6, 3)))}

    def network(p, quantize):
        return quantize(x @ quantize(p["a"])) @ quantize(p["b"])

    def straight_through(v):
        clipped = jnp.clip(v, -1, 1)
        return clipped + jax.lax.stop_gradient(pjax.quantize(v, levels) - clipped)

    moves = pseudo_gradient(
        ExtrapolatedProjections(softness=1e-5, reach=1e-5),
        lambda p: pjax.cross_entropy(network(p, lambda v: pjax.quantize(v, levels)), y),
        params,
    )
    gradient = jax.jit(jax.grad(lambda p: jnp.mean(pjax.cross_entropy(network(p, straight_through), y))))(
        params
    )
    for key, expected in gradient.items():
        size = float(jnp.max(jnp.abs(expected)))
        assert size > 0
        np.testing.assert_allclose(moves[key], expected, atol=2e-3 * size, err_msg=key)


@pytest.mark.parametrize("levels", [2, 3, 16])
def test_the_dithered_mean_of_a_staircase(levels):
    """Against the mean over many dithers."""
    rule = pjax.rules.Quantize(levels, scale=1.5)
    x = np.linspace(-4, 4, 41)
    dither = (np.arange(4000) + 0.5) / 4000 - 0.5
    mean = rule.forward(jnp.asarray(x[:, None] + dither * 3.0 / (levels - 1))).mean(-1)
    np.testing.assert_allclose(rule.dithered().forward(jnp.asarray(x)), mean, atol=2e-3)


# --- Steps beyond the mean ---


@pytest.mark.parametrize("solver", [optim.AlternatingProjections, optim.CyclicProjections])
def test_extrapolation_is_faster_where_sets_are_convex(solver):
    """Equations that share few unknowns: most readers of an unknown are content most of the time."""
    rng = np.random.default_rng(5)
    a = rng.normal(size=(12, 20)) * (rng.random((12, 20)) < 0.3)
    b = a @ rng.normal(size=20)

    def fn(x):
        return pjax.squared_error(a @ x, b)

    def violation(**options):
        method = solver(constants="fixed", **options)
        return float(pjax.solve(fn, jnp.zeros(20), method, max_steps=150, tolerance=0.0).violations[-1])

    plain, beyond = violation(), violation(extrapolate="tensor")
    assert beyond < 0.2 * plain


def test_one_reader_of_many_moves_a_node_all_the_way():
    """The mean of one move and many zeros, extrapolated, is the move itself."""

    def fn(p):
        targets = jnp.concatenate([jnp.array([1.0]), jnp.zeros(9)])
        return pjax.squared_error(jnp.broadcast_to(p, (10,)) * 1.0, targets)

    plain, _ = optim.AlternatingProjections(steps_per_update=1, constants="fixed").update(fn, jnp.zeros(()))
    beyond, _ = optim.AlternatingProjections(
        steps_per_update=1, constants="fixed", extrapolate="tensor"
    ).update(fn, jnp.zeros(()))
    np.testing.assert_allclose(beyond, 10 * plain, rtol=1e-5)


# --- The factor is over the edges of a node, and nothing else ---


def _two_kinds(n):
    params = {"p": n(5), "q": n(5)}

    def fn(p):
        out = jnp.concatenate([jax.nn.relu(p["p"]), jnp.maximum(p["p"], p["q"])])
        return pjax.squared_error(out, jnp.ones_like(out))

    return fn, params


def _padded_convolution(n):
    x, params = n(2, 4, 4, 1), {"k": n(3, 3, 1, 2), "l": n(3, 3, 2, 1)}

    def fn(p):
        h = conv(jax.nn.relu(conv(x, p["k"])), p["l"])
        return pjax.squared_error(h, jnp.ones_like(h))

    return fn, params


def _beside_constants(n):
    x, params = n(3, 4), {"w": n(4, 3), "v": n(5, 2)}

    def fn(p):
        h = jnp.concatenate([jax.nn.relu(x @ p["w"]), x[:, :2]], -1)
        return pjax.squared_error(h @ p["v"], x[:, :2])

    return fn, params


@pytest.mark.parametrize("bits", [64, 32])
@pytest.mark.parametrize("solver", [optim.AlternatingProjections, optim.CyclicProjections])
@pytest.mark.parametrize("graph", [_two_kinds, _padded_convolution, _beside_constants])
def test_extrapolation_is_the_same_with_implicit_and_explicit_edges(graph, solver, bits):
    with jax.enable_x64(bits == 64):
        fn, params = graph(Numbers(3, np.dtype(f"float{bits}")))
        settings = {"steps_per_update": 3, "extrapolate": "tensor"}
        stored, _ = solver(**settings, edges="explicit").update(fn, params)
        found, _ = solver(**settings).update(fn, params)
        for a, b, start in zip(*map(jax.tree.leaves, (found, stored, params)), strict=True):
            assert jnp.abs(a - b).max() < (1e-9 if bits == 64 else 1e-4) * jnp.abs(b - start).max()


def test_an_outer_optimiser_gets_the_moves_as_they_are():
    model, x, y = CASES["mlp"]
    params = model.init(KEY)

    def moves(**options):
        method = optim.AlternatingProjections(steps_per_update=1, metric="balanced", **options)
        solver = optim.Outer(method, optax.sgd(1.0))
        new, _, _ = solver.update(
            lambda p: pjax.cross_entropy(model.apply(p, x), y), params, solver.init(params)
        )
        return jax.tree.map(jnp.subtract, new, params)["out.weight"]

    np.testing.assert_allclose(moves(extrapolate="tensor"), moves(), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", ["cnn+skip", "rnn"])
def test_it_learns(name):
    model, x, y = CASES[name]
    params = model.init(KEY)
    optimizer = ExtrapolatedProjections(learning_rate=1e-2)
    state = optimizer.init(params)

    @jax.jit
    def update(params, state):
        return optimizer.update(lambda p: nn.cross_entropy(model.apply(p, x), y), params, state)

    losses = []
    for _ in range(60):
        params, state, loss = update(params, state)
        losses.append(float(loss))
    assert losses[-1] < 0.75 * losses[0]
    assert int(state.updates) == 60


def test_weights_that_start_at_zero_move():
    x, y = jnp.eye(3), jnp.arange(3)
    w = jnp.zeros((3, 3))
    optimizer = ExtrapolatedProjections(learning_rate=0.1)
    state = optimizer.init(w)
    for _ in range(20):
        w, state, loss = optimizer.update(lambda w: nn.cross_entropy(x @ w, y), w, state)
    assert float(loss) < 0.5
    both = {"a": jnp.zeros((3, 3)), "b": jnp.zeros((3, 3))}
    both_zero = lambda p: nn.cross_entropy(x @ p["a"] @ p["b"], y)  # noqa: E731
    moved = pseudo_gradient(ExtrapolatedProjections(), both_zero, both)
    assert all(bool(jnp.isfinite(m).all()) for m in moved.values())


def test_several_sweeps_are_several_updates():
    model, x, y = CASES["mlp"]

    def loss(p):
        return nn.cross_entropy(model.apply(p, x), y)

    one, three = ExtrapolatedProjections(), ExtrapolatedProjections(steps_per_update=3)
    params = model.init(KEY)
    a, state = params, one.init(params)
    first = None
    for _ in range(3):
        a, state, value = one.update(loss, a, state)
        first = value if first is None else first
    b, other, value = three.update(loss, params, three.init(params))
    assert float(value) == pytest.approx(float(first))
    for key in params:
        np.testing.assert_allclose(a[key], b[key], rtol=1e-4, atol=1e-6)
    assert int(other.outer[0].count) == 3


class TestOuter:
    """An outer optimiser for any method."""

    LOSS = staticmethod(lambda p: pjax.squared_error(p["w"] * 2.0, jnp.array([4.0, -2.0])))
    PARAMS = {"w": jnp.array([1.0, 1.0]), "unused": jnp.array([3.0])}  # noqa: RUF012

    @pytest.mark.parametrize("method", [optim.AlternatingProjections, optim.DouglasRachford])
    def test_a_step_of_one_is_the_projected_point(self, method):
        plain = method(steps_per_update=5)
        outer = optim.Outer(plain, optax.sgd(1.0))
        expected, _ = plain.update(self.LOSS, self.PARAMS)
        got, state, _ = outer.update(self.LOSS, self.PARAMS, outer.init(self.PARAMS))
        np.testing.assert_allclose(got["w"], expected["w"], rtol=1e-6)
        assert got["unused"].tolist() == [3.0]
        assert int(state.updates) == 1

    def test_schedules_and_weight_decay(self):
        outer = optax.adamw(optax.linear_schedule(0.1, 0.0, 3), weight_decay=0.5)
        optimizer = optim.Outer(optim.AlternatingProjections(steps_per_update=5), outer)
        params, state = self.PARAMS, optimizer.init(self.PARAMS)
        seen = []
        for _ in range(4):
            params, state, _ = optimizer.update(self.LOSS, params, state)
            seen.append(params)
        assert float(seen[0]["unused"][0]) == pytest.approx(3 - 0.1 * 0.5 * 3)
        assert all(jnp.array_equal(seen[2][k], seen[3][k]) for k in params), "the schedule has ended"

    def test_a_state_is_needed(self):
        optimizer = optim.Outer(optim.AlternatingProjections(), optax.sgd(0.1))
        with pytest.raises(pjax.PjaxError, match=r"state = optimizer\.init"):
            optimizer.update(self.LOSS, self.PARAMS)

    def test_something_else_is_refused(self):
        with pytest.raises(pjax.PjaxError, match=r"must be an optax\.Gradient"):
            optim.Outer(optim.DouglasRachford(), 0.1)
        with pytest.raises(pjax.PjaxError, match="EP has an outer optimiser already"):
            optim.Outer(ExtrapolatedProjections(), optax.sgd(0.1))
        with pytest.raises(pjax.PjaxError, match=r"such as DouglasRachford\(\); got"):
            optim.Outer(optim.DouglasRachford, optax.sgd(0.1))

    def test_tools_take_it(self):
        method = optim.Outer(optim.AlternatingProjections(steps_per_update=2), optax.sgd(1.0))
        assert "no NaN" in str(pjax.debug.locate_nan(self.LOSS, self.PARAMS, method))
        assert pjax.debug.violations(self.LOSS, self.PARAMS, method, steps=2)
        assert pjax.solve(self.LOSS, self.PARAMS, method, max_steps=500).converged

    def test_equal_ones_are_equal(self):
        rate = optax.sgd(0.1)
        one, other = (optim.Outer(optim.DouglasRachford(check=False), rate) for _ in range(2))
        assert (one, hash(one)) == (other, hash(other))
        assert one != optim.Outer(optim.DouglasRachford(), rate)
        assert dataclasses.replace(one, method=optim.DouglasRachford()).check
        assert not one.check

    def test_small_moves_are_not_lost(self):
        """Moves of 1e-9 of a parameter vanish in a difference of float32 numbers, and must not here."""
        loss = lambda p: pjax.cross_entropy(p * jnp.ones((1, 2)), jnp.array([0]), 1e-9)  # noqa: E731
        params = jnp.array([[1.0, 1.0]])
        optimizer = optim.Outer(optim.AlternatingProjections(steps_per_update=1), optax.scale(-1e9))
        new, _, _ = optimizer.update(loss, params, optimizer.init(params))
        assert float(jnp.max(jnp.abs(new - params))) > 0.01


class TestErrors:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"softness": 0.0}, "softness must be a positive finite number"),
            ({"softness": float("nan")}, "softness must be a positive finite number"),
            ({"softness": "much"}, "softness must be a positive finite number; got 'much'"),
            ({"learning_rate": -1}, "learning_rate must be a positive finite number"),
            ({"learning_rate": 0.1, "outer": optax.sgd(0.1)}, "leave learning_rate out"),
            ({"outer": "adam"}, "must be an optax.GradientTransformation"),
        ],
    )
    def test_bad_settings(self, settings, message):
        with pytest.raises(pjax.PjaxError, match=message):
            ExtrapolatedProjections(**settings)

    def test_it_does_not_solve(self):
        with pytest.raises(pjax.PjaxError, match="take DouglasRachford or AlternatingProjections"):
            pjax.solve(TestOuter.LOSS, TestOuter.PARAMS, ExtrapolatedProjections())


def test_equal_optimisers_are_equal_and_compile_once():
    one, other = ExtrapolatedProjections(learning_rate=0.1), ExtrapolatedProjections(learning_rate=0.1)
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one
    assert dataclasses.replace(one, learning_rate=1.0).learning_rate == 1.0
    w = jnp.ones((2, 2))
    state = dataclasses.replace(one, learning_rate=1.0).init(w)
    moved = [
        abs(
            dataclasses.replace(one, learning_rate=rate).update(lambda w: (w**2).sum(), w, state)[0] - w
        ).max()
        for rate in (1.0, 0.1)
    ]
    np.testing.assert_allclose(moved[0], 10 * moved[1], rtol=1e-4)


def test_the_outer_optimiser_may_ask_for_the_loss():
    optimizer = ExtrapolatedProjections(outer=optax.polyak_sgd(max_learning_rate=1.0))
    w = jnp.array([3.0, -2.0])
    state = optimizer.init(w)
    for _ in range(50):
        w, state, loss = optimizer.update(lambda w: ((w - 1.0) ** 2).sum(), w, state)
    assert float(loss) < 1e-3


def test_an_outer_optimiser_with_a_line_search_is_refused():
    optimizer = ExtrapolatedProjections(outer=optax.lbfgs())
    w = jnp.ones(2)
    with pytest.raises(pjax.InputError, match="linesearch=None"):
        optimizer.update(lambda w: ((w - 1.0) ** 2).sum(), w, optimizer.init(w))


@pytest.mark.parametrize("wrap", [False, True])
def test_an_outer_optimiser_that_wants_other_parameters_is_refused(wrap):
    outer = optax.lookahead(optax.sgd(0.1), sync_period=5, slow_step_size=0.5)
    optimizer = (
        optim.Outer(optim.AlternatingProjections(), outer) if wrap else ExtrapolatedProjections(outer=outer)
    )
    w = jnp.ones(2)
    with pytest.raises(pjax.InputError, match=r"no attribute fast.*It is given moves"):
        optimizer.update(lambda w: ((w - 1.0) ** 2).sum(), w, optimizer.init(w))


def test_an_outer_optimiser_that_cannot_be_hashed_is_refused():
    @dataclasses.dataclass
    class Descent:
        rate: float
        init = update = optax.sgd(0.1).update

    with pytest.raises(pjax.InputError, match="must be hashable"):
        ExtrapolatedProjections(outer=Descent(0.1))


def test_parts_of_a_batch_add_up_to_the_whole():
    """With optax's own accumulation as the outer optimiser."""
    model, x, y = CASES["mlp"]
    params = model.init(KEY)

    def after(outer, parts):
        optimizer, new = ExtrapolatedProjections(outer=outer), params
        state = optimizer.init(params)
        for part in np.split(np.arange(len(x)), parts):
            new, state, _ = optimizer.update(
                lambda p, part=part: pjax.cross_entropy(model.apply(p, x[part]), y[part]), new, state
            )
        return new

    whole, split = after(optax.sgd(1.0), 1), after(optax.MultiSteps(optax.sgd(1.0), 2), 2)
    for key in params:
        move = whole[key] - params[key]
        np.testing.assert_allclose(split[key] - params[key], move, atol=0.01 * float(jnp.abs(move).max()))


def networks_that_cost():
    """Losses of parameters and a batch, as one writes them for gradients."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / shape[0] ** 0.5, jnp.float32)

    def normed(x):
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    def mlp(p, x):
        for w, b in p["hidden"]:
            x = jax.nn.relu(x @ w + b)
        return x @ p["out"]

    def cnn(p, x):
        for w in p["hidden"]:
            x = jax.nn.relu(conv(x, w))
            x = x.reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1).max((2, 4))
        return x.mean((1, 2)) @ p["out"]

    def rnn(p, x):
        def step(h, x):
            return jnp.tanh(x @ p["in"] + h @ p["state"]), None

        return jax.lax.scan(step, jnp.zeros((len(x), 32)), x.swapaxes(0, 1))[0] @ p["out"]

    def transformer(p, x):
        for own in p["blocks"]:
            query, key, value = jnp.split(normed(x) @ own["attend"], 3, axis=-1)
            weights = jax.nn.softmax(query @ key.swapaxes(1, 2) / 4)
            x = x + weights @ value @ own["mix"]
            x = x + jax.nn.gelu(normed(x) @ own["up"]) @ own["down"]
        return x.mean(1) @ p["out"]

    block = {"attend": (16, 48), "mix": (16, 16), "up": (16, 64), "down": (64, 16)}
    blocks = [{name: normal(*shape) for name, shape in block.items()} for _ in range(2)]
    square = [(normal(64, 64), jnp.zeros(64)) for _ in range(3)]
    kernels = [normal(3, 3, 4, 16), normal(3, 3, 16, 16)]
    recurrent = {"in": normal(8, 32), "state": normal(32, 32)}
    return {
        "mlp": (mlp, {"hidden": square, "out": normal(64, 10)}, normal(64, 64)),
        "cnn": (cnn, {"hidden": kernels, "out": normal(16, 10)}, normal(16, 16, 16, 4)),
        "rnn": (rnn, {**recurrent, "out": normal(32, 10)}, normal(32, 20, 8)),
        "transformer": (transformer, {"blocks": blocks, "out": normal(16, 10)}, normal(16, 24, 16)),
    }


@pytest.mark.parametrize("name", networks_that_cost())
def test_a_sweep_costs_what_backpropagation_does(name):
    """By the compiler's account, in operations, bytes, and temporary memory."""
    network, params, x = networks_that_cost()[name]
    labels, adam = jnp.arange(len(x)) % 10, optax.adam(1e-3)
    sweeps = ExtrapolatedProjections(outer=adam, check=False)

    def loss(params, batch):
        x, labels = batch
        return optax.softmax_cross_entropy_with_integer_labels(network(params, x), labels).mean()

    def gradients(params, state, batch):
        value, slopes = jax.value_and_grad(loss)(params, batch)
        steps, state = adam.update(slopes, state)
        return optax.apply_updates(params, steps), state, value

    def projections(params, state, batch):
        return sweeps.update(loss, params, state, batch=batch)

    def costs(update, state):
        compiled = jax.jit(update).lower(params, state, (x, labels)).compile()
        found, memory = compiled.cost_analysis(), compiled.memory_analysis().temp_size_in_bytes
        return np.array([found["flops"], found["bytes accessed"], memory])

    ours = costs(projections, sweeps.init(params))
    theirs = costs(gradients, adam.init(params))
    assert (ours <= theirs * np.array([1.1, 1.35, 1.3]) + np.array([0, 0, 2**14])).all(), ours / theirs


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("rule", [SumRelu((1, -1)), SumRelu((1,)), Max(), Max(sign=-1)], ids=str)
def test_kinks_to_first_order_are_those_of_a_vanishing_softness(rule):
    """Also at kinks, and where several numbers are the largest."""
    rng = np.random.default_rng(0)
    inputs = [jnp.asarray(np.round(2 * rng.normal(size=(300, 3)))) for _ in getattr(rule, "signs", (1,))]
    output, soft = jax.vjp(rule.soft(1e-7), *inputs)
    also, first = jax.vjp(rule.soft(0.0), *inputs)
    np.testing.assert_array_equal(output, also)
    goal = jnp.asarray(1e-3 * rng.normal(size=output.shape))
    for expected, found in zip(soft(goal), first(goal), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0])
def test_small_predictions_of_short_numbers_ask_for_all_that_they_want(size):
    """In float16, as where the last layer starts at zero."""
    rng = np.random.default_rng(0)
    x, start = (jnp.asarray(rng.normal(size=shape), jnp.float16) for shape in ((8, 4), (4, 5)))
    params = {"in": start, "out": jnp.asarray(size * rng.normal(size=(5, 3)), jnp.float16)}

    def loss(p):
        z = (jnp.tanh(x @ p["in"]) @ p["out"]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(z, jnp.arange(8) % 3).mean()

    recorded = optax.GradientTransformation(
        lambda p: p, lambda gradient, *_: (jax.tree.map(jnp.zeros_like, gradient), gradient)
    )
    optimizer = ExtrapolatedProjections(outer=recorded)
    _, state, _ = optimizer.update(loss, params, optimizer.init(params))
    for name, slope in jax.grad(loss)(params).items():
        largest = float(jnp.abs(slope).max())
        np.testing.assert_allclose(state.outer[name], slope, atol=0.02 * largest, err_msg=name)


@pytest.mark.parametrize("kind", ["convolution", "product"])
def test_products_of_short_numbers_have_the_type_that_the_program_asks_for(kind):
    rng = np.random.default_rng(0)
    shapes = ((4, 5, 5, 8), (3, 3, 8, 3)) if kind == "convolution" else ((4, 200), (200, 3))
    x, start = (jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes)

    def loss(w):
        if kind == "convolution":
            axes, wanted = ("NHWC", "HWIO", "NHWC"), jnp.float32
            z = jax.lax.conv_general_dilated(
                x, w, (1, 1), "SAME", dimension_numbers=axes, preferred_element_type=wanted
            )
            z = z.sum((1, 2))
        else:
            z = jnp.matmul(x, w, preferred_element_type=jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(z, jnp.arange(4) % 3).mean()

    optimizer = ExtrapolatedProjections()
    with jax.disable_jit():  # a compiler may leave out that results are rounded
        *_, found = optimizer.update(loss, start, optimizer.init(start))
    np.testing.assert_allclose(found, loss(start), rtol=1e-5)
    asked = pseudo_gradient(optimizer, loss, start).astype(jnp.float32)
    slope = jax.grad(loss)(start).astype(jnp.float32)
    assert (asked * slope).sum() > 0.99 * jnp.linalg.norm(asked) * jnp.linalg.norm(slope)
