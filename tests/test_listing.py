"""The paper's training loop: a new closure per batch, no jit. It must compile once.

First the listing itself, word for word, and then the same loop with plain functions.
"""

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

import pjax

pytestmark = pytest.mark.usefixtures("quick_compilation")

BATCHES = 6

LISTING = """
import jax
import pjax
from pjax import nn, optim

class MLP(nn.Module):
    def __init__(self, in_features, hidden_features, num_classes):
        super().__init__()
        self.hidden = nn.Linear(in_features, hidden_features)
        self.relu = nn.ReLU(hidden_features)
        self.out = nn.Linear(hidden_features, num_classes)

    def __call__(self, x):
        x = self.hidden(x)
        x = self.relu(x)
        x = self.out(x)
        return x


model = MLP(in_features=784, hidden_features=256, num_classes=10)
params = model.init(jax.random.key(0))
optimizer = optim.DouglasRachford(steps_per_update=50)

for (x, y) in dataloader:
    def loss_fn(params):
        logits = model.apply(params, x)
        return nn.cross_entropy(logits, y)

    params, loss = optimizer.update(loss_fn, params)
"""


def apply(params, x):
    x = jax.nn.relu(x @ params["hidden"] + params["bias"])
    return x @ params["out"]


def start():
    first, second = jax.random.split(jax.random.key(0))
    return {
        "hidden": jax.random.normal(first, (12, 9)) / 3,
        "bias": jnp.zeros(9),
        "out": jax.random.normal(second, (9, 4)) / 3,
    }


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return [
        (rng.normal(size=(16, 12)).astype(np.float32), rng.integers(4, size=16).astype(np.int32))
        for _ in range(BATCHES)
    ]


@pytest.fixture
def compiled():
    """The names of the functions compiled so far, as they come."""
    names = []

    def listen(event, duration, **about):  # noqa: ARG001
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(about.get("fun_name", "?"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def test_the_listing_of_the_paper(compiled):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 784))
    dataloader = []
    for _ in range(4):
        y = rng.integers(10, size=16)
        dataloader.append(((centres[y] + 0.1 * rng.normal(size=(16, 784))).astype(np.float32), y))
    scope = {"dataloader": dataloader}
    exec(compile(LISTING, "listing", "exec"), scope)
    assert compiled.count("jit(_update)") == 1
    model, params = scope["model"], scope["params"]
    assert {name: value.shape for name, value in params.items()} == {
        "hidden.weight": (784, 256),
        "relu.bias": (256,),
        "out.weight": (256, 10),
    }
    first = model.init(jax.random.key(0))
    x, y = dataloader[0]
    for name in first:
        assert np.isfinite(params[name]).all()
        assert (params[name] != first[name]).any()

    def loss(params):
        return scope["nn"].cross_entropy(model.apply(params, x), y).mean()

    assert loss(params) < 0.5 * loss(first)
    assert scope["loss"].shape == ()


SOLVERS = [
    pjax.optim.AlternatingProjections(steps_per_update=7),
    pjax.optim.CyclicProjections(steps_per_update=7),
    pjax.optim.DouglasRachford(steps_per_update=7),
]


@pytest.mark.parametrize("optimizer", SOLVERS, ids=lambda s: s.name)
def test_the_listing_compiles_once(optimizer, data, compiled, programs):
    params = start()
    after_first = None
    for x, y in data:

        def loss_fn(params):
            logits = apply(params, x)  # noqa: B023
            return pjax.cross_entropy(logits, y)  # noqa: B023

        params, loss = optimizer.update(loss_fn, params)
        assert loss.shape == ()
        if after_first is None:
            after_first = len(compiled)
    assert compiled.count("jit(_update)") == 1
    assert compiled[after_first:] == []
    assert len(programs) == 1


@pytest.mark.parametrize("optimizer", SOLVERS, ids=lambda s: s.name)
def test_the_listing_equals_the_jitted_loop(optimizer, data):
    @jax.jit
    def update(params, x, y):
        return optimizer.update(lambda p: pjax.cross_entropy(apply(p, x), y), params)

    plain = fast = start()
    for x, y in data:
        plain, loss = optimizer.update(lambda p, x=x, y=y: pjax.cross_entropy(apply(p, x), y), plain)
        fast, same = update(fast, x, y)
        np.testing.assert_allclose(loss, same, rtol=1e-4)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(fast), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_literals_that_are_only_equal_are_not_the_same():
    optimizer = pjax.optim.AlternatingProjections(steps_per_update=1)
    losses = [
        optimizer.update(lambda p, z=z: p * jnp.copysign(1.0, z * p), jnp.ones(()))[1] for z in (0.0, -0.0)
    ]
    assert losses == [1.0, -1.0]


def test_another_batch_size_compiles_again(data, programs):
    optimizer = pjax.optim.AlternatingProjections(steps_per_update=8)
    for x, y in (data[0], (data[1][0][:5], data[1][1][:5]), data[2]):
        optimizer.update(lambda p, x=x, y=y: pjax.cross_entropy(apply(p, x), y), start())
    assert len(programs) == 2


