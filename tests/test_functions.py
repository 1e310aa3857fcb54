"""Every JAX function: what jax.grad accepts, update accepts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import pjax
from pjax import optim

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(8, 5)), jnp.float32)
Y = jnp.asarray(np.arange(8) % 4)
SEGMENTS = jnp.array([0, 0, 1, 2, 2, 3, 3, 7])
PARAMS = {
    "a": jnp.asarray(RNG.normal(size=(5, 4)), jnp.float32),
    "b": jnp.asarray(RNG.normal(size=4), jnp.float32),
    "c": jnp.asarray(RNG.normal(size=(4, 4)), jnp.float32),
}


def hidden(p):
    return X @ p["a"] + p["b"]


def loss(z):
    return optax.softmax_cross_entropy_with_integer_labels(z, Y).mean()


def layer_norm(h):
    mean = h.mean(-1, keepdims=True)
    return (h - mean) * lax.rsqrt(((h - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


def batch_norm(h):
    return (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5)


def attention(p):
    h = hidden(p)
    return jax.nn.softmax(h @ h.T / 2, axis=-1) @ h @ p["c"]


def spectral(p):
    weights = p["c"][:3, 0] + 1j * p["c"][:3, 1]
    return jnp.fft.irfft(jnp.fft.rfft(hidden(p)) * weights)


def straight_through(z):
    return z + lax.stop_gradient(jnp.sign(z) - z)


def codes(p):
    h = hidden(p)
    nearest = jnp.argmin(((h[:, None] - p["c"]) ** 2).sum(-1), 1)
    return p["c"][nearest] + h


def recurrent(p):
    step = lambda h, t: (jnp.tanh(h @ p["c"] + t * p["b"]), h)  # noqa: E731
    last, states = lax.scan(step, hidden(p), jnp.arange(3.0))
    return last + states.sum(0)


ACTIVATIONS = {
    name: getattr(jax.nn, name)
    for name in [
        "celu",
        "elu",
        "gelu",
        "glu",
        "hard_sigmoid",
        "hard_silu",
        "hard_tanh",
        "leaky_relu",
        "log_sigmoid",
        "log_softmax",
        "mish",
        "relu",
        "relu6",
        "selu",
        "sigmoid",
        "silu",
        "soft_sign",
        "softmax",
        "softplus",
        "sparse_plus",
        "squareplus",
        "standardize",
    ]
} | {
    name: getattr(jnp, name)
    for name in ["abs", "arctan", "cbrt", "cos", "exp", "expm1", "sin", "sinh", "square", "tan", "tanh"]
}

FUNCTIONS = {
    **{name: (lambda p, f=f: _wide(f(hidden(p))) @ p["c"]) for name, f in ACTIVATIONS.items()},
    "layer norm": lambda p: layer_norm(hidden(p)) @ p["c"],
    "batch norm": lambda p: batch_norm(hidden(p)) @ p["c"],
    "unit length": lambda p: hidden(p) / jnp.linalg.norm(hidden(p), axis=-1, keepdims=True) @ p["c"],
    "attention": attention,
    "logsumexp": lambda p: hidden(p) - jax.nn.logsumexp(hidden(p) @ p["c"], axis=-1, keepdims=True),
    "quotient": lambda p: hidden(p) / (1 + jnp.abs(hidden(p) @ p["c"])),
    "power": lambda p: jnp.abs(hidden(p)) ** jnp.abs(p["b"]),
    "arctan2": lambda p: jnp.arctan2(hidden(p), p["b"]),
    "logaddexp": lambda p: jnp.logaddexp(hidden(p), hidden(p) @ p["c"]),
    "where": lambda p: jnp.where(hidden(p) > 0, hidden(p) @ p["c"], 0.1 * hidden(p)),
    "segment sum": lambda p: jax.ops.segment_sum(hidden(p), SEGMENTS, 8),
    "segment max": lambda p: jax.ops.segment_max(hidden(p), jnp.array([0, 1, 1, 2, 3, 4, 5, 6]), 7)[
        SEGMENTS % 7
    ],
    "scatter add": lambda p: hidden(p).at[SEGMENTS].add(p["b"]),
    "scatter": lambda p: hidden(p).at[jnp.array([0, 0, 2])].set(p["b"]),
    "dynamic update": lambda p: lax.dynamic_update_slice(hidden(p), p["c"], (2, 0)),
    "cumulative sum": lambda p: jnp.cumsum(hidden(p), 0),
    "cumulative product": lambda p: jnp.cumprod(hidden(p), 1),
    "cumulative maximum": lambda p: lax.cummax(hidden(p), axis=0),
    "cumulative logsumexp": lambda p: lax.cumlogsumexp(hidden(p), axis=0),
    "product": lambda p: hidden(p) * jnp.prod(p["c"], 0),
    "sort": lambda p: jnp.sort(hidden(p), 1),
    "order": lambda p: hidden(p)[jnp.argsort(hidden(p)[:, 0])],
    "median": lambda p: hidden(p) - jnp.median(hidden(p), axis=0),
    "top k": lambda p: lax.top_k(hidden(p), 2)[0] @ p["c"][:2],
    "codes": codes,
    "routing": lambda p: jnp.take_along_axis(p["c"][None] * hidden(p)[..., None], Y[:, None, None], 1)[:, 0],
    "cond": lambda p: lax.cond(hidden(p).sum() > 0, lambda z: 2 * z, jnp.tanh, hidden(p)),
    "switch": lambda p: lax.switch(Y[2], [jnp.sin, jnp.cos, jnp.tanh], hidden(p)),
    "fourier": spectral,
    "scan": recurrent,
    "fori": lambda p: lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ p["c"] + i * p["b"]), hidden(p)),
    "associative scan": lambda p: lax.associative_scan(jnp.multiply, hidden(p), axis=0),
    "map": lambda p: lax.map(lambda h: jnp.tanh(h @ p["c"]), hidden(p)),
    "vmap": lambda p: jax.vmap(lambda h: h - lax.pmean(h, "i"), axis_name="i")(hidden(p)),
    "checkpoint": lambda p: jax.checkpoint(lambda h: jnp.tanh(h) @ p["c"])(hidden(p)),
    "outer product": lambda p: jnp.einsum("i,j->ij", X[:, 0], p["b"]) * hidden(p),
    "scalar dot": lambda p: jnp.dot(p["b"][0], hidden(p)),
    "tensordot": lambda p: jnp.tensordot(X[:, 0], p["b"], axes=0) + hidden(p),
    "no sum": lambda p: jnp.einsum("bi,bj->bij", hidden(p), hidden(p)).sum(1),
    "stop gradient": lambda p: hidden(p) + lax.stop_gradient(jnp.tanh(hidden(p))),
    "straight through": lambda p: straight_through(hidden(p)) @ p["c"],
    "dilated pool": lambda p: lax.reduce_window(
        hidden(p), -jnp.inf, lax.max, (2, 1), (1, 1), ((0, 1), (0, 0)), window_dilation=(1, 1)
    ),
    "cholesky": lambda p: hidden(p) @ jnp.linalg.cholesky(p["c"] @ p["c"].T + jnp.eye(4)),
    "solve": lambda p: jnp.linalg.solve(jnp.eye(4) + 0.1 * X[:4, :4], hidden(p).T).T,
    "solve a moving matrix": lambda p: jnp.linalg.solve(p["c"] + 3 * jnp.eye(4), hidden(p).T).T,
    "eigenvectors": lambda p: hidden(p) @ jnp.linalg.eigh(p["c"] + p["c"].T)[0][:, None] * p["b"],
    "bfloat16": lambda p: jax.nn.gelu(hidden(p).astype(jnp.bfloat16)).astype(jnp.float32) @ p["c"],
}


def _wide(x):
    return x if x.shape[-1] == 4 else jnp.concatenate([x, x], -1)


EXTRAPOLATED = optim.ExtrapolatedProjections(outer=optax.sgd(1.0))


def gradient_of(fn, params):
    """What `ExtrapolatedProjections` hands to its outer optimiser."""
    new, _, value = EXTRAPOLATED.update(fn, params, EXTRAPOLATED.init(params))
    return jax.tree.map(np.subtract, params, new), value


def cosine(first, second):
    a, b = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)]) for tree in (first, second))
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_moves_are_gradients(name):
    fn = lambda p: loss(FUNCTIONS[name](p))  # noqa: E731
    moves, value = gradient_of(fn, PARAMS)
    right, expected = jax.jit(jax.value_and_grad(fn))(PARAMS)
    assert float(value) == pytest.approx(float(right), rel=1e-3 if name == "bfloat16" else 1e-5)
    assert cosine(moves, expected) > 0.999


def test_a_while_loop_of_known_length_is_written_out():
    """Which jax.grad does not do."""

    def loop(p):
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(s[1])), (0, hidden(p)))[1]

    moves, _ = gradient_of(lambda p: loss(loop(p)), PARAMS)
    expected = jax.jit(jax.grad(lambda p: loss(jnp.tanh(jnp.tanh(jnp.tanh(hidden(p)))))))(PARAMS)
    assert cosine(moves, expected) > 0.999


LOSSES = {
    "mean of squares": lambda p: jnp.mean((hidden(p) - 1) ** 2),
    "root": lambda p: jnp.sqrt(pjax.squared_error(hidden(p), jnp.ones((8, 4))).mean()),
    "penalty": lambda p: loss(hidden(p)) + 0.1 * sum(jnp.sum(v**2) for v in p.values()),
    "mask": lambda p: (pjax.cross_entropy(hidden(p), Y) * (Y > 1)).sum() / 4,
    "weights": lambda p: jnp.average(pjax.cross_entropy(hidden(p), Y), weights=jnp.arange(8.0)),
    "where on losses": lambda p: jnp.where(Y > 1, pjax.cross_entropy(hidden(p), Y), 0).mean(),
    "two kinds": lambda p: (
        pjax.cross_entropy(hidden(p), Y).mean() + 3 * pjax.squared_error(hidden(p), jnp.ones((8, 4))).mean()
    ),
    "difference": lambda p: (
        pjax.cross_entropy(hidden(p), Y).mean() - 0.1 * pjax.cross_entropy(X @ p["a"], Y).mean()
    ),
    "entropy": lambda p: pjax.cross_entropy(hidden(p), jax.nn.softmax(X @ p["a"])).mean(),
    "focal": lambda p: (lambda c: ((1 - jnp.exp(-c)) ** 2 * c).mean())(pjax.cross_entropy(hidden(p), Y)),
    "largest": lambda p: pjax.cross_entropy(hidden(p), Y).max(),
    "huber": lambda p: optax.huber_loss(hidden(p), jnp.ones((8, 4))).mean(),
    "binary": lambda p: optax.sigmoid_binary_cross_entropy(hidden(p), jnp.eye(4)[Y]).mean(),
    "logits": lambda p: -jnp.mean(jax.nn.log_softmax(hidden(p))[jnp.arange(8), Y]),
    "minimise": lambda p: pjax.minimise(hidden(p) ** 2).mean(),
    "hinge": lambda p: optax.hinge_loss(hidden(p), 2.0 * jnp.eye(4)[Y] - 1).mean(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_count_as_the_user_wrote_them(name):
    moves, value = gradient_of(LOSSES[name], PARAMS)
    right, expected = jax.jit(jax.value_and_grad(LOSSES[name]))(PARAMS)
    assert float(value) == pytest.approx(float(right), rel=1e-5)
    assert cosine(moves, expected) > 0.999
    for key, value in expected.items():
        np.testing.assert_allclose(moves[key], value, atol=2e-3 * float(jnp.abs(value).max()) + 1e-7)


@pytest.mark.parametrize("method", [optim.AlternatingProjections, optim.DouglasRachford])
def test_factors_of_losses_count_for_every_method(method):
    """Zero: no move. Next to another loss: the smaller the factor, the less."""
    solver = method(steps_per_update=5)

    def moved(factor):
        def fn(p):
            one, other = pjax.cross_entropy(X @ p["a"], Y), pjax.cross_entropy(X[:, :4] @ p["c"], Y)
            return factor * one.mean() + other.mean()

        new, _ = solver.update(fn, PARAMS)
        return [float(jnp.abs(new[key] - PARAMS[key]).max()) for key in ("a", "c")]

    (none, full), (little, same), (much, again) = map(moved, (0.0, 0.1, 1.0))
    assert none == 0 < little < 0.7 * much
    assert full == pytest.approx(same) == pytest.approx(again)
    alone, _ = solver.update(lambda p: 0.0 * pjax.cross_entropy(hidden(p), Y), PARAMS)
    assert all(jnp.array_equal(alone[key], PARAMS[key]) for key in PARAMS)


@pytest.mark.parametrize("method", [optim.AlternatingProjections, optim.DouglasRachford])
def test_samples_with_a_mask_of_zero_do_not_move_anything(method):
    """Their labels make no difference."""
    mask = jnp.asarray(Y > 1, jnp.float32)
    other = jnp.where(Y > 1, Y, (Y + 1) % 4)
    solver = method(steps_per_update=5)
    first, second = (
        solver.update(lambda p, y=y: (pjax.cross_entropy(X @ p["a"], y) * mask).sum(), PARAMS)[0]["a"]
        for y in (Y, other)
    )
    np.testing.assert_array_equal(first, second)
    assert not jnp.array_equal(first, PARAMS["a"])


@pytest.mark.parametrize("method", [optim.AlternatingProjections, optim.DouglasRachford])
def test_infinity_in_a_branch_is_like_a_large_number(method):
    params = {"x": jnp.array([0.5, 3.0, -2.0]), "beside": jnp.ones(2)}
    solver = method(steps_per_update=6, check=False)

    def loss(p, large=jnp.inf):
        farthest = jnp.where(jnp.array([True, False, True]), jnp.sqrt(p["x"] ** 2 + 1), -large).max()
        return farthest + 0 * p["beside"].sum()

    moved, wanted = (solver.update(lambda p, n=n: loss(p, n), params)[0] for n in (jnp.inf, 1e6))
    for key in params:
        np.testing.assert_array_equal(moved[key], wanted[key])
    assert moved["x"][2] > -1.99
    assert np.isfinite(pjax.debug.violations(loss, params, solver, steps=6).values).all()


@pytest.mark.parametrize("method", [optim.AlternatingProjections, optim.DouglasRachford])
def test_a_parameter_without_a_number_stands_beside_others(method):
    def moved(fn):
        params = {"prompt": jnp.zeros((0, 3)), "words": jnp.ones((2, 3))}
        return method(steps_per_update=2).update(
            lambda p: pjax.squared_error(fn(p), jnp.zeros((2, 3))), params
        )[0]

    found = moved(lambda p: 2.0 * jnp.concatenate([p["prompt"], p["words"]]))
    np.testing.assert_array_equal(found["words"], moved(lambda p: 2.0 * p["words"])["words"])
    assert found["prompt"].shape == (0, 3)


WRITTEN_OUT = {
    "cross-entropy": lambda z, y: -jnp.mean(jnp.sum(y * (z - jax.nn.logsumexp(z, 1, keepdims=True)), axis=1)),
    "squares": lambda z, y: jnp.mean((z - y) ** 2),
    "masked": lambda z, y: -jnp.sum(0.5 * y * jnp.tanh(z)),
    "outer product": lambda z, y: jnp.mean((jnp.einsum("i,j->ij", y[:, 0] + 1, z[0]) - 1) ** 2),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
@pytest.mark.parametrize("method", ["AlternatingProjections", "DouglasRachford"])
def test_losses_that_are_written_out_fall(name, method):
    """Products with labels, masks and scales are linear: a method that moves their copies would go uphill."""
    x, w = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(5, 3), (3, 4)]))
    y = jax.nn.one_hot(jnp.arange(5) % 4, 4)

    def loss(w):
        return WRITTEN_OUT[name](x @ w, y)

    found, before = getattr(optim, method)().update(loss, w)
    assert float(loss(found)) < float(before) - 1e-2


def test_labels_out_of_range_inside_jit_are_not_a_number():
    solver = optim.ExtrapolatedProjections()

    @jax.jit
    def value(p, y):
        return solver.update(lambda p: pjax.cross_entropy(hidden(p), y), p, solver.init(p))[2]

    assert bool(jnp.isfinite(value(PARAMS, Y)))
    assert bool(jnp.isnan(value(PARAMS, Y + 10)))


# --- Captured arrays ---


def captured(x, kind):
    """A function that captures its batch in a jitted function inside of something else."""
    inner = jax.jit(lambda p: x @ p)

    def fn(p):
        if kind == "scan":
            return lax.scan(lambda c, _: (c, pjax.squared_error(inner(p), jnp.ones(4))), 0.0, None, length=2)[
                1
            ]
        if kind == "state":
            return pjax.squared_error(
                lax.scan(lambda c, _: (c + inner(p), None), jnp.zeros(4), None, length=2)[0], jnp.ones(4)
            )
        if kind == "map":
            return lax.map(lambda t: pjax.squared_error(t * inner(p), jnp.ones(4)), jnp.ones(2))
        if kind == "fori":
            return pjax.squared_error(
                lax.fori_loop(0, 2, lambda _, c: c + inner(p), jnp.zeros(4)), jnp.ones(4)
            )
        if kind == "constant":  # the loop itself does not depend on a parameter
            total = lax.scan(lambda c, _: (c + inner(jnp.ones(3)), None), jnp.zeros(4), None, length=2)[0]
            return pjax.squared_error(total * p[0], jnp.ones(4))
        return pjax.squared_error(jax.checkpoint(inner)(p), jnp.ones(4))

    return fn


@pytest.mark.parametrize("kind", ["scan", "state", "map", "fori", "constant", "checkpoint"])
@pytest.mark.parametrize(
    "solver",
    [
        optim.AlternatingProjections(steps_per_update=2),
        optim.DouglasRachford(steps_per_update=2),
        optim.ExtrapolatedProjections(outer=optax.sgd(0.1)),
    ],
    ids=lambda s: s.name,
)
def test_another_batch_is_another_batch(kind, solver, programs):
    """Arrays that are captured at any depth are no part of the compiled program, nor of what is equal."""
    params = jnp.full(3, 0.3)
    for seed in range(2):
        x = jax.random.normal(jax.random.key(seed), (4, 3))
        new, _, value = solver.update(captured(x, kind), params, solver.init(params))
        assert float(value) == pytest.approx(float(jnp.mean(captured(x, kind)(params))), rel=1e-5)
        assert not jnp.array_equal(new, params)
    assert len(programs) == 1, "compiled once"


def test_loops_over_different_arrays_are_not_taken_for_equal():
    x, z = (jax.random.normal(jax.random.key(seed), (4, 3)) for seed in range(2))
    first, second = captured(x, "constant"), captured(z, "constant")

    def both(p):
        return first(p) + second(p)

    params = jnp.full(3, 0.3)
    found = [
        optim.AlternatingProjections(steps_per_update=3, stack=stack).update(both, params)
        for stack in (True, False)
    ]
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    assert (
        float(found[0][1]) == pytest.approx(float(found[1][1])) == pytest.approx(float(both(params).mean()))
    )


# --- What comes back beside the loss ---


@pytest.mark.parametrize("jit", [False, True])
def test_aux_comes_back_with_the_loss(jit):
    solver = optim.ExtrapolatedProjections()

    def fn(p, batch):
        z = batch[0] @ p["a"]
        return pjax.cross_entropy(z, batch[1]).mean(), {
            "right": (z.argmax(-1) == batch[1]).sum(),
            "mean": z.mean(0),
            "name": ["text"],
        }

    def update(p, state, batch):
        return solver.update(fn, p, state, batch=batch, has_aux=True)

    params = {"a": PARAMS["a"]}
    _, _, (value, aux) = (jax.jit(update) if jit else update)(params, solver.init(params), (X, Y))
    expected, more = fn(params, (X, Y))
    assert float(value) == pytest.approx(float(expected))
    assert int(aux["right"]) == int(more["right"])
    np.testing.assert_allclose(aux["mean"], more["mean"], rtol=1e-6)
    assert aux["name"] == ["text"]


@pytest.mark.parametrize("has_aux", [False, True])
def test_what_is_no_array_cannot_come_back(has_aux):
    solver = optim.AlternatingProjections()
    with pytest.raises(pjax.InputError, match=r"the function returns <object.*, which is no array"):
        solver.update(lambda p: (loss(hidden(p)), object()), PARAMS, has_aux=has_aux)


def test_dead_code_needs_no_rule():
    """Neither what nobody reads, nor what only comes back beside the loss."""

    def fn(p):
        unused = jax.pure_callback(np.asarray, jax.ShapeDtypeStruct((8, 4), jnp.float32), hidden(p))
        del unused
        return loss(hidden(p)), jax.pure_callback(
            np.asarray, jax.ShapeDtypeStruct((8, 4), jnp.float32), hidden(p)
        )

    _, (_, aux) = optim.AlternatingProjections(steps_per_update=1).update(fn, PARAMS, has_aux=True)
    np.testing.assert_allclose(aux, hidden(PARAMS), rtol=1e-6)


def test_prints_are_passed_on(capfd):
    def fn(p):
        jax.debug.print("loss {}", loss(hidden(p)))
        return loss(hidden(p))

    optim.AlternatingProjections(steps_per_update=1).update(fn, PARAMS)
    jax.effects_barrier()
    assert capfd.readouterr().out.startswith("loss ")


# --- Edges ---

SMALL = {
    "tanh": lambda p: jnp.tanh(hidden(p)) @ p["c"],
    "attention": attention,
    "batch norm": lambda p: batch_norm(hidden(p)) @ p["c"],
    "layer norm": lambda p: jax.nn.gelu(layer_norm(hidden(p))) @ p["c"],
    "segment sum": lambda p: jax.ops.segment_sum(jnp.tanh(hidden(p)), SEGMENTS, 8) @ p["c"],
    "sort": lambda p: jnp.sort(jnp.tanh(hidden(p)), 1) @ p["c"],
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("method", [optim.AlternatingProjections, optim.DouglasRachford])
@pytest.mark.usefixtures("x64")
def test_implicit_edges_are_explicit_ones(name, method):
    params = jax.tree.map(lambda x: x.astype(jnp.float64), PARAMS)
    fn = lambda p: pjax.cross_entropy(SMALL[name](p), Y)  # noqa: E731
    one, other = (
        method(steps_per_update=3, edges=edges).update(fn, params)[0] for edges in ("implicit", "explicit")
    )
    moves = {key: float(jnp.abs(other[key] - params[key]).max()) for key in params}
    assert max(moves.values()) > 0
    for key, move in moves.items():
        np.testing.assert_allclose(one[key], other[key], atol=1e-3 * move)


@pytest.mark.parametrize(
    "method", [optim.AlternatingProjections, optim.CyclicProjections, optim.DouglasRachford]
)
@pytest.mark.parametrize("options", [{}, {"edges": "explicit"}, {"stack": False}], ids=str)
def test_a_parameter_that_is_only_held_stays(method, options):
    """Directly, behind an operation, and as a condition."""

    def fn(p):
        held = lax.stop_gradient(p["a"][:4] * p["b"])
        z = jnp.where(p["b"].sum() > 0, held * p["c"], 2 * held * p["c"])
        return pjax.squared_error(z, jnp.ones_like(z))

    params = {"a": PARAMS["a"], "b": PARAMS["c"].sum(0), "c": PARAMS["c"]}
    new, _ = method(steps_per_update=2, **options).update(fn, params)
    assert jnp.array_equal(new["a"], params["a"])
    assert jnp.array_equal(new["b"], params["b"])
    assert not jnp.allclose(new["c"], params["c"])


@pytest.mark.parametrize("fn", [jax.nn.softplus, jax.nn.log_sigmoid], ids=lambda fn: fn.__name__)
def test_pieces_with_kinks_of_a_smooth_function(fn):
    """At zero, where logits start: max(x, 0) and abs(x) have kinks there, what is made of them has not."""
    optimizer = optim.ExtrapolatedProjections(outer=optax.sgd(1.0))
    params = jnp.zeros(3)
    moved, _, _ = optimizer.update(lambda p: fn(p).sum(), params, optimizer.init(params))
    np.testing.assert_allclose(moved, -jax.grad(lambda p: fn(p).sum())(params), rtol=1e-5)


def test_sums_over_an_axis_counted_from_the_end_under_vmap():
    """There jax.vmap writes integers of NumPy."""
    optimizer = optim.ExtrapolatedProjections(outer=optax.sgd(1.0))
    params, x = jnp.ones(3), jnp.arange(6.0).reshape(2, 3)

    def loss(params):
        return jax.vmap(lambda x: jnp.sum(x * params, axis=-1) + jnp.max(x * params, axis=-1))(x).sum()

    moved, _, _ = optimizer.update(loss, params, optimizer.init(params))
    np.testing.assert_allclose(moved - params, -jax.grad(loss)(params), rtol=1e-4)


BASES = jnp.array([0.3, -0.7, 0.0, 1.2])
POWERS = {
    "of negative numbers, repeated": (lambda p: p["x"][:, None] ** jnp.array([3.0, 2.0, 1.0]), "x"),
    "with whole exponents, repeated": (lambda p: p["x"][:, None] ** jnp.array([3, 2, 1]), "x"),
    "of zero, repeated": (lambda p: jax.nn.relu(BASES)[:, None] ** p["y"], "y"),
    "of zero, both move": (lambda p: jax.nn.relu(p["x"]) ** p["y"], "xy"),
}


@pytest.mark.parametrize("name", POWERS)
def test_powers_are_asked_like_gradients(name):
    """Where logarithms of their bases are not finite, too."""
    fn, names = POWERS[name]
    optimizer = optim.ExtrapolatedProjections(outer=optax.sgd(1.0))
    every = {"x": BASES, "y": jnp.array([1.5, 2.0, 3.0, 0.5])}
    params = {n: every[n] for n in names}

    def loss(params):
        return jnp.sum((fn(params) - 1) ** 2)

    moved, _, _ = optimizer.update(loss, params, optimizer.init(params))
    for n, slope in jax.grad(loss)(params).items():
        np.testing.assert_allclose(moved[n] - params[n], -slope, rtol=1e-4, atol=1e-6)
    for method in (optim.AlternatingProjections, optim.DouglasRachford):
        after, _ = method(steps_per_update=5).update(loss, params)
        assert all(jnp.isfinite(x).all() for x in after.values())
        assert not all(jnp.array_equal(after[n], params[n]) for n in names)
