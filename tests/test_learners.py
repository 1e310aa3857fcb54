"""Methods behind one interface: backpropagation, Feedback Alignment, Forward-Forward, groups apart."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pjax import devices
from pjax.errors import InputError
from pjax.experiments import data, methods, models
from pjax.experiments.baselines import FeedbackAlignment, ForwardForward
from pjax.experiments.config import Config
from pjax.experiments.devices import Devices
from pjax.experiments.learners import Method, Rates, mean_cross_entropy, transformation
from pjax.experiments.loop import Loop
from pjax.experiments.models import CNN, MLP

pytestmark = pytest.mark.usefixtures("quick_compilation")


# --- What the paper compares with ---

KEY = jax.random.key(0)


def near(a, b, **tolerance):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, **({"rtol": 1e-4, "atol": 1e-5} | tolerance)), a, b
    )


# Compiled as a whole, which takes less time than one operation after the other.


def start(method, model):
    return jax.jit(partial(method.init, model))(KEY)


def update(method, model, state, x, y, key=KEY):
    return jax.jit(partial(method.update, model))(state, x, y, key)


def scores(method, model, params, x):
    return jax.jit(partial(method.scores, model))(params, x)


def batch(classes: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.random(shape, np.float32), rng.integers(0, classes, shape[:1], np.int32)


def accuracy_on_digits(method: Method, widths: list[int], steps: int) -> float:
    digits = data.load("digits")
    x = jnp.asarray(digits.normalise(digits.x_train).reshape(-1, 64))
    y = jnp.asarray(digits.y_train)
    x_test = jnp.asarray(digits.normalise(digits.x_test).reshape(-1, 64))
    model = MLP(*method.inputs((64,), 10), widths, 10)

    def step(state, key):
        draw, key = jax.random.split(key)
        rows = jax.random.randint(draw, (128,), 0, len(x))
        return method.update(model, state, x[rows], y[rows], key)

    @jax.jit
    def train(key):
        state, losses = jax.lax.scan(step, method.init(model, key), jax.random.split(key, steps))
        return method.scores(model, state["params"], x_test), losses

    scores, losses = train(KEY)
    assert losses[-10:].mean() < losses[:10].mean()
    return 100 * float(np.mean(np.argmax(scores, axis=-1) == digits.y_test))


# --- All of them ---


@pytest.mark.parametrize(
    ("name", "rate", "widths", "steps"),
    [
        ("sgd", 0.5, [64], 300),
        ("adam", 0.01, [64], 200),
        ("fa", 0.01, [64], 200),
        ("fa", 0.01, [64, 64], 200),
        ("ff-adam", 0.01, [64], 500),
        ("ff-adam", 0.01, [64, 64], 500),
        # Far above the paper's rate, at which it does not learn.
        ("ff-sgd", 5.0, [64], 500),
    ],
)
def test_learns_digits(name: str, rate: float, widths: list[int], steps: int) -> None:
    assert accuracy_on_digits(methods.make(name, learning_rate=rate), widths, steps) > 90


def test_forward_forward_with_sgd_hardly_learns_at_the_rate_of_the_paper() -> None:
    assert accuracy_on_digits(methods.make("ff-sgd"), [64], 300) < 50


@pytest.mark.parametrize("name", ["fa", "ff-sgd", "ff-adam"])
def test_has_the_rate_of_the_paper(name: str) -> None:
    right = transformation(
        name.removeprefix("ff-").replace("fa", "adam"), Rates(1e-4 if name == "fa" else 1e-3)
    )
    assert methods.make(name).optimiser is right


@pytest.mark.parametrize("name", ["fa", "ff-sgd", "ff-adam"])
def test_seeds_together_are_the_seeds_alone(name: str) -> None:
    method = methods.make(name, learning_rate=0.1)
    model = MLP(*method.inputs((6,), 3), [8, 7], 3)
    x, y = batch(3, 20, 6)

    def run(seed):
        key = jax.random.key(seed)
        state, losses = jax.lax.scan(
            lambda state, key: method.update(model, state, x, y, key),
            method.init(model, key),
            jax.random.split(key, 3),
        )
        return state, losses, method.scores(model, state["params"], x)

    together = jax.tree.map(np.asarray, jax.jit(jax.vmap(run))(np.arange(2)))
    init, step, score = (jax.jit(partial(f, model)) for f in (method.init, method.update, method.scores))
    for seed in range(2):
        key = jax.random.key(seed)
        state, losses = init(key), []
        for one in jax.random.split(key, 3):
            state, loss = step(state, x, y, one)
            losses.append(loss)
        alone = state, np.stack(losses), score(state["params"], x)
        near(jax.tree.map(lambda leaf, seed=seed: leaf[seed], together), alone)


@pytest.mark.parametrize("method", ["fa", "ff-adam"])
def test_a_run_refuses_what_a_method_is_not_defined_for(method: str) -> None:
    for settings in ({"widths": (8, 8), "skip": True}, {"data": "shakespeare"}):
        with pytest.raises(InputError, match="not defined for recurrent networks and skip connections"):
            Config(method=method, **settings)
    if method == "fa":
        with pytest.raises(InputError, match="FA is for the model mlp, got cnn"):
            Config(method=method, model="cnn")


# --- Feedback Alignment ---


def test_feedback_alignment_with_the_weights_is_backpropagation() -> None:
    model, method = MLP(6, [8, 7, 5], 3), FeedbackAlignment(optax.sgd(1.0))
    x, y = batch(3, 20, 6)
    state = start(method, model)
    params = state["params"]
    after, loss = update(
        method, model, {**state, "feedback": {k: params[k] for k in state["feedback"]}}, x, y, KEY
    )
    backpropagation = jax.jit(jax.value_and_grad(lambda p: mean_cross_entropy(model.apply(p, x), y)))
    expected_loss, gradient = backpropagation(params)
    near(loss, expected_loss)
    near(after["params"], jax.tree.map(np.subtract, params, gradient), rtol=1e-6, atol=1e-7)


def test_feedback_alignment_is_as_its_paper_defines_it() -> None:
    model, method = MLP(6, [8, 7], 3), FeedbackAlignment(optax.sgd(1.0))
    x, y = batch(3, 20, 6)
    state = start(method, model)
    after, _ = update(method, model, state, x, y, KEY)
    changes = {name: state["params"][name] - value for name, value in after["params"].items()}

    p, feedback = jax.tree.map(np.asarray, (state["params"], state["feedback"]))
    first = np.maximum(x @ p["hidden.0.weight"] + p["relu.0.bias"], 0)
    second = np.maximum(first @ p["hidden.1.weight"] + p["relu.1.bias"], 0)
    error = (jax.nn.softmax(second @ p["out.weight"]) - np.eye(3)[y]) / 20
    below = error @ feedback["out.weight"].T * (second > 0)
    lowest = below @ feedback["hidden.1.weight"].T * (first > 0)
    expected = {
        "out.weight": second.T @ error,
        "relu.1.bias": below.sum(0),
        "hidden.1.weight": first.T @ below,
        "relu.0.bias": lowest.sum(0),
        "hidden.0.weight": x.T @ lowest,
    }
    near({name: changes[name] for name in expected}, expected)


def test_feedback_is_fixed_and_not_the_weights() -> None:
    model, method = MLP(6, [200, 100], 3), FeedbackAlignment(optax.adam(1e-4))
    x, y = batch(3, 20, 6)
    state = start(method, model)
    after, _ = update(method, model, state, x, y, KEY)
    near(after["feedback"], state["feedback"], rtol=0, atol=0)
    # As large as the weights, and independent of them.
    weight, feedback = (np.ravel(state[part]["hidden.1.weight"]) for part in ("params", "feedback"))
    assert abs(feedback.std() / weight.std() - 1) < 0.03
    assert abs(np.corrcoef(weight, feedback)[0, 1]) < 0.03
    # The parameters start where those of other methods do.
    near(state["params"], start(methods.make("adam"), model)["params"], rtol=0, atol=0)


# --- Forward-Forward ---

NETWORKS = {
    "mlp": (MLP, (6,), [8, 7, 5]),
    "shallow mlp": (MLP, (6,), [8]),
    "cnn": (CNN, (5, 4, 2), [4, 3]),
    "shallow cnn": (CNN, (5, 4, 2), [4]),
}


def plain_goodness(model, params, x, labels, classes):
    """By the book: the label beside the input, then layer after layer. Gives each layer's goodness."""
    hot = jnp.eye(classes)[labels].reshape(len(x), *(1,) * (x.ndim - 2), classes)
    axes = tuple(range(1, x.ndim))
    if len(axes) > 1:
        x = x / jnp.sqrt((x**2).mean(axes, keepdims=True))
    x = jnp.concatenate([x, jnp.broadcast_to(hot, (*x.shape[:-1], classes))], axis=-1)
    bound, found = model.bind(params), []
    for hidden, relu in zip(bound.hidden, bound.relu, strict=True):
        x = relu(hidden(jax.lax.stop_gradient(x)))
        found.append((x**2).mean(axes) if len(axes) == 1 else (x**2).sum(3).mean((1, 2)))
        x = x / jnp.sqrt((x**2).mean(axes, keepdims=True))
    return found


