"""The same networks written in pjax.nn, Flax NNX, Flax linen and Equinox, trained by the same updates.

Each framework makes its networks in its own way, with its own layers and axes, and starts from its own random
numbers. Test accuracies on the embedded digits, over a few seeds, must agree.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import pjax
from pjax import nn
from pjax.experiments import data

Apply = Callable[[Any, jax.Array], jax.Array]
HIDDEN, CHANNELS, CLASSES = 64, 16, 10


@dataclasses.dataclass(frozen=True)
class Network:
    """A network in one framework: its parameters, and the function of them and of images (n, 8, 8, 1)."""

    params: Any
    apply: Apply


# --- pjax.nn ---


class OwnMLP(nn.Module):
    def __init__(self) -> None:
        self.hidden = nn.Linear(64, HIDDEN)
        self.relu = nn.ReLU(HIDDEN)
        self.out = nn.Linear(HIDDEN, CLASSES, bias=True)

    def __call__(self, x: Any) -> Any:
        return self.out(self.relu(self.hidden(x.reshape(len(x), -1))))


class OwnCNN(nn.Module):
    def __init__(self) -> None:
        self.first = nn.Conv2D(1, CHANNELS, 3)
        self.first_relu = nn.ReLU(CHANNELS)
        self.pool = nn.MaxPool(2)
        self.second = nn.Conv2D(CHANNELS, CHANNELS, 3)
        self.second_relu = nn.ReLU(CHANNELS)
        self.out = nn.Linear(CHANNELS, CLASSES, bias=True)

    def __call__(self, x: Any) -> Any:
        x = self.pool(self.first_relu(self.first(x)))
        x = self.second_relu(self.second(x))
        return self.out(x.mean(axis=(1, 2)))


def own(model: type[nn.Module], key: jax.Array) -> Network:
    made = model()
    return Network(made.init(key), made.apply)


# --- Flax NNX ---


class NnxMLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, HIDDEN, rngs=rngs)
        self.out = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(nnx.relu(self.hidden(x.reshape(len(x), -1))))


class NnxCNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, CHANNELS, (3, 3), rngs=rngs)
        self.second = nnx.Conv(CHANNELS, CHANNELS, (3, 3), rngs=rngs)
        self.out = nnx.Linear(CHANNELS, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.max_pool(nnx.relu(self.first(x)), (2, 2), (2, 2))
        x = nnx.relu(self.second(x))
        return self.out(x.mean((1, 2)))


def flax_nnx(model: type[nnx.Module], key: jax.Array) -> Network:
    graph, params = nnx.split(model(nnx.Rngs(key)))
    return Network(params, lambda params, x: nnx.merge(graph, params)(x))


# --- Flax linen ---


class LinenMLP(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = flax.linen.relu(flax.linen.Dense(HIDDEN, name="hidden")(x.reshape(len(x), -1)))
        return flax.linen.Dense(CLASSES, name="out")(x)


class LinenCNN(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = flax.linen.relu(flax.linen.Conv(CHANNELS, (3, 3), name="first")(x))
        x = flax.linen.max_pool(x, (2, 2), strides=(2, 2))
        x = flax.linen.relu(flax.linen.Conv(CHANNELS, (3, 3), name="second")(x))
        return flax.linen.Dense(CLASSES, name="out")(x.mean((1, 2)))


def flax_linen(model: type[flax.linen.Module], key: jax.Array) -> Network:
    made = model()
    return Network(made.init(key, jnp.zeros((1, 8, 8, 1))), made.apply)


# --- Equinox ---


class EquinoxMLP(eqx.Module):
    layers: eqx.nn.MLP

    def __init__(self, key: jax.Array) -> None:
        self.layers = eqx.nn.MLP(64, CLASSES, HIDDEN, depth=1, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layers(x.reshape(-1))


class EquinoxCNN(eqx.Module):
    first: eqx.nn.Conv2d
    pool: eqx.nn.MaxPool2d
    second: eqx.nn.Conv2d
    out: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        first, second, out = jax.random.split(key, 3)
        self.first = eqx.nn.Conv2d(1, CHANNELS, 3, padding=1, key=first)
        self.pool = eqx.nn.MaxPool2d(2, 2)
        self.second = eqx.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, key=second)
        self.out = eqx.nn.Linear(CHANNELS, CLASSES, key=out)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.pool(jax.nn.relu(self.first(x.transpose(2, 0, 1))))  # channels come first
        x = jax.nn.relu(self.second(x))
        return self.out(x.mean((1, 2)))


def equinox(model: type[eqx.Module], key: jax.Array) -> Network:
    params, static = eqx.partition(model(key), eqx.is_inexact_array)
    return Network(params, lambda params, x: jax.vmap(eqx.combine(params, static))(x))


MAKE: dict[str, dict[str, tuple[Callable[..., Network], Any]]] = {
    "MLP": {
        "pjax.nn": (own, OwnMLP),
        "Flax NNX": (flax_nnx, NnxMLP),
        "Flax linen": (flax_linen, LinenMLP),
        "Equinox": (equinox, EquinoxMLP),
    },
    "CNN": {
        "pjax.nn": (own, OwnCNN),
        "Flax NNX": (flax_nnx, NnxCNN),
        "Flax linen": (flax_linen, LinenCNN),
        "Equinox": (equinox, EquinoxCNN),
    },
}


def make(network: str, framework: str, key: jax.Array) -> Network:
    """A network with the random numbers of its framework."""
    build, model = MAKE[network][framework]
    return build(model, key)


def stream(digits: data.Dataset, seed: int, batch_size: int, count: int) -> Iterator[tuple[Any, Any]]:
    """Batches of the digits to train on, the same for all."""
    x = digits.normalise(digits.x_train)
    for rows in data.batches(seed, 0, count, len(x), batch_size):
        yield x[rows], digits.y_train[rows]


def train(network: Network, solver: pjax.optim.Solver, batches: Iterator[tuple[Any, Any]]) -> Any:
    """The parameters after an update on each batch."""

    @jax.jit
    def update(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        return solver.update(lambda p: pjax.cross_entropy(network.apply(p, x), y), params, state)

    params, state = network.params, solver.init(network.params)
    for x, y in batches:
        params, state, _ = update(params, state, x, y)
    return params


def accuracy(network: Network, params: Any, digits: data.Dataset) -> float:
    """Percent of the digits to test with that are classified as they should be."""
    logits = jax.jit(network.apply)(params, jnp.asarray(digits.normalise(digits.x_test)))
    return 100 * float(np.mean(np.argmax(logits, axis=-1) == digits.y_test))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks interop", description=__doc__)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)

    digits = data.load("digits")
    solver = pjax.optim.ExtrapolatedProjections(learning_rate=1e-2)
    print(f"test accuracy on the digits in percent, {options.updates} updates on batches of", end=" ")
    print(f"{options.batch_size}, mean and standard deviation of {options.seeds} seeds\n")
    print("| | " + " | ".join(MAKE["MLP"]) + " |")
    print("|---|" + "---|" * len(MAKE["MLP"]))
    for name, frameworks in MAKE.items():
        cells = []
        for framework in frameworks:
            found = []
            for seed in range(options.seeds):
                network = make(name, framework, jax.random.key(seed))
                batches = stream(digits, seed, options.batch_size, options.updates)
                found.append(accuracy(network, train(network, solver, batches), digits))
            cells.append(f"{np.mean(found):.1f} ± {np.std(found):.1f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
