"""A batch in parts: the same result."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pjax
from pjax import optim
from pjax.experiments import models

KEY = jax.random.key(0)
X, Y = jax.random.normal(KEY, (12, 6)), jnp.arange(12) % 3
MODEL = models.MLP(6, [5, 5], 3)
PARAMS = MODEL.init(KEY)


def loss(params, batch):
    x, y = batch
    return pjax.cross_entropy(MODEL.apply(params, x), y)


def after(solver, params=PARAMS, batch=(X, Y), fn=loss):
    state = solver.init(params)
    for _ in range(2):
        params, state, value = solver.update(fn, params, state, batch=batch)
    return params, value


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "method",
    [
        optim.AlternatingProjections(steps_per_update=7),
        optim.Outer(optim.AlternatingProjections(steps_per_update=7, consensus="exact"), optax.sgd(0.5)),
    ],
)
def test_parts_are_exact_for_alternating_projections(method):
    params = jax.tree.map(lambda x: x.astype(jnp.float64), PARAMS)
    batch = X.astype(jnp.float64), Y
    whole, value = after(method, params, batch)
    found, mean = after(optim.Accumulated(method, 3), params, batch)
    np.testing.assert_allclose(mean, value, rtol=1e-12)
    for key in params:
        assert float(jnp.abs(whole[key] - params[key]).max()) > 1e-4
        np.testing.assert_allclose(found[key], whole[key], atol=1e-12, err_msg=key)


def test_parts_of_extrapolated_projections():
    method = optim.ExtrapolatedProjections(outer=optax.sgd(1.0))
    whole, _ = after(method)
    found, _ = after(optim.Accumulated(method, 3))
    for key in PARAMS:  # each part has its own typical lengths, and the damping depends on them
        np.testing.assert_allclose(found[key], whole[key], atol=0.02 * float(jnp.abs(whole[key]).max()))


@pytest.mark.parametrize(
    "method",
    [
        optim.DouglasRachford(steps_per_update=4),
        optim.AlternatingProjections(steps_per_update=3, extrapolate="tensor"),
    ],
)
def test_parts_of_other_methods_average_what_each_does_alone(method):
    solver = optim.Accumulated(optim.Outer(method, optax.sgd(1.0)), 2)
    found, state, loss_ = solver.update(loss, PARAMS, solver.init(PARAMS), batch=(X, Y))
    alone = optim.Outer(method, optax.sgd(1.0))
    parts = [
        alone.update(loss, PARAMS, alone.init(PARAMS), batch=(X[k : k + 6], Y[k : k + 6])) for k in (0, 6)
    ]
    assert loss_ == pytest.approx(np.mean([part[2] for part in parts]), rel=1e-6)
    assert state.neglected == max(part[1].neglected for part in parts)
    for key in PARAMS:
        np.testing.assert_allclose(found[key], (parts[0][0][key] + parts[1][0][key]) / 2, atol=1e-6)


def test_a_batch_as_an_argument_is_the_same_as_in_a_closure():
    solver = optim.DouglasRachford(steps_per_update=5)
    given, value = solver.update(loss, PARAMS, batch=(X, Y))
    closed, same = solver.update(lambda p: loss(p, (X, Y)), PARAMS)
    assert value == same
    jax.tree.map(np.testing.assert_array_equal, given, closed)


def test_less_memory():
    model = models.MLP(64, [256, 256], 10)
    params = model.init(KEY)
    batch = jnp.ones((2048, 64)), jnp.zeros(2048, int)

    def bytes_of(parts):
        solver = optim.Accumulated(optim.AlternatingProjections(steps_per_update=3), parts)
        update = jax.jit(
            lambda p, b: solver.update(
                lambda p, b: pjax.cross_entropy(model.apply(p, b[0]), b[1]), p, batch=b
            )
        )
        return update.lower(params, batch).compile().memory_analysis().temp_size_in_bytes

    assert bytes_of(8) < 0.7 * bytes_of(1)


def test_errors():
    method = optim.AlternatingProjections()
    solver = optim.Accumulated(method, 5)
    with pytest.raises(pjax.PjaxError, match="12 samples cannot be divided into 5 equal parts"):
        solver.update(loss, PARAMS, batch=(X, Y))
    with pytest.raises(pjax.PjaxError, match="Accumulated and Groups need it as an argument"):
        solver.update(lambda p: loss(p, (X, Y)), PARAMS)
    with pytest.raises(pjax.PjaxError, match="agree in the length of their first axis"):
        solver.update(loss, PARAMS, batch=(X, Y[:3]))
    for empty in ((), (X[:0], Y[:0])):
        with pytest.raises(pjax.PjaxError, match="the batch is empty"):
            solver.update(loss, PARAMS, batch=empty)
    with pytest.raises(pjax.PjaxError, match="parts must be a whole number"):
        optim.Accumulated(method, 0)

    def shared(params, batch):
        return pjax.squared_error(batch[0] @ pjax.quantize(params, 4), jnp.ones((len(batch[0]), 2)))

    with pytest.raises(pjax.PjaxError, match=r"'quantize_.*does not depend on the batch"):
        optim.Accumulated(method, 3).update(shared, jnp.ones((6, 2)), batch=(X, Y))
    optimizer = optim.Accumulated(optim.ExtrapolatedProjections(), 3)  # adds up what is asked, so it may
    optimizer.update(shared, jnp.ones((6, 2)), optimizer.init(jnp.ones((6, 2))), batch=(X, Y))


def test_a_batch_that_is_not_divided_may_hold_anything():
    """A key for dropout, or the edges of a graph, have no axis of samples."""

    def noisy(params, batch):
        x, y, key = batch
        return loss(params, (x + jax.random.normal(key, x.shape), y))

    batch = (X, Y, jax.random.key(0))
    together, _ = optim.AlternatingProjections().update(noisy, PARAMS, batch=batch)
    captured, _ = optim.AlternatingProjections().update(lambda p: noisy(p, batch), PARAMS)
    jax.tree.map(np.testing.assert_array_equal, together, captured)
