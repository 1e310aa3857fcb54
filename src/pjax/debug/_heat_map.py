"""The picture of violations: nodes from top to bottom, steps from left to right."""

from typing import TYPE_CHECKING, Any

import numpy as np

from pjax.experiments._drawing import FAINT, INK, linear_scale, module, styled

if TYPE_CHECKING:
    from pjax.debug._violations import Violations

# From what holds to what does not; and what is not a number.
COLOURS = ("#f4f5f6", "#fbe3b5", "#f5a65b", "#d6453d", "#5c1230")
NOT_FINITE = "#1f6feb"
LEAST, MOST = 1e-6, 1.0
_NAMED = 60  # more rows than this cannot all be named


@styled
def draw(found: "Violations") -> Any:
    """A heat map with what became of each node at its right."""
    number = len(found.nodes)
    every = -(-number // _NAMED)
    names = [node.label if i % every == 0 else "" for i, node in enumerate(found.nodes)]
    row = max(min(0.42, 14 / number), 0.05)
    left, right, top, bottom = 0.6 + 0.115 * max(map(len, names)), 2.3, 1.35, 1.75
    across, down = max(6.2, 10.4 - left - right), row * number
    width, height = left + across + right, top + down + bottom
    figure = module("matplotlib.figure").Figure(figsize=(width, height))
    module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    axis = figure.add_axes((left / width, bottom / height, across / width, down / height))
    colours = module("matplotlib.colors")
    scale = colours.LinearSegmentedColormap.from_list("violation", COLOURS).with_extremes(bad=NOT_FINITE)
    norm = colours.LogNorm(LEAST, MOST, clip=True)
    values = np.where(np.isfinite(found.values), np.maximum(found.values, LEAST), np.nan)
    edges = (0.5, found.steps + 0.5, number - 0.5, -0.5)
    image = axis.imshow(
        np.ma.masked_invalid(values.T),
        cmap=scale,
        norm=norm,
        aspect="auto",
        interpolation="nearest",
        extent=edges,
    )
    for side in axis.spines.values():
        side.set_visible(False)
    if row > 0.2:
        axis.hlines(np.arange(number - 1) + 0.5, *edges[:2], color="white", lw=1.6)
    axis.set_yticks(range(number), names)
    axis.tick_params(length=0, pad=6)
    axis.set_xlabel("step")
    linear_scale(axis.xaxis)
    for i, node in enumerate(found.nodes):
        if i % every:
            continue
        trend = found.trend(i)
        bad = node in found.stuck
        axis.text(
            1.02,
            1 - (i + 0.5) / number,
            f"{trend}, {found.values[-1, i]:.0e}" if trend in ("falls", "stays", "grows") else trend,
            transform=axis.transAxes,
            va="center",
            color=COLOURS[3] if bad else FAINT,
            fontweight="bold" if bad else "normal",
        )
    bar = figure.colorbar(
        image,
        cax=figure.add_axes((left / width, 0.62 / height, 0.55 * across / width, 0.16 / height)),
        orientation="horizontal",
    )
    bar.outline.set_visible(False)
    bar.set_ticks([1e-6, 1e-4, 1e-2, 1.0], labels=["≤ 10⁻⁶", "10⁻⁴", "10⁻²", "1"])
    bar.ax.tick_params(length=0, labelsize=12.5, which="both")
    bar.ax.minorticks_off()
    where = {"va": "center", "color": FAINT, "fontsize": 12.5}
    figure.text((left + 0.6 * across) / width, 0.7 / height, "blue: not a number", **where)
    figure.text(
        0.3 / width,
        1 - 0.42 / height,
        "Which constraints hold",
        fontsize=21,
        fontweight="bold",
        va="center",
        color=INK,
    )
    figure.text(
        0.3 / width,
        1 - 0.8 / height,
        f"{found.method}, {found.steps} steps: distance of each node from its function, relative to its size",
        fontsize=14,
        color=FAINT,
        va="center",
    )
    return figure
