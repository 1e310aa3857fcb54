"""Why a function was compiled again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import debug, optim

pytestmark = pytest.mark.usefixtures("quick_compilation")


def explained(fn):
    texts = []
    return debug.explain_recompile(fn, report=texts.append), texts


def counted():
    """A jitted function, and how often it was traced."""
    traces = []

    @jax.jit
    def update(params, rate=0.1):
        traces.append(1)
        return jax.tree.map(lambda p: p * rate, params)

    return update, traces


@pytest.mark.parametrize(
    ("second", "kind", "where"),
    [
        ({"w": jnp.ones(4)}, "shape", "params['w']"),
        ({"w": jnp.ones(3, jnp.float16)}, "type", "params['w']"),
        ({"w": 1.0 * jnp.ones(3), "b": jnp.ones(1)}, "structure", "params['b']"),
        ([jnp.ones(3)], "structure", "params['w']"),
    ],
)
def test_what_differs(second, kind, where):
    update, traces = counted()
    update, texts = explained(update)
    for params in ({"w": jnp.ones(3)}, {"w": jnp.zeros(3)}, {"w": np.ones(3, np.float32)}, second):
        update(params)
    assert len(traces) == 2 == len(update.compilations) == len(texts)
    assert texts[0] == "update: compiled in its first call"
    again = update.compilations[1]
    assert (again.call, again.like) == (4, 1)
    assert (again.differences[0].where, again.differences[0].kind) == (where, kind)
    assert again.differences[0].advice in texts[1]


def test_weak_types():
    update, traces = counted()
    update, texts = explained(update)
    for rate in (0.1, 0.2, jnp.asarray(0.3), jnp.float32(0.4), jnp.float32(0.5)):
        update(jnp.ones(2), rate)
    assert len(traces) == 2 == len(texts)
    (difference,) = update.compilations[1].differences
    assert str(difference) == "rate: weak type float32 (weak) -> float32"
    assert "Python number" in difference.advice


def test_static_arguments():
    @functools.partial(jax.jit, static_argnames=("times", "mode", "fn"))
    def repeat(x, times, mode, fn=None):
        return jnp.tile(x, times) + (mode == "a") + (fn is None)

    repeat, texts = explained(repeat)
    repeat(jnp.ones(2), 2, "a")
    repeat(jnp.ones(2), 2, "a")
    repeat(jnp.ones(2), 3, "a")
    repeat(jnp.ones(2), 3, "b")
    for _ in range(2):
        repeat(jnp.ones(2), 3, mode="b", fn=lambda x: x)
    assert len(texts) == 5
    first, *rest = repeat.compilations
    assert first.differences == ()
    assert [str(c.differences[0]).split(" at 0x")[0] for c in rest[:3]] == [
        "times: value 2 -> 3",
        "mode: value 'a' -> 'b'",
        "fn: structure absent -> present",
    ]
    assert rest[3].differences[0].kind == "function"
    assert "define it outside the loop" in texts[-1]


def test_devices():
    update, _ = counted()
    update, texts = explained(update)
    update(jnp.ones(2))
    update(jax.device_put(jnp.ones(2), jax.devices()[0]))
    assert len(texts) == 2
    assert update.compilations[1].differences[0].kind == "device"


X = np.ones((6, 3), np.float32)


def loss(x, scale=1.0, layers=1):
    def fn(params):
        h = x @ params
        for _ in range(layers):
            h = scale * h  # the number
        return pjax.squared_error(h, jnp.zeros_like(h))

    return fn


def line_of(text):
    with open(__file__) as file:
        (number,) = (i for i, line in enumerate(file, 1) if text in line and "line_of" not in line)
    return f"{__file__}:{number}"


@pytest.mark.parametrize(
    ("steps", "second", "expected"),
    [
        (2, loss(X[:4]), "captured array 0: shape [6, 3] -> [4, 3]"),
        (3, loss(X, scale=2.0), f"'mul' at {line_of('# the number')}: number 1.0 -> 2.0"),
        (4, loss(X, layers=2), "the function: equation 'broadcast_in_dim' at "),
    ],
    ids=["shape", "number", "equation"],
)
def test_updates_without_jit(steps, second, expected):
    optimizer = optim.AlternatingProjections(steps_per_update=steps)
    update, texts = explained(optimizer.update)
    params = jnp.ones((3, 2))
    for fn in (loss(X), loss(X + 1), loss(2 * X), second, second):
        update(fn, params)
    assert len(texts) == 2
    assert update.compilations[1].call == 4
    assert expected in texts[1]
    assert "What to do:" in texts[1]


def test_a_first_call_that_was_compiled_before():
    optimizer = optim.AlternatingProjections(steps_per_update=5)
    optimizer.update(loss(X), jnp.ones((3, 2)))
    update, texts = explained(optimizer.update)
    update(loss(X), jnp.ones((3, 2)))
    assert texts == []
    update(loss(X), jnp.ones((3, 4)))
    assert "params: shape [3, 2] -> [3, 4]" in texts[0]


def test_an_array_instead_of_a_number_helps():
    """What the advice says is true."""
    update, texts = explained(optim.AlternatingProjections(steps_per_update=1).update)
    for scale in (0.5, 0.6, 0.7):
        update(loss(X, scale=jnp.asarray(scale)), jnp.ones((3, 2)))
    assert len(texts) == 1


def test_updates_with_a_batch_and_a_state():
    optimizer = optim.ExtrapolatedProjections()
    update, texts = explained(optimizer.update)
    params = jnp.ones((3, 2))
    state = optimizer.init(params)
    for size in (6, 6, 2):
        params, state, _ = update(lambda p, x: loss(x)(p), params, state, batch=X[:size])
    assert len(texts) == 2
    assert "batch: shape [6, 3] -> [2, 3]" in texts[1]


def test_two_calls_beside_each_other():
    update, traces = counted()
    same = debug.compare_calls(update, (jnp.ones(3), 0.1), (jnp.zeros(3), 0.1))
    assert same.differences == ()
    assert "no argument differs" in str(same)
    other = debug.compare_calls(update, (jnp.ones(3),), (jnp.ones(3, jnp.int32),))
    assert [d.kind for d in other.differences] == ["type"]
    assert traces == []


def test_what_is_printed(capsys):
    update = debug.explain_recompile(jax.jit(lambda x: x + 1))
    update(jnp.ones(1))
    assert capsys.readouterr().out == "<lambda>: compiled in its first call\n"
    update(jnp.ones(2))
    assert "x: shape [1] -> [2]" in capsys.readouterr().out


def test_only_functions_can_be_wrapped():
    with pytest.raises(pjax.InputError, match=r"such as optimizer\.update; got 3"):
        debug.explain_recompile(3)
