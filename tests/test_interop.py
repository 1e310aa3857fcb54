"""Networks written in Flax and Equinox train as they are."""

import re

import equinox as eqx
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

import pjax
from benchmarks import interop
from benchmarks import zoo as benchmark
from examples import zoo
from pjax.experiments import data

pytestmark = pytest.mark.usefixtures("quick_compilation")


# --- To what accuracy, the page on them asserts ---

DIGITS = data.load("digits")
EP = pjax.optim.ExtrapolatedProjections(learning_rate=1e-2)
AP = pjax.optim.AlternatingProjections(steps_per_update=4)
OTHERS = [name for name in interop.MAKE["MLP"] if name != "pjax.nn"]


def place(framework, name, values, leaf):
    """The value of a parameter of another framework, from those of pjax.nn."""
    layer = next(new for old, new in LAYERS.items() if re.search(rf"\b{old}\b", name))
    if "bias" in name:
        return values["out.bias" if layer == "out" else BIASES[layer]].reshape(leaf.shape)
    weight = values[f"{layer}.weight"]
    if framework == "Equinox":  # what comes out is the first axis, what goes in the second
        weight = jnp.moveaxis(weight, (-1, -2), (0, 1))
    assert weight.shape == leaf.shape
    return weight


LAYERS = {"hidden": "hidden", "first": "first", "second": "second", "out": "out", "0": "hidden", "1": "out"}
BIASES = {"hidden": "relu.bias", "first": "first_relu.bias", "second": "second_relu.bias"}


def translated(framework, network, values):
    """The parameters of a network of another framework, with the values of the one of pjax.nn."""
    paths, tree = jax.tree_util.tree_flatten_with_path(network.params)
    leaves = [
        place(framework, jax.tree_util.keystr(path, simple=True, separator=" "), values, leaf)
        for path, leaf in paths
    ]
    return jax.tree.unflatten(tree, leaves)


def batches(count):
    return interop.stream(DIGITS, 0, 16, count)


# Convolutional networks of Flax are below (NNX), and on the page on frameworks (linen).
@pytest.mark.parametrize(("name", "frameworks"), [("MLP", OTHERS), ("CNN", ["Equinox"])], ids=["MLP", "CNN"])
def test_from_the_same_start_all_frameworks_arrive_at_the_same_network(name, frameworks):
    own = interop.make(name, "pjax.nn", jax.random.key(0))
    end = interop.train(own, EP, batches(3))
    x, _ = next(batches(1))
    before, logits = (jax.jit(own.apply)(params, x) for params in (own.params, end))
    assert float(jnp.abs(logits - before).max()) > 1e-3  # it has learnt something
    for framework in frameworks:
        network = interop.make(name, framework, jax.random.key(1))
        start = translated(framework, network, own.params)
        apply = jax.jit(network.apply)
        np.testing.assert_allclose(apply(start, x), before, atol=1e-5)
        found = interop.train(interop.Network(start, network.apply), EP, batches(3))
        assert jax.tree.structure(found) == jax.tree.structure(network.params)
        np.testing.assert_allclose(apply(found, x), logits, atol=2e-3, err_msg=framework)


