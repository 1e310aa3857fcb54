"""The engine against an independent one, edge by edge, and against itself in its other forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax.graph import read as _trace
from pjax.optim import solver as _solver
from pjax.rules.contraction import Contraction
from tests import oracle
from tests.graphs import GRAPHS, make
from tests.oracle import SOLVERS

# Long runs where that costs nothing; with a full history the program grows with the steps.
STEPS = {"AP": 50, "CP": 50, "DR": 4, "DM": 3}

# Where the nearest point is not unique.
SPHERES = ("zero_weights", "opposite_weights")


@pytest.fixture(autouse=True)
def little_memory():
    """Compiled programs are large, and no two tests share one."""
    yield
    if len(_solver._PROGRAMS) > 16:
        _solver._PROGRAMS.clear()


def apart(found, expected):
    """The largest difference, relative to the largest number of each array (or to one)."""
    gaps = []
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert x.shape == y.shape
        gaps.append(np.abs(x - y).max() / max(np.abs(y).max(), 1.0))
    return max(gaps)


def with_state(solver, fn, params):
    return solver.update(fn, params, solver.init(params))


# --- Against the definition ---


def plan():
    """Every graph with three methods and three of four settings, which take turns; half with stored edges."""
    for g, graph in enumerate(GRAPHS):
        for s, name in enumerate(("AP", "DR", ("CP", "DM")[g % 2])):
            turn = (g + g // 4 + s) % 4
            settings = {"steps_per_update": STEPS[name], "consensus": ("paper", "exact")[turn // 2]}
            if turn % 2 and graph not in SPHERES:  # spheres are not extrapolated
                settings |= {"steps_per_update": 4, "metric": "balanced"}
                if name in ("AP", "CP"):
                    settings |= {"extrapolate": "tensor", "metric": ("balanced", "unit")[g // 4 % 2]}
            yield pytest.param(graph, name, settings, g // 2 % 2 == s % 2, id=f"{graph}-{name}")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("graph", "name", "settings", "stores"), list(plan()))
def test_edges_are_the_definition(graph, name, settings, stores):
    """Stored edges, and histories that leave nothing out."""
    fn, params = make(graph, np.float64)
    expected = oracle.update(SOLVERS[name](**settings), fn, params)
    assert apart(params, expected) > 1e-3  # something happened
    spheres = graph in SPHERES and name in ("DR", "DM")
    explicit = SOLVERS[name](**settings, edges="explicit")
    if stores or spheres:
        stored, state, loss = with_state(explicit, fn, params)
        assert apart(stored, expected) < 1e-9
        assert (state.neglected, state.updates) == (0, 1)
        given = np.concatenate([np.ravel(x) for x in jax.tree.leaves(jax.jit(fn)(params))])
        np.testing.assert_allclose(loss, given.mean(), rtol=1e-12)
    if spheres:
        return  # a history holds no point of a sphere: see the test of default histories
    if name in ("DR", "DM"):
        settings = settings | {"history": settings["steps_per_update"]}
    implicit, contracts = SOLVERS[name](**settings), _contracts(fn, params)
    if stores and not contracts and name in ("DR", "DM"):
        # Nothing has a history: it is one program, of which it is known by now what it does.
        assert text(implicit, fn, params) == text(explicit, fn, params)
        return
    found, state, _ = with_state(implicit, fn, params)
    assert apart(found, expected) < 1e-8
    assert (state.neglected, state.updates) == (0, 1)
    if contracts and settings.get("metric") == "balanced":
        plain = {key: settings[key] for key in ("steps_per_update", "consensus")}
        assert apart(oracle.update(SOLVERS[name](**plain), fn, params), expected) > 1e-6


def _contracts(fn, params):
    graph = _trace.build(_trace.read(fn, params))
    return any(isinstance(node.rule, Contraction) for node in graph.nodes)


def text(solver, fn, params):
    """The program of an update, as it is given to the compiler."""
    traced, (leaves, treedef) = _trace.read(fn, params), jax.tree.flatten(params)
    return _solver.compiled(solver, traced).update.lower(leaves, traced.constants, (), treedef).as_text()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["DR", "DM"])
@pytest.mark.parametrize("graph", SPHERES)  # they, too, are kept
def test_default_histories_are_exact_where_edges_are_cheap(graph, name):
    fn, params = make(graph, np.float64)
    solver = SOLVERS[name](steps_per_update=10)
    found, state, _ = with_state(solver, fn, params)
    expected = oracle.update(solver, fn, params)
    assert apart(params, expected) > 1e-3
    assert apart(found, expected) < 1e-9
    assert state.neglected == 0


# --- Constants that may not move ---


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "edges"),
    [(n, e) for n in ("AP", "CP", "DR", "DM") for e in ("explicit", "implicit")],
)
@pytest.mark.parametrize("graph", ["products", "two_convs"])
def test_fixed_constants(graph, name, edges):
    fn, params = make(graph, np.float64)
    settings = {"steps_per_update": STEPS[name], "constants": "fixed"}
    history = {"history": STEPS[name]} if name in ("DR", "DM") and edges == "implicit" else {}
    found, state, _ = with_state(SOLVERS[name](**settings, **history, edges=edges), fn, params)
    assert apart(found, oracle.update(SOLVERS[name](**settings), fn, params)) < 1e-8
    assert state.neglected == 0


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["DR", "DM"])
def test_one_term_of_history_is_exact_where_a_factor_is_fixed(name):
    a, b = np.random.default_rng(0).normal(size=(4, 6)), np.ones(4)

    def fn(x):
        return pjax.squared_error(a @ x, b, scale=1.0)

    settings = {"steps_per_update": 30, "constants": "fixed"}
    found, state, _ = with_state(SOLVERS[name](**settings, history=1), fn, jnp.zeros(6))
    expected = oracle.update(SOLVERS[name](**settings), fn, jnp.zeros(6))
    assert apart(found, expected) < 1e-9
    assert state.neglected == 0


# --- Float32 ---


@pytest.mark.parametrize("graph", ["mlp", "strided_conv_pool", "rnn", "residual", "tied", "two_targets"])
@pytest.mark.parametrize("name", ["AP", "DR"])
def test_float32_agrees_with_float64(graph, name):
    """The default histories, in single precision, against stored edges in double precision."""
    solver = SOLVERS[name](steps_per_update=10)
    found, state, _ = with_state(solver, *make(graph, np.float32))
    with jax.enable_x64(True):
        fn, params = make(graph, np.float64)
        expected = oracle.update(SOLVERS[name](steps_per_update=10), fn, params)
    assert apart(found, expected) < max(2e-4, 20 * float(state.neglected))
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(found))


@pytest.mark.parametrize("name", ["AP", "CP", "DR"])
def test_tiny_residuals_keep_their_digits(name):
    """Displacements of 1e-6 of the values, in single precision, are right to a thousandth."""
    rng = np.random.default_rng(0)
    x, w, v = rng.normal(size=(5, 8)), rng.normal(size=(8, 8)), rng.normal(size=(8, 3))

    def problem(dtype):
        # The same numbers in both types, so that the start is the same point.
        batch, first, second = (jnp.asarray(np.float32(a), dtype) for a in (x, w, v))
        labels = np.array([0, 1, 2, 0, 1])

        def fn(p):
            # A tiny scale: the pull is small, and smooth in the prediction.
            return pjax.cross_entropy(jax.nn.relu(batch @ p[0]) @ p[1], labels, scale=1e-5)

        return fn, [first, second]

    solver = SOLVERS[name](steps_per_update=6)
    fn, params = problem(jnp.float32)
    # The parameters move by less than their own rounding: ask the iteration for the displacements.
    found = displacements(solver, fn, params)
    with jax.enable_x64(True):
        fn, params = problem(jnp.float64)
        new = oracle.update(solver, fn, params)
        expected = [a - np.asarray(b) for a, b in zip(new, params, strict=True)]
    for a, b in zip(found, expected, strict=True):
        assert np.abs(b).max() < 1e-4
        assert np.abs(a - b).max() < 2e-3 * np.abs(b).max()


def displacements(solver, fn, params):
    traced = _trace.read(fn, params)
    leaves = jax.tree.leaves(params)
    program = _solver.compiled(solver, traced)

    @jax.jit
    def run():
        iteration = solver.iteration(program.problem(leaves, traced.constants))
        steps = solver.steps_per_update
        state = jax.lax.fori_loop(0, steps, lambda _, s: iteration.step(s), iteration.start())
        return iteration.parameters(state)

    moves = run()
    return [np.asarray(moves[v]) for v in program.partition.graph.leaves]


@pytest.mark.parametrize("graph", ["deep_skip", "rnn"])
def test_bfloat16_parameters(graph):
    solver = SOLVERS["AP"](steps_per_update=10)
    fn, params = make(graph, jnp.bfloat16)
    found, loss = solver.update(fn, params)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    expected, wide_loss = solver.update(make(graph, np.float32)[0], wide)
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(found))
    assert apart(found, expected) < 0.03
    np.testing.assert_allclose(float(loss), float(wide_loss), rtol=0.03)


# --- What update promises ---


def test_unused_parameters_come_back_identical():
    fn, params = make("mlp", np.float32)
    params = {**params, "unused": jnp.array([1.0, -0.0, 1e-30]), "none": None}
    for name in ("AP", "DR"):
        new, _ = SOLVERS[name](steps_per_update=3).update(fn, params)
        assert new["unused"].tobytes() == params["unused"].tobytes()
        assert new["none"] is None


def test_rows_that_are_never_read_come_back_identical():
    fn, params = make("embedding", np.float32)
    new, _ = SOLVERS["DR"](steps_per_update=3).update(fn, params)
    rows = np.asarray((new["table"] == params["table"]).all(-1))
    np.testing.assert_array_equal(rows, [False, True, False, True, False, True])


@pytest.mark.parametrize("name", ["AP", "DR"])
def test_inside_and_outside_jit(name):
    fn, params = make("mlp", np.float32)
    solver = SOLVERS[name](steps_per_update=10)
    outside, loss = solver.update(fn, params)
    inside, inner_loss = jax.jit(lambda p: solver.update(fn, p))(params)
    assert apart(inside, outside) < 1e-5
    np.testing.assert_allclose(loss, inner_loss, rtol=1e-6)


def test_batches_may_be_arguments_of_jit():
    solver = SOLVERS["AP"](steps_per_update=3)
    w = jnp.ones((4, 2))

    def update(x, w):
        return solver.update(lambda w: pjax.squared_error(x @ w, jnp.ones((3, 2))), w)[0]

    for seed in range(2):
        x = jax.random.normal(jax.random.key(seed), (3, 4))
        assert apart(jax.jit(update)(x, w), update(x, w)) < 1e-5


@pytest.mark.parametrize("name", ["AP", "DR"])
def test_vmap_over_parameters_is_a_loop(name):
    fn, params = make("mlp", np.float32)
    solver = SOLVERS[name](steps_per_update=10)
    seeds = [jax.tree.map(lambda x, s=s: x * s, params) for s in (0.5, 1.0, 1.5)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *seeds)
    together, losses = jax.vmap(lambda p: solver.update(fn, p))(stacked)
    for i, seed in enumerate(seeds):
        alone, loss = solver.update(fn, seed)
        assert apart(jax.tree.map(lambda x, i=i: x[i], together), alone) < 1e-4
        np.testing.assert_allclose(losses[i], loss, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::pjax.errors.NeglectedWarning")  # histories as short as that
def test_the_state_counts_updates_and_keeps_the_worst():
    fn, params = make("mlp", np.float32)
    solver = SOLVERS["DR"](steps_per_update=5, history=1)
    state = solver.init(params)
    assert (int(state.updates), float(state.neglected)) == (0, 0.0)
    seen = []
    for _ in range(3):
        params, state, _ = solver.update(fn, params, state)
        seen.append(float(state.neglected))
    assert int(state.updates) == 3
    assert seen == sorted(seen)
    assert seen[0] > 0


@pytest.mark.filterwarnings("ignore::pjax.errors.NeglectedWarning")  # histories as short as that
@pytest.mark.usefixtures("x64")
def test_neglected_falls_with_the_length_of_the_history():
    fn, params = make("mlp", np.float64)
    expected = oracle.update(SOLVERS["DR"](steps_per_update=6), fn, params)
    neglected, errors = [], []
    for history in (1, 3, 6):
        found, state, _ = with_state(SOLVERS["DR"](steps_per_update=6, history=history), fn, params)
        neglected.append(float(state.neglected))
        errors.append(apart(found, expected))
    assert neglected[0] > 0
    assert neglected[1] > 0
    assert neglected[2] == 0
    assert min(errors[:2]) > 1e-3
    assert errors[2] < 1e-9


def test_new_batches_do_not_compile_again():
    solver = SOLVERS["AP"](steps_per_update=2)
    w = jnp.ones((4, 2))
    x = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)

    def batch(x):
        return lambda w: pjax.squared_error(jax.nn.relu(x @ w), jnp.ones((3, 2)))

    program = _solver.compiled(solver, _trace.read(batch(x[0]), w))
    for i in range(5):
        w, _ = solver.update(batch(x[i]), w)
    assert _solver.compiled(solver, _trace.read(batch(x[4]), w)) is program
    assert program.update._cache_size() == 1


# --- Convex problems: the theory says where they end ---


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["AP", "CP", "DR", "DM"])
def test_linear_equations_are_solved(name, seed):
    rng = np.random.default_rng(seed)
    a, point = rng.normal(size=(4, 7)), rng.normal(size=7)
    b = a @ point

    def fn(x):
        return pjax.squared_error(a @ x, b)

    solver = SOLVERS[name](constants="fixed", consensus="exact")
    found = pjax.solve(fn, jnp.asarray(rng.normal(size=7)), solver, max_steps=20_000, tolerance=1e-10)
    assert found.converged
    np.testing.assert_allclose(a @ found.params, b, atol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["AP", "CP", "DR"])
def test_linear_inequalities_are_solved(name):
    """A x >= 1 where the label says so and A x <= 0 elsewhere, with a point inside both."""
    rng = np.random.default_rng(3)
    a = rng.normal(size=(6, 8))
    signs = np.array([[1, 0, 1, 0, 1, 1]])

    def fn(x):
        return pjax.margin_loss((a @ x)[None], signs)

    solver = SOLVERS[name](constants="fixed", consensus="exact")
    found = pjax.solve(fn, jnp.zeros(8), solver, max_steps=20_000, tolerance=1e-9)
    assert found.converged
    out = a @ found.params
    assert (out[signs[0] == 1] > 1 - 1e-6).all()
    assert (out[signs[0] == 0] < 1e-6).all()


@pytest.mark.usefixtures("x64")
def test_alternating_projections_find_the_nearest_point_of_affine_sets():
    """From a consistent start, the limit on affine sets is the projection of the start onto them."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(2, 5))
    b = rng.normal(size=2)

    def fn(x):
        return pjax.squared_error(jnp.broadcast_to(x, (3, 5)).mean(0) @ a.T, b)

    start = jnp.asarray(rng.normal(size=5))
    solver = SOLVERS["AP"](constants="fixed", consensus="exact")
    found = pjax.solve(fn, start, solver, max_steps=50_000, tolerance=1e-12)
    assert found.converged
    np.testing.assert_allclose(a @ found.params, b, atol=1e-8)
    # The displacement lies in the span of the rows: nothing moves along the solutions.
    move = np.asarray(found.params - start)
    inside = np.linalg.lstsq(a.T, move, rcond=None)[0] @ a
    np.testing.assert_allclose(move, inside, atol=1e-8)
