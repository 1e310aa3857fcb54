"""Colours and sizes, the same for all kinds of files."""

from typing import NamedTuple

from pjax.tools.drawing.diagram import Box


class Style(NamedTuple):
    """The colours of a box."""

    fill: str
    line: str


SETS = (Style("#dce9f7", "#2f6db3"), Style("#fde9d0", "#c4741a"))
"""Of the sets, in turns."""
CONSTANT = Style("#f1f2f4", "#8d949b")
INK, FAINT, WIRE, PALE = "#22262a", "#5d656c", "#6b7278", "#d5d9dd"


def paint(box: Box) -> Style:
    """The colours of a box."""
    return CONSTANT if box.set is None else SETS[box.set % len(SETS)]
