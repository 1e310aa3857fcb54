"""A network with hard constraints on its weights: it cannot help being convex and rising.

Relus of sums with weights that are not negative only rise, and ever faster. So a network whose weights are
put into `pjax.sets.NonNegative` fits a curve of which that is known, whatever the noise, and the promise
holds for every input, not only where data are. `ExtrapolatedProjections` trains through the sets: of what
is asked of a weight outside, it passes on whatever does not lead further away.

Gradients: without constraints, Adam follows the noise. Through the same sets, the derivative for a weight
below zero is zero, so weights that start there never move. On this curve those that are left are enough.

    python examples/constrained.py
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from _gallery import (
    GRADIENTS,
    OTHER,
    PROJECTIONS,
    by_gradients,
    by_projections,
    one_panel,
    options,
    picture,
    train,
)

import pjax
from pjax import nn, optim, sets
from pjax.tools.plotting import INK, Label, end_labels, note, styled

WIDTH = 24


class Curve(nn.Module):
    """A function of one number: two hidden layers, perhaps with weights that are not negative."""

    def __init__(self, *, rising: bool) -> None:
        super().__init__()
        self.rising = rising
        sizes = [1, WIDTH, WIDTH, 1]
        self.weights = [nn.Linear(*pair).weight for pair in itertools.pairwise(sizes)]
        self.biases = [nn.ReLU(WIDTH).bias, nn.ReLU(WIDTH).bias]
        self.last = nn.ReLU(1).bias

    def __call__(self, x: Any) -> Any:
        weights = self.weights
        if self.rising:
            weights = [pjax.constrain(weight, sets.NonNegative()) for weight in weights]
        for weight, bias in zip(weights[:-1], self.biases, strict=True):
            x = jax.nn.relu(x @ weight + bias)
        return x @ weights[-1] + self.last


def truth(x: np.ndarray) -> np.ndarray:
    return np.exp(1.2 * x) / 4


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    chosen = options(__doc__, arguments)
    steps = 150 if chosen.quick else 4000
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-2, 2, (40, 1)), axis=0).astype(np.float32)
    y = (truth(x) + 0.35 * rng.normal(size=x.shape)).astype(np.float32)
    free, rising = Curve(rising=False), Curve(rising=True)
    where = np.linspace(-2.2, 2.2, 441, dtype=np.float32)[:, None]

    def loss(model: Curve) -> Any:
        return lambda params: pjax.squared_error(model.apply(params, x), y, scale=1.0)

    start = rising.init(jax.random.key(0))
    solver = optim.ExtrapolatedProjections(learning_rate=3e-3)
    methods = {
        "projections": (rising, by_projections(solver, loss(rising))),
        "Adam, same sets": (rising, by_gradients(3e-3, loss(rising))),
        "Adam, free": (free, by_gradients(3e-3, loss(free))),
    }
    curves, figures = {}, {}
    for name, (model, method) in methods.items():
        params, _ = train(method, start, [()] * steps, steps, lambda _: 0.0)
        curve = np.asarray(jax.jit(model.apply)(params, where))[:, 0]
        bends, rises = np.diff(curve, 2), np.diff(curve)
        broken = np.mean(rises < -1e-5) + np.mean(bends < -1e-4)
        error = float(np.sqrt(np.mean((curve - truth(where[:, 0])) ** 2)))
        curves[name], figures[name] = curve, (error, float(broken))
        stuck = np.mean([np.mean(params[key] == start[key]) for key in start if key.startswith("weights")])
        print(
            f"{name}: error {error:.3f}; falls or bends down at {broken:.0%} of the places; "
            f"{stuck:.0%} of the weights never moved"
        )
    picture(draw(x, y, where, curves), chosen.pictures, "constrained")
    keys = ("projections", "same sets", "free")
    return {
        f"{key}, {what}": figure
        for key, pair in zip(keys, figures.values(), strict=True)
        for what, figure in zip(("error", "broken"), pair, strict=True)
    }


@styled
def draw(x: np.ndarray, y: np.ndarray, where: np.ndarray, curves: dict[str, np.ndarray]) -> Any:
    """The data, and what each method makes of them."""
    about = "two hidden layers of 24 relus; 40 noisy points of a curve that rises ever faster"
    figure, axis = one_panel("A network that cannot fall: weights in a set", about)
    axis.scatter(x, y, s=34, color="#b3b8bd", zorder=2)
    axis.plot(where, truth(where), color=INK, lw=1.2, ls=(0, (1, 2)), zorder=3)
    colours = dict(zip(curves, (PROJECTIONS, OTHER, GRADIENTS), strict=True))
    for name, curve in curves.items():
        ours = name == "projections"
        axis.plot(where, curve, color=colours[name], lw=2.4 if ours else 1.9, zorder=5 if ours else 4)
    axis.set(xlim=(where[0, 0], where[-1, 0]), xlabel="x", ylabel="f(x)")
    labels = [Label(float(curve[-1]), name, colours[name]) for name, curve in curves.items()]
    end_labels(axis, [*labels, Label(float(truth(where[-1, 0])), "truth", INK)])
    note(
        figure,
        ["projections, and Adam through the same sets: weights are not negative, so the curve is convex"],
    )
    return figure


if __name__ == "__main__":
    main()
