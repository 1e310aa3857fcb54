"""Non-negative matrix factorisation: the parts that images are made of.

Images show bars, horizontal and vertical ones, each there or not. A matrix of them is a product of two
matrices without negative numbers: which bars are where, and what each bar looks like. That is one product
with two factors in sets and a target; Douglas-Rachford finds the factors exactly, bar by bar.

Gradients: Adam on the squared error, with negative numbers set to zero after each step, from the same
starts. This problem is kind: it finds the bars, too. A second one is not: the squared distances of six
points on a line, as a product of rank five. There Adam always ends in a local minimum, and projections
mostly find no end; but sometimes they find an exact product.

    python examples/nmf.py
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _gallery import options, picture

import pjax
from pjax import optim, sets
from pjax.tools.plotting import FAINT, note, panels, styled

SIDE, IMAGES = 4, 40
EXACT = 2e-3  # relative error below which a product counts as exact


def bars() -> tuple[np.ndarray, np.ndarray]:
    """Images, one in each row, and the bars."""
    rng = np.random.default_rng(0)
    lines = np.eye(SIDE)[:, :, None] * np.ones(SIDE)
    parts = np.concatenate([lines, lines.swapaxes(1, 2)]).reshape(2 * SIDE, -1)
    return (rng.random((IMAGES, len(parts))) < 0.5) @ parts, parts


def distances(n: int) -> np.ndarray:
    """Squared distances of points on a line."""
    apart = (np.arange(n)[:, None] - np.arange(n)) ** 2
    return apart / apart.mean()


def by_projections(steps: int, matrix: jax.Array) -> Callable[[Any], Any]:
    """Factors whose product is the matrix, by Douglas-Rachford."""

    def product(p: Any) -> jax.Array:
        left, right = (pjax.constrain(factor, sets.NonNegative()) for factor in p)
        return pjax.squared_error(left @ right, matrix)

    def run(start: Any) -> Any:
        solver = optim.DouglasRachford(consensus="exact")
        return pjax.solve(product, start, solver, max_steps=steps, tolerance=1e-4).params

    return run


def by_adam(steps: int, matrix: jax.Array) -> Callable[[Any], Any]:
    """The same by gradients of the squared error."""
    adam = optax.adam(0.01)

    def step(_: Any, carry: Any) -> Any:
        slope = jax.grad(lambda p: jnp.mean((p[0] @ p[1] - matrix) ** 2))(carry[0])
        changes, state = adam.update(slope, carry[1])
        return jax.tree.map(lambda x: jnp.maximum(x, 0), optax.apply_updates(carry[0], changes)), state

    return lambda start: jax.lax.fori_loop(0, steps, step, (start, adam.init(start)))[0]


METHODS = {"projections": by_projections, "Adam": by_adam}


def factorise(
    matrix: np.ndarray, rank: int, starts: int, steps: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """For each method the factors from each start, and the relative errors of their products."""
    keys = jax.random.split(jax.random.key(0), (2, starts))
    shapes = ((len(matrix), rank), (rank, matrix.shape[1]))
    first = tuple(
        jax.vmap(lambda key, shape=shape: jax.random.uniform(key, shape))(k)
        for k, shape in zip(keys, shapes, strict=True)
    )
    target = jnp.asarray(matrix, jnp.float32)
    found, errors = {}, {}
    for name, method in METHODS.items():
        factors = jax.jit(jax.vmap(method(steps, target)))(first)
        found[name] = tuple(np.maximum(np.asarray(factor), 0) for factor in factors)
        off = np.linalg.norm(found[name][0] @ found[name][1] - matrix, axis=(1, 2))
        errors[name] = off / np.linalg.norm(matrix)
    return found, errors


def recovered(parts: np.ndarray, found: np.ndarray) -> int:
    """How many parts are among those found, up to their brightness."""
    units = [m / np.maximum(np.linalg.norm(m, axis=1, keepdims=True), 1e-9) for m in (parts, found)]
    return int(((units[0] @ units[1].T).max(1) > 0.99).sum())


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    chosen = options(__doc__, arguments)
    starts, steps = (1, 1500) if chosen.quick else (8, 3000)
    images, parts = bars()
    found, errors = factorise(images, len(parts), starts, steps)
    hard = factorise(distances(6), 5, starts, steps if chosen.quick else 15_000)[1]
    counts = {}
    for name in METHODS:
        counts[name] = np.mean([recovered(parts, right) for right in found[name][1]])
        exact = sum(hard[name] < EXACT)
        print(
            f"{name}: {counts[name]:.1f} of {len(parts)} bars, median error {np.median(errors[name]):.2%}; "
            f"distances: {exact} of {starts} exact, median error {np.median(hard[name]):.2%}"
        )
    picture(draw(images, parts, found, counts), chosen.pictures, "nmf")
    return {name: float(count) for name, count in counts.items()} | {"parts": len(parts)}


@styled
def draw(images: np.ndarray, parts: np.ndarray, found: dict[str, Any], counts: dict[str, Any]) -> Any:
    """Some images, and the parts that projections find in them."""
    about = f"{IMAGES} images of {2 * SIDE} bars, each there or not, as a product of non-negative factors"
    titles = ["some of the images", "parts found by projections"]
    figure, axes = panels(
        2, "Parts of images by projections", about, titles=titles, width=5.8, height=4.5, share=False
    )
    right = found["projections"][1][0]
    order = np.argmax(parts @ right.T, axis=1)  # for each bar what looks most like it
    shown = [images[:8] / images.max(), right[order] / right[order].max(1, keepdims=True)]
    for axis, rows in zip(axes, shown, strict=True):
        canvas = np.full((2 * (SIDE + 1) - 1, 4 * (SIDE + 1) - 1), np.nan)
        for place, row in enumerate(rows):
            y, x = (SIDE + 1) * (place // 4), (SIDE + 1) * (place % 4)
            canvas[y : y + SIDE, x : x + SIDE] = row.reshape(SIDE, SIDE)
            left, top, end = x - 0.5, y - 0.5, SIDE
            square = [left, left + end, left + end, left, left], [top, top, top + end, top + end, top]
            axis.plot(*square, color=FAINT, lw=0.8, clip_on=False)
        axis.imshow(canvas, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        axis.set(xticks=[], yticks=[], anchor="NW")
        axis.grid(False)
        for side in axis.spines.values():
            side.set_visible(False)
    words = ", ".join(f"{name} {count:.1f}" for name, count in counts.items())
    note(figure, [f"parts found of {len(parts)}, mean over random starts: {words}"])
    return figure


if __name__ == "__main__":
    main()
