"""A picture as SVG: text stays text, and what is behind a box or a wire shows when one points at it."""

from xml.sax.saxutils import escape, quoteattr

from pjax.tools.drawing.place import Point
from pjax.tools.drawing.scene import FONT, Group, Part, Scene, Words

_FAMILY = f"Helvetica, Arial, '{FONT}', sans-serif"


def svg_text(scene: Scene) -> str:
    """The text of an ``.svg`` file."""
    width, height = _number(scene.width), _number(scene.height)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family={quoteattr(_FAMILY)}>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *(line for group in scene.groups for line in _group(group)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _group(group: Group) -> list[str]:
    title = [f"<title>{escape(group.tooltip)}</title>"] if group.tooltip else []
    return [f'<g id="{group.key}" class="{group.kind}">', *title, *map(_part, group.parts), "</g>"]


def _part(part: Part) -> str:
    if isinstance(part, Words):
        weight = ' font-weight="bold"' if part.bold else ""
        x, y = part.at
        # Letters stand on a line a third of their size below their middle.
        return (
            f'<text x="{_number(x)}" y="{_number(y + 0.355 * part.size)}" font-size="{_number(part.size)}"'
            f'{weight} fill="{part.colour}" text-anchor="{part.anchor}">{escape(part.text)}</text>'
        )
    steps = [f"M{_point(part.start)}"]
    for segment in part.segments:
        steps.append(("C" if len(segment) > 1 else "L") + " ".join(map(_point, segment)))
    dashes = f' stroke-dasharray="{",".join(map(_number, part.dashes))}"' if part.dashes else ""
    line = "" if part.line == "none" else f' stroke="{part.line}" stroke-width="{_number(part.width)}"'
    path = "".join(steps) + ("Z" if part.closed else "")
    return f'<path d="{path}" fill="{part.fill}"{line}{dashes}/>'


def _point(point: Point) -> str:
    return f"{_number(point[0])} {_number(point[1])}"


def _number(value: float) -> str:
    """With one digit after the point, where it has one.

    >>> _number(12.0), _number(0.26), _number(-0.01)
    ('12', '0.3', '0')
    """
    return f"{round(value, 1) + 0.0:g}"
