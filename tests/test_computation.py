import gc
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pjax.containers import numpy as pnp
from pjax.containers.computation import Array, Computation, Parameter, array, as_function, parameter
from pjax.errors import InputError

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = np.arange(6.0, dtype=np.float32).reshape(2, 3)


def test_array_is_a_constant():
    x = array(X, name="pixels")
    assert isinstance(x, Array)
    assert isinstance(x, Computation)
    assert (x.shape, x.ndim, x.size, x.dtype) == ((2, 3), 2, 6, jnp.float32)
    assert (x.op, x.name, x.inputs, x.kwargs) == ("array", "pixels", (), {})
    assert isinstance(x.value, jax.Array)
    np.testing.assert_array_equal(x.value, X)
    np.testing.assert_array_equal(np.asarray(x), X)


@pytest.mark.parametrize(
    ("given", "shape", "dtype"),
    [
        (1, (), jnp.int32),
        (2.5, (), jnp.float32),
        ([[1, 2], [3, 4]], (2, 2), jnp.int32),
        (np.arange(3, dtype=np.uint8), (3,), jnp.uint8),
        (jnp.ones(2, jnp.bfloat16), (2,), jnp.bfloat16),
        (np.array([True, False]), (2,), jnp.bool_),
        (range(3), (3,), jnp.int32),
    ],
)
def test_anything_like_an_array_becomes_one(given, shape, dtype):
    x = array(given)
    assert (x.shape, x.dtype) == (shape, dtype)


def test_a_constant_is_not_changed_from_outside():
    mine = X.copy()
    x = array(mine)
    mine[:] = -1
    np.testing.assert_array_equal(x.value, X)


@pytest.mark.parametrize("given", [None, "word", object(), [[1], [2, 3]]])
def test_what_is_no_array_is_refused(given):
    with pytest.raises(InputError, match="array: expected an array"):
        array(given)


