"""Histories of edges that neglect what is not small are not used in silence."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax.errors import NeglectedWarning
from pjax.optim import DifferenceMap, DouglasRachford, neglect
from tests.graphs import Numbers, conv


def convolution(bits, size, channels):
    """A convolution next to a loss."""
    n = Numbers(size + channels, np.dtype(f"float{bits}"))
    x, target = n(3, 5, 5, channels), n(3, 5, 5, 2)
    params = {"k": n(size, size, channels, 2, scale=0.4), "b": n(2, scale=0.1)}
    return lambda p: pjax.squared_error(jax.nn.relu(conv(x, p["k"]) + p["b"]), target), params


def fades_slowly(n):
    """A layer whose multipliers are large, though another one lies between it and the loss."""
    x, target = n(40, 40, scale=0.1), n(40, 2)
    params = {"w": n(40, 40, scale=0.1), "v": n(40, 2, scale=0.3)}
    return lambda p: pjax.squared_error(jax.nn.relu(x @ p["w"]) @ p["v"], target), params


def apart(found, expected, start):
    """The largest difference, relative to the largest move."""
    triples = list(zip(*map(jax.tree.leaves, (found, expected, start)), strict=True))
    return max(float(jnp.abs(a - b).max()) for a, b, _ in triples) / max(
        float(jnp.abs(b - c).max()) for _, b, c in triples
    )


CASES = [
    (DouglasRachford, 64, 1, 1, 5),
    (DouglasRachford, 64, 3, 2, 50),
    (DouglasRachford, 32, 1, 1, 50),
    (DouglasRachford, 32, 3, 3, 5),
    (DifferenceMap, 32, 1, 3, 5),
    (DifferenceMap, 64, 3, 1, 50),
]


@pytest.mark.parametrize(("solver", "bits", "size", "channels", "steps"), CASES)
def test_convolutions_next_to_a_loss(solver, bits, size, channels, steps):
    with jax.enable_x64(bits == 64):
        fn, params = convolution(bits, size, channels)
        method = solver(steps_per_update=steps)
        found, state, _ = method.update(fn, params, method.init(params))
        expected, _ = solver(steps_per_update=steps, edges="explicit").update(fn, params)
        assert apart(found, expected, params) < (1e-9 if bits == 64 else 1e-3)
        assert state.neglected <= neglect.BOUND


@pytest.mark.usefixtures("x64")
def test_edges_are_stored_where_a_history_neglects_too_much():
    fn, params = fades_slowly(Numbers(0, np.float64))
    cut = DouglasRachford(steps_per_update=10, history=1)
    with pytest.warns(NeglectedWarning, match=r"'.*' \(dot\)"):
        rough, _ = cut.update(fn, params)
    method = DouglasRachford(steps_per_update=10)
    found, state, _ = method.update(fn, params, method.init(params))
    expected, _ = DouglasRachford(steps_per_update=10, edges="explicit").update(fn, params)
    assert apart(rough, expected, params) > 0.01
    assert apart(found, expected, params) < 1e-9
    assert state.neglected <= neglect.BOUND
    again, _ = method.update(fn, params)
    assert apart(again, expected, params) < 1e-9


@pytest.mark.usefixtures("x64")
def test_solve_stores_edges_too():
    fn, params = fades_slowly(Numbers(0, np.float64))
    found = pjax.solve(fn, params, DouglasRachford(), max_steps=10, tolerance=0.0)
    expected = pjax.solve(fn, params, DouglasRachford(edges="explicit"), max_steps=10, tolerance=0.0)
    assert found.neglected <= neglect.BOUND
    np.testing.assert_allclose(found.violations, expected.violations, rtol=1e-6)


def test_a_warning_where_there_is_no_room(monkeypatch):
    monkeypatch.setattr(neglect, "MOST_STORED", 10)
    fn, params = fades_slowly(Numbers(0, np.float32))
    method = DouglasRachford(steps_per_update=11)
    with pytest.warns(NeglectedWarning, match='edges="explicit"'):
        _, state, _ = method.update(fn, params, method.init(params))
    assert state.neglected > neglect.BOUND


def test_a_warning_inside_jit():
    fn, params = fades_slowly(Numbers(0, np.float32))
    method = DouglasRachford(steps_per_update=9)

    def update():
        jax.block_until_ready(jax.jit(lambda p: method.update(fn, p))(params))
        jax.effects_barrier()

    with pytest.warns(NeglectedWarning, match="DouglasRachford"):
        update()


def test_no_warning_inside_jit_where_nothing_is_neglected():
    fn, params = convolution(32, 3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.block_until_ready(jax.jit(lambda p: DouglasRachford(steps_per_update=3).update(fn, p))(params))
        jax.effects_barrier()


def test_points_of_spheres_are_not_lost_in_silence():
    """The product of zeros has a sphere of nearest points; a history holds none of them."""
    params = {"a": jnp.zeros((2, 3)), "b": jnp.zeros((3, 2))}

    def fn(p):
        return pjax.squared_error(p["a"] @ p["b"], jnp.full((2, 2), 5.0))

    with pytest.warns(NeglectedWarning):
        DouglasRachford(steps_per_update=2, history=2).update(fn, params)
