"""A network with few levels: weights of -1, 0 and 1, and units that are on or off.

`pjax.constrain` keeps the weights of both layers among three numbers and `pjax.quantize` rounds each hidden
unit to one of two. What the network computes is a staircase; nothing in it is differentiable, and nothing
has to be: `ExtrapolatedProjections` projects onto the sets. The network that is tested is the one with the
three numbers, nothing is rounded afterwards.

Gradients of a staircase are zero wherever they exist, so Adam does not move the weights at all. Trained
without levels (weights as they are, units clipped) and rounded at the end, the network loses much.

    python examples/quantised.py
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _gallery import (
    GRADIENTS,
    OTHER,
    PROJECTIONS,
    by_gradients,
    by_projections,
    digits,
    one_panel,
    options,
    picture,
    train,
)

import pjax
from pjax import nn, optim, sets
from pjax.tools.plotting import Label, end_labels, linear_scale, styled

WIDTH = 32


class Levels(nn.Module):
    """Two layers with weights of few levels, and hidden units with two."""

    def __init__(self, *, rounds: bool) -> None:
        super().__init__()
        self.rounds = rounds
        self.hidden = nn.Linear(64, WIDTH).weight
        self.bias = nn.ReLU(WIDTH).bias
        self.out = nn.Linear(WIDTH, 10).weight

    def __call__(self, x: Any) -> Any:
        first = self.bias + x @ self.level(self.hidden)
        units = pjax.quantize(first) if self.rounds else jnp.clip(first, -1, 1)
        return units @ self.level(self.out)

    def level(self, weight: Any) -> Any:
        step = float(1 / np.sqrt(weight.shape[0]))
        return pjax.constrain(weight, sets.Integers(-1, 1, step=step)) if self.rounds else weight


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    chosen = options(__doc__, arguments)
    count, size = (40, 64) if chosen.quick else (600, 256)
    batches, test_x, test_y = digits(chosen.quick)
    few, smooth = Levels(rounds=True), Levels(rounds=False)
    start = few.init(jax.random.key(0))

    def loss(model: nn.Module, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return nn.cross_entropy(model.apply(params, x), y)

    @jax.jit
    def accuracy(params: Any) -> jax.Array:
        return 100 * jnp.mean(few.apply(params, test_x).argmax(-1) == test_y)

    solver = optim.ExtrapolatedProjections(learning_rate=3e-3)
    methods = {
        "projections": by_projections(solver, functools.partial(loss, few)),
        "Adam, staircase": by_gradients(3e-3, functools.partial(loss, few)),
        "Adam, rounded after": by_gradients(3e-3, functools.partial(loss, smooth)),
    }
    curves, trained = {}, {}
    for name, method in methods.items():
        every = max(count // 40, 1)
        trained[name], curves[name] = train(method, start, batches(count, size), every, accuracy)
        print(f"{name}: {curves[name][-1, 1]:.1f} % of the test digits")
    weights = few.bind(trained["projections"])
    levels = np.unique(np.asarray(weights.level(weights.hidden)))
    print("weights of the first layer:", ", ".join(f"{level:g}" for level in levels))
    picture(draw(curves), chosen.pictures, "quantised")
    ends = [float(curve[-1, 1]) for curve in curves.values()]
    return dict(zip(("projections", "gradients", "rounded"), ends, strict=True)) | {"levels": len(levels)}


@styled
def draw(curves: dict[str, np.ndarray]) -> Any:
    """Test accuracy of the network with few levels, over batches."""
    about = "8 x 8 digits, 32 hidden units that are on or off, weights -1, 0, 1 times a constant"
    figure, axis = one_panel("Three weights, two states: a network of few levels", about)
    axis.set(xlim=(0, max(curve[-1, 0] for curve in curves.values())), ylim=(0, 100))
    linear_scale(axis.xaxis)
    colours = dict(zip(curves, (PROJECTIONS, GRADIENTS, OTHER), strict=True))
    for name, curve in curves.items():
        axis.plot(*curve.T, color=colours[name], lw=2.8 if name == "projections" else 2.0)
    axis.set(xlabel="batches", ylabel="test accuracy, %")
    end_labels(axis, [Label(float(curve[-1, 1]), name, colours[name]) for name, curve in curves.items()])
    return figure


if __name__ == "__main__":
    main()