def test_parameter_is_a_variable():
    w = parameter([1.0, 2.0], name="w")
    assert isinstance(w, Parameter)
    assert (w.op, w.name, w.inputs) == ("parameter", "w", ())
    assert parameter(jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("given", [1, [1, 2], np.array([True]), np.array([1j])])
def test_a_parameter_is_of_floating_point(given):
    with pytest.raises(InputError, match=r"floating point.*pjax\.array"):
        parameter(given)


def test_leaves_made_directly_are_checked_too():
    assert isinstance(Parameter(X).value, jax.Array)
    assert isinstance(Array([1, 2]).value, jax.Array)
    with pytest.raises(InputError, match="floating point"):
        Parameter(np.arange(3))


def test_repr():
    x, w = array(X), parameter(X.T, name="w")
    assert repr(x) == "Array(shape=(2, 3), float32)"
    assert repr(w) == "Parameter(w, shape=(3, 2), float32)"
    assert repr(pnp.dot(x, w)) == "Computation(dot, shape=(2, 2), float32)"
    named = Computation("dot", (x, w), jnp.ones(2), "logits")
    assert repr(named) == "Computation(dot 'logits', shape=(2,), float32)"


def test_operators():
    x = parameter(X)
    cases = {
        "add": (x + 1, X + 1),
        "subtract": (x - X, X - X),
        "multiply": (x * 2.0, X * 2),
        "matmul": (x @ X.T, X @ X.T),
        "negative": (-x, -X),
        "index": (x[:, ::-1], X[:, ::-1]),
        "transpose": (x.T, X.T),
        "reshape": (x.reshape(3, 2), X.reshape(3, 2)),
        "sum": (x.sum(axis=-1), X.sum(-1)),
        "max": (x.max(0, keepdims=True), X.max(0, keepdims=True)),
        "min": (x.min(), X.min()),
        "mean": (x.mean(1), X.mean(1)),
    }
    for op, (made, expected) in cases.items():
        assert made.op == op
        assert made.inputs[0] is x
        np.testing.assert_allclose(made.value, expected, rtol=1e-6)
    np.testing.assert_array_equal(x.reshape((6,)).value, X.ravel())
    np.testing.assert_array_equal(x.reshape(-1).value, X.ravel())
    np.testing.assert_array_equal(x.transpose(-1, 0).value, X.T)
    np.testing.assert_array_equal(x.transpose().value, X.T)


@pytest.mark.parametrize("other", [2.0, np.float32(2), X, jnp.asarray(X), [[1.0, 2.0, 3.0]]])
def test_reflected_operators(other):
    x = parameter(X)
    plain = np.asarray(other)
    for op, made, expected in [
        ("add", other + x, plain + X),
        ("subtract", other - x, plain - X),
        ("multiply", other * x, plain * X),
    ]:
        assert type(made) is Computation
        assert made.op == op
        assert made.inputs[1] is x
        np.testing.assert_array_equal(made.value, expected)
    if plain.shape == X.shape:
        np.testing.assert_allclose((other.T @ x).value, plain.T @ X)


def test_length_and_iteration():
    x = array(X)
    assert len(x) == 2
    rows = list(x)
    assert [row.op for row in rows] == ["index", "index"]
    np.testing.assert_array_equal(rows[1].value, X[1])
    first, second = x
    assert first.shape == second.shape == (3,)
    with pytest.raises(TypeError, match="without axes"):
        len(array(1.0))


def test_equality_is_identity():
    x, y = array(1.0), array(1.0)
    assert x == x
    assert x != y
    assert len({x, y, x}) == 2
    assert bool(x)
    assert float(x) == 1.0


def test_jax_functions_do_not_drop_the_graph():
    with pytest.raises(TypeError):
        jnp.sin(parameter(X))


def test_values_are_computed_when_needed_and_once():
    calls = []

    def compute():
        calls.append(1)
        return jnp.ones((2, 3))

    x = Computation("dot", (), compute, shape=(2, 3), dtype="float32")
    assert repr(x) == "Computation(dot, shape=(2, 3), float32)"
    assert (len(x), x.size, x.ndim) == (2, 6, 2)
    assert not calls
    assert x.value is x.value
    assert len(calls) == 1
    late = Parameter(compute, "w")
    assert late.shape == (2, 3)
    with pytest.raises(InputError, match="needs a value"):
        Computation("dot")


def test_under_jit():
    @jax.jit
    def run(x, w):
        made = pnp.relu(array(x) @ parameter(w, name="w"))
        fn, params = as_function(made)
        return made.value, fn({"w": params["w"] * 2})

    now, then = run(X, X.T)
    np.testing.assert_allclose(now, X @ X.T)
    np.testing.assert_allclose(then, 2 * X @ X.T)


# Replay.


def test_as_function_of_a_pytree():
    w, b = parameter(X.T, name="w"), parameter([1.0, -99.0], name="b")
    hidden = pnp.sum_relu(array(X) @ w, b)
    fn, params = as_function({"hidden": hidden, "loss": [hidden.sum(), None, 5.0], "w": w})
    assert list(params) == ["w", "b"]
    assert params["w"] is w.value
    out = jax.jit(fn)({"w": 2 * X.T, "b": np.zeros(2, np.float32)})
    expected = np.maximum(2 * X @ X.T, 0)
    np.testing.assert_allclose(out["hidden"], expected)
    np.testing.assert_allclose(out["loss"][0], expected.sum())
    assert out["loss"][1:] == [None, 5.0]
    np.testing.assert_array_equal(out["w"], 2 * X.T)


def test_a_shared_parameter_is_one_entry():
    w = parameter(X)
    fn, params = as_function((w + 1.0) * w)
    assert list(params) == ["parameter_0"]
    np.testing.assert_array_equal(fn({"parameter_0": X + 1}), (X + 2) * (X + 1))


def test_unnamed_parameters_are_numbered_by_first_use():
    a, b, c = parameter([1.0]), parameter([2.0]), parameter([3.0], name="parameter_0")
    _, params = as_function((b + a) * c)
    assert {name: value.item() for name, value in params.items()} == {
        "parameter_1": 2.0,
        "parameter_2": 1.0,
        "parameter_0": 3.0,
    }


def test_two_parameters_of_one_name_are_refused():
    with pytest.raises(InputError, match="Several parameters are called 'w'"):
        as_function(parameter([1.0], name="w") + parameter([1.0], name="w"))


def test_missing_and_unknown_parameters_are_refused():
    fn, _ = as_function(parameter([1.0], name="w") + 1.0)
    with pytest.raises(InputError, match=r"\['w'\], got \['v'\]"):
        fn({"v": X})


def test_two_equal_constants_stay_two():
    x, y = array(X), array(X)
    made = x + y
    assert made.inputs[0] is not made.inputs[1]
    fn, params = as_function(made * 1.0)
    assert params == {}
    np.testing.assert_array_equal(fn({}), X + X)


def test_replay_is_linear_in_shared_nodes():
    x = parameter([1.0], name="x")
    y = x
    for _ in range(60):
        y = y + y
    fn, params = as_function(y)
    assert len(jax.make_jaxpr(fn)(params).eqns) == 60
    assert float(fn(params)[0]) == 2.0**60


def test_a_long_chain_does_not_recurse():
    x = y = parameter(1.0, name="x")
    for _ in range(5000):
        y = Computation("negative", (y,), x.value, fn=jnp.negative)
    assert sys.getrecursionlimit() < 5000
    fn, params = as_function(y)
    assert float(fn(params)) == 1.0
    del fn, y
    gc.collect()


def test_what_was_made_without_its_function_cannot_be_replayed():
    w = parameter([1.0], name="w")
    fn, params = as_function(Computation("mystery", (w,), w.value) + 1.0)
    with pytest.raises(InputError, match=r"mystery.*cannot be replayed"):
        fn(params)
    fn, _ = as_function(Computation("known", (array(X),), jnp.ones(1)) + w)
    np.testing.assert_array_equal(fn({"w": jnp.zeros(1)}), [1.0])
