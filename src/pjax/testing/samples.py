"""Points to check projections at: numbers of many sizes, and those that are easily forgotten."""

import numpy as np

Shapes = tuple[tuple[int, ...], ...]


def spread(rng: np.random.Generator, limits: tuple[float, ...], count: int) -> np.ndarray:
    """Numbers between the limits, evenly on a logarithmic scale."""
    low, high = np.log10(limits)
    return 10 ** rng.uniform(low, high, count)


def inputs(
    rng: np.random.Generator, count: int, core: Shapes, scales: tuple[float, float]
) -> list[np.ndarray]:
    """Numbers of many sizes, with zeros, ties, outliers and equal and opposite inputs among them."""
    size = spread(rng, scales, count)
    kind = np.arange(count) % 16
    arrays: list[np.ndarray] = []
    for shape in core:
        columns = (count,) + (1,) * len(shape)
        which = kind.reshape(columns)
        x = rng.normal(size=(count, *shape))
        outlier = (which == 5) & (rng.random(x.shape) < 0.1)
        x = np.select(
            [which == 0, which == 1, which == 4, outlier], [0 * x, 1 + 0 * x, np.round(x), 1e3 * x], x
        )
        x = x * size.reshape(columns)
        if arrays and arrays[0].shape == x.shape:
            x = np.select([which == 2, which == 3], [arrays[0], -arrays[0]], x)
        arrays.append(x)
    return arrays