@pytest.mark.parametrize("network", NETWORKS)
def test_forward_forward_trains_each_layer_by_its_own_loss(network: str) -> None:
    kind, shape, widths = NETWORKS[network]
    method = ForwardForward(optax.sgd(1.0), threshold=0.5)
    model = kind(method.inputs(shape, 2)[-1], widths, 2)
    x, y = batch(2, 20, *shape)
    state = start(method, model)
    params = state["params"]
    after, loss = update(method, model, state, x, y, KEY)

    # With two classes there is one wrong label.
    def layer_loss(params, i):
        right = plain_goodness(model, params, x, y, 2)[i]
        wrong = plain_goodness(model, params, x, 1 - y, 2)[i]
        return jnp.mean(jnp.log1p(jnp.exp(0.5 - right)) + jnp.log1p(jnp.exp(wrong - 0.5))) / 2

    @jax.jit
    def alone(params):
        return [jax.value_and_grad(layer_loss)(params, i) for i in range(len(widths))]

    expected = alone(params)
    for i, (_, gradient) in enumerate(expected):
        for name in (f"hidden.{i}.weight", f"relu.{i}.bias"):
            assert np.abs(gradient[name]).max() > 1e-4
            near(params[name] - after["params"][name], gradient[name])
    near(loss, np.mean([value for value, _ in expected]))
    near(after["params"]["out.weight"], params["out.weight"], rtol=0, atol=0)


