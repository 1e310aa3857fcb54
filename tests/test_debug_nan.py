"""Where the first value that is not finite comes from."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pjax
from pjax import debug, optim

pytestmark = pytest.mark.usefixtures("quick_compilation")

AP = optim.AlternatingProjections(steps_per_update=3)
X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
Y = np.arange(4) % 2
PARAMS = {"w": jnp.ones((3, 5)), "v": jnp.ones((5, 2))}


def network(p, x=X):
    h = jax.nn.relu(x @ p["w"])
    return pjax.cross_entropy(h @ p["v"], Y)


def line_of(text):
    """Where a piece of this file stands."""
    with open(__file__) as file:
        (number,) = (i for i, line in enumerate(file, 1) if text in line and "line_of" not in line)
    return f"{__file__}:{number}"


SOLVERS = [AP, optim.DouglasRachford(steps_per_update=3), optim.ExtrapolatedProjections(steps_per_update=3)]


@pytest.mark.parametrize("solver", SOLVERS[::2], ids=lambda s: s.name)
def test_nothing_to_find(solver):
    found = debug.locate_nan(network, PARAMS, solver)
    assert not found.found
    assert found.step is None
    assert found.steps == 3
    assert str(found) == (f"no NaN and no infinity: neither in the function, nor in 3 steps of {solver.name}")


def test_a_parameter():
    bad = PARAMS["v"].at[1, 1].set(jnp.nan).at[0, 0].set(-jnp.inf)
    found = debug.locate_nan(network, PARAMS | {"v": bad}, AP)
    assert found.found
    assert found.step == 0
    assert found.node is None
    assert str(found.output) == "parameter 'v' [5, 2]: 1 NaN and 1 infinite of 10, between 1 and 1"
    assert "Restart from parameters that are finite" in str(found)


def test_a_captured_array():
    x = X.copy()
    x[2, 1] = np.nan

    def fn(p):
        return pjax.squared_error(x @ p["w"], jnp.zeros((4, 5)))  # reads a NaN

    found = debug.locate_nan(fn, PARAMS, AP)
    assert found.step == 0
    assert found.where == "a captured array, which dot(w) reads"
    assert found.output.nan == 1
    assert found.line == line_of("# reads a NaN")
    assert "Clean the batch" in str(found)


def test_an_equation_that_does_not_depend_on_parameters():
    x = X.copy()
    x[:, 1] = 2.0

    def fn(p):
        centred = x - jnp.mean(x, 0)
        scaled = centred / jnp.std(x, 0)  # by zero
        return network(p, scaled)

    found = debug.locate_nan(fn, PARAMS, AP)
    assert found.where == "the equation 'div', which dot(w) reads"
    assert found.line == line_of("# by zero")
    assert [part.finite for part in found.inputs] == [True, True]
    assert found.inputs[1].low == 0
    assert found.output.nan == 4
    assert np.isnan(fn(PARAMS)).all()


def test_a_node():
    def fn(p):
        h = (X * 1e30) @ (p["w"] * 1e30)  # too large
        return pjax.cross_entropy(h @ p["v"], Y)

    found = debug.locate_nan(fn, PARAMS, AP)
    assert found.step == 0
    assert found.node.op == "dot"
    assert found.line == line_of("# too large")
    assert found.inputs[1].high == pytest.approx(1e30)
    assert all(part.finite for part in found.inputs)
    assert found.output.infinite + found.output.nan > 0
    assert "too large" in str(found)


def test_what_is_done_to_the_losses():
    def fn(p):
        return network(p).sum() / jnp.zeros(())

    found = debug.locate_nan(fn, PARAMS, AP)
    assert "output 0 of the function, from losses that are finite" in str(found)


@pytest.mark.parametrize("solver", [s for s in SOLVERS if s.name != "EP"], ids=lambda s: s.name)
def test_a_projection(solver):
    """Values whose squares are too large: the function is finite, its projections are not."""
    x = X.copy()
    x[0, 0] = 1e25

    def fn(p):
        h = x @ p["w"]  # squares overflow
        return pjax.cross_entropy(h @ p["v"], Y)

    assert np.isfinite(fn(PARAMS)).all()
    found = debug.locate_nan(fn, PARAMS, solver)
    assert found.found
    assert found.step >= 1
    assert found.steps == found.step - 1
    assert found.node.op == "dot"
    assert max(part.high for part in found.inputs) > 1e24
    assert f"in step {found.step} of {solver.name}: the projection of dot" in str(found)
    assert "squared" in found.advice


def test_the_node_is_the_first_of_a_step():
    """Only one of two branches breaks: it is named, not what reads it."""
    big = jnp.full((4, 3), 1e25)

    def fn(p):
        good = X @ p["w"]
        bad = big @ p["w"]  # the branch that breaks
        return pjax.cross_entropy(good[:, :2], Y), pjax.cross_entropy(bad[:, :2], Y)

    found = debug.locate_nan(fn, {"w": PARAMS["w"]}, AP)
    assert found.line == line_of("# the branch that breaks")


def test_the_outer_optimiser():
    solver = optim.ExtrapolatedProjections(outer=optax.sgd(3e38), steps_per_update=2)
    found = debug.locate_nan(network, PARAMS | {"w": 100 * PARAMS["w"]}, solver, steps=4)
    assert found.step == 1
    assert found.where == "the outer optimiser, for the parameter 'v'"
    assert found.output.infinite == 10


def test_the_state_of_the_outer_optimiser_is_taken_up():
    solver = optim.ExtrapolatedProjections()
    state = solver.init(PARAMS)
    broken = state._replace(outer=jax.tree.map(lambda x: x * jnp.nan if x.ndim else x, state.outer))
    found = debug.locate_nan(network, PARAMS, solver, state=broken)
    assert found.step == 1
    assert found.where == "the outer optimiser, for the parameter 'v'"
    assert found.inputs[0].finite


def test_how_it_must_be_called():
    with pytest.raises(pjax.InputError, match="outside jit"):
        jax.jit(lambda p: debug.locate_nan(network, p, AP))(PARAMS)
    with pytest.raises(pjax.InputError, match="steps must be a whole number of at least 0, got -1"):
        debug.locate_nan(network, PARAMS, AP, steps=-1)
