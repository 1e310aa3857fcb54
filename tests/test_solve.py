"""`pjax.solve`: fields, status, stopping, recording, and life inside jit and vmap."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import optim

RNG = np.random.default_rng(0)
A = RNG.normal(size=(3, 5)).astype(np.float32)
B = A @ RNG.normal(size=5).astype(np.float32)
START = jnp.zeros(5)
AP = optim.AlternatingProjections(constants="fixed", consensus="exact")
DR = optim.DouglasRachford(constants="fixed", consensus="exact")


def equations(x):
    return pjax.squared_error(A @ x, B)


def impossible(x):
    """x = 0 and x = 1."""
    return pjax.squared_error(x, jnp.zeros_like(x)), pjax.squared_error(x, jnp.ones_like(x))


@pytest.mark.parametrize("solver", [AP, DR], ids=["AP", "DR"])
def test_a_solution_says_that_and_how_it_was_found(solver):
    found = pjax.solve(equations, {"x": START}["x"], solver, max_steps=3000, tolerance=1e-6)
    assert isinstance(found, pjax.Solution)
    assert found.converged
    assert pjax.Status(int(found.status)) is pjax.Status.CONVERGED
    assert "all constraints hold" in found.message
    np.testing.assert_allclose(A @ found.params, B, atol=1e-3)
    steps = int(found.steps)
    assert 1 < steps < 3000
    assert found.violations.shape == (3000,)
    done, rest = found.violations[:steps], found.violations[steps:]
    assert np.isfinite(done).all()
    assert np.isnan(rest).all()
    assert done[-1] <= 1e-6 < done[-2]
    np.testing.assert_allclose(found.loss, np.mean(B**2), rtol=1e-5)
    assert found.neglected == 0
    assert found.path is None
    assert np.isnan(found.violations).sum() == 3000 - steps


@pytest.mark.usefixtures("x64")
def test_violations_fall_on_a_convex_problem():
    """Alternating projections onto convex sets never move further than the step before."""
    found = pjax.solve(equations, jnp.zeros(5), AP, max_steps=50, tolerance=0.0)
    falls = np.diff(found.violations)
    assert (falls <= 1e-12).all()
    assert found.violations[-1] < 0.1 * found.violations[0]


def test_giving_up():
    found = pjax.solve(equations, START, AP, max_steps=3, tolerance=0.0)
    assert found.status == pjax.Status.MAX_STEPS
    assert not found.converged
    assert int(found.steps) == 3
    assert "allow more steps" in found.message
    assert "DouglasRachford" in found.message


def test_a_problem_without_a_solution():
    found = pjax.solve(impossible, jnp.zeros(2), AP, max_steps=50)
    assert found.status == pjax.Status.MAX_STEPS
    np.testing.assert_allclose(found.params, 0.5)
    np.testing.assert_allclose(found.violations[10:], found.violations[10], rtol=1e-3)


def test_leaving_the_finite_numbers():
    solver = optim.AlternatingProjections(check=False)
    found = pjax.solve(equations, START.at[0].set(jnp.nan), solver, max_steps=10)
    assert found.status == pjax.Status.NOT_FINITE
    assert int(found.steps) == 1
    assert "scale of the data" in found.message


def test_a_start_that_solves_it():
    point = jnp.asarray(np.linalg.lstsq(A, B, rcond=None)[0])
    found = pjax.solve(equations, point, AP, tolerance=1e-4, max_steps=20)
    assert found.converged
    assert int(found.steps) == 1
    np.testing.assert_allclose(found.params, point, atol=1e-4)


@pytest.mark.parametrize(
    "fn",
    [
        jnp.linalg.inv,
        lambda a: jnp.linalg.solve(a @ a.T, jnp.ones(2)),
        lambda a: jax.vmap(lambda b: jnp.linalg.solve(a, b))(jnp.eye(2)),
    ],
)
def test_a_matrix_with_which_a_system_is_solved_moves(fn):
    """JAX factors it as if it did not."""
    start, wanted = jnp.array([[0.8, 0.1], [-0.2, 0.6]]), fn(jnp.array([[0.7, 0.0], [-0.1, 0.6]]))
    found = pjax.solve(lambda a: pjax.squared_error(fn(a), wanted), start, optim.DouglasRachford())
    assert found.converged
    np.testing.assert_allclose(fn(found.params), wanted, atol=1e-4)


@pytest.mark.parametrize("beta", [0.5, 0.8])
def test_the_solution_is_where_the_constraints_were_seen_to_hold(beta):
    """And not a step on, where of entries that are equal up to rounding another one may be the largest."""

    def latin(x):
        return [pjax.constrain(x, pjax.sets.OneHot(), axis=axis) for axis in range(3)]

    starts = np.random.default_rng(0).choice([0.0, 0.5, 1.0, 2.0], (200, 3, 3, 3)).astype(np.float32)
    solver = optim.DifferenceMap(beta=beta)
    found = jax.vmap(lambda start: pjax.solve(latin, start, solver, max_steps=200))(starts)
    assert found.converged.mean() > 0.9
    assert (np.abs(found.params - np.round(found.params))[found.converged] < 1e-4).all()


@pytest.mark.parametrize("solver", [optim.DouglasRachford(), optim.AlternatingProjections()])
def test_choices_are_made_anew_until_they_stay(solver):
    """The largest number is to be zero: of which number that is said changes on the way."""

    def fn(p):
        return pjax.squared_error(p["x"][jnp.argmax(p["x"])], 0.0)

    start = {"x": jnp.array([3.0, 2.0, 1.0])}
    solution = pjax.solve(fn, start, solver)
    assert bool(solution.converged)
    assert float(fn(solution.params)) < 1e-10
    assert np.allclose(solution.params["x"], 0, atol=1e-5)
    assert float(solution.loss) == 9
    assert not bool(pjax.solve(fn, start, solver, max_steps=3).converged)


@pytest.mark.parametrize("method", [AP, DR, optim.CyclicProjections()], ids=["AP", "DR", "CP"])
def test_what_no_parameter_moves_must_hold_as_well(method):
    def fn(x, known, frozen):
        told = pjax.squared_error(known, jnp.ones(2)), pjax.constrain(known, pjax.sets.Box(0.0, 1.0))
        return pjax.squared_error(x, jnp.full(2, 5.0)), *told, pjax.squared_error(frozen(x), jnp.ones(2))

    def solve(known, frozen):
        wanted = functools.partial(fn, known=jnp.full(2, known), frozen=frozen)
        return pjax.solve(wanted, jnp.zeros(2), method, tolerance=1e-5)

    positive, large = (lambda x, at=at: (x > at).astype(float) for at in (1.0, 9.0))
    assert solve(1.0, positive).converged
    assert solve(1.0, lambda x: jax.lax.stop_gradient(x) / 5).converged
    for wrong in (solve(3.0, positive), solve(1.0, large)):
        assert wrong.status == pjax.Status.MAX_STEPS
        assert int(wrong.steps) < 1000
        assert wrong.violations[int(wrong.steps) - 1] > 0.1
        np.testing.assert_allclose(wrong.params, 5.0, atol=1e-3)


def test_what_a_branch_asks_that_is_not_taken_need_not_hold():
    def fn(x):
        taken = jax.lax.cond(
            x[0] > -1, lambda: pjax.squared_error(x[0], 2.0), lambda: pjax.squared_error(jnp.ones(()), 0.0)
        )
        return taken, pjax.squared_error(x[1], 1.0)

    assert pjax.solve(fn, jnp.zeros(2), AP).converged


TWO = jnp.full(2, 2.0)
STILL = {
    "scan": lambda ask: jax.lax.scan(lambda s, x: (s + ask(x), None), 0.0, TWO)[0],
    "map": lambda ask: jax.lax.map(ask, TWO).sum(),
    "branch": lambda ask: jax.lax.cond(TWO[0] > 0, lambda: ask(TWO[0]), lambda: 0.0),
    "branch in scan": lambda ask: jax.lax.scan(
        lambda s, x: (s + jax.lax.cond(s < 1, lambda: ask(x), lambda: 1.0), None), 0.0, TWO
    )[0],
}
ASKED = {
    "loss": lambda goal: lambda x: pjax.squared_error(x, goal),
    "set": lambda goal: lambda x: pjax.constrain(x, pjax.sets.Box(0.0, goal)),
}


@pytest.mark.parametrize("inside", STILL)
@pytest.mark.parametrize("kind", ASKED)
def test_what_is_asked_of_constants_in_loops_and_branches_must_hold(inside, kind):
    for goal, converges in ((2.0, True), (1.0, False)):

        def fn(x, goal=goal):
            return pjax.squared_error(x, 1.0), STILL[inside](ASKED[kind](goal))

        assert pjax.solve(fn, jnp.zeros(()), AP).converged == converges


@pytest.mark.parametrize("kind", ASKED)
def test_what_is_asked_of_constants_in_a_branch_that_is_not_taken_need_not_hold(kind):
    def fn(x):
        ask = ASKED[kind](1.0)
        inner = jax.lax.cond(x > 9, lambda: ask(TWO[0]), lambda: 0.0)
        outer = jax.lax.cond(
            TWO[0] < 0, lambda: jax.lax.cond(x < 9, lambda: ask(TWO[0]), lambda: 0.0), lambda: 0.0
        )
        return pjax.squared_error(x, 1.0), inner, outer

    assert pjax.solve(fn, jnp.zeros(()), AP).converged


@pytest.mark.parametrize(("factor", "converges"), [(0.0, True), (0.01, False)])
def test_what_no_parameter_moves_is_asked_by_a_factor_that_is_not_zero(factor, converges):
    def fn(x, weights):  # the state at the start of a recurrence is no parameter's
        state, total = jnp.zeros(2), 0.0
        for weight in weights:
            total += weight * pjax.squared_error(state, jnp.array([1.0, 2.0])).sum()
            state = state + x
        return total

    weights = jnp.array([factor, 1.0])
    for asked in (lambda x: fn(x, weights), lambda x: fn(x, weights.tolist())):
        assert pjax.solve(asked, jnp.zeros(2), AP, tolerance=1e-5).converged == converges


def test_what_no_parameter_moves_is_asked_where_its_factor_is_not_known():
    def fn(x, end):
        still = pjax.squared_error(jnp.ones(()), 2.0)
        return pjax.squared_error(x, 1.0) + jax.lax.while_loop(lambda s: s < end, lambda s: s + 1.0, still)

    found = pjax.solve(functools.partial(fn, end=jnp.array(3.0)), jnp.zeros(()), AP)
    assert found.status == pjax.Status.MAX_STEPS
    assert int(found.steps) < 1000


def test_throw():
    with pytest.raises(
        pjax.NotConvergedError, match=r"violation .* after 3 steps: the constraints do not hold"
    ):
        pjax.solve(equations, START, AP, max_steps=3, tolerance=0.0, throw=True)
    found = pjax.solve(equations, START, AP, max_steps=3000, tolerance=1e-5, throw=True)
    assert found.converged
    with pytest.raises(pjax.InputError, match="inside jit nobody can see how it ended: leave throw out"):
        jax.jit(lambda x: pjax.solve(equations, x, AP, throw=True))(START)


def test_the_callback_sees_every_step():
    seen = {}

    def callback(step, violation):
        seen[int(step)] = float(violation)

    found = pjax.solve(equations, START, AP, max_steps=7, tolerance=0.0, callback=callback)
    jax.effects_barrier()
    assert sorted(seen) == list(range(1, 8))
    np.testing.assert_allclose([seen[k] for k in sorted(seen)], found.violations, rtol=1e-6)


@pytest.mark.parametrize("solver", [AP, DR], ids=["AP", "DR"])
def test_the_path(solver):
    start = {"x": START, "unused": jnp.ones(2)}

    def fn(p):
        return equations(p["x"])

    found = pjax.solve(fn, start, solver, max_steps=400, tolerance=1e-4, record=True)
    steps = int(found.steps)
    assert steps < 400
    assert found.path["x"].shape == (400, 5)
    np.testing.assert_allclose(found.path["x"][steps - 1], found.params["x"], rtol=1e-6)
    assert np.isnan(found.path["x"][steps:]).all()
    np.testing.assert_array_equal(found.path["unused"][:steps], np.ones((steps, 2)))
    shorter = pjax.solve(fn, start, solver, max_steps=3, tolerance=0.0)
    np.testing.assert_allclose(found.path["x"][2], shorter.params["x"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("solver", [AP, DR], ids=["AP", "DR"])
def test_as_many_steps_as_update(solver):
    found = pjax.solve(equations, START, solver, max_steps=50, tolerance=0.0)
    new, loss = solver.update(equations, START)
    np.testing.assert_allclose(found.params, new, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.loss, loss, rtol=1e-6)


@pytest.mark.parametrize(
    ("solver", "constants"),
    [
        (optim.AlternatingProjections, "nodes"),
        (optim.CyclicProjections, "fixed"),
        (optim.DouglasRachford, "nodes"),
        (optim.DouglasRachford, "fixed"),
    ],
)
def test_implicit_and_explicit_edges_measure_the_same(solver, constants):
    def fn(p):
        return pjax.squared_error(jax.nn.relu(A @ p["x"]) * p["s"], jnp.ones(3), scale=1.0)

    start = {"x": jnp.ones(5), "s": jnp.ones(3)}
    history = {"history": 4} if solver.name == "DR" else {}
    implicit, explicit = (
        pjax.solve(fn, start, solver(constants=constants, edges=edges, **more), max_steps=4, tolerance=0.0)
        for edges, more in (("implicit", history), ("explicit", {}))
    )
    np.testing.assert_allclose(implicit.violations, explicit.violations, rtol=2e-4)


def test_inside_jit():
    outside = pjax.solve(equations, START, AP, max_steps=500, tolerance=1e-4)
    inside = jax.jit(lambda x: pjax.solve(equations, x, AP, max_steps=500, tolerance=1e-4))(START)
    assert inside.converged
    assert inside.steps == outside.steps
    np.testing.assert_allclose(inside.params, outside.params, atol=1e-5)


def test_the_tolerance_may_be_an_argument_of_jit():
    def solve(tolerance):
        return pjax.solve(equations, START, AP, max_steps=500, tolerance=tolerance)

    loose, tight = (int(jax.jit(solve)(t).steps) for t in (1e-2, 1e-4))
    assert loose < tight


def test_under_vmap():
    starts = jnp.asarray(RNG.normal(size=(3, 5)), jnp.float32)

    def solve(x):
        return pjax.solve(equations, x, AP, max_steps=600, tolerance=1e-4)

    together = jax.vmap(solve)(starts)
    assert together.converged.all()
    for i, start in enumerate(starts):
        alone = solve(start)
        np.testing.assert_allclose(together.params[i], alone.params, atol=1e-4)
        assert abs(int(together.steps[i]) - int(alone.steps)) <= 2


def test_the_same_graph_with_other_numbers_is_solved_anew():
    found = []
    for scale in (1.0, 2.0):
        batch = jnp.asarray(scale * A)
        found.append(pjax.solve(lambda x, a=batch: pjax.squared_error(a @ x, B), START, AP, max_steps=20))
    assert not np.allclose(found[0].params, found[1].params)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_steps": 0}, "max_steps must be a whole number from 1 to 2147483647, got 0"),
        ({"max_steps": 2.5}, "got 2.5"),
        ({"max_steps": True}, "got True"),
        ({"max_steps": 2**31}, "max_steps must be a whole number from 1 to 2147483647, got 2147483648"),
        ({"tolerance": -1.0}, "tolerance must be a number of at least 0, got -1"),
        ({"tolerance": "small"}, "got 'small'"),
        ({"tolerance": np.ones(2)}, "got array"),
        ({"callback": 3}, "callback must be a function of a step and a violation, got 3"),
        ({"tolerance": float("nan")}, "got nan"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(pjax.InputError, match=match):
        pjax.solve(equations, START, AP, **options)


def test_something_that_is_no_function():
    with pytest.raises(pjax.InputError, match=r"expected a function of the parameters .* got 3"):
        pjax.solve(3, START, AP)