class Normalised(nnx.Module):
    def __init__(self):
        self.linear = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
        self.norm = nnx.LayerNorm(3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.norm(self.linear(x))  # the user's line


X, Y = jnp.ones((2, 4)), np.array([0, 2])


def test_nodes_name_the_line_of_the_model_and_not_of_the_framework():
    line = Normalised.__call__.__code__.co_firstlineno + 1
    summary = pjax.summary(lambda model: pjax.cross_entropy(model(X), Y), Normalised())
    (found,) = (node for node in summary.nodes if node.op == "rsqrt")
    assert re.search(rf"test_interop\.py:{line}\b", found.line)


def test_an_nnx_model_is_itself_a_pytree_of_parameters():
    model = interop.NnxMLP(nnx.Rngs(0))
    x, y = next(batches(1))
    new, loss = AP.update(lambda model: pjax.cross_entropy(model(x), y), model)
    assert isinstance(new, interop.NnxMLP)
    assert float(AP.update(lambda model: pjax.cross_entropy(model(x), y), new)[1]) < float(loss)


def test_an_equinox_model_that_is_not_divided_says_how_to():
    model = eqx.nn.MLP(64, 10, 8, 1, key=jax.random.key(0))
    x, y = next(batches(1))
    with pytest.raises(pjax.InputError, match=r"not an array: got .*eqx\.partition"):
        AP.update(lambda model: pjax.cross_entropy(jax.vmap(model)(x.reshape(16, -1)), y), model)


class Lifted(flax.linen.Module):
    """Layers under transformations of the framework."""

    @flax.linen.compact
    def __call__(self, x):
        layers = flax.linen.scan(
            lambda layer, x: (flax.linen.relu(layer(x)), None),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=2,
        )
        x, _ = layers(flax.linen.Dense(4), x)
        return flax.linen.remat(flax.linen.Dense)(3)(x)


def stateful(x):
    """Convolutional, with random numbers, averages of an earlier batch, and a step under jit."""
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        lambda x: x[..., None],
        nnx.Conv(1, 5, (3,), rngs=rngs),
        nnx.BatchNorm(5, use_running_average=True, rngs=rngs),
        nnx.relu,
        nnx.Dropout(0.2, rngs=rngs),
        lambda x: nnx.avg_pool(x, (2,), (2,)).reshape(len(x), -1),
        nnx.Linear(10, 3, rngs=rngs),
    )
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    apply = nnx.jit(lambda model, x: model(x))
    return params, lambda p: apply(nnx.merge(graph, p, rest, copy=True), x)


def convolutions(x):
    x = jnp.broadcast_to(x[:, None, :, None], (2, 1, 4, 4))
    keys = jax.random.split(jax.random.key(0), 3)
    model = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 4, 3, padding=1, padding_mode="REFLECT", key=keys[0]),
            eqx.nn.AvgPool2d(2, 1),
            eqx.nn.ConvTranspose2d(4, 2, 2, stride=2, key=keys[1]),
            eqx.nn.Lambda(jax.nn.relu6),
            eqx.nn.Lambda(lambda x: x.max((1, 2))),
            eqx.nn.Linear(2, 3, key=keys[2]),
        ]
    )
    params, static = eqx.partition(model, eqx.is_inexact_array)
    return params, lambda p: jax.vmap(eqx.filter_jit(eqx.combine(p, static)))(x)


def lifted(x):
    model = Lifted()
    return model.init(jax.random.key(0), x), lambda p: model.apply(p, x)


@pytest.mark.parametrize("made", [lifted, stateful, convolutions])
def test_layers_and_transformations_of_the_frameworks(made):
    """Each equation is read as what it is: the loss is that of the framework's own function."""
    params, apply = made(X)
    new, _, loss = EP.update(lambda p: pjax.cross_entropy(apply(p), Y), params, EP.init(params))
    np.testing.assert_allclose(loss, pjax.cross_entropy(apply(params), Y).mean(), rtol=1e-5)
    moved = [
        not np.array_equal(a, b) for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(params), strict=True)
    ]
    assert sum(moved) > len(moved) // 2


# --- Well-known models as people write them: one update moves the parameters downhill ---

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
    def make(_):  # nothing depends on the parameters: a gradient is zero, and a projection is refused
        loss = lambda params, batch: jnp.sum((jax.lax.stop_gradient(params) - batch) ** 2)  # noqa: E731
        return jnp.ones(2), loss, [jnp.zeros(2)]

    good = zoo.MODELS["XOR (tanh)"]
    models = {"broken": zoo.Model("broken", "JAX", make), good.name: good}
    monkeypatch.setattr(zoo, "MODELS", models)
    assert benchmark.main(["--updates", "2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "1 of 2 run" in lines[-1]
    assert any(line.startswith("| broken |") and "Error: " in line for line in lines)