class TestTheSameFunction:
    """With a batch as its argument it is read once, with `jit` or without."""

    def batches(self, size=8):
        rng = np.random.default_rng(0)
        for _ in range(BATCHES):
            x = jnp.asarray(rng.normal(size=(size, 12)), jnp.float32)
            yield x, jnp.asarray(rng.integers(4, size=size), jnp.int32)

    @pytest.mark.parametrize("solver", [pjax.optim.ExtrapolatedProjections(), pjax.optim.DouglasRachford()])
    def test_it_is_called_once_for_each_shape(self, solver):
        calls = []

        def loss(params, batch):
            calls.append(batch[0].shape)
            return pjax.cross_entropy(apply(params, batch[0]), batch[1])

        one = other = start()
        state, beside = solver.init(one), solver.init(other)
        for size in (8, 6):
            for batch in self.batches(size):
                one, state, found = solver.update(loss, one, state, batch=batch)
                closure = lambda params, batch=batch: pjax.cross_entropy(apply(params, batch[0]), batch[1])  # noqa: E731
                other, beside, expected = solver.update(closure, other, beside)
                np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert calls == [(8, 12), (6, 12)]
        for name, leaf in one.items():
            np.testing.assert_allclose(leaf, other[name], rtol=1e-4, atol=1e-6)

    def test_labels_are_looked_at_in_every_batch(self):
        def loss(params, batch):
            return pjax.cross_entropy(apply(params, batch[0]), batch[1])

        solver, (x, y) = pjax.optim.DouglasRachford(steps_per_update=2), next(self.batches())
        params, _ = solver.update(loss, start(), batch=(x, y))
        with pytest.raises(pjax.InputError, match=r"class indices in 0\.\.3, got [4-7]"):
            solver.update(loss, params, batch=(x, y + 4))
        with pytest.raises(pjax.InputError, match="NaN or infinite"):
            solver.update(loss, params, batch=(x.at[0, 0].set(jnp.nan), y))

    def test_numbers_in_a_batch_are_part_of_the_function(self):
        def loss(params, batch):
            for _ in range(batch["times"]):
                params = jax.tree.map(lambda leaf: 1.5 * leaf, params)
            return pjax.cross_entropy(apply(params, batch["x"]), batch["y"])

        solver, (x, y) = pjax.optim.DouglasRachford(steps_per_update=2), next(self.batches())
        losses = [
            float(solver.update(loss, start(), batch={"x": x, "y": y, "times": n})[1]) for n in (0, 1, 0)
        ]
        assert losses[0] == losses[2] != losses[1]

    def test_numbers_that_are_only_equal_are_not_the_same(self):
        def loss(params, batch):
            sign = jnp.copysign(jnp.ones(2), batch["of"]) * (3.0 if batch["of"] is True else 1.0)
            return pjax.minimise(params["b"] * sign)

        params, solver = {"b": jnp.ones(2)}, pjax.optim.AlternatingProjections(steps_per_update=1)
        given = ({"x": jnp.ones(2), "of": of} for of in (0.0, -0.0, 1, True, 1.0, np.float32(-0.0)))
        found = [float(solver.update(loss, params, batch=batch)[1]) for batch in given]
        assert found == [1.0, -1.0, 1.0, 3.0, 1.0, -1.0]

    def test_text_in_a_batch_is_part_of_the_function(self):
        def loss(params, batch):
            return pjax.minimise(batch["x"] * params * {"once": 1, "twice": 2}[batch["how"]])

        solver = pjax.optim.AlternatingProjections(steps_per_update=1)
        for make in (str, np.array, lambda how: np.array(how, object)):

            def on(params, batch):
                return loss(params, batch | {"how": str(batch["how"])})

            given = ({"x": jnp.ones(()), "how": make(how)} for how in ("once", "twice", "once"))
            assert [float(solver.update(on, jnp.ones(()), batch=batch)[1]) for batch in given] == [1, 2, 1]

    def test_python_may_decide_by_a_batch(self):
        def loss(params, batch):
            sign = 1.0 if np.asarray(batch[0]).sum() > 0 else -1.0
            return pjax.cross_entropy(sign * apply(params, batch[0]), batch[1])

        solver, (x, y) = pjax.optim.DouglasRachford(steps_per_update=2), next(self.batches())
        losses = [float(solver.update(loss, start(), batch=(s * x, y))[1]) for s in (1, -1)]
        signs = [1.0 if np.asarray(s * x).sum() > 0 else -1.0 for s in (1, -1)]
        for found, sign, s in zip(losses, signs, (1, -1), strict=True):
            expected = pjax.cross_entropy(sign * apply(start(), s * x), y).mean()
            np.testing.assert_allclose(found, expected, rtol=1e-5)

    def test_types_of_numbers_count(self):
        def loss(params, batch):
            return pjax.cross_entropy(apply(params, batch[0]), batch[1])

        solver, (x, y) = pjax.optim.DouglasRachford(steps_per_update=2), next(self.batches())
        solver.update(loss, start(), batch=(x, y))
        with jax.enable_x64(True):
            wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), start())
            params, _ = solver.update(loss, wide, batch=(x.astype(jnp.float64), y))
            assert params["out"].dtype == jnp.float64
