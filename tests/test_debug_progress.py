"""The progress meter: in Python, in compiled loops, in `solve`, and when it is off."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import debug, optim
from pjax.debug._recompile import _compilations

pytestmark = pytest.mark.usefixtures("quick_compilation")

A = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
AP = optim.AlternatingProjections(constants="fixed", consensus="exact")


def equations(x):
    return pjax.squared_error(A @ x, jnp.ones(3))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def loop(meter, steps=20):
    def run(x):
        def step(k, x):
            x = 0.5 * x
            if meter is not None:
                meter(k + 1, x)
            return x

        return jax.lax.fori_loop(0, steps, step, x)

    return run


def test_in_a_compiled_loop():
    out = Terminal()
    with debug.progress(20, name="halve", stream=out) as meter:
        jax.jit(loop(meter))(1.0)
    assert meter.step == 20
    assert meter.value == pytest.approx(0.5**20)
    text = out.getvalue()
    assert text.endswith("\n")
    assert text.count("\n") == 1
    last = text.split("\r")[-1]
    assert last.startswith("halve  " + "█" * 24 + "  20/20  9.54e-07  ")
    assert "ms/step" in last


def test_in_a_scan_and_in_python():
    scanned, plain = (debug.progress(every=3, stream=io.StringIO()) for _ in range(2))
    jax.lax.scan(lambda x, k: (x, scanned(k, x)), 2.0, jnp.arange(1, 9))
    for k in range(1, 9):
        plain(k, 2.0)
    jax.effects_barrier()
    assert scanned.step == 6
    assert plain.step == 8  # in Python it costs nothing to be told
    assert scanned.value == plain.value == 2


@pytest.mark.parametrize(("every", "calls"), [(1, 20), (8, 4)])
def test_it_is_called_as_often_as_it_says(every, calls):
    """And after the first step, and the last, if the total is known."""
    meter = debug.progress(20, every=every, stream=io.StringIO())
    told, tell = [], meter._tell
    meter._tell = lambda step, value: (told.append(int(step)), tell(step, value))
    jax.jit(loop(meter))(1.0)
    jax.effects_barrier()
    assert len(told) == calls
    assert told[-1] == 20


def test_off_it_is_the_same_program():
    off = debug.progress(20, show=False)
    without, with_off = (jax.jit(loop(m)).lower(1.0).as_text() for m in (None, off))
    assert without == with_off
    with_on = jax.jit(loop(debug.progress(20))).lower(1.0).as_text()
    assert "callback" in with_on
    assert "callback" not in without
    with off:
        assert off.step == 0


def test_in_a_log_there_are_few_lines():
    out = io.StringIO()
    with debug.progress(1000, stream=out) as meter:
        for k in range(1, 1001):
            meter(k, 1.0)
    lines = out.getvalue().splitlines()
    assert 1 <= len(lines) <= 4
    assert "\r" not in out.getvalue()
    assert "1,000/1,000" in lines[-1]


def test_without_a_total():
    out = io.StringIO()
    with debug.progress(stream=out) as meter:
        meter(1, 0.25)
    assert out.getvalue().startswith("step 1  0.25  ")


def test_as_the_callback_of_solve():
    with debug.progress(30, stream=io.StringIO()) as meter:
        told, tell = [], meter._tell
        meter._tell = lambda step, value: (told.append(int(step)), tell(step, value))
        found = pjax.solve(equations, jnp.zeros(5), AP, max_steps=35, tolerance=0.0, callback=meter)
    assert told == [10, 20, 30, 35]
    assert meter.step == 35
    assert meter.value == pytest.approx(float(found.violations[-1]))


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6, 7]), (10, [7])])
def test_solve_calls_every_few_steps_and_at_the_end(every, steps):
    seen = {}

    def callback(step, violation):
        seen[int(step)] = float(violation)

    found = pjax.solve(
        equations, jnp.zeros(5), AP, max_steps=7, tolerance=0.0, callback=callback, every=every
    )
    jax.effects_barrier()
    assert sorted(seen) == steps
    for step, violation in seen.items():
        assert violation == pytest.approx(float(found.violations[step - 1]))


def test_another_callback_does_not_compile_again():
    seen = []
    with _compilations() as names:
        for number in range(3):
            found = pjax.solve(
                equations,
                jnp.zeros(5),
                AP,
                max_steps=11,
                tolerance=0.0,
                callback=lambda step, _, number=number: seen.append((number, int(step))),
            )
            jax.block_until_ready(found)
            jax.effects_barrier()
    assert names.count("run") == 1
    assert sorted(seen) == [(number, step) for number in range(3) for step in range(1, 12)]


def test_a_solve_without_a_callback_has_none_in_its_program():
    def program(callback):
        run = lambda x: pjax.solve(equations, x, AP, max_steps=7, callback=callback).params  # noqa: E731
        return jax.jit(run).lower(jnp.zeros(5)).as_text()

    assert "callback" not in program(None)
    assert "callback" in program(debug.progress())


def test_what_is_refused():
    with pytest.raises(pjax.InputError, match="total must be a whole number of at least 1, got 0"):
        debug.progress(0)
    with pytest.raises(pjax.InputError, match=r"every must be a whole number of at least 1, got 1\.5"):
        debug.progress(every=1.5)
    with pytest.raises(pjax.InputError, match="every must be a whole number of at least 1, got 0"):
        pjax.solve(equations, jnp.zeros(5), AP, every=0)