@pytest.mark.parametrize("network", NETWORKS)
def test_forward_forward_scores_each_label_by_goodness(network: str) -> None:
    kind, shape, widths = NETWORKS[network]
    method = ForwardForward(optax.adam(1e-3))
    model = kind(method.inputs(shape, 3)[-1], widths, 3)
    params = start(method, model)["params"]
    x, _ = batch(3, 20, *shape)

    @jax.jit
    def one(params, label):
        layers = plain_goodness(model, params, x, jnp.full(20, label), 3)
        return sum(layers[1:]) if len(layers) > 1 else layers[0]

    expected = [one(params, label) for label in range(3)]
    near(scores(method, model, params, x), np.stack(expected, axis=-1))


def test_forward_forward_trains_convolutions() -> None:
    digits = data.load("digits")
    method = ForwardForward(optax.adam(0.01))
    model = CNN(1 + 10, [32], 10)
    state = start(method, model)
    step = jax.jit(partial(method.update, model))
    rng = np.random.default_rng(0)
    for _ in range(300):  # in no scan, in which XLA on CPU is slow at convolutions
        rows = rng.integers(0, len(digits.x_train), 64)
        x, y = digits.normalise(digits.x_train[rows]), digits.y_train[rows]
        state, _ = step(state, x, y, jax.random.wrap_key_data(rng.integers(2**32, size=2, dtype=np.uint32)))
    found = scores(method, model, state["params"], digits.normalise(digits.x_test))
    assert np.mean(np.argmax(found, axis=-1) == digits.y_test) > 0.5


@pytest.mark.parametrize("method", [FeedbackAlignment, ForwardForward])
def test_an_optimiser_is_one_of_optax(method: type) -> None:
    with pytest.raises(InputError, match=rf"{method.__name__}: optimiser must be .* got 'adam'"):
        method("adam")


def test_forward_forward_leaves_the_readout_with_adam_too() -> None:
    method = ForwardForward(optax.adam(1e-3))
    model = MLP(9, [8, 7], 3)
    x, y = batch(3, 20, 6)
    state = start(method, model)
    after, _ = update(method, model, state, x, y, KEY)
    near(after["params"]["out.weight"], state["params"]["out.weight"], rtol=0, atol=0)
    assert all(
        np.any(after["params"][k] != state["params"][k]) for k in ("hidden.0.weight", "hidden.1.weight")
    )


def test_wrong_labels_are_wrong_and_random() -> None:
    # Where the label 0 is right for all, its weights learn from right labels alone, which are not random.
    method = ForwardForward(optax.sgd(1.0))
    model = MLP(6 + 4, [8], 4)
    x, _ = batch(4, 200, 6)
    state = start(method, model)
    step = jax.jit(partial(method.update, model))
    zeros, changes = np.zeros(200, np.int32), []
    for seed in range(2):
        after, _ = step(state, x, zeros, jax.random.key(seed))
        before, after = (np.asarray(s["params"]["hidden.0.weight"][6:]) for s in (state, after))
        changes.append(after - before)
    assert all(np.abs(change[1:]).max(1).min() > 0 for change in changes)
    near(changes[0][0], changes[1][0])
    assert np.abs(changes[0][1:] - changes[1][1:]).max() > 1e-4


