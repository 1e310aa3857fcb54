"""A diagram as SVG: text stays text, and what is behind a box or a wire shows when one points at it."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TypeAlias

from pjax.tools.drawing import names
from pjax.tools.drawing.diagram import CONSTANT, INK, SETS, Arrow, Box, Diagram, Style, paint
from pjax.tools.drawing.place import Rectangle, Route, Size, place
from pjax.tools.plotting import module

FONT = "DejaVu Sans"
"""Comes with matplotlib, and is wider than most: other fonts fit into the same boxes."""
MARGIN = 18.0
_TITLE, _SUBTITLE, _LABEL, _NOTE = 12.0, 10.0, 9.0, 10.0  # sizes of letters
_HEIGHT = 44.0  # of a box
_STACK = 4.0  # how far the sheets of a stack are apart
_LONGEST = 30  # letters of a title
FAINT, WIRE, PALE = "#5d656c", "#6b7278", "#d5d9dd"
_PLAIN = Style("#ffffff", FAINT)
_HEAD = (
    '<marker id="head" viewBox="0 0 7 7" refX="7" refY="3.5" markerWidth="7" markerHeight="7"'
    f' markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L7 3.5L0 7Z" fill="{WIRE}"/></marker>'
)


def svg_text(diagram: Diagram) -> str:
    """The text of an ``.svg`` file. One unit is a seventy-second of an inch."""
    sizes = {box.key: box_size(box) for box in diagram.boxes}
    labels = [label_size(arrow) if arrow.label else None for arrow in diagram.arrows]
    placed = place(diagram, sizes, labels)
    wires, pills = [], []
    for i, (arrow, route) in enumerate(zip(diagram.arrows, placed.routes, strict=True)):
        key = f"{arrow.source}-{arrow.target}-{arrow.input}-{i}"
        wires.append(_group("wire", key, arrow.tooltip, [_wire(arrow, route)]))
        if route.label is not None:
            pills.append(
                _group("label", f"{key}-label", arrow.tooltip, _pill(arrow.label_lines, route.label))
            )
    boxes = [_group("box", b.key, b.tooltip, _box(b, placed.boxes[b.key])) for b in diagram.boxes]
    entries = list(_entries(diagram))
    width = max(placed.width, *(entry[0] for entry in entries), 400.0)
    legend, height = _legend(entries, width)
    total = _number(width + 2 * MARGIN), _number(placed.height + 34 + height + 2 * MARGIN)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total[0]}" height="{total[1]}"'
        f' viewBox="0 0 {total[0]} {total[1]}"'
        f""" font-family="Helvetica, Arial, '{FONT}', sans-serif">""",
        _HEAD,
        f'<rect width="{total[0]}" height="{total[1]}" fill="#ffffff"/>',
        *_moved([*wires, *pills, *boxes], MARGIN + (width - placed.width) / 2, MARGIN),
        *_moved([_group("legend", "legend", "", legend)], MARGIN, MARGIN + placed.height + 26),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


@functools.cache
def text_width(text: str, size: float, bold: bool = False) -> float:
    """How wide a text is."""
    properties = module("matplotlib.font_manager", "draw").FontProperties(
        family=FONT, size=size, weight="bold" if bold else "normal"
    )
    measure = module("matplotlib.textpath", "draw").text_to_path.get_text_width_height_descent
    return float(measure(text, properties, ismath=False)[0])


def box_size(box: Box) -> Size:
    """Width and height of a box."""
    title = text_width(names.short(box.title, _LONGEST), _TITLE, True)
    round_ends = 26.0 if box.kind == "parameter" else 18.0
    return max(max(title, text_width(box.subtitle, _SUBTITLE)) + round_ends, 62.0), _HEIGHT


def label_size(arrow: Arrow) -> Size:
    """Width and height of the label of an arrow."""
    lines = arrow.label_lines
    return max(text_width(line, _LABEL) for line in lines) + 12, 5.0 + 11.5 * len(lines)


# --- Boxes and wires ---


def _box(box: Box, at: Rectangle) -> Iterator[str]:
    style = paint(box)
    yield from _outline(box.kind, at, style, min(box.count - 1, 2))
    yield _words(at.x, at.y - 7.5, names.short(box.title, _LONGEST), _TITLE, INK, bold=True)
    yield _words(at.x, at.y + 9, box.subtitle, _SUBTITLE)
    left, top = at.x - at.width / 2, at.y - at.height / 2
    if box.set is not None:
        text = str(box.set + 1)
        width = max(text_width(text, 8.0, True) + 6, 13.0)
        yield _rounded(Rectangle(left + 6, top + 1, width, 13), 6.5, Style(style.line, "#ffffff"), 1.0)
        yield _words(left + 6, top + 1, text, 8.0, "#ffffff", bold=True)
    if box.count > 1:
        width = text_width(box.times, _LABEL, True) + 10
        badge = Rectangle(at.x + at.width / 2 - width / 2 + 12, top + at.height + 5, width, 15)
        yield _rounded(badge, 7.5, Style("#ffffff", style.line), 1.1)
        yield _words(badge.x, badge.y, box.times, _LABEL, style.line, bold=True)


def _outline(kind: str, at: Rectangle, style: Style, behind: int = 0) -> Iterator[str]:
    """A box of a kind without its texts; ``behind`` it, as in a stack, others."""
    radius = {"parameter": at.height / 2, "constant": 1.5}.get(kind, min(7.0, at.height / 4))
    apart = min(_STACK, at.height / 5)
    for k in range(behind, -1, -1):
        sheet = at._replace(x=at.x + k * apart, y=at.y + k * apart)
        yield _rounded(sheet, radius, style, 1.6 if kind == "target" else 1.2, dashed=kind == "identity")
    if kind == "target":  # a double line
        inside = at._replace(width=at.width - 5, height=at.height - 5)
        yield _rounded(inside, min(7.0, inside.height / 3), Style("none", style.line), 0.9)


def _wire(arrow: Arrow, route: Route) -> str:
    steps = [f"M{_point(route.start)}"]
    for segment in route.segments:
        steps.append(("C" if len(segment) > 1 else "L") + " ".join(map(_point, segment)))
    return _line("".join(steps), arrow.role != "edges", ' marker-end="url(#head)"')


def _pill(lines: Sequence[str], at: Rectangle) -> Iterator[str]:
    yield _rounded(at, 8.0, Style("#ffffff", PALE), 1.0)
    for k, line in enumerate(lines):
        yield _words(at.x, at.y + 11.5 * (k - (len(lines) - 1) / 2), line, _LABEL)


# --- Legend ---

Entry: TypeAlias = tuple[float, list[str]]
"""The width of a sample with its meaning, and both, at the origin."""


def _entries(diagram: Diagram) -> Iterator[Entry]:
    """One for each kind of thing in the picture."""
    spot = Rectangle(11, 0, 22, 13)
    every = [[str(s + 1) for s in range(k, min(diagram.sets, k + 5), 2)] for k in (0, 1)]
    meanings = ["first set", "second set"] if diagram.sets == 2 else [f"set {', '.join(s)}, …" for s in every]
    for style, meaning in zip(SETS, meanings, strict=True):
        yield _entry(_outline("operation", spot, style), meaning)
    for kind in ("parameter", "constant", "operation", "target", "identity"):
        if any(box.kind == kind for box in diagram.boxes):
            sample = _outline(kind, spot, CONSTANT if kind == "constant" else _PLAIN)
            yield _entry(sample, "inserted identity" if kind == "identity" else kind)
    if any(box.count > 1 for box in diagram.boxes):
        yield _entry(_outline("operation", Rectangle(10, -2, 19, 11), _PLAIN, 2), "equal nodes, as one")
    if any(arrow.fan_out not in (None, (1, 1)) for arrow in diagram.arrows):
        width = text_width("×n", _LABEL) + 10
        yield _entry(_pill(["×n"], Rectangle(width / 2, 0, width, 15)), "n edges for each number", width)
    if any(arrow.role != "edges" for arrow in diagram.arrows):
        yield _entry([_line("M0 0L24 0", dashed=True)], "not projected")


def _entry(sample: Iterable[str], meaning: str, width: float = 24.0) -> Entry:
    words = _words(width + 5, 0, meaning, _NOTE, anchor="start")
    return width + 5 + text_width(meaning, _NOTE), [*sample, words]


def _legend(entries: Sequence[Entry], width: float) -> tuple[list[str], float]:
    """The entries in rows of a width, and how far down the last row is."""
    rows: list[list[Entry]] = [[]]
    for entry in entries:
        if rows[-1] and sum(w + 18 for w, _ in rows[-1]) + entry[0] > width:
            rows.append([])
        rows[-1].append(entry)
    parts: list[str] = []
    for k, row in enumerate(rows):
        at = (width - sum(w for w, _ in row) - 18 * (len(row) - 1)) / 2
        for w, entry_parts in row:
            parts += _moved(entry_parts, at, 20 * k)
            at += w + 18
    return parts, 20.0 * (len(rows) - 1)


# --- What SVG is made of ---


def _group(kind: str, key: str, tooltip: str, parts: Iterable[str]) -> str:
    title = [f"<title>{escape(tooltip, quote=False)}</title>"] if tooltip else []
    return "\n".join([f'<g id="{key}" class="{kind}">', *title, *parts, "</g>"])


def _moved(parts: Sequence[str], dx: float, dy: float) -> list[str]:
    return [f'<g transform="translate({_number(dx)} {_number(dy)})">', *parts, "</g>"]


def _rounded(at: Rectangle, radius: float, style: Style, width: float, *, dashed: bool = False) -> str:
    corner = f'x="{_number(at.x - at.width / 2)}" y="{_number(at.y - at.height / 2)}"'
    size = f'width="{_number(at.width)}" height="{_number(at.height)}" rx="{_number(radius)}"'
    dashes = ' stroke-dasharray="4,2.5"' if dashed else ""
    colours = f'fill="{style.fill}" stroke="{style.line}" stroke-width="{_number(width)}"'
    return f"<rect {corner} {size} {colours}{dashes}/>"


def _line(path: str, dashed: bool, rest: str = "") -> str:
    dashes = ' stroke-dasharray="4,3"' if dashed else ""
    return f'<path d="{path}" fill="none" stroke="{WIRE}" stroke-width="1.3"{dashes}{rest}/>'


def _words(
    x: float,
    y: float,
    text: str,
    size: float,
    colour: str = FAINT,
    *,
    bold: bool = False,
    anchor: str = "middle",
) -> str:
    """A line of text around a height, and around or from a point across."""
    weight = ' font-weight="bold"' if bold else ""
    # Letters stand on a line a third of their size below their middle.
    return (
        f'<text x="{_number(x)}" y="{_number(y + 0.355 * size)}" font-size="{_number(size)}"{weight}'
        f' fill="{colour}" text-anchor="{anchor}">{escape(text, quote=False)}</text>'
    )


def _point(point: tuple[float, float]) -> str:
    return f"{_number(point[0])} {_number(point[1])}"


def _number(value: float) -> str:
    """With one digit after the point, where it has one.

    >>> _number(12.0), _number(0.26), _number(-0.01)
    ('12', '0.3', '0')
    """
    return f"{round(value, 1) + 0.0:g}"
