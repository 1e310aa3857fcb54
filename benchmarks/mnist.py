"""Test accuracy on MNIST of the paper's multilayer perceptron, trained by projections.

The data are read from an archive with the arrays x_train (60000, 28, 28), y_train, x_test, y_test.
"""

import argparse
import os
import time
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import pjax
from benchmarks import models

BATCH = 256
METHODS = {
    "AP": pjax.optim.AlternatingProjections,
    "CP": pjax.optim.CyclicProjections,
    "DR": pjax.optim.DouglasRachford,
    "DM": pjax.optim.DifferenceMap,
}


def load(path: str, standardise: bool) -> tuple[np.ndarray, ...]:
    """Inputs of shape (n, 784) in [0, 1], or with mean 0 and variance 1 over the training set; labels."""
    with np.load(path) as data:
        x, y, x_test, y_test = (data[k] for k in ("x_train", "y_train", "x_test", "y_test"))
    x, x_test = (a.reshape(len(a), -1).astype(np.float32) / 255 for a in (x, x_test))
    if standardise:
        mean, deviation = x.mean(), x.std()
        x, x_test = (x - mean) / deviation, (x_test - mean) / deviation
    return x, y.astype(np.int32), x_test, y_test.astype(np.int32)


def batches(x: np.ndarray, y: np.ndarray, count: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of shuffled epochs, without end but for the count."""
    rng = np.random.default_rng(seed)
    order = np.empty(0, np.int64)
    for _ in range(count):
        if len(order) < BATCH:
            order = rng.permutation(len(x))
        rows, order = order[:BATCH], order[BATCH:]
        yield x[rows], y[rows]


def train(method: str, data: tuple[np.ndarray, ...], options: argparse.Namespace) -> float:
    """Train once, with a line every hundred batches; the test accuracy at the end, in percent."""
    x, y, x_test, y_test = data
    params = models.init_mlp(jax.random.key(options.seed), x.shape[1], options.hidden, 10)
    solver = METHODS[method](steps_per_update=options.steps, consensus=options.consensus)

    @jax.jit
    def update(params: models.Params, x: jax.Array, y: jax.Array) -> tuple[models.Params, jax.Array]:
        return solver.update(
            lambda p: pjax.cross_entropy(models.apply_mlp(p, x), y, scale=options.scale), params
        )

    @jax.jit
    def accuracy(params: models.Params) -> jax.Array:
        return 100 * jnp.mean(jnp.argmax(models.apply_mlp(params, x_test), axis=-1) == y_test)

    widths = "-".join(map(str, options.hidden))
    print(f"{method}, hidden {widths}, {options.steps} steps a batch, {options.consensus} consensus")
    start, result = time.perf_counter(), 0.0
    for i, (xs, ys) in enumerate(batches(x, y, options.batches, options.seed), 1):
        params, loss = update(params, xs, ys)
        if i % 100 == 0 or i == options.batches:
            result = float(accuracy(params))
            seconds = time.perf_counter() - start
            print(
                f"  batch {i:>5}  loss {float(loss):7.4f}  test {result:5.2f} %  {seconds:6.1f} s", flush=True
            )
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks mnist", description=__doc__)
    parser.add_argument("--data", default=os.environ.get("PJAX_DATA"), help="mnist.npz; default $PJAX_DATA")
    parser.add_argument("--method", choices=[*METHODS], nargs="+", default=["AP", "DR"])
    parser.add_argument("--batches", type=int, default=800)
    parser.add_argument("--steps", type=int, default=50, help="projection steps on one batch")
    parser.add_argument("--hidden", type=int, nargs="+", default=[128], metavar="WIDTH")
    parser.add_argument("--consensus", choices=["paper", "exact"], default="paper")
    parser.add_argument("--scale", type=float, default=5.0, help="of the cross-entropy")
    parser.add_argument("--standardise", action="store_true", help="inputs of mean 0 and variance 1")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if not options.data:
        parser.error("say where mnist.npz is: --data PATH, or the environment variable PJAX_DATA")
    path = os.path.join(options.data, "mnist.npz") if os.path.isdir(options.data) else options.data
    if not os.path.exists(path):
        parser.error(f"there is no file {path}")
    data = load(path, options.standardise)
    results = {method: train(method, data, options) for method in options.method}
    print("test accuracy: " + ", ".join(f"{method} {value:.2f} %" for method, value in results.items()))
