"""Layers: what they compute, against NumPy, and what they refuse."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import nn

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(0)


def random(*shape):
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def start(layer):
    """Parameters that are not zero."""
    return {name: random(*p.shape) for name, p in layer.shapes().items()}


def relu(x):
    return np.maximum(x, 0)


# References, one for each layer, written with NumPy and loops.


def conv(x, weight, strides, pads):
    x = np.pad(x, ((0, 0), *pads, (0, 0)))
    (height, width), (down, right) = weight.shape[:2], strides
    rows = range(0, x.shape[1] - height + 1, down)
    columns = range(0, x.shape[2] - width + 1, right)
    cut = [[np.tensordot(x[:, i : i + height, j : j + width], weight, 3) for j in columns] for i in rows]
    return np.stack([np.stack(row, 1) for row in cut], 1)


def pool(x, window, strides, pads):
    x = np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-np.inf)
    (height, width), (down, right) = window, strides
    rows = range(0, x.shape[1] - height + 1, down)
    columns = range(0, x.shape[2] - width + 1, right)
    cut = [[x[:, i : i + height, j : j + width].max((1, 2)) for j in columns] for i in rows]
    return np.stack([np.stack(row, 1) for row in cut], 1)


def recurrent(p, x, layers, state, skip):
    h, logits = np.zeros((len(x), state)), []
    for t in range(x.shape[1]):
        y = np.concatenate([p["embed.weight"][x[:, t]], h], -1)
        seen = []
        for i in range(layers):
            y = relu(y @ p[f"hidden.{i}.weight"] + p[f"relu.{i}.bias"])
            seen.append(y)
        y = np.concatenate(seen, -1) if skip else y
        logits.append(y @ p["out.weight"])
        h = relu(y @ p["state.weight"])
    return np.stack(logits, 1)


def attention(p, x, heads, size, causal):
    q, k, v = (x @ p[f"{name}.weight"] for name in ("query", "key", "value"))
    y = np.zeros((*x.shape[:2], heads * size))
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for i in range(x.shape[1]):
            read = range(i + 1 if causal else x.shape[1])
            scores = [relu((q[:, i, part] * k[:, j, part]).sum(-1) / math.sqrt(size)) for j in read]
            y[:, i, part] = np.mean(
                [s[:, None] * v[:, j, part] for s, j in zip(scores, read, strict=True)], 0
            )
    return y @ p["out.weight"]


IMAGES = random(2, 5, 6, 3)
CODES = np.random.default_rng(1).integers(7, size=(3, 5))
CASES = {
    "linear": (nn.Linear(3, 4), random(2, 5, 3), lambda p, x: x @ p["weight"]),
    "linear bias": (nn.Linear(3, 4, bias=True), random(2, 3), lambda p, x: x @ p["weight"] + p["bias"]),
    "linear vector": (nn.Linear(3, 4), random(3), lambda p, x: x @ p["weight"]),
    "relu": (nn.ReLU(), random(2, 3), lambda _, x: relu(x)),
    "relu bias": (nn.ReLU(3), random(2, 5, 3), lambda p, x: relu(x + p["bias"])),
    "conv": (nn.Conv2D(3, 4, 3), IMAGES, lambda p, x: conv(x, p["weight"], (1, 1), ((1, 1), (1, 1)))),
    "conv valid": (
        nn.Conv2D(3, 4, (2, 3), strides=(1, 2), padding="VALID", bias=True),
        IMAGES,
        lambda p, x: conv(x, p["weight"], (1, 2), ((0, 0), (0, 0))) + p["bias"],
    ),
    "conv strides": (
        nn.Conv2D(3, 4, 3, strides=2),
        IMAGES,
        lambda p, x: conv(x, p["weight"], (2, 2), ((1, 1), (0, 1))),
    ),
    "conv pairs": (
        nn.Conv2D(3, 2, 2, padding=[(1, 0), (0, 2)]),
        IMAGES,
        lambda p, x: conv(x, p["weight"], (1, 1), ((1, 0), (0, 2))),
    ),
    "max pool": (nn.MaxPool(2), IMAGES, lambda _, x: pool(x, (2, 2), (2, 2), ((0, 0), (0, 0)))),
    "max pool same": (
        nn.MaxPool((3, 2), strides=(2, 1), padding="SAME"),
        IMAGES,
        lambda _, x: pool(x, (3, 2), (2, 1), ((1, 1), (0, 1))),
    ),
    "global max pool": (nn.GlobalMaxPool(), IMAGES, lambda _, x: x.max((1, 2))),
    "embedding": (nn.Embedding(7, 4), CODES, lambda p, x: p["weight"][x]),
    "quantize": (nn.Quantize(5, 2.0), random(2, 3), lambda _, x: np.clip(np.round(x), -2, 2)),
    "sequential": (
        nn.Sequential(nn.Linear(3, 4), np.tanh, nn.ReLU(4)),
        random(2, 3),
        lambda p, x: relu(np.tanh(x @ p["layers.0.weight"]) + p["layers.2.bias"]),
    ),
    "concat": (
        nn.Concat(nn.Linear(3, 4), nn.ReLU(4), nn.Linear(4, 2)),
        random(2, 3),
        lambda p, x: np.concatenate(
            [
                a := x @ p["layers.0.weight"],
                b := relu(a + p["layers.1.bias"]),
                b @ p["layers.2.weight"],
            ],
            -1,
        ),
    ),
    "rnn": (nn.RNN(7, [6]), CODES, lambda p, x: recurrent(p, x, 1, 6, False)),
    "rnn deep": (
        nn.RNN(7, [6, 4], classes=3, embedding=2, state=5),
        CODES,
        lambda p, x: recurrent(p, x, 2, 5, False),
    ),
    "rnn skip": (nn.RNN(7, [6, 4], skip=True), CODES, lambda p, x: recurrent(p, x, 2, 4, True)),
    "attention": (nn.MultiHeadAttention(6, 2), random(2, 5, 6), lambda p, x: attention(p, x, 2, 3, False)),
    "attention causal": (
        nn.MultiHeadAttention(6, 3, head_features=4, causal=True),
        random(2, 5, 6),
        lambda p, x: attention(p, x, 3, 4, True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_layers_equal_their_reference(name):
    layer, x, reference = CASES[name]
    params = start(layer)
    np.testing.assert_allclose(layer.apply(params, x), reference(params, x), rtol=1e-4, atol=1e-4)


BY_HAND = [name for name in CASES if name != "sequential"]  # np.tanh takes no computation


@pytest.mark.parametrize("name", BY_HAND)
def test_layers_take_computations(name):
    layer, x, _ = CASES[name]
    params = start(layer)
    wrapped = {key: pjax.parameter(value, name=key) for key, value in params.items()}
    for given in (pjax.array(x), x) if params else (pjax.array(x),):
        y = layer.apply(wrapped, given)
        assert isinstance(y, pjax.Computation)
        np.testing.assert_allclose(y.value, layer.apply(params, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_layers_have_labels_and_initial_values(name):
    layer, _, _ = CASES[name]
    assert repr(layer).startswith(type(layer).__name__)
    assert jax.eval_shape(layer.init, KEY) == layer.shapes()


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [(nn.Linear(300, 200), 300), (nn.Conv2D(40, 50, 3), 360), (nn.Embedding(300, 200), 1)],
)
def test_initial_weights_keep_the_size_of_signals(layer, fan_in):
    weight = layer.init(KEY)["weight"]
    assert float(weight.std() * math.sqrt(fan_in)) == pytest.approx(1, rel=0.02)
    assert float(weight.mean() * math.sqrt(fan_in)) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(
    ("initialiser", "deviation"),
    [
        (nn.initialisers.normal(2.0), math.sqrt(2 / 100)),
        (nn.initialisers.normal(0.5, fan_in=2), 0.5),
        (nn.initialisers.uniform(), 0.1),
        (nn.initialisers.constant(3.0), 0),
        (nn.initialisers.zeros, 0),
        (jax.nn.initializers.he_normal(), math.sqrt(2 / 100)),
        (jax.nn.initializers.normal(0.3), 0.3),
    ],
)
def test_initialisers(initialiser, deviation):
    weight = nn.Linear(100, 200, initialiser=initialiser).init(KEY)["weight"]
    assert float(weight.std()) == pytest.approx(deviation, rel=0.03, abs=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_does_not_grow_with_the_length(causal):
    layer = nn.MultiHeadAttention(64, 4, causal=causal)
    params = layer.init(KEY)
    sizes = []
    for length in (4, 64, 256):
        # The same positions over and over, so that the values do not average out.
        x = np.tile(random(2, 4, 64), (1, length // 4, 1))
        sizes.append(float(jnp.std(layer.apply(params, x)[:, -1])))
    np.testing.assert_allclose(sizes, sizes[0], rtol=1e-3)


def test_attention_does_not_grow_with_the_heads_features():
    sizes = []
    for features in (4, 256):
        layer = nn.MultiHeadAttention(64, 1, head_features=features)
        sizes.append(float(jnp.std(layer.apply(layer.init(KEY), random(64, 2, 64)))))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.5)


def test_causal_attention_reads_no_later_position():
    layer = nn.MultiHeadAttention(6, 2, causal=True)
    params, x = start(layer), random(2, 5, 6)
    changed = x.copy()
    changed[:, 3:] += 1
    before, after = layer.apply(params, x), layer.apply(params, changed)
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).any()


def test_the_steps_of_an_rnn_make_its_sequence():
    layer = nn.RNN(7, [6, 4], skip=True)
    params = start(layer)
    bound, state = layer.bind(params), jnp.zeros((3, 4))
    steps = []
    for t in range(CODES.shape[1]):
        logits, state = bound.step(CODES[:, t], state)
        steps.append(logits)
    np.testing.assert_allclose(jnp.stack(steps, 1), layer.apply(params, CODES), rtol=1e-5, atol=1e-5)


def test_low_precision_stays_low():
    for layer, x in (
        (nn.Linear(3, 4, bias=True), jnp.ones((2, 3), jnp.bfloat16)),
        (nn.RNN(7, [6]), CODES),
        (nn.MultiHeadAttention(6, 2, causal=True), jnp.ones((2, 5, 6), jnp.bfloat16)),
    ):
        params = jax.eval_shape(lambda layer=layer: layer.init(KEY, dtype=jnp.bfloat16))
        assert jax.eval_shape(layer.apply, params, x).dtype == jnp.bfloat16


def test_the_derivative_of_a_relu_at_zero_is_zero():
    assert float(jax.grad(lambda x: nn.ReLU().apply({}, x))(0.0)) == 0
    grad = jax.grad(lambda b: nn.ReLU(2).apply({"bias": b}, jnp.zeros(2)).sum())(jnp.zeros(2))
    np.testing.assert_array_equal(grad, 0)


# What is refused.

REFUSED = [
    (nn.Linear(3, 4), random(3, 2), "Linear(3 → 4): expected an input of shape (…, 3), got (3, 2)."),
    (nn.Linear(3, 4), 1.0, "Linear(3 → 4): expected an input of shape (…, 3), got ()."),
    (nn.Linear(2, 4), [[1.0], [1.0, 2.0]], "Linear(2 → 4): expected an input of shape (…, 2), got list."),
    (nn.ReLU(3), random(2, 1), "ReLU(3): expected an input of shape (…, 3), got (2, 1)."),
    (
        nn.Conv2D(3, 4, 3),
        random(2, 5, 5, 1),
        "Conv2D(3 → 4, 3x3): expected an input of shape (…, height, width, 3), got (2, 5, 5, 1).",
    ),
    (
        nn.MaxPool(2),
        random(5, 5),
        "MaxPool(2x2): expected an input of shape (…, height, width, channels), got",
    ),
    (nn.GlobalMaxPool(), random(5, 5), "GlobalMaxPool(): expected an input of shape"),
    (
        nn.Embedding(7, 4),
        np.array([0, 7]),
        "Embedding(7 x 4): expected whole numbers from 0 to 6, got numbers from 0 to 7.",
    ),
    (nn.Embedding(7, 4), np.array([0, -1]), "got numbers from -1 to 0."),
    (
        nn.Embedding(7, 4),
        random(2),
        "expected whole numbers from 0 to 6, got an array of shape (2,), float32.",
    ),
    (nn.Embedding(7, 4), "text", "expected whole numbers from 0 to 6, got str 'text'."),
    (nn.RNN(7, [6]), random(2, 3), "`embed`, Embedding(7 x 6): expected whole numbers from 0 to 6, got"),
    (nn.RNN(7, [6]), np.int32(3), "RNN(7 → 7, state 6): expected codes of shape (…, time)"),
    (
        nn.MultiHeadAttention(6, 2),
        random(6),
        "MultiHeadAttention(6, 2 heads of 3): expected an input of shape (…, time, 6), got (6,).",
    ),
    (
        nn.MultiHeadAttention(6, 2),
        random(2, 4),
        "MultiHeadAttention(6, 2 heads of 3): expected an input of shape (…, 6), got (2, 4).",
    ),
    (
        nn.Concat(nn.Conv2D(1, 1, 1), nn.MaxPool(2)),
        random(1, 4, 4, 1),
        "Concat: expected at least one layer, and outputs that differ in their last axis only, got the "
        "shapes (1, 4, 4, 1), (1, 2, 2, 1).",
    ),
]


@pytest.mark.parametrize(("layer", "x", "message"), REFUSED)
def test_inputs_that_do_not_fit(layer, x, message):
    with pytest.raises(pjax.InputError, match=re.escape(message)):
        layer.apply(start(layer), x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(0, 3), "Linear: in_features must be at least 1, got 0."),
        (lambda: nn.Linear(3, 2.0), "Linear: out_features must be a whole number, got float 2.0."),
        (lambda: nn.Linear(True, 2), "in_features must be a whole number, got bool True."),
        (lambda: nn.ReLU(-1), "ReLU: features must be at least 1, got -1."),
        (
            lambda: nn.Conv2D(1, 1, (3, 3, 3)),
            "kernel_size must be one whole number or a pair, got (3, 3, 3).",
        ),
        (lambda: nn.Conv2D(1, 1, 3, strides=0), "strides must be at least 1, got 0."),
        (lambda: nn.Conv2D(1, 1, 3, padding="SOME"), "padding must be 'SAME', 'VALID'"),
        (lambda: nn.Conv2D(1, 1, 3, padding=[(1, 2)]), "padding must be 'SAME', 'VALID'"),
        (lambda: nn.MaxPool("2"), "window must be a whole number, got str '2'."),
        (lambda: nn.Embedding(3, 0), "Embedding: features must be at least 1, got 0."),
        (lambda: nn.Quantize(1), "levels must be an integer, at least 2; got 1."),
        (lambda: nn.Sequential([nn.ReLU()]), "got list as layer 0; write Sequential(*layers)."),
        (lambda: nn.Concat(nn.ReLU(), 3), "Concat: expected modules or functions, got int as layer 1."),
        (lambda: nn.RNN(7, []), "RNN: widths must be a list of at least one whole number, got []."),
        (lambda: nn.RNN(7, 128), "RNN: widths must be a list of at least one whole number, got 128."),
        (lambda: nn.MultiHeadAttention(6, 4), "6 features cannot be divided among 4 heads"),
        (lambda: nn.Parameter(2.5), "a shape is a tuple of whole numbers, got 2.5."),
        (lambda: nn.Parameter((2, -1)), "lengths must not be negative"),
        (lambda: nn.Parameter((2,), dtype="colour"), "'colour' is no dtype"),
        (lambda: nn.initialisers.normal(-1.0), "scale must be a finite number of at least 0, got -1.0."),
        (lambda: nn.initialisers.uniform(fan_in=0), "fan_in must be at least 1, got 0."),
    ],
)
def test_settings_that_make_no_sense(make, message):
    with pytest.raises(pjax.InputError, match=re.escape(message)):
        make()


def test_containers_can_be_looked_into():
    layers = nn.ReLU(), nn.Linear(1, 1)
    model = nn.Sequential(*layers)
    assert len(model) == 2
    assert model[1] is layers[1]
    assert tuple(model) == layers


def test_codes_that_turn_out_to_be_out_of_range_give_nan():
    layer = nn.Embedding(3, 2)
    found = jax.jit(lambda codes: layer.apply({"weight": jnp.ones((3, 2))}, codes))(jnp.array([0, -1, 3]))
    assert np.isnan(found).all(-1).tolist() == [False, True, True]
