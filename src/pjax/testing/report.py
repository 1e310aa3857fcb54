"""Where checks look, and what they report."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

# --- Points to check projections at: numbers of many sizes, and those that are easily forgotten ---

Shapes = tuple[tuple[int, ...], ...]

SCALES = 1e-4, 1e6


def drawn_sizes(rng: np.random.Generator, limits: tuple[float, float], count: int) -> np.ndarray:
    """Numbers between the limits, evenly on a logarithmic scale."""
    low, high = np.log10(limits)
    return 10 ** rng.uniform(low, high, count)


def drawn_weights(rng: np.random.Generator, count: int) -> np.ndarray:
    """Weights of outputs."""
    return drawn_sizes(rng, (1.0, 1000.0), count)


def drawn_inputs(
    rng: np.random.Generator, count: int, core: Shapes, scales: tuple[float, float] = SCALES
) -> list[np.ndarray]:
    """Numbers of many sizes, with zeros, ties, outliers and equal and opposite inputs among them."""
    size = drawn_sizes(rng, scales, count)
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


# --- What a check reports, and how it complains ---

TOLERANCE = {"float64": 1e-7, "float32": 1e-3}
"""The largest relative excess that is forgiven."""
ROUNDINGS = 16
"""How many units of rounding are forgiven."""


class Report(NamedTuple):
    """What `check_projection` measured."""

    points: int
    """How many points were projected and searched."""
    excess: float
    """Largest relative excess of the squared distance over the best point that the search found."""
    offset: float
    """Largest distance of the output from the function of the inputs, in units of rounding."""
    drift: float
    """Largest move when projecting a second time, in units of rounding."""


def worst(reports: Iterable[Report]) -> Report:
    """All points, and the largest figures."""
    total = Report(0, 0.0, 0.0, 0.0)
    for found in reports:
        total = Report(total.points + found.points, *map(max, total[1:], found[1:]))
    return total


def relative_excess(found: Any, best: Any, off: Any, noise: Any = 0.0) -> Any:
    """How much more costs are than the best known, next to themselves, and beyond what rounding can do.

    Args:
        found, best: the costs.
        off: by how much rounding may put a point off.
        noise: what else costs may be off by.
    """
    slack = 2 * abs(best) ** 0.5 * off + off * off + noise
    return (found - best - slack).clip(0) / abs(found).clip(1e-300)


def brief(array: np.ndarray) -> str:
    """An array in a line."""
    return np.array2string(array, threshold=8, edgeitems=3)


class Witness(NamedTuple):
    """Speaks for a rule at some points."""

    name: str
    describe: Callable[[int], str]
    """Says what point i is."""

    def demand(
        self, what: str, passed: Any, figures: Any = None, detail: Callable[[int], str] | str = ""
    ) -> None:
        """Raise an AssertionError about the worst point, unless all of them pass."""
        rows: Any = np.asarray(passed).reshape(len(passed), -1).all(-1)
        if rows.all():
            return
        if figures is None:
            row, amount = int(np.argmin(rows)), ""
        else:
            row = int(np.argmax(np.where(rows, -np.inf, np.nan_to_num(figures, nan=np.inf))))
            amount = f" by {figures[row]:.3g} {detail if isinstance(detail, str) else detail(row)}".rstrip()
        raise AssertionError(
            f"{self.name}: failed: {what}{amount} ({(~rows).sum()} of {len(rows)} points). "
            f"Point {row}: {self.describe(row)}."
        )

    def report(
        self,
        excess: np.ndarray,
        offset: np.ndarray,
        drift: np.ndarray,
        limit: float,
        costs: Callable[[int], str] | str = "",
    ) -> Report:
        """What was measured, if it is what is demanded of projections."""
        self.demand("the result lies on the graph", offset <= ROUNDINGS, offset, "units of rounding off")
        self.demand("projecting again changes nothing", drift <= ROUNDINGS, drift, "units of rounding")
        self.demand("no better point exists", excess <= limit, excess, costs)
        return Report(len(excess), float(excess.max()), float(offset.max()), float(drift.max()))

    def kept(self, given: Any, result: Any) -> None:
        """Demand that types and shapes are those of what was given, and that the result is finite."""
        for want, got in zip(jax.tree.leaves(given), jax.tree.leaves(result), strict=True):
            if got.dtype != want.dtype or got.shape != want.shape:
                raise AssertionError(
                    f"{self.name}: types and shapes are kept: {want.dtype}{list(want.shape)} became "
                    f"{got.dtype}{list(got.shape)}."
                )
            finite = np.isfinite(got.astype(np.float64))
            self.demand(f"the result is finite, in {got.dtype}", finite)
