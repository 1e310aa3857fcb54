"""Train a small network on handwritten digits by projections: `make demo`.

The data come with the package: 8×8 images of digits, described in `pjax.experiments.data`.
"""

import argparse
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import pjax
from pjax.experiments import data

HIDDEN = 64
BATCH = 128
TRAIN = 1437
SHADES = " .:-=+*#%@"


def load() -> tuple[np.ndarray, np.ndarray]:
    """Images of shape (1797, 64) in [0, 1], in an order of no meaning, and their labels."""
    with np.load(data.path("digits")) as file:
        images, labels = file["images"], file["labels"]
    order = np.random.default_rng(0).permutation(len(images))
    return (images.reshape(-1, 64)[order] / 16).astype(np.float32), labels[order].astype(np.int32)


def init(key: jax.Array) -> dict[str, jax.Array]:
    """Random weights, zero biases."""
    first, second = jax.random.split(key)
    return {
        "hidden": jax.random.normal(first, (64, HIDDEN)) * (2 / 64) ** 0.5,
        "bias": jnp.zeros(HIDDEN),
        "out": jax.random.normal(second, (HIDDEN, 10)) * (1 / HIDDEN) ** 0.5,
    }


def apply(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """The network: an ordinary JAX function."""
    x = jax.nn.relu(x @ params["hidden"] + params["bias"])
    return x @ params["out"]


@jax.jit
def accuracy(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    return 100 * jnp.mean(jnp.argmax(apply(params, x), axis=-1) == y)


def draw(images: np.ndarray) -> str:
    """Images side by side, as text, two characters to a pixel."""
    shades = np.array(list(SHADES))[np.rint(images.reshape(-1, 8, 8) * (len(SHADES) - 1)).astype(int)]
    return "\n".join("   ".join("".join(np.repeat(row, 2)) for row in line) for line in shades.swapaxes(0, 1))


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(
        description="Train a small network on handwritten digits by projections."
    )
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=50, help="projection steps on one batch")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    images, labels = load()
    x, y, x_test, y_test = images[:TRAIN], labels[:TRAIN], images[TRAIN:], labels[TRAIN:]
    params = init(jax.random.key(options.seed))
    optimizer = pjax.optim.DouglasRachford(steps_per_update=options.steps)
    rng = np.random.default_rng(options.seed)

    print(f"64-{HIDDEN}-10 network, Douglas-Rachford, {len(x)} images to train on, {len(x_test)} to test")
    print("epoch    loss   train    test   ms/step")
    for epoch in range(1, options.epochs + 1):
        order = rng.permutation(len(x))
        batches = order[: len(x) // BATCH * BATCH].reshape(-1, BATCH)
        begin, losses = time.perf_counter(), []
        for rows in batches:

            def loss_fn(params: dict[str, jax.Array], rows: np.ndarray = rows) -> jax.Array:
                return pjax.cross_entropy(apply(params, x[rows]), y[rows])

            params, loss = optimizer.update(loss_fn, params)
            losses.append(loss)
        jax.block_until_ready(params)
        step = 1e3 * (time.perf_counter() - begin) / (len(batches) * options.steps)
        note = "  (with compiling)" if epoch == 1 else ""
        print(
            f"{epoch:>5} {float(jnp.mean(jnp.stack(losses))):>7.4f} {accuracy(params, x, y):>6.1f} %"
            f" {accuracy(params, x_test, y_test):>5.1f} % {step:>9.3f}{note}",
            flush=True,
        )

    guesses = np.argmax(np.asarray(apply(params, x_test)), axis=-1)
    wrong = np.flatnonzero(guesses != y_test)
    shown = np.concatenate([np.flatnonzero(guesses == y_test)[:3], wrong[:2]])
    print(f"\nsome test images: {len(shown) - len(wrong[:2])} it reads right, {len(wrong[:2])} it does not\n")
    print(draw(x_test[shown]))
    words = [f"reads {guesses[i]}" + ("" if guesses[i] == y_test[i] else f", is {y_test[i]}") for i in shown]
    print("   ".join(f"{w:<16}" for w in words))
    result = float(accuracy(params, x_test, y_test))
    print(f"\ntest accuracy {result:.1f} %, without a single gradient")
    return result


if __name__ == "__main__":
    main()
