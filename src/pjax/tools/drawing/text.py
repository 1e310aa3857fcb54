"""A diagram as text, in the language of Mermaid, which GitHub and many notebooks show as a picture."""

from pjax.tools.drawing.diagram import CONSTANT, INK, SETS, Arrow, Box, Diagram, Style

_BRACKETS = {
    "parameter": ("([", "])"),
    "constant": ("[", "]"),
    "operation": ("(", ")"),
    "identity": ("(", ")"),
    "target": ("[[", "]]"),
}
_LETTERS = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;"})


def mermaid_text(diagram: Diagram) -> str:
    """The text of a ``.mmd`` file."""
    lines = [
        "flowchart LR",
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
