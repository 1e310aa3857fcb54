"""The picture of violations: nodes from top to bottom, steps from left to right."""

from typing import TYPE_CHECKING, Any

import numpy as np

from pjax.tools.plotting import FAINT, linear_scale, module, styled

if TYPE_CHECKING:
    from pjax.debug._violations import Violations

# From what holds to what does not, four tones to a decade; and what is not a number.
COLOURS = ("#f4f5f6", "#fbe3b5", "#f5a65b", "#d6453d", "#5c1230")
NOT_FINITE = "#1f6feb"
LEAST, MOST, TONES = 1e-6, 1.0, 24

_NAMED = 60  # more rows than this cannot all be named
_LETTER = 0.115  # inches
_WORDS = {"falls": "falls to", "stays": "stays at", "grows": "grows to"}


@styled
def draw(found: "Violations") -> Any:
    """A heat map, with what became of each node and its line at the right."""
    number = len(found.nodes)
    named = range(0, number, -(-number // _NAMED))
    names = {i: found.nodes[i].label for i in named}
    places = {i: found.nodes[i].place for i in named}
    row = max(min(0.42, 14 / number), 0.05)
    left = 0.6 + _LETTER * max(map(len, names.values()))
    trends, right = 2.2, 0.3 + 0.1 * max(map(len, places.values()))
    top, bottom = 1.25, 1.6
    across, down = 6.2, row * number
    width, height = left + across + trends + right, top + down + bottom
    figure = module("matplotlib.figure").Figure(figsize=(width, height))
    module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    axis = figure.add_axes((left / width, bottom / height, across / width, down / height))
    image = _image(axis, found.values.T)
    for side in axis.spines.values():
        side.set_visible(False)
    if row > 0.2:
        axis.hlines(np.arange(number - 1) + 0.5, 0.5, found.steps + 0.5, color="white", lw=1.6)
    axis.set_yticks(list(names), list(names.values()))
    axis.tick_params(length=0, pad=6)
    axis.set_xlabel("step")
    linear_scale(axis.xaxis)
    for i, place in places.items():
        trend, bad = found.trend(i), found.nodes[i] in found.stuck
        text = f"{_WORDS[trend]} {_percent(found.values[-1, i])}" if trend in _WORDS else trend
        strong = {"color": COLOURS[3], "fontweight": "bold"} if bad else {"color": FAINT}
        where = {"transform": axis.transAxes, "va": "center"}
        axis.text(1 + 0.12 / across, 1 - (i + 0.5) / number, text, **where, **strong)
        where |= {"color": FAINT, "fontsize": 12.5}
        axis.text(1 + trends / across, 1 - (i + 0.5) / number, place, **where)
    _scale(figure, image, left / width, 0.55 * across / width, np.isfinite(found.values).all())
    about = (
        f"{found.method}, {found.steps} steps: distance of each node from its function, relative to its size"
    )
    figure.text(
        0.3 / width, 1 - 0.42 / height, "Which constraints hold", fontsize=21, fontweight="bold", va="center"
    )
    figure.text(0.3 / width, 1 - 0.8 / height, about, fontsize=14, color=FAINT, va="center")
    return figure


def _image(axis: Any, values: np.ndarray) -> Any:
    colours = module("matplotlib.colors")
    tones = colours.LinearSegmentedColormap.from_list("violation", COLOURS, N=TONES)
    rows, steps = values.shape
    return axis.imshow(
        np.ma.masked_invalid(np.maximum(values, LEAST)),
        cmap=tones.with_extremes(bad=NOT_FINITE),
        norm=colours.LogNorm(LEAST, MOST, clip=True),
        aspect="auto",
        interpolation="nearest",
        extent=(0.5, steps + 0.5, rows - 0.5, -0.5),
    )


def _scale(figure: Any, image: Any, left: float, width: float, finite: bool) -> None:
    """What the colours mean, below the map."""
    height = figure.get_size_inches()[1]
    box = figure.add_axes((left, 0.52 / height, width, 0.16 / height))
    bar = figure.colorbar(image, cax=box, orientation="horizontal")
    bar.outline.set_visible(False)
    bar.set_ticks([1e-6, 1e-4, 1e-2, 1.0], labels=["≤ 0.0001 %", "0.01 %", "1 %", "100 %"])
    bar.ax.tick_params(length=0, labelsize=12.5, which="both")
    bar.ax.minorticks_off()
    if not finite:
        where = {"va": "center", "color": NOT_FINITE, "fontsize": 12.5}
        figure.text(left + 1.08 * width, 0.6 / height, "not a number", **where)


def _percent(x: float) -> str:
    """A part of a whole, to one digit or to the percent.

    >>> _percent(1.0), _percent(0.143), _percent(0.00512)
    ('100 %', '14 %', '0.5 %')
    """
    return f"{100 * x:.0f} %" if x >= 0.01 else f"{100 * x:.1g} %"
