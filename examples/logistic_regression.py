"""Logistic regression: a convex problem, where projections find the minimum that others find.

Where sets are replaced by convex losses, a step towards a loss is its proximal operator, and Douglas-
Rachford converges to the minimiser of their sum. Here these are the cross-entropies of 150 iris flowers and
the squared length of the weights. With `constants="fixed"` the products in between are linear constraints,
which hold exactly. The weights are those of scikit-learn's solver (L-BFGS), digit by digit.

Gradients: Adam on the same sum, in as many steps, arrives there as well: in the convex case there is
nothing to choose between them but speed.

    python examples/logistic_regression.py
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _gallery import GRADIENTS, PROJECTIONS, by_gradients, options, picture, train
from scipy.special import logsumexp
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import pjax
from pjax import optim
from pjax.tools.plotting import Label, decades, end_labels, panels, styled

STRENGTH = 1.0  # of the losses beside the squared length: C of scikit-learn
KINDS = ["#737a82", "#2f9e5b", "#6a4fb3"]
SCALE = 5.0  # of both in their proximal operators; it changes the path, not where it ends


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    chosen = options(__doc__, arguments)
    steps = 400 if chosen.quick else 1000
    flowers = load_iris()
    features = flowers.data[:, 2:]
    features = np.c_[(features - features.mean(0)) / features.std(0), np.ones(len(features))]
    x, y = features.astype(np.float32), flowers.target

    def total(w: jax.Array) -> jax.Array:
        """What all minimise."""
        return STRENGTH * pjax.cross_entropy(x @ w, y).sum() + (w**2).sum() / 2

    def exactly(w: np.ndarray) -> float:
        """The same in float64."""
        w = np.asarray(w, np.float64)
        losses = logsumexp(features @ w, axis=1) - (features @ w)[np.arange(len(y)), y]
        return float(STRENGTH * losses.sum() + (w**2).sum() / 2)

    def constraints(w: jax.Array) -> Any:
        length = pjax.squared_error(w, jnp.zeros_like(w), scale=SCALE / STRENGTH)
        return pjax.cross_entropy(x @ w, y, scale=SCALE), length

    start = jnp.zeros((3, 3))
    solver = optim.DouglasRachford(constants="fixed")
    found = pjax.solve(constraints, start, solver, max_steps=steps, tolerance=0, record=True)
    path = np.array([exactly(w) for w in np.asarray(found.path)])
    model = LogisticRegression(C=STRENGTH, fit_intercept=False, tol=1e-12, max_iter=10_000).fit(features, y)
    best = model.coef_.T
    adam, descent = train(by_gradients(0.05, total), start, [()] * steps, 1, exactly)

    gaps = {
        "projections": float(np.abs(found.params - best).max()),
        "Adam": float(np.abs(adam - best).max()),
    }
    least = exactly(best)
    print(f"scikit-learn: {least:.6f}")
    for name, weights, values in (("projections", found.params, path), ("Adam", adam, descent[1:, 1])):
        further = int(np.sum(values > least + 1e-4))
        print(
            f"{name}: {exactly(weights):.6f}, more than 1e-4 above it for {further} steps; "
            f"weights differ by at most {gaps[name]:.1e}"
        )
    picture(draw(x, y, best, path, descent, least), chosen.pictures, "logistic_regression")
    return gaps


@styled
def draw(x: Any, y: Any, best: Any, path: np.ndarray, descent: np.ndarray, least: float) -> Any:
    """The flowers with what the weights say of them, and how far the sum is from its minimum."""
    about = "petal length and width of three kinds of iris; the squared length of the weights counts, too"
    figure, (plane, axis) = panels(
        2, "Logistic regression: the minimum, by projections", about, width=6.2, share=False
    )
    ends = [(v.min() - 0.3, v.max() + 0.3) for v in (x[:, 0], x[:, 1])]
    grid = np.stack(np.meshgrid(*(np.linspace(*end, 200) for end in ends)), -1)
    scores = np.concatenate([grid, np.ones_like(grid[..., :1])], -1) @ best
    colours = KINDS
    plane.contourf(
        grid[..., 0],
        grid[..., 1],
        scores.argmax(-1),
        levels=[-0.5, 0.5, 1.5, 2.5],
        colors=colours,
        alpha=0.12,
    )
    for kind, colour in enumerate(colours):
        plane.scatter(*x[y == kind, :2].T, s=26, color=colour, lw=0.6, edgecolor="white", zorder=3)
    plane.set(
        xlim=ends[0], ylim=ends[1], xlabel="petal length, standardised", ylabel="petal width, standardised"
    )
    floor = 1e-7  # what float32 weights can tell apart here
    lines = [
        ("projections", np.arange(1, len(path) + 1), path, PROJECTIONS),
        ("Adam", descent[1:, 0], descent[1:, 1], GRADIENTS),
    ]
    axis.set(xscale="log", yscale="log", xlim=(1, len(path)), ylim=(floor, 1e3))
    for _, steps, values, colour in lines:
        axis.plot(steps, np.maximum(values - least, floor), color=colour, lw=2.4)
    decades(axis.xaxis, 1, len(path))
    axis.set(xlabel="steps", ylabel="above scikit-learn's minimum")
    end_labels(
        axis, [Label(max(values[-1] - least, floor), name, colour) for name, _, values, colour in lines]
    )
    return figure


if __name__ == "__main__":
    main()
