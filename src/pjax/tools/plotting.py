"""What figures are made of: panels, lines and their labels, scales, files.

matplotlib is imported when a figure is drawn, and not before.
"""

import dataclasses
import functools
import importlib
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np

from pjax.checks import check_name
from pjax.errors import PjaxError
from pjax.tools.files import write_atomically

P = ParamSpec("P")

INK, FAINT, GRID = "#22262a", "#6b7278", "#e6e8ea"
STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture everywhere
    "font.size": 14,
    "axes.edgecolor": "#a8adb2",
    "axes.linewidth": 1.0,
    "axes.labelcolor": INK,
    "axes.labelsize": 15,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 13.5,
    "ytick.labelsize": 13.5,
    "text.color": INK,
    "svg.hashsalt": "pjax",
}
DPI = 150
FORMATS = ("png", "svg")
"""Of files."""
_MOST_POINTS = 120  # of a line; more cannot be seen


def module(name: str, extra: str = "experiments") -> Any:
    """A module of an extra, imported when it is needed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise PjaxError(f'pictures need {package}: pip install "pjax-learn[{extra}]"') from None


def styled(draw: Callable[P, Any]) -> Callable[P, Any]:
    """A function that draws with the style of these figures, whatever the user's own."""

    @functools.wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        with module("matplotlib.style").context(STYLE, after_reset=True):
            return draw(*args, **kwargs)

    return wrapped


# --- Figures and files ---


def panels(
    number: int,
    title: str,
    subtitle: str,
    *,
    titles: Sequence[str] = (),
    labels: Sequence[str] = (),
    width: float = 5.2,
    height: float = 6.4,
    share: bool = True,
    rows: int = 1,
) -> tuple[Any, list[Any]]:
    """A figure with panels beside each other, each with room for labels at its right.

    Args:
        number: of panels beside each other.
        title, subtitle: above them all.
        titles: above each.
        labels: that will stand at their right; where they are long the figure is wider.
        width, height: inches of a panel with its labels, and of a figure with one row.
        share: whether the panels have one vertical axis in common.
        rows: how many rows of panels there are, the first with titles.
    """
    left, gap, room = 1.2, 1.84 if share else 1.3, 1.9
    longer = max(0.0, max((0.12 * len(label) for label in labels), default=0.0) + 0.4 - room)
    gap, room = gap + (longer if share else 0.0), room + longer
    total = max(width * number + 0.9, 10.6) + longer * (number if share else 1)
    bottom, top = 1.15, 1.4 if titles else 1.15
    tall, wide = height - bottom - top, (total - left - room - gap * (number - 1)) / number
    height += (rows - 1) * (tall + bottom)
    figure = module("matplotlib.figure").Figure((total, height))
    axes = figure.subplots(rows, number, squeeze=False, sharey=share)
    figure.subplots_adjust(left=left / total, right=1 - room / total, wspace=gap / wide)
    figure.subplots_adjust(bottom=bottom / height, top=1 - top / height, hspace=bottom / tall)
    for (row, index), axis in np.ndenumerate(axes):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(True, color=GRID, lw=0.9)
        axis.set_axisbelow(True)
        axis.tick_params(length=0, pad=6, which="both", labelleft=not (share and index))
        if titles and not row:
            axis.set_title(titles[index], loc="left", fontsize=16, fontweight="bold", pad=10)
    figure.text(left / total, 1 - 0.42 / height, title, fontsize=21, fontweight="bold", va="center")
    figure.text(left / total, 1 - 0.80 / height, subtitle, fontsize=14, color=FAINT, va="center")
    return figure, list(axes.flat)


def note(figure: Any, parts: Sequence[str]) -> None:
    """An explanation below the panels, on as many lines as it needs."""
    width, height = figure.get_size_inches()
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}   ·   {part}" if lines else part
        if lines and 0.1 * len(longer) < width - 1.2:  # letters of this size are a tenth of an inch wide
            lines[-1] = longer
        else:
            lines.append(part)
    start = figure.axes[0].get_position().x0
    for index, line in enumerate(reversed(lines)):
        above = (0.3 if len(lines) == 1 else 0.18) + 0.25 * index
        figure.text(start, above / height, line, fontsize=12.5, color=FAINT, va="center")


