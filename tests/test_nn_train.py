"""Every layer in a small network: it trains by projections and by gradients, under jit and vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import nn

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)

VECTORS = RNG.normal(size=(12, 6)).astype(np.float32)
IMAGES = RNG.normal(size=(6, 6, 6, 2)).astype(np.float32)
CODES = RNG.integers(5, size=(4, 4)).astype(np.int32)


class Reader(nn.Module):
    """Reads characters with attention, and guesses the next one."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.place = nn.Parameter((4, 8), nn.initialisers.normal(fan_in=1))
        self.attention = nn.MultiHeadAttention(8, 2, causal=True)
        self.out = nn.Linear(16, 5)

    def __call__(self, x):
        x = self.embed(x) + self.place
        return self.out(jnp.concatenate([x, self.attention(x)], axis=-1))


def block(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(outputs))


MODELS = {
    "mlp": (nn.Sequential(block(6, 8), block(8, 8), nn.Linear(8, 3)), VECTORS),
    "biases": (nn.Sequential(nn.Linear(6, 8, bias=True), nn.ReLU(), nn.Linear(8, 3, bias=True)), VECTORS),
    "skip": (nn.Sequential(nn.Concat(block(6, 8), block(8, 7)), nn.Linear(15, 3)), VECTORS),
    "quantised": (nn.Sequential(nn.Linear(6, 12), nn.Quantize(9, 2.0), nn.Linear(12, 3)), VECTORS),
    "cnn": (
        nn.Sequential(
            nn.Conv2D(2, 4, 3, bias=True),
            nn.ReLU(4),
            nn.MaxPool(2, padding="SAME"),
            nn.Conv2D(4, 4, 2, strides=2, padding="VALID"),
            nn.ReLU(4),
            nn.GlobalMaxPool(),
            nn.Linear(4, 3),
        ),
        IMAGES,
    ),
    "rnn": (nn.RNN(5, [5, 4], skip=True), CODES),
    "attention": (Reader(), CODES),
}
AP = pjax.optim.AlternatingProjections(steps_per_update=20)
DR = pjax.optim.DouglasRachford(steps_per_update=20)


def problem(name):
    """A loss, and where it starts."""
    model, x = MODELS[name]
    params = model.init(KEY)
    classes = jax.eval_shape(model.apply, params, x).shape
    y = np.random.default_rng(1).integers(classes[-1], size=classes[:-1])
    return jax.jit(lambda p: nn.cross_entropy(model.apply(p, x), y).mean()), params


@pytest.mark.parametrize(
    ("name", "solver"),
    [
        ("mlp", DR),
        ("skip", AP),
        ("quantised", DR),  # alternating projections undo a move that is too short to reach another level
        ("cnn", AP),
        ("rnn", AP),
        ("attention", DR),
    ],
)
def test_projections_lower_the_loss(name, solver):
    loss_fn, params = problem(name)
    new, loss = solver.update(loss_fn, params)
    assert new.keys() == params.keys()
    for key in params:
        assert np.isfinite(new[key]).all()
        assert (new[key] != params[key]).any(), key
    np.testing.assert_allclose(loss, loss_fn(params), rtol=1e-5)
    assert loss_fn(new) < 0.97 * loss


@pytest.mark.parametrize("name", MODELS)
def test_gradients_lower_the_loss(name):
    loss_fn, params = problem(name)
    step = jax.jit(lambda p: jax.tree.map(lambda w, g: w - 0.05 * g, p, jax.grad(loss_fn)(p)))
    new = params
    for _ in range(10):
        new = step(new)
    for key in params:
        assert np.isfinite(new[key]).all()
        # Nothing comes through the quantisation: its derivative is zero.
        assert (new[key] != params[key]).any() != (name == "quantised" and key == "layers.0.weight"), key
    assert loss_fn(new) < loss_fn(params)


@pytest.mark.parametrize("name", ["rnn", "attention"])
def test_gradients_are_those_of_differences(name, x64):  # noqa: ARG001
    model, x = MODELS[name]
    params = model.init(KEY, dtype=jnp.float64)
    x = x if x.dtype == np.int32 else x.astype(np.float64)
    direction = jax.tree.map(lambda w: jnp.asarray(np.random.default_rng(2).normal(size=w.shape)), params)

    def along(t):
        moved = jax.tree.map(lambda w, d: w + t * d, params, direction)
        return jnp.sin(model.apply(moved, x)).sum()

    h = 1e-6
    np.testing.assert_allclose(jax.jit(jax.grad(along))(0.0), (along(h) - along(-h)) / (2 * h), rtol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "rnn"])
def test_several_models_at_once(name):
    model, x = MODELS[name]
    params = jax.vmap(model.init)(jax.random.split(KEY, 3))
    together = jax.jit(jax.vmap(lambda p: model.apply(p, x)))(params)
    alone = jax.jit(lambda p: model.apply(p, x))
    for i, logits in enumerate(together):
        one = alone({key: value[i] for key, value in params.items()})
        np.testing.assert_allclose(logits, one, rtol=1e-4, atol=1e-5)


# Freezing.


def test_freezing_divides_by_name():
    params = nn.Sequential(nn.Linear(2, 2, bias=True), nn.ReLU(2), nn.Linear(2, 1)).init(KEY)
    trainable, frozen = nn.freeze(params, "layers.0.*", "*.bias")
    assert list(trainable) == ["layers.2.weight"]
    assert list(frozen) == ["layers.0.weight", "layers.0.bias", "layers.1.bias"]
    assert nn.freeze(params) == (params, {})
    assert (trainable | frozen).keys() == params.keys()


def test_a_pattern_that_matches_nothing():
    params = nn.RNN(5, [4]).init(KEY)
    with pytest.raises(
        pjax.InputError, match=r"'embed.wieght' matches no parameter. Did you mean 'embed.weight'\?"
    ):
        nn.freeze(params, "out.*", "embed.wieght")
    with pytest.raises(
        pjax.InputError, match=r"The parameters are embed.weight, hidden.0.weight, relu.0.bias, state"
    ):
        nn.freeze(params, "zzz.*")


@pytest.mark.parametrize("solver", [AP, DR], ids=lambda s: s.name)
def test_frozen_parameters_stay(solver):
    model, x = MODELS["mlp"]
    y = np.arange(len(x)) % 3
    trainable, frozen = nn.freeze(model.init(KEY), "layers.0.*", "*.bias")
    before = {name: np.array(value) for name, value in frozen.items()}

    def loss_fn(params):
        return nn.cross_entropy(model.apply(params | frozen, x), y)

    new, loss = solver.update(loss_fn, trainable)
    assert new.keys() == trainable.keys() == {"layers.1.layers.0.weight", "layers.2.weight"}
    assert loss_fn(new).mean() < loss
    grads = jax.grad(lambda p: loss_fn(p).mean())(trainable)
    assert grads.keys() == trainable.keys()
    stepped = jax.tree.map(lambda w, g: w - 0.1 * g, trainable, grads)
    assert loss_fn(stepped).mean() < loss
    for name, value in before.items():
        np.testing.assert_array_equal(frozen[name], value)


def test_frozen_parameters_are_constants_of_the_graph():
    model, x = MODELS["mlp"]
    trainable, frozen = nn.freeze(model.init(KEY), "layers.2.*")
    target = pjax.trace(
        lambda p: nn.cross_entropy(model.apply(p | frozen, x), np.zeros(len(x), int)), trainable
    )
    seen, stack = set(), [target]
    while stack:
        node = stack.pop()
        stack.extend(node.inputs)
        if isinstance(node, pjax.Parameter):
            seen.add(node.name)
    assert seen == trainable.keys()