def test_a_layer_with_no_active_unit_is_no_division_by_zero() -> None:
    method = ForwardForward(optax.sgd(1e-3))
    model = MLP(9, [8, 7], 3)
    x, y = batch(3, 20, 6)
    state = start(method, model)
    state["params"]["relu.0.bias"] = jnp.full(8, -1e3)
    after, loss = update(method, model, state, x, y, KEY)
    found = after, loss, scores(method, model, after["params"], x)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


# --- Groups as an option of methods, also for several batches: what they do, and what is refused ---

MODEL = models.MLP(6, (5,), 3)
X = jax.random.normal(jax.random.key(1), (4, 8, 6))
Y = jax.random.randint(jax.random.key(2), (4, 8), 0, 3)


def test_groups_train_apart_and_average_their_parameters():
    method, alone = methods.make("adam:groups=2:sync_every=2"), methods.make("adam")
    together, apart = (
        jax.jit(lambda state, x, y, m=m: m.update(MODEL, state, x, y, KEY)) for m in (method, alone)
    )
    state = method.init(MODEL, KEY)
    groups = [alone.init(MODEL, KEY) for _ in range(2)]
    for number, (x, y) in enumerate(zip(X, Y, strict=True)):
        before = state["params"]
        state, loss = together(state, x, y)
        found = [apart(g, x[k:][:4], y[k:][:4]) for g, k in zip(groups, (0, 4), strict=True)]
        assert loss == pytest.approx(np.mean([one for _, one in found]), rel=1e-5)
        groups = [g for g, _ in found]
        if number % 2:  # they keep their moments
            before = jax.tree.map(lambda a, b: (a + b) / 2, *(g["params"] for g in groups))
            groups = [{**g, "params": before} for g in groups]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state["params"], before)
    differ = [np.abs(a - b).max() for a, b in state["groups"]["optimizer"][0].mu.values()]
    assert max(differ) > 1e-4


def test_gradients_are_averaged_where_groups_exchange_on_every_batch():
    assert methods.make("adam:groups=8") == methods.make("adam")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("ap:groups=0", "groups must be at least 1"),
        ("ap:sync_every=5", "there is only one: give groups, too"),
        ("ap:groups=3", "batch_size must be a multiple of the 3 groups, got 64: take 63"),
        ("ap:steps=10:groups=2:sync_every=15", "a multiple of the 10 steps on a batch, or divide them"),
        ("ep:steps=4:groups=2:sync_every=2", "sync_every must be 1"),
        ("fa:groups=2", "the method fa has no options"),
    ],
)
def test_what_cannot_be_is_refused(method, words):
    with pytest.raises(InputError, match=words):
        Config(method=method, batch_size=64, max_steps=1000, check_every=1000).made_method()


def test_a_group_lies_on_one_device():
    devices = Devices()
    devices.count = 4
    with pytest.raises(InputError, match="groups must be a multiple of the 4 devices, got 2: take 4"):
        Loop(Config(method="ap:groups=2", batch_size=64), devices=devices)


def test_networks_to_be_differentiated_have_the_same_gradients() -> None:
    x, y = batch(4, 6, 7, 5, 3)
    plain, derived = (
        models.make("cnn", (7, 5, 3), (5, 6), 4, skip=True, differentiated=differentiated)
        for differentiated in (False, True)
    )
    params = plain.init(KEY)

    def gradient(model):
        return jax.jit(jax.value_and_grad(lambda p: mean_cross_entropy(model.apply(p, x), y)))(params)

    near(gradient(derived), gradient(plain))


def test_networks_to_be_differentiated_have_the_kernels_of_projections(monkeypatch) -> None:
    monkeypatch.setattr(devices, "ANYWHERE", True)
    model = models.make("cnn", (32, 32, 3), (16, 16), 10, differentiated=True)
    params, x = jax.eval_shape(model.init, KEY), jax.ShapeDtypeStruct((256, 32, 32, 3), jnp.float32)
    found = str(jax.make_jaxpr(jax.grad(lambda p, x: jnp.sum(model.apply(p, x))))(params, x))
    assert found.count("pallas_call") >= 5  # two layers: outputs, inputs of the second, weights


@pytest.mark.parametrize("differentiated", [True, False])
def test_images_of_other_channels_are_refused_by_name(differentiated) -> None:
    model = models.make("cnn", (7, 5, 3), (4,), 2, differentiated=differentiated)
    with pytest.raises(
        InputError, match=r"`hidden\.0`, .*expected an input of shape .*3\), got \(2, 7, 5, 1\)"
    ):
        model.apply(model.init(KEY), np.ones((2, 7, 5, 1), np.float32))
