"""Each bad input gets the right error, with a message that says what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax.errors import GraphError, InputError, PjaxError, UnsupportedEquationError

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = jnp.ones((3, 4))
W = jnp.ones((4, 2))
Y = np.array([0, 1, 1])
AP = pjax.optim.AlternatingProjections(steps_per_update=2)


# Values that a function computes itself are not looked at, captured ones are.
TOO_LARGE, NEGATIVE = Y + 1, jnp.asarray(Y - 1)
BAD = X.at[0, 0].set(jnp.nan)
INFINITE = jnp.full((1, 4), jnp.inf)
ALL_NAN = np.full((3, 4), np.nan, np.float32)
NAN_TARGET = jnp.full((3, 2), jnp.nan)


def loss(w):
    return pjax.cross_entropy(X @ w, Y)


CASES = {
    # --- the function ---
    "target of constants": (
        lambda: AP.update(lambda _: pjax.squared_error(X, X), W),
        GraphError,
        "does not depend on its parameters.*should end in a loss",
    ),
    "held": (
        lambda: AP.update(lambda w: jax.lax.stop_gradient(w).sum(), W),
        GraphError,
        "does not depend on its parameters",
    ),
    "no scalar": (
        lambda: AP.update(lambda w: loss(w) * w[0, 0], W),
        GraphError,
        r"output 0.*float32\[3\].*neither a loss nor a real number",
    ),
    "extra output": (
        lambda: AP.update(lambda w: (loss(w), X @ w), W),
        GraphError,
        r"output 1.*float32\[3,2\].*has_aux=True",
    ),
    "a comparison": (
        lambda: AP.update(lambda w: (loss(w), w.sum() > 1), W),
        GraphError,
        r"output 1.*bool\[\] at .*test_errors.py",
    ),
    "complex": (
        lambda: AP.update(lambda w: 1j * loss(w).sum(), W),
        GraphError,
        r"output 0.*complex64\[\].*neither a loss nor a real number",
    ),
    "complex loss of no target": (
        lambda: AP.update(lambda w: jnp.vdot(jnp.fft.fft(w), jnp.fft.fft(w)), W),
        GraphError,
        "neither a loss nor a real number",
    ),
    "nothing": (lambda: AP.update(lambda w: None, W), GraphError, "the function returns nothing"),  # noqa: ARG005
    "gradient": (
        lambda: AP.update(jax.grad(lambda w: loss(w).sum())(W), W),
        InputError,
        "expected a function.*not its gradient",
    ),
    "parameter as output": (lambda: AP.update(lambda w: (loss(w), w), W), GraphError, "output 1"),
    "no pair": (
        lambda: AP.update(loss, W, has_aux=True),
        InputError,
        r"must return a pair, \(loss, aux\)",
    ),
    "another state": (
        lambda: AP.update(loss, W, {"a": 1}),
        InputError,
        r"what optimizer\.init\(params\).*got dict",
    ),
    "state of another method": (
        lambda: AP.update(loss, W, pjax.optim.ExtrapolatedProjections().init(W)),
        InputError,
        "that of another optimiser.*AlternatingProjections has not",
    ),
    "no function": (lambda: AP.update(3.0, W), InputError, "expected a function.*got 3.0"),
    "no method": (lambda: pjax.solve(loss, W, "dr"), InputError, "a method of pjax.optim.*got 'dr'"),
    "class of a method": (
        lambda: pjax.solve(loss, W, pjax.optim.DouglasRachford),
        InputError,
        r"such as DouglasRachford\(\)",
    ),
    "words as labels": (
        lambda: AP.update(lambda w: pjax.cross_entropy(X @ w, np.array(["a", "b", "a"])), W),
        InputError,
        "words and other objects are no numbers.*return_inverse",
    ),
    "a loop that depends": (
        lambda: AP.update(lambda w: jax.lax.while_loop(lambda w: w.sum() < 3, lambda w: w + 1, w).sum(), W),
        UnsupportedEquationError,
        "'while' at .*test_errors.py.*jax.lax.scan",
    ),
    "shapes": (lambda: AP.update(lambda w: pjax.cross_entropy(X @ w.T, Y), W), TypeError, "dot_general"),
    "shapes of pjax": (
        lambda: AP.update(lambda w: pjax.squared_error(pjax.matmul(X, w.T), X), W),
        InputError,
        r"pjax.matmul.*\(3, 4\)",
    ),
    "shape of nothing": (lambda: pjax.reshape(X[:, :0], (-1, 0)), InputError, "pjax.reshape.*as many"),
    # --- labels ---
    "label too large": (
        lambda: AP.update(lambda w: pjax.cross_entropy(X @ w, TOO_LARGE), W),
        InputError,
        r"0\.\.1.*2 at index \(1,\)",
    ),
    "label negative": (
        lambda: AP.update(lambda w: pjax.margin_loss(X @ w, NEGATIVE), W),
        InputError,
        "-1 at index",
    ),
    "label shape": (
        lambda: AP.update(lambda w: pjax.cross_entropy(X @ w, Y[:2]), W),
        InputError,
        r"integers of shape \(3,\)",
    ),
    "target shape": (
        lambda: AP.update(lambda w: pjax.squared_error(X @ w, jnp.ones(2)), W),
        InputError,
        "the same shape",
    ),
    "complex target": (
        lambda: AP.update(lambda w: pjax.squared_error(X @ w, 1j * jnp.ones((3, 2))), W),
        InputError,
        "real numbers, got complex64",
    ),
    "complex label": (
        lambda: AP.update(lambda w: pjax.cross_entropy(X @ w, 1j * jnp.ones((3, 2))), W),
        InputError,
        "real numbers, got complex64",
    ),
    "label nan": (
        lambda: AP.update(lambda w: pjax.squared_error(X @ w, NAN_TARGET), W),
        InputError,
        "finite",
    ),
    # --- numbers ---
    "parameter nan": (
        lambda: AP.update(lambda p: loss(p["w"]), {"w": W.at[1, 1].set(jnp.nan)}),
        InputError,
        r"parameter 'w' has 1 of 8 values.*check=False",
    ),
    "parameter inf": (lambda: AP.update(loss, W.at[0].set(-jnp.inf)), InputError, "2 of 8"),
    "batch nan": (
        lambda: AP.update(lambda w: pjax.cross_entropy(BAD @ w, Y), W),
        InputError,
        r"shape \(3, 4\) has 1 of 12 values.*clean the batch",
    ),
    "batch inf, solve": (
        lambda: pjax.solve(lambda w: pjax.squared_error(INFINITE @ w, jnp.ones((1, 2))), W, AP),
        InputError,
        "4 of 4",
    ),
    "numpy batch nan": (
        lambda: AP.update(lambda w: pjax.cross_entropy(ALL_NAN @ w, Y), W),
        InputError,
        "12 of 12",
    ),
    "integer parameter": (
        lambda: AP.update(lambda p: loss(p["w"]), {"w": W.astype(int)}),
        InputError,
        "'w' has type int32.*astype",
    ),
    "bool parameter": (lambda: AP.update(loss, W > 0), InputError, "has type bool"),
    "text parameter": (
        lambda: AP.update(lambda p: loss(p["w"]), {"w": "x"}),
        InputError,
        "'w' is not an array: got str",
    ),
    "state of a parameter of text": (
        lambda: pjax.optim.ExtrapolatedProjections().init({"w": W, "activation": jax.nn.relu}),
        InputError,
        "'activation' is not an array: got .*eqx.partition",
    ),
    "empty batch": (
        lambda: AP.update(lambda w: pjax.cross_entropy(X[:0] @ w, Y[:0]), W),
        InputError,
        "empty.*drop the incomplete batch",
    ),
    "empty parameters": (
        lambda: AP.update(lambda w: pjax.squared_error(w, W[:0]), W[:0]),
        InputError,
        "'squared_error' at .*test_errors.py.* has no numbers",
    ),
    "no parameters": (lambda: AP.update(lambda _: loss(W), {}), InputError, "the parameters are empty"),
    # --- options ---
    "steps 0": (
        lambda: pjax.optim.AlternatingProjections(steps_per_update=0),
        InputError,
        "at least 1, got 0",
    ),
    "steps -1": (lambda: pjax.optim.CyclicProjections(steps_per_update=-1), InputError, "got -1"),
    "steps 2.5": (lambda: pjax.optim.DouglasRachford(steps_per_update=2.5), InputError, "whole number"),
    "steps True": (lambda: pjax.optim.DifferenceMap(steps_per_update=True), InputError, "got True"),
    "consensus": (
        lambda: pjax.optim.AlternatingProjections(consensus="mean"),
        InputError,
        "'paper', 'exact', got 'mean'",
    ),
    "edges": (lambda: pjax.optim.DouglasRachford(edges="none"), InputError, "'implicit', 'explicit'"),
    "metric": (lambda: pjax.optim.DifferenceMap(metric="best"), InputError, "'unit', 'balanced'"),
    "extrapolate": (
        lambda: pjax.optim.AlternatingProjections(extrapolate=True),
        InputError,
        "None, 'tensor', got True",
    ),
    "reach": (lambda: pjax.optim.ExtrapolatedProjections(reach=0), InputError, "reach must be a positive"),
    "schedule": (
        lambda: pjax.optim.ExtrapolatedProjections(learning_rate=lambda step: 0.1 / step),
        InputError,
        r"a schedule.*as outer=optax\.adam\(rate\)",
    ),
    "constants": (lambda: pjax.optim.DouglasRachford(constants="free"), InputError, "'nodes', 'fixed'"),
    "relaxation 0": (lambda: pjax.optim.DouglasRachford(relaxation=0.0), InputError, r"\(0, 1\]"),
    "relaxation 1.5": (lambda: pjax.optim.DouglasRachford(relaxation=1.5), InputError, "got 1.5"),
    "relaxation a word": (lambda: pjax.optim.DouglasRachford(relaxation="low"), InputError, "got 'low'"),
    "relaxation nan": (lambda: pjax.optim.DouglasRachford(relaxation=float("nan")), InputError, "got nan"),
    "no such option": (
        lambda: pjax.optim.DouglasRachford(extrapolate="tensor"),
        TypeError,
        "DouglasRachford has no option 'extrapolate'; its options are .*relaxation",
    ),
    "option of edges": (
        lambda: pjax.optim.ExtrapolatedProjections(metric="balanced"),
        TypeError,
        "ExtrapolatedProjections has no option 'metric'; its options are .*softness",
    ),
    "beta 0": (lambda: pjax.optim.DifferenceMap(beta=0.0), InputError, "not zero"),
    "beta a word": (lambda: pjax.optim.DifferenceMap(beta="one"), InputError, "got 'one'"),
    "beta inf": (lambda: pjax.optim.DifferenceMap(beta=float("inf")), InputError, "finite"),
    "history 0": (lambda: pjax.optim.DouglasRachford(history=0), InputError, "at least 1, got 0"),
    "history 1.5": (lambda: pjax.optim.DifferenceMap(history=1.5), InputError, "got 1.5"),
    "history True": (lambda: pjax.optim.DouglasRachford(history=True), InputError, "got True"),
    "scale 0": (lambda: pjax.cross_entropy(X, np.zeros(3, int), scale=0.0), InputError, "positive"),
}


@pytest.mark.parametrize(("call", "error", "match"), CASES.values(), ids=CASES)
def test_bad_inputs(call, error, match):
    with pytest.raises(error, match=f"(?s){match}") as caught:
        call()
    assert issubclass(error, PjaxError) or error is TypeError
    assert "\n\n\n" not in str(caught.value)


def test_errors_are_also_the_usual_ones():
    assert issubclass(InputError, ValueError)
    assert issubclass(GraphError, ValueError)
    assert issubclass(UnsupportedEquationError, NotImplementedError)


def test_check_false_lets_numbers_through():
    solver = pjax.optim.AlternatingProjections(steps_per_update=2, check=False)
    new, value = solver.update(loss, W.at[0, 0].set(jnp.nan))
    assert new.shape == W.shape
    assert not np.isfinite(value)


def test_inside_jit_numbers_are_not_looked_at():
    _, value = jax.jit(lambda w: AP.update(loss, w))(W.at[0, 0].set(jnp.inf))
    assert not np.isfinite(value)


def test_large_finite_numbers_are_finite():
    # Their sum overflows, they do not.
    big = jnp.full(4, jnp.finfo(jnp.float32).max)
    new, _ = AP.update(lambda w: pjax.squared_error(w, big), big)
    np.testing.assert_array_equal(new, big)


STRICTER = {"dtype": jax.numpy_dtype_promotion("strict"), "rank": jax.numpy_rank_promotion("raise")}


@pytest.mark.parametrize("promotion", STRICTER.values(), ids=STRICTER)
def test_stricter_settings_are_for_what_users_write(promotion):
    def loss(w):
        return pjax.cross_entropy(jnp.tanh(X @ w), Y)

    solver = pjax.optim.DouglasRachford(steps_per_update=2)
    expected = solver.update(loss, W)
    with promotion:
        found = solver.update(loss, W)
        pjax.solve(loss, W, solver, max_steps=2)
        pjax.debug.violations(loss, W, solver, steps=2)
        with pytest.raises((ValueError, TypeError)):
            solver.update(lambda w: loss(w + jnp.ones(2, jnp.bfloat16)), W)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, found, expected))
