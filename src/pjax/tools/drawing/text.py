"""A diagram as text, for programs that find places themselves: Graphviz and Mermaid."""

import json

from pjax.tools.drawing.diagram import CONSTANT, INK, SETS, Arrow, Box, Diagram, Style, paint

# --- Graphviz ---

_DOT_STYLES = {
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
        *(f"  {_dot_box(box)}" for box in diagram.boxes),
        *(f"  {_dot_arrow(arrow)}" for arrow in diagram.arrows),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _dot_box(box: Box) -> str:
    style = paint(box)
    return _statement(
        box.key,
        label=f"{box.title} {box.times}".strip() + f"\n{box.subtitle}",
        tooltip=box.tooltip,
        shape="box3d" if box.count > 1 else "box",
        style=_DOT_STYLES[box.kind],
        fillcolor=style.fill,
        color=style.line,
        peripheries="2" if box.kind == "target" else "1",
    )


def _dot_arrow(arrow: Arrow) -> str:
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


# --- Mermaid, which GitHub and many notebooks show as a picture ---

_BRACKETS = {
    "parameter": ("([", "])"),
    "constant": ("[", "]"),
    "operation": ("(", ")"),
    "identity": ("(", ")"),
    "target": ("[[", "]]"),
}
_LETTERS = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;"})


def mermaid_text(diagram: Diagram, direction: str) -> str:
    """The text of a ``.mmd`` file."""
    lines = [
        f"flowchart {'LR' if direction == 'right' else 'TD'}",
        *(f"  {_mermaid_box(box)}" for box in diagram.boxes),
        *(f"  {_mermaid_arrow(arrow)}" for arrow in diagram.arrows),
        *(f"  classDef set{k + 1} {_mermaid_style(style)}" for k, style in enumerate(SETS)),
        f"  classDef constant {_mermaid_style(CONSTANT)}",
    ]
    return "\n".join(lines) + "\n"


def _mermaid_box(box: Box) -> str:
    opening, closing = _BRACKETS[box.kind]
    title = f"{box.title} {box.times}".strip()
    text = f"{title.translate(_LETTERS)}<br/><small>{box.subtitle.translate(_LETTERS)}</small>"
    colour = "constant" if box.set is None else f"set{box.set % len(SETS) + 1}"
    return f'{box.key}{opening}"{text}"{closing}:::{colour}'


def _mermaid_arrow(arrow: Arrow) -> str:
    line = "-->" if arrow.role == "edges" else "-.->"
    label = f'|"{arrow.label.translate(_LETTERS)}"|' if arrow.label else ""
    return f"{arrow.source} {line}{label} {arrow.target}"


def _mermaid_style(style: Style) -> str:
    return f"fill:{style.fill},stroke:{style.line},color:{INK}"
