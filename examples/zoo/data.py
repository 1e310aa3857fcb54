"""Small synthetic data sets with something to learn, each a list of batches."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

Generator = np.random.Generator


def generator(key: jax.Array) -> Generator:
    """Random numbers of NumPy, which compiles nothing."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def batches(key: jax.Array, make: Callable[[Generator], Any], count: int = 3) -> list[Any]:
    """As many batches as asked for, in the types of JAX."""
    rng = generator(key)
    return [jax.tree.map(_narrow, make(rng)) for _ in range(count)]


def _narrow(array: np.ndarray) -> np.ndarray:
    narrow = {"f": np.float32, "i": np.int32}
    return np.asarray(array).astype(narrow.get(array.dtype.kind, array.dtype))


def with_keys(key: jax.Array, found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The same batches, each with a key of its own, for dropout or noise."""
    return [(*batch, one) for batch, one in zip(found, jax.random.split(key, len(found)), strict=True)]


def clusters(key: jax.Array, *, size: int = 24, features: int = 8, classes: int = 4) -> list[Any]:
    """Points around one centre per class, and the classes."""
    centres = np.random.default_rng(0).normal(size=(classes, features))

    def make(rng: Generator) -> Any:
        y = rng.integers(classes, size=size)
        return centres[y] + 0.5 * rng.normal(size=(size, features)), y

    return batches(key, make)


def pictures(
    key: jax.Array, *, size: int = 12, side: int = 8, channels: int = 1, classes: int = 4
) -> list[Any]:
    """Noisy pictures (size, side, side, channels) of one pattern per class, and the classes."""
    found = clusters(key, size=size, features=side * side * channels, classes=classes)
    return [(x.reshape(size, side, side, channels), y) for x, y in found]


def curves(key: jax.Array, *, size: int = 32, features: int = 2) -> list[Any]:
    """Points in a cube, and a smooth function of them, (size, 1)."""
    direction = np.linspace(1.0, -0.5, features)[:, None]

    def make(rng: Generator) -> Any:
        x = rng.uniform(-1.0, 1.0, size=(size, features))
        return x, np.sin(2.0 * x @ direction)

    return batches(key, make)


def sentences(key: jax.Array, *, size: int = 8, length: int = 8, vocabulary: int = 11) -> list[Any]:
    """Whole numbers (size, length), each of which mostly follows from the one before."""

    def make(rng: Generator) -> Any:
        tokens = [rng.integers(vocabulary, size=size)]
        for _ in range(length - 1):
            tokens.append((3 * tokens[-1] + 1) % vocabulary)
        noise = rng.integers(vocabulary, size=(size, length))
        return np.where(rng.uniform(size=(size, length)) < 0.1, noise, np.stack(tokens, axis=1))

    return batches(key, make)


def signals(
    key: jax.Array, *, size: int = 12, length: int = 10, features: int = 3, classes: int = 3
) -> list[Any]:
    """Noisy waves (size, length, features) whose frequency is that of their class, and the classes."""

    def make(rng: Generator) -> Any:
        y = rng.integers(classes, size=size)
        time = 0.4 * np.arange(length)[:, None]
        x = np.sin(time * (1.0 + y[:, None, None]) + 2.0 * np.arange(features))
        return x + 0.1 * rng.normal(size=x.shape), y

    return batches(key, make)
