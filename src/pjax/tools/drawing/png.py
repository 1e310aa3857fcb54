"""A picture as PNG, by matplotlib."""

import io
from typing import Any

from pjax.tools.drawing.needs import module
from pjax.tools.drawing.scene import FONT, Part, Scene, Shape, Words

DPI = 200


def png_bytes(scene: Scene) -> bytes:
    """The bytes of a ``.png`` file."""
    matplotlib = module("matplotlib")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        figure = module("matplotlib.figure").Figure(figsize=(scene.width / 72, scene.height / 72))
        module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, scene.width)
        axes.set_ylim(scene.height, 0)
        for order, part in enumerate(part for group in scene.groups for part in group.parts):
            _draw(axes, part, order)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    # With at most 256 colours: a third of the size, and no difference to be seen.
    smaller = io.BytesIO()
    image = module("PIL.Image").open(buffer).convert("RGB")
    image.quantize(256, dither=0).save(smaller, "PNG", optimize=True, dpi=(DPI, DPI))
    return smaller.getvalue()


def _draw(axes: Any, part: Part, order: int) -> None:
    if isinstance(part, Words):
        axes.text(
            *part.at,
            part.text,
            family=FONT,
            fontsize=part.size,
            fontweight="bold" if part.bold else "normal",
            color=part.colour,
            ha="center" if part.anchor == "middle" else "left",
            va="center_baseline",
            zorder=order,
            parse_math=False,
        )
        return
    patch = module("matplotlib.patches").PathPatch(
        _path(part),
        facecolor=part.fill,
        edgecolor=part.line,
        linewidth=0.0 if part.line == "none" else part.width,
        linestyle=(0, tuple(d / part.width for d in part.dashes)) if part.dashes else "solid",
        capstyle="butt",
        zorder=order,
    )
    axes.add_patch(patch)


def _path(shape: Shape) -> Any:
    path = module("matplotlib.path").Path
    points, codes = [shape.start], [path.MOVETO]
    for segment in shape.segments:
        points += segment
        codes += [path.CURVE4 if len(segment) > 1 else path.LINETO] * len(segment)
    if shape.closed:
        points.append(shape.start)
        codes.append(path.CLOSEPOLY)
    return path(points, codes)
