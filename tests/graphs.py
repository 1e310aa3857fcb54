"""Named functions with parameters, small enough to be solved edge by edge.

Each entry of `GRAPHS` makes a function and its parameters in a given floating type. Together they use every
kind of node and wire: several tests run over all of them.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pjax

Made = tuple[Callable[[Any], Any], Any]
GRAPHS: dict[str, Callable[[Any], Made]] = {}


class Numbers:
    """Random numbers of one type."""

    def __init__(self, seed: int, dtype: Any) -> None:
        self._rng = np.random.default_rng(seed)
        self._dtype = dtype

    def __call__(self, *shape: int, scale: float = 1.0) -> jax.Array:
        return jnp.asarray(self._rng.normal(size=shape) * scale, self._dtype)

    def labels(self, classes: int, *shape: int) -> np.ndarray:
        return self._rng.integers(0, classes, shape)


def graph(make: Callable[[Numbers], Made]) -> Callable[[Any], Made]:
    """Add a function to the table, with its own random numbers."""
    seed = len(GRAPHS)
    GRAPHS[make.__name__] = lambda dtype: make(Numbers(seed, dtype))
    return GRAPHS[make.__name__]


def conv(x, kernel, strides=(1, 1), padding="SAME", numbers=("NHWC", "HWIO", "NHWC"), **settings):
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=numbers, **settings)


# --- Networks ---


@graph
def mlp(n):
    x, y = n(5, 4), n.labels(3, 5)
    params = {
        "w1": n(4, 6, scale=0.5),
        "b1": n(6, scale=0.1),
        "w2": n(6, 3, scale=0.5),
        "b2": n(3, scale=0.1),
    }

    def fn(p):
        h = jax.nn.relu(x @ p["w1"] + p["b1"])
        return pjax.cross_entropy(h @ p["w2"] + p["b2"], y)

    return fn, params


@graph
def deep_skip(n):
    x, y = n(3, 3), n.labels(2, 3)
    params = [n(3, 4, scale=0.5), n(7, 3, scale=0.4), n(4, scale=0.1), n(6, 2, scale=0.5)]

    def fn(p):
        h = jax.nn.relu(x @ p[0])
        h = jnp.concatenate([h, x], axis=-1)
        g = jax.nn.relu(h @ p[1] + p[2][:3])
        return pjax.cross_entropy(jnp.concatenate([g, x], -1) @ p[3], y, scale=1.0).mean()

    return fn, params


@graph
def strided_conv_pool(n):
    x, y = n(2, 6, 6, 1), n.labels(2, 2)
    params = {"k": n(3, 3, 1, 2, scale=0.4), "b": n(2, scale=0.1), "w": n(8, 2, scale=0.4)}

    def fn(p):
        h = jax.nn.relu(conv(x, p["k"], (2, 2)) + p["b"])  # 3 x 3
        h = pjax.max_pool(h, 2, 1)  # 2 x 2, overlapping
        return pjax.cross_entropy(h.reshape(2, -1) @ p["w"], y)

    return fn, params


@graph
def two_convs(n):
    x, y = n(2, 5, 5, 1), n(2, 3, 3, 1)
    params = {"k1": n(2, 2, 1, 2, scale=0.5), "k2": n(2, 2, 2, 1, scale=0.5)}

    def fn(p):
        h = jax.nn.relu(conv(x, p["k1"], padding="VALID"))
        return pjax.squared_error(conv(h, p["k2"], padding="VALID"), y, scale=1.0)

    return fn, params


@graph
def dilated_grouped_conv(n):
    x = n(1, 2, 4, 5)
    params = {"k": n(4, 1, 2, 2, scale=0.5), "l": n(2, 2, 2, 1, scale=0.5)}

    def fn(p):
        numbers = ("NCHW", "OIHW", "NCHW")
        h = conv(x, p["k"], (1, 2), ((1, 2), (0, 1)), numbers, rhs_dilation=(2, 1), feature_group_count=2)
        h = conv(h, p["l"], (2, 1), ((1, 0), (0, 0)), numbers, feature_group_count=2)
        return pjax.squared_error(h, jnp.ones(h.shape, h.dtype), scale=1.0)

    return fn, params


@graph
def transposed_conv(n):
    x = n(2, 3, 2)
    params = {"k": n(3, 2, 2, scale=0.5), "x": n(1, 3, 2)}

    def fn(p):
        def up(x):
            numbers = ("NWC", "WIO", "NWC")
            return conv(x, p["k"], (1,), ((1, 2),), numbers, lhs_dilation=(2,))

        out = jnp.concatenate([up(x), up(p["x"])])
        return pjax.squared_error(out, jnp.zeros_like(out), scale=1.0)

    return fn, params


@graph
def sparse_conv(n):
    """A stride larger than the kernel: some pixels are never read."""
    params = {"x": n(1, 7, 5, 1), "k": n(2, 2, 1, 2, scale=0.5)}

    def fn(p):
        out = conv(p["x"], p["k"], (3, 3), "VALID")
        return pjax.squared_error(out, jnp.full_like(out, 0.5), scale=1.0)

    return fn, params


@graph
def average_pool(n):
    x = n(2, 4, 4, 1)
    params = {"k": n(2, 2, 1, 2, scale=0.5)}

    def fn(p):
        h = conv(x, p["k"])
        h = lax.reduce_window(h, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") / 9
        return pjax.squared_error(h, jnp.ones_like(h), scale=1.0)

    return fn, params


@graph
def tied(n):
    x = n(4, 3)
    params = {"w": n(3, 5, scale=0.5), "v": n(3, 3, scale=0.5)}

    def fn(p):
        h = jax.nn.relu(x @ p["v"]) @ p["v"]  # the same matrix twice
        code = jax.nn.relu(h @ p["w"])
        return pjax.squared_error(code @ p["w"].T, x, scale=1.0)  # and its transpose

    return fn, params


@graph
def embedding(n):
    ids, y = np.array([[0, 2, 2], [4, 0, 2]]), n.labels(2, 2)
    params = {"table": n(6, 3, scale=0.5), "w": n(9, 2, scale=0.5)}

    def fn(p):
        return pjax.cross_entropy(p["table"][ids].reshape(2, 9) @ p["w"], y)

    return fn, params


def _cell(p, h, x):
    return jax.nn.relu(jnp.concatenate([x, h], -1) @ p["w"] + p["b"])


@graph
def rnn(n):
    xs, y = n(4, 2, 3), n.labels(2, 2)
    params = {"w": n(6, 3, scale=0.4), "b": n(3, scale=0.1), "out": n(3, 2, scale=0.5)}

    def fn(p):
        h = jnp.zeros((2, 3), xs.dtype)
        for x in xs:
            h = _cell(p, h, x)
        return pjax.cross_entropy(h @ p["out"], y)

    return fn, params


@graph
def rnn_scan(n):
    xs, ys = n(3, 2, 3), n.labels(2, 3, 2)
    params = {"w": n(6, 3, scale=0.4), "b": n(3, scale=0.1), "out": n(3, 2, scale=0.5), "h": n(2, 3)}

    def fn(p):
        def step(h, x):
            h = _cell(p, h, x)
            return h, h @ p["out"]

        _, logits = lax.scan(step, p["h"], xs, reverse=True)
        return pjax.cross_entropy(logits, ys)

    return fn, params


@graph
def residual(n):
    x = n(3, 4)
    params = {"w": n(4, 4, scale=0.4), "b": n(4, scale=0.1), "v": n(4, 4, scale=0.4)}

    def fn(p):
        h = x @ p["v"]
        h = h + jax.nn.relu(h @ p["w"] + p["b"])  # an even cycle
        h = h + jax.nn.relu(p["b"] - h)  # an odd one
        return pjax.squared_error(h, jnp.ones_like(h), scale=1.0)

    return fn, params


@graph
def attention_like(n):
    """Batched products of two arrays that both depend on parameters."""
    x = n(2, 3, 4)
    params = {"q": n(4, 2, scale=0.5), "k": n(4, 2, scale=0.5)}

    def fn(p):
        scores = jnp.einsum("bid,bjd->bij", x @ p["q"], x @ p["k"])
        mixed = jnp.einsum("bij,bjd->dbi", scores, x)
        return pjax.squared_error(mixed, jnp.ones_like(mixed), scale=1.0)

    return fn, params


@graph
def vmapped(n):
    """One kernel per entry: batch axes in contractions."""
    x, y = n(3, 2, 4), n(3, 2, 2)
    params = {"w": n(3, 4, 3, scale=0.5), "v": n(3, 2, scale=0.5)}

    def one(w, x, y, v):
        return pjax.squared_error(jax.nn.relu(x @ w) @ v, y, scale=1.0)

    return lambda p: jax.vmap(one, in_axes=(0, 0, 0, None))(p["w"], x, y, p["v"]), params


# --- Elementwise functions ---


@graph
def products(n):
    x = n(3, 4)
    params = {"a": n(4), "b": n(3, 1), "c": n()}

    def fn(p):
        return pjax.squared_error(
            p["a"] * x + p["a"] * p["b"] + p["c"] * 2.0, jnp.ones((3, 4), x.dtype), scale=1.0
        )

    return fn, params


@graph
def powers(n):
    params = {"a": n(4), "b": n(4)}

    def fn(p):
        mean = jnp.mean(p["a"] ** 2 + p["b"] ** 3)
        return pjax.squared_error(jnp.square(p["b"]), jnp.ones(4, p["b"].dtype)), pjax.squared_error(
            mean, 1.0
        )

    return fn, params


@graph
def differences(n):
    params = {"a": n(3, 4), "b": n(4), "unused": n(2)}

    def fn(p):
        d = -(p["a"] - p["b"]) - (1.0 - p["a"].sum(0, keepdims=True))
        return pjax.squared_error(d, jnp.ones_like(d), scale=1.0)

    return fn, params


@graph
def extrema(n):
    params = {"a": n(3, 4), "b": n(4)}

    def fn(p):
        low = jnp.minimum(p["a"], p["b"])
        high = jnp.maximum(low, -0.3)
        parts = [high.max(1), p["a"][:, :1].min((0, 1))[None], jnp.clip(p["b"], -0.4, 0.5)]
        out = jnp.concatenate(parts)
        return pjax.squared_error(out, jnp.full_like(out, 0.2), scale=1.0)

    return fn, params


@graph
def clamp_by_parameter(n):
    """An operation with constants only, below one with a parameter."""
    x = n(4)
    params = {"high": n(4, scale=0.1), "low": n()}

    def fn(p):
        out = jnp.concatenate([lax.clamp(jnp.asarray(-0.5, x.dtype), x, p["high"]), jnp.maximum(x, p["low"])])
        return pjax.squared_error(out, jnp.zeros_like(out), scale=1.0)

    return fn, params


@graph
def quantized(n):
    x = n(3, 4)
    params = {"w": n(4, 2), "v": n(2)}

    def fn(p):
        h = x @ pjax.quantize(p["w"], levels=4) + pjax.identity(p["v"])
        return pjax.squared_error(h, jnp.zeros_like(h), scale=1.0)

    return fn, params


# --- Wires ---


@graph
def disjoint_slices(n):
    params = {"a": n(8), "b": n(3, 3)}

    def fn(p):
        a, b = p["a"], p["b"]
        left = a[:3] * a[5:8] + b[0]
        right = a[1::3] + jnp.diagonal(b)[1:] if a.size % 3 == 0 else a[2:4] + b[1, :2]
        return pjax.squared_error(left, jnp.ones_like(left)), pjax.squared_error(right, jnp.zeros_like(right))

    return fn, params


@graph
def repeats(n):
    x = n(2, 6)
    params = {"a": n(3), "b": n(2, 1)}

    def fn(p):
        a = jnp.repeat(p["a"], 2) * x + jnp.broadcast_to(p["b"], (2, 6))
        b = jnp.tile(p["a"], 2) + jnp.roll(p["a"], 1)[np.array([0, 1, 2, 2, 1, 0])] + jnp.flip(x[0])
        return pjax.squared_error(a, x), pjax.squared_error(b, x[1])

    return fn, params


@graph
def padded(n):
    x = n(4, 3)
    params = {"a": n(2), "w": n(4, 2, scale=0.5)}

    def fn(p):
        inner = jnp.pad(p["a"], (0, 1), constant_values=0.7)
        columns = jnp.pad(x @ jnp.pad(p["w"], ((0, 0), (0, 1)), constant_values=0.3)[:3], ((0, 0), (1, 0)))
        return pjax.squared_error(columns[:, 1:] * inner, x, scale=1.0)

    return fn, params


@graph
def masked(n):
    mask = np.array([[True, False, True], [False, True, True]])
    params = {"a": n(2, 3), "b": n(3)}

    def fn(p):
        mixed = jnp.where(mask, p["a"], p["b"])
        half = jnp.where(mask[:, :2], mixed[:, :2], 0.5)
        out = jax.nn.relu(mixed.sum(1)) + half.sum(1)
        return pjax.squared_error(out, jnp.ones_like(out), scale=1.0)

    return fn, params


@graph
def stacked(n):
    x = n(3, 4)
    params = [n(3, 4), n(3, 4), n(4, 3)]

    def fn(p):
        both = jnp.stack([p[0] + x, p[1], p[2].T], axis=1)
        both = lax.dynamic_update_slice(both, jnp.full((3, 1, 2), 0.25, x.dtype), (0, 0, 1))
        first, rest = jnp.split(both, [1], axis=1)
        out = first[:, 0] * rest.sum(1)
        return pjax.squared_error(out, x, scale=1.0)

    return fn, params


@graph
def one_wire_many_sources(n):
    """A contraction whose input comes from parameters, operations and constants at once."""
    x = n(3, 2)
    params = {"a": n(3, 1), "w": n(2, 1, scale=0.5), "v": n(4, 2, scale=0.5)}

    def fn(p):
        h = jnp.concatenate([p["a"], jax.nn.relu(x @ p["w"]), x], axis=1)
        return pjax.squared_error(h @ p["v"], x, scale=1.0)

    return fn, params


# --- Targets ---


@graph
def two_targets(n):
    x, y = n(4, 3), n.labels(2, 4)
    params = {"w": n(3, 3, scale=0.5), "a": n(3, 2, scale=0.5), "b": n(3, 1, scale=0.5)}

    def fn(p):
        h = jax.nn.relu(x @ p["w"])
        error = pjax.squared_error(h @ p["b"], x[:, :1], scale=1.0)
        return {"class": pjax.cross_entropy(h @ p["a"], y).mean(), "value": 0.5 * error.sum()}

    return fn, params


@graph
def both_sides(n):
    x = n(3, 4)
    params = {"w": n(4, 2, scale=0.5), "v": n(4, 2, scale=0.5)}
    return lambda p: pjax.squared_error(jax.nn.relu(x @ p["w"]) + 1.0, x @ p["v"]), params


@graph
def margin(n):
    x, y = n(4, 3), n.labels(3, 4)
    params = {"w": n(3, 3, scale=0.5), "b": n(3, scale=0.1)}
    return lambda p: pjax.margin_loss(x @ p["w"] + p["b"], y), params


@graph
def target_only(n):
    params = {"w": n(4), "v": n(2, 3)}
    x = n(6)

    def fn(p):
        return (
            pjax.squared_error(p["w"], jnp.ones_like(p["w"]), scale=0.5),
            pjax.margin_loss(p["v"][:, [0, 2]], np.array([0, 1])),
            pjax.squared_error(x, x),
        )

    return fn, params


@graph
def zero_weights(n):
    """Products of zeros with a far target: the nearest points are a sphere."""
    x = n(2, 3)
    params = {"w": 0 * n(3, 2), "v": 0 * n(2, 2), "a": 0 * n(2)}

    def fn(p):
        h = (x @ p["w"]) @ p["v"]
        return pjax.squared_error(h, jnp.full_like(h, 4.0)), pjax.squared_error(
            p["a"] * p["a"], jnp.ones(2) * -3
        )

    return fn, params


@graph
def opposite_weights(n):
    """Products of vectors that cancel, with a far target: again a sphere, now with a direction."""
    u = n(2, 3)
    params = {"u": u, "v": -u.T, "b": n(2)}

    def fn(p):
        return pjax.squared_error((p["u"] @ p["v"])[[0, 1], [0, 1]] + p["b"], jnp.full(2, 60.0))

    return fn, params


@functools.cache
def make(name: str, dtype: Any) -> Made:
    """A function of the table with its parameters."""
    return GRAPHS[name](dtype)
