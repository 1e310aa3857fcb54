"""Groups as an option of methods, also for several batches: what they do, and what is refused."""

import jax
import numpy as np
import pytest

from pjax.errors import InputError
from pjax.experiments import methods, models
from pjax.experiments.config import Config
from pjax.experiments.devices import Devices
from pjax.experiments.loop import Loop

pytestmark = pytest.mark.usefixtures("quick_compilation")

MODEL = models.MLP(6, (5,), 3)
X = jax.random.normal(jax.random.key(1), (4, 8, 6))
Y = jax.random.randint(jax.random.key(2), (4, 8), 0, 3)
KEY = jax.random.key(0)


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
        ("ap:steps=10:groups=2:sync_every=15", "must divide the 10 steps on a batch, or be a multiple"),
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
    with pytest.raises(
        InputError, match="groups must be a multiple of 4, the number of devices, got 2: take 4"
    ):
        Loop(Config(method="ap:groups=2", batch_size=64), devices=devices)
