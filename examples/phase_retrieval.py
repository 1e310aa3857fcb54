"""Phase retrieval: an image from the sizes of its Fourier coefficients alone.

Diffraction measures how large Fourier coefficients are and loses their phases. What else is known is that
the image is not negative and lies inside a square. Both are sets: the nearest image with the measured sizes
is found by a Fourier transform and back, which is a projection of one's own (`pjax.sets.Own`); bounds are a
box. Together they are the whole program; Douglas-Rachford finds the image, up to a shift or a turn that
nobody can know.

Gradients: Adam on the squared differences of the sizes, with the bounds enforced after each step, from the
same starts. It ends in local minima.

    python examples/phase_retrieval.py
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _gallery import options, picture

import pjax
from pjax import optim, sets
from pjax.tools.plotting import FAINT, note, panels, styled

STEPS = 4000


def face(n: int) -> np.ndarray:
    """An image inside a square of n pixels, which is the upper left quarter of the whole."""
    y, x = np.mgrid[:n, :n] / (n - 1)
    image = np.where((y - 0.5) ** 2 + (x - 0.5) ** 2 < 0.24, 0.3, 0.0)
    for across in (0.35, 0.68):
        image[(y - 0.35) ** 2 + (x - across) ** 2 < 0.01] = 1.0
    image[(abs(y - 0.5) < 0.1) & (abs(x - 0.52) < 0.05)] = 0.6
    image[(abs(y - 0.67) < 0.05) & (abs(x - 0.5) < 0.2)] = 0.8
    image[: n // 8, 5 * n // 8 :] = 0.5  # a feather, so that it differs from its mirror image
    return np.pad(image, ((0, n), (0, n))).astype(np.float32)


def error(found: np.ndarray, truth: np.ndarray) -> tuple[float, np.ndarray]:
    """The relative error, and the image, shifted and turned as fits the truth best."""
    best = (np.inf, found)
    for image in (found, found[::-1, ::-1]):
        match = np.fft.ifft2(np.fft.fft2(truth) * np.conj(np.fft.fft2(image))).real
        shift = np.unravel_index(match.argmax(), match.shape)
        moved = np.roll(image, shift, (0, 1))
        apart = float(np.linalg.norm(moved - truth) / np.linalg.norm(truth))
        best = min(best, (apart, moved), key=lambda pair: pair[0])
    return best


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    chosen = options(__doc__, arguments)
    n, starts = (12, 4) if chosen.quick else (24, 20)
    truth = face(n)
    sizes = jnp.asarray(np.abs(np.fft.fft2(truth)))
    inside = jnp.zeros_like(sizes).at[:n, :n].set(1.0)

    def measured(x: jax.Array) -> jax.Array:
        """The nearest image with these sizes: each coefficient keeps its phase."""
        seen = jnp.fft.fft2(x)
        size = jnp.abs(seen)
        phase = jnp.where(size > 0, seen / jnp.where(size > 0, size, 1), 1)
        return jnp.fft.ifft2(sizes * phase).real

    fits, bounds = sets.Own(measured, axes=2, convex=False), sets.Box(0.0, inside)

    def image(x: jax.Array) -> jax.Array:
        return pjax.constrain(pjax.constrain(x, fits), bounds)

    def by_projections(start: jax.Array) -> Any:
        return pjax.solve(image, start, optim.DouglasRachford(), max_steps=STEPS, tolerance=1e-5)

    def by_gradients(x: jax.Array) -> jax.Array:
        def loss(x: jax.Array) -> jax.Array:
            return jnp.mean((jnp.abs(jnp.fft.fft2(x) + 1e-8) - sizes) ** 2)

        adam = optax.adam(0.02)

        def step(_: Any, carry: Any) -> Any:
            changes, state = adam.update(jax.grad(loss)(carry[0]), carry[1])
            return bounds.project(optax.apply_updates(carry[0], changes)), state

        return jax.lax.fori_loop(0, STEPS, step, (x, adam.init(x)))[0]

    first = jax.random.uniform(jax.random.key(0), (starts, 2 * n, 2 * n))
    found = jax.jit(jax.vmap(by_projections))(first)
    results = {"projections": found.params, "Adam": jax.jit(jax.vmap(by_gradients))(first)}
    errors = {name: [error(np.asarray(x), truth) for x in images] for name, images in results.items()}
    counts = {name: sum(e < 0.05 for e, _ in pairs) for name, pairs in errors.items()}
    half = np.median(found.steps)
    print(f"{starts} random starts, at most {STEPS} steps; half of the projections took {half:.0f}")
    for name, pairs in errors.items():
        apart = np.median([e for e, _ in pairs])
        print(f"{name}: {counts[name]} of {starts} find the image; median error {apart:.1%}")
    picture(draw(n, truth, sizes, errors, counts, starts), chosen.pictures, "phase_retrieval")
    return {"starts": starts} | counts


@styled
def draw(n: int, truth: Any, sizes: Any, errors: Any, counts: Any, starts: int) -> Any:
    """The truth, what is measured, and what each method found from its median start."""
    titles = ["the image", "what is measured", "projections", "Adam"]
    about = f"from the sizes of Fourier coefficients to the image; {starts} random starts each"
    title = (
        f"Phase retrieval: {counts['projections']} of {starts} by projections, {counts['Adam']} by gradients"
    )
    figure, axes = panels(4, title, about, titles=titles, width=3.7, height=4.9, share=False)
    middle = {
        name: sorted(pairs, key=lambda pair: pair[0])[len(pairs) // 2] for name, pairs in errors.items()
    }
    images = [truth[:n, :n], np.log1p(np.fft.fftshift(sizes))]
    images += [image[:n, :n] for _, image in middle.values()]
    below = ["", "logarithmic", *(f"error {apart:.0%}" for apart, _ in middle.values())]
    for axis, shown, text, place in zip(axes, images, below, range(4), strict=True):
        limits = {} if place == 1 else {"vmin": 0, "vmax": 1}
        axis.imshow(shown, cmap="magma" if place == 1 else "gray_r", interpolation="nearest", **limits)
        axis.set(xticks=[], yticks=[])
        axis.grid(False)
        for side in ("top", "right"):
            axis.spines[side].set_visible(True)
        axis.set_xlabel(text, fontsize=13, color=FAINT, loc="left")
    note(figure, ["of each method the start with the median error is shown"])
    return figure


if __name__ == "__main__":
    main()
