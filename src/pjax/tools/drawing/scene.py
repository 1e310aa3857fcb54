"""A diagram as shapes and words, which SVG and PNG draw alike."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from pjax.tools.drawing import names
from pjax.tools.drawing.diagram import Arrow, Box, Diagram
from pjax.tools.drawing.needs import module
from pjax.tools.drawing.place import Point, Rectangle, Route, Segment, Size, place
from pjax.tools.drawing.style import CONSTANT, FAINT, INK, PALE, SETS, WIRE, Style, paint

FONT = "DejaVu Sans"
"""Comes with matplotlib, and is wider than most: other fonts fit into the same boxes."""
MARGIN = 18.0
_TITLE, _SUBTITLE, _LABEL, _NOTE = 12.0, 10.0, 9.0, 10.0  # sizes of letters
_HEIGHT = 44.0  # of a box
_STACK = 4.0  # how far the sheets of a stack are apart
_LONGEST = 30  # letters of a title


@dataclasses.dataclass(frozen=True)
class Shape:
    """An outline."""

    start: Point
    segments: tuple[Segment, ...]
    fill: str = "none"
    line: str = "none"
    width: float = 1.0
    dashes: tuple[float, ...] = ()
    closed: bool = True


@dataclasses.dataclass(frozen=True)
class Words:
    """A line of text; the point is its middle, or the middle of its left end."""

    at: Point
    text: str
    size: float
    colour: str = INK
    bold: bool = False
    anchor: Literal["middle", "start"] = "middle"


Part: TypeAlias = Shape | Words


@dataclasses.dataclass(frozen=True)
class Group:
    """What belongs to one box or arrow."""

    kind: Literal["box", "wire", "label", "legend"]
    key: str
    tooltip: str
    parts: tuple[Part, ...]


@dataclasses.dataclass(frozen=True)
class Scene:
    """A picture: later groups lie on top of earlier ones. One unit is a seventy-second of an inch."""

    width: float
    height: float
    groups: tuple[Group, ...]


def scene_of(diagram: Diagram, direction: str) -> Scene:
    """Draw a diagram."""
    sizes = {box.key: _size(box) for box in diagram.boxes}
    labels = [_label_size(arrow) if arrow.label else None for arrow in diagram.arrows]
    placed = place(diagram, sizes, labels, down=direction == "down")
    wires, pills = [], []
    for i, (arrow, route) in enumerate(zip(diagram.arrows, placed.routes, strict=True)):
        key = f"{arrow.source}-{arrow.target}-{arrow.input}-{i}"
        wires.append(Group("wire", key, arrow.tooltip, tuple(_wire(arrow, route))))
        if route.label is not None:
            pills.append(
                Group("label", f"{key}-label", arrow.tooltip, tuple(_pill(arrow.label_lines, route.label)))
            )
    boxes = [Group("box", b.key, b.tooltip, tuple(_box(b, placed.boxes[b.key]))) for b in diagram.boxes]
    entries = list(_entries(diagram))
    width = max(placed.width, *(w for w, _ in entries), 400.0)
    legend, below = _legend(entries, width, placed.height + 26)
    left = (width - placed.width) / 2
    moved = [_moved(group, MARGIN + left, MARGIN) for group in (*wires, *pills, *boxes)]
    moved.append(_moved(legend, MARGIN, MARGIN))
    return Scene(width + 2 * MARGIN, below + 2 * MARGIN, tuple(moved))


@functools.cache
def text_width(text: str, size: float, bold: bool = False) -> float:
    """How wide a text is."""
    properties = module("matplotlib.font_manager").FontProperties(
        family=FONT, size=size, weight="bold" if bold else "normal"
    )
    measure = module("matplotlib.textpath").text_to_path.get_text_width_height_descent
    return float(measure(text, properties, ismath=False)[0])


# --- Boxes ---


def _title(box: Box) -> str:
    return names.short(box.title, _LONGEST)


def _size(box: Box) -> Size:
    widest = max(text_width(_title(box), _TITLE, True), text_width(box.subtitle, _SUBTITLE))
    round_ends = 26.0 if box.kind == "parameter" else 18.0
    return max(widest + round_ends, 62.0), _HEIGHT


def _box(box: Box, place: Rectangle) -> Iterator[Part]:
    style = paint(box)
    for sheet in range(min(box.count - 1, 2), 0, -1):
        shift = sheet * _STACK
        behind = dataclasses.replace(place, x=place.x + shift, y=place.y + shift)
        yield _outline(box, behind, style)
    yield _outline(box, place, style)
    if box.kind == "target":
        inner = dataclasses.replace(place, width=place.width - 6, height=place.height - 6)
        yield dataclasses.replace(_outline(box, inner, style), fill="none", width=0.9)
    yield Words((place.x, place.y - 7.5), _title(box), _TITLE, bold=True)
    yield Words((place.x, place.y + 9), box.subtitle, _SUBTITLE, FAINT)
    left, top = place.x - place.width / 2, place.y - place.height / 2
    if box.set is not None:
        text = str(box.set + 1)
        width = max(text_width(text, 8.0, True) + 6, 13.0)
        yield _rounded(Rectangle(left + 6, top + 1, width, 13), 6.5, style.line, "#ffffff", 1.0)
        yield Words((left + 6, top + 1), text, 8.0, "#ffffff", bold=True)
    if box.count > 1:
        width = text_width(box.times, _LABEL, True) + 10
        at = (place.x + place.width / 2 - width / 2 + 12, top + place.height + 5)
        yield _rounded(Rectangle(*at, width, 15), 7.5, "#ffffff", style.line, 1.1)
        yield Words(at, box.times, _LABEL, style.line, bold=True)


def _outline(box: Box, place: Rectangle, style: Style) -> Shape:
    radius = {"parameter": place.height / 2, "constant": 1.5}.get(box.kind, 7.0)
    width = 1.6 if box.kind == "target" else 1.2
    shape = _rounded(place, radius, style.fill, style.line, width)
    return dataclasses.replace(shape, dashes=(4.0, 2.5)) if box.kind == "identity" else shape


def _rounded(place: Rectangle, radius: float, fill: str, line: str, width: float) -> Shape:
    """A rectangle with round corners."""
    x0, x1 = place.x - place.width / 2, place.x + place.width / 2
    y0, y1 = place.y - place.height / 2, place.y + place.height / 2
    r = min(radius, place.width / 2, place.height / 2)
    k = r * (1 - 0.5523)  # where the handles of a quarter of a circle are
    segments: tuple[Segment, ...] = (
        ((x1 - r, y0),),
        ((x1 - k, y0), (x1, y0 + k), (x1, y0 + r)),
        ((x1, y1 - r),),
        ((x1, y1 - k), (x1 - k, y1), (x1 - r, y1)),
        ((x0 + r, y1),),
        ((x0 + k, y1), (x0, y1 - k), (x0, y1 - r)),
        ((x0, y0 + r),),
        ((x0, y0 + k), (x0 + k, y0), (x0 + r, y0)),
    )
    return Shape((x0 + r, y0), segments, fill, line, width)


# --- Wires ---

_HEAD = 7.0


def _wire(arrow: Arrow, route: Route) -> Iterator[Part]:
    *rest, last = route.segments
    end = last[-1]
    before = rest[-1][-1] if rest else route.start
    dx, dy = _unit(before, end, route)
    neck = (end[0] - dx * _HEAD, end[1] - dy * _HEAD)
    dashes = () if arrow.role == "edges" else (4.0, 3.0)
    line = (*rest, (*last[:-1], neck))
    yield Shape(route.start, line, line=WIRE, width=1.3, dashes=dashes, closed=False)
    side = _HEAD * 0.45
    left, right = (neck[0] - dy * side, neck[1] + dx * side), (neck[0] + dy * side, neck[1] - dx * side)
    yield Shape(end, ((left,), (right,)), fill=WIRE)


def _unit(before: Point, end: Point, route: Route) -> Point:
    """The direction in which a wire arrives: that of all wires."""
    down = abs(end[0] - before[0]) < 1e-9 and abs(end[1] - before[1]) > 1e-9
    if abs(end[0] - before[0]) < 1e-9 and abs(end[1] - before[1]) < 1e-9:
        handle = route.segments[-2][-2]  # of the curve that ends there
        down = abs(end[0] - handle[0]) < abs(end[1] - handle[1])
    return (0.0, 1.0) if down else (1.0, 0.0)


def _label_size(arrow: Arrow) -> Size:
    lines = arrow.label_lines
    return max(text_width(line, _LABEL) for line in lines) + 12, 5.0 + 11.5 * len(lines)


def _pill(lines: Sequence[str], place: Rectangle) -> Iterator[Part]:
    yield _rounded(place, 8.0, "#ffffff", PALE, 1.0)
    for k, line in enumerate(lines):
        yield Words((place.x, place.y + 11.5 * (k - (len(lines) - 1) / 2)), line, _LABEL, FAINT)


# --- Legend ---


def _entries(diagram: Diagram) -> Iterator[tuple[float, tuple[Part, ...]]]:
    """For each kind of thing in the picture its width, a sample and its meaning, at the origin."""
    if diagram.sets == 2:
        meanings = ["first set", "second set"]
    else:
        meanings = [
            f"set {', '.join(str(s + 1) for s in range(k, min(diagram.sets, k + 5), 2))}, …" for k in (0, 1)
        ]
    for style, meaning in zip(SETS, meanings, strict=True):
        yield _entry([_rounded(Rectangle(11, 0, 22, 13), 3.0, style.fill, style.line, 1.1)], meaning)
    plain = Style("#ffffff", FAINT)
    meaning_of = {
        "parameter": "parameter",
        "constant": "constant",
        "operation": "operation",
        "target": "target",
        "identity": "inserted identity",
    }
    for kind, meaning in meaning_of.items():
        example = next((box for box in diagram.boxes if box.kind == kind), None)
        if example is None:
            continue
        sample = [dataclasses.replace(_outline(example, Rectangle(11, 0, 22, 13), plain), fill="#ffffff")]
        if kind == "constant":
            sample = [_outline(example, Rectangle(11, 0, 22, 13), CONSTANT)]
        if kind == "operation":
            sample = [_rounded(Rectangle(11, 0, 22, 13), 3.5, "#ffffff", FAINT, 1.2)]
        if kind == "target":
            sample = [_rounded(Rectangle(11, 0, 22 - d, 13 - d), 3.0, "#ffffff", FAINT, 1.1) for d in (0, 5)]
        yield _entry(sample, meaning)
    if any(box.count > 1 for box in diagram.boxes):
        sheets = [_rounded(Rectangle(10 + d, d - 2, 19, 11), 3.0, "#ffffff", FAINT, 1.1) for d in (4, 2, 0)]
        yield _entry(sheets, "equal nodes, as one")
    if any(arrow.fan_out not in (None, (1, 1)) for arrow in diagram.arrows):
        width = text_width("×n", _LABEL) + 10
        pill = [*_pill(["×n"], Rectangle(width / 2, 0, width, 15))]
        yield _entry(pill, "n edges for each number", width)
    if any(arrow.role != "edges" for arrow in diagram.arrows):
        line = Shape((0, 0), (((24, 0),),), line=WIRE, width=1.3, dashes=(4.0, 3.0), closed=False)
        yield _entry([line], "not projected")


def _entry(sample: Sequence[Part], meaning: str, width: float = 24.0) -> tuple[float, tuple[Part, ...]]:
    words = Words((width + 5, 0), meaning, _NOTE, FAINT, anchor="start")
    return width + 5 + text_width(meaning, _NOTE), (*sample, words)


def _legend(
    entries: Sequence[tuple[float, tuple[Part, ...]]], width: float, top: float
) -> tuple[Group, float]:
    """The entries in rows of a width, and where they end."""
    rows: list[list[tuple[float, tuple[Part, ...]]]] = [[]]
    used = 0.0
    for entry in entries:
        if rows[-1] and used + entry[0] > width:
            rows.append([])
            used = 0.0
        rows[-1].append(entry)
        used += entry[0] + 18
    parts: list[Part] = []
    for k, row in enumerate(rows):
        at = (width - sum(w for w, _ in row) - 18 * (len(row) - 1)) / 2
        for w, entry_parts in row:
            parts += [_shifted(part, at, top + 20 * k) for part in entry_parts]
            at += w + 18
    return Group("legend", "legend", "", tuple(parts)), top + 20 * (len(rows) - 1) + 8


def _moved(group: Group, dx: float, dy: float) -> Group:
    return dataclasses.replace(group, parts=tuple(_shifted(part, dx, dy) for part in group.parts))


def _shifted(part: Part, dx: float, dy: float) -> Part:
    def shift(point: Point) -> Point:
        return point[0] + dx, point[1] + dy

    if isinstance(part, Words):
        return dataclasses.replace(part, at=shift(part.at))
    segments = tuple(tuple(map(shift, segment)) for segment in part.segments)
    return dataclasses.replace(part, start=shift(part.start), segments=segments)