def save(figure: Any, path: str | Path, formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
    """Write a figure as ``path.png``, ``path.svg``; each is there whole or not at all."""
    for name in formats:
        check_name("a format of plots", name, FORMATS)
    return tuple(write_atomically(Path(f"{path}.{name}"), _rendered(figure, name)) for name in formats)


@styled
def _rendered(figure: Any, name: str) -> bytes:
    buffer, smaller = io.BytesIO(), io.BytesIO()
    for text in figure.findobj(
        module("matplotlib.text").Text
    ):  # a file's name may be of bytes that are no text
        if (known := text.get_text().encode("utf-8", "replace").decode()) != text.get_text():
            text.set_text(known)
    # Neither the date nor the version of matplotlib: what did not change is the same file.
    metadata = {"Date": None} if name == "svg" else {"Software": None}
    # Larger than the figure where something would be cut off.
    whole = figure.bbox_inches.union([figure.get_tightbbox().padded(0.15), figure.bbox_inches])
    figure.savefig(buffer, format=name, dpi=DPI, metadata=metadata, facecolor="white", bbox_inches=whole)
    if name == "svg":
        return buffer.getvalue()
    # With at most 256 colours, a third of the size, and no difference to be seen.
    image = module("PIL.Image").open(buffer).convert("RGB")
    image.quantize(256, dither=0).save(smaller, "PNG", optimize=True, dpi=(DPI, DPI))
    return smaller.getvalue()


# --- Lines and labels ---


def thin(*columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """The points of a line worth drawing: the first and the last among them, densest at the start."""
    length = len(columns[0])
    if length <= _MOST_POINTS:
        return columns
    chosen = np.unique(np.geomspace(1, length, _MOST_POINTS).round().astype(int)) - 1
    return tuple(column[chosen] for column in columns)


def shade(colour: str, place: int, number: int) -> str:
    """One of several shades of a colour, from dark to light; the colour itself where there is one.

    >>> shade("#cf1b2b", 0, 1), shade("#808080", 0, 2), shade("#808080", 1, 2)
    ('#cf1b2b', '#606060', '#9f9f9f')
    """
    mixed = (2 * place - number + 1) / (2 * number)  # less than half of black, or of white
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    ends = [part + mixed * (255 - part) if mixed > 0 else part * (1 + mixed) for part in parts]
    return "#" + "".join(f"{int(end):02x}" for end in ends)


@dataclasses.dataclass(frozen=True)
class Label:
    """A label at the right of a panel, for a line that ends at a value."""

    value: float
    text: str
    colour: str
    strong: bool = False


def end_labels(axis: Any, labels: Sequence[Label]) -> None:
    """Put labels at the right of a panel, each as near to its value as the others let it."""
    labels = [label for label in labels if math.isfinite(label.value)]
    to_axes = axis.transData + axis.transAxes.inverted()
    ends = [to_axes.transform((axis.get_xlim()[1], label.value))[1] for label in labels]
    height = axis.get_position().height * axis.figure.get_size_inches()[1]
    for label, end, place in zip(labels, ends, spread_apart(ends, 0.25 / height), strict=True):
        where = {"transform": axis.transAxes, "clip_on": False, "color": label.colour}
        axis.plot([1.018, 1.05], [end, place], lw=1.0, alpha=0.7, **where)
        weight = "bold" if label.strong else "normal"
        axis.text(1.06, place, label.text, fontsize=14, fontweight=weight, va="center", **where)


def spread_apart(positions: Sequence[float], gap: float) -> list[float]:
    """The positions nearest to the given ones, in the same order, that are at least a gap apart.

    >>> [round(p, 3) for p in spread_apart([0.5, 0.9, 0.5], gap=0.1)]
    [0.45, 0.9, 0.55]
    """
    order = sorted(range(len(positions)), key=positions.__getitem__)
    places = apart([positions[i] for i in order], [gap] * (len(order) - 1))
    return [place for _, place in sorted(zip(order, places, strict=True))]


def apart(
    wanted: Sequence[float], gaps: Sequence[float], weights: Sequence[float] | None = None
) -> list[float]:
    """The places nearest to the wanted ones, in the same order, with at least the gaps between neighbours.

    >>> apart([0.0, 0.0], [12.0])
    [-6.0, 6.0]
    """
    if not wanted:
        return []
    # Without their gaps the places must only not fall.
    offsets = np.cumsum([0.0, *gaps])
    fit = importlib.import_module("scipy.optimize").isotonic_regression  # scipy comes with JAX; it takes long
    return (fit(np.subtract(wanted, offsets), weights=weights).x + offsets).tolist()


# --- Scales ---


def accuracy_scale(axis: Any, accuracies: np.ndarray, label: str = "") -> None:
    """A vertical axis for accuracies in percent.

    Where some are near 100 %, it is a logarithmic scale of the errors: or all would be one line at the top.
    Its label, if it has one, then says so.
    """
    top, bottom = float(np.nanmax(accuracies)), float(np.nanmin(accuracies))
    ticker = module("matplotlib.ticker")
    stretched = top > 90
    if label:
        axis.set_ylabel(label + "\nstretched near 100" * stretched)
    if stretched:
        full = 100.0 if top <= 99.8 else 100.3  # beyond that 100 must be on the scale
        least = max(0.2, 0.65 * (full - top))  # the error at the upper end
        axis.set_yscale(
            "function",
            functions=(
                lambda a: -np.log10(np.maximum(full - np.asarray(a, dtype=np.float64), least / 2)),
                lambda s: full - 10.0 ** -np.asarray(s, dtype=np.float64),
            ),
        )
        axis.set_ylim(max(0.0, full - 1.15 * (full - bottom)), full - least)
        ticks = [t for t in (0, 40, 60, 80, 90, 95, 97, 98, 99, 99.5, 100) if t <= full - least]
        axis.yaxis.set_major_locator(ticker.FixedLocator(ticks))
    else:
        room = 0.06 * (top - bottom) + 0.5
        axis.set_ylim(max(0.0 if top > 0 else -np.inf, bottom - room), min(100.0, top + room))
        axis.yaxis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_locator(ticker.NullLocator())


def linear_scale(axis: Any) -> None:
    """Few round ticks on one of an axis's two directions, ``axes.xaxis`` or ``axes.yaxis``."""
    axis.set_major_locator(module("matplotlib.ticker").MaxNLocator(5, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(lambda value, _: thousands(value))


def decades(axis: Any, low: float, high: float) -> None:
    """Ticks at 1, 10, 100, and at 3, or 2 and 5, between them where there would be few."""
    ticker = module("matplotlib.ticker")
    subs = (1.0, 2.0, 5.0) if high < 40 * low else (1.0, 3.0) if high < 3e3 * low else (1.0,)
    axis.set_major_locator(ticker.LogLocator(base=10, subs=subs, numticks=12))
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(lambda value, _: thousands(value))


def thousands(value: float) -> str:
    """A number as ticks show it.

    >>> thousands(0.3), thousands(500), thousands(20_000), thousands(1_500_000)
    ('0.3', '500', '20k', '1.5M')
    """
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
