"""A recurrent network that must remember: which of four symbols came first?

A sequence starts with one of four symbols, and seven of two others follow, at random. The network reads one
symbol a step; the answer is asked for at the end. What the first step should have done has to be found
through all later ones: `lax.scan`, swept from the last step to the first by `ExtrapolatedProjections`.

Gradients: Adam by backpropagation through time, on the same batches from the same weights.

    python examples/rnn.py
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _gallery import GRADIENTS, PROJECTIONS, by_gradients, by_projections, one_panel, options, picture, train

from pjax import nn, optim
from pjax.tools.plotting import Label, end_labels, linear_scale, styled


def sequences(count: int, size: int, length: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of sequences, and the symbol that each began with."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        first = rng.integers(0, 4, size)
        yield np.c_[first, rng.integers(4, 6, (size, length - 1))], first


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    chosen = options(__doc__, arguments)
    length, count, seeds = (3, 30, 1) if chosen.quick else (8, 800, 5)
    model = nn.RNN(6, [32], classes=4, embedding=8)
    ((test_x, test_y),) = sequences(1, 512, length, 99)

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return nn.cross_entropy(model.apply(params, x)[:, -1], y)

    @jax.jit
    def accuracy(params: Any) -> jax.Array:
        return 100 * jnp.mean(model.apply(params, test_x)[:, -1].argmax(-1) == test_y)

    methods = {
        "projections": by_projections(optim.ExtrapolatedProjections(learning_rate=3e-3), loss),
        "Adam, gradients": by_gradients(3e-3, loss),
    }
    curves = {}
    for name, method in methods.items():
        runs = [
            train(method, model.init(jax.random.key(seed)), sequences(count, 64, length, seed), 10, accuracy)[
                1
            ]
            for seed in range(seeds)
        ]
        curves[name] = np.stack(runs)
        ends = curves[name][:, -1, 1]
        each = ", ".join(f"{end:.0f}" for end in ends)
        print(f"{name}: {ends.mean():.1f} % after {count} batches (seeds: {each})")
    picture(draw(curves, length), chosen.pictures, "rnn")
    return {name: float(curve[:, -1, 1].mean()) for name, curve in curves.items()}


@styled
def draw(curves: dict[str, np.ndarray], length: int) -> Any:
    """Accuracy over batches: each seed thin, their mean thick."""
    about = f"sequences of {length} symbols, a state of 32 relus; thin: seeds, thick: their mean"
    figure, axis = one_panel("A recurrent network: what came first?", about)
    axis.set(xlim=(0, max(runs[0, -1, 0] for runs in curves.values())), ylim=(0, 104))
    linear_scale(axis.xaxis)
    colours = dict(zip(curves, (PROJECTIONS, GRADIENTS), strict=True))
    for name, runs in curves.items():
        for run in runs:
            axis.plot(*run.T, color=colours[name], lw=0.8, alpha=0.5)
        axis.plot(*runs.mean(0).T, color=colours[name], lw=2.8)
    axis.axhline(25, color="#a8adb2", lw=1.0, ls=(0, (4, 3)))
    axis.set(xlabel="batches of 64", ylabel="accuracy, %")
    ends = [Label(float(runs[:, -1, 1].mean()), name, colours[name]) for name, runs in curves.items()]
    end_labels(axis, [*ends, Label(25, "guessing", "#6b7278")])
    return figure


if __name__ == "__main__":
    main()
