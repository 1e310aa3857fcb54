"""A diagram in the language of Graphviz."""

import json

from pjax.tools.drawing.diagram import Arrow, Box, Diagram
from pjax.tools.drawing.style import paint

_STYLES = {
    "parameter": "rounded,filled",
    "constant": "filled",
    "operation": "filled",
    "identity": "dashed,filled",
    "target": "bold,filled",
}


def dot_text(diagram: Diagram, direction: str) -> str:
    """The text of a ``.dot`` file."""
    lines = [
        "digraph pjax {",
        f"  rankdir={'LR' if direction == 'right' else 'TB'}; nodesep=0.3; ranksep=0.5;",
        '  node [fontname="Helvetica", fontsize=11, margin="0.15,0.08"];',
        '  edge [fontname="Helvetica", fontsize=9, color="#6b7278", fontcolor="#6b7278", arrowsize=0.7];',
        *(f"  {_box(box)}" for box in diagram.boxes),
        *(f"  {_arrow(arrow)}" for arrow in diagram.arrows),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _box(box: Box) -> str:
    style = paint(box)
    return _statement(
        box.key,
        label=f"{box.title} {box.times}".strip() + f"\n{box.subtitle}",
        tooltip=box.tooltip,
        shape="box3d" if box.count > 1 else "box",
        style=_STYLES[box.kind],
        fillcolor=style.fill,
        color=style.line,
        peripheries="2" if box.kind == "target" else "1",
    )


def _arrow(arrow: Arrow) -> str:
    return _statement(
        f"{arrow.source} -> {arrow.target}",
        label=arrow.label,
        tooltip=arrow.tooltip,
        style="solid" if arrow.role == "edges" else "dashed",
        constraint="false" if arrow.back else "true",
    )


def _statement(subject: str, **attributes: str) -> str:
    written = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in attributes.items()
    )
    return f"{subject} [{written}];"
