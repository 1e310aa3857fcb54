"""Well-known models as people write them: one update moves the parameters downhill."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import pjax
from benchmarks import zoo as benchmark
from examples import zoo

pytestmark = pytest.mark.usefixtures("quick_compilation")

# Steps of length one along what projections ask for: the difference of parameters is the move itself.
SOLVER = pjax.optim.ExtrapolatedProjections(outer=optax.sgd(1.0))


@pytest.mark.parametrize("name", zoo.MODELS)
def test_one_update_moves_downhill(name):
    model = zoo.MODELS[name]
    params, loss, (batch, *_) = model.make(jax.random.key(0, impl="rbg"))

    @jax.jit
    def both(params, batch):
        value, gradient = jax.value_and_grad(loss, has_aux=model.has_aux)(params, batch)
        new, _, found = SOLVER.update(loss, params, SOLVER.init(params), batch=batch, has_aux=model.has_aux)
        return value, found, gradient, jax.tree.map(jnp.subtract, new, params)

    expected, found, gradient, move = both(params, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-3, 1e-4), found, expected)
    downhill, move = -ravel_pytree(gradient)[0], ravel_pytree(move)[0]
    cosine = downhill @ move / (jnp.linalg.norm(downhill) * jnp.linalg.norm(move))
    assert cosine >= model.cosine, model.reason


def test_a_lower_cosine_has_a_reason():
    for model in zoo.MODELS.values():
        assert bool(model.reason) == (model.cosine < 0.999), model.name


def test_gradients_train_the_models_too():
    """What Adam cannot train says nothing about projections."""
    model = zoo.MODELS["XOR (tanh)"]
    before, _, gradients = benchmark.compare(model, "ep", updates=30)
    assert gradients.loss < before


def test_a_model_that_fails_does_not_stop_the_others(monkeypatch, capsys):
    @jax.custom_vjp
    def hidden(x):  # JAX is told its derivative; pjax looks inside
        return jax.pure_callback(lambda x: x, x, x)

    hidden.defvjp(lambda x: (hidden(x), None), lambda _, g: (g,))

    def make(_):
        return jnp.ones(2), lambda params, batch: jnp.sum(hidden(params - batch) ** 2), [jnp.zeros(2)]

    good = zoo.MODELS["XOR (tanh)"]
    models = {"broken": zoo.Model("broken", "JAX", make), good.name: good}
    monkeypatch.setattr(zoo, "MODELS", models)
    assert benchmark.main(["--updates", "2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "1 of 2 run" in lines[-1]
    assert any(line.startswith("| broken |") and "Error: " in line for line in lines)
