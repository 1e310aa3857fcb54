"""Words for people: names, shapes and numbers as drawings and tables show them."""

import dataclasses
import math
import os
from collections.abc import Sequence

from pjax.graph.nodes import Graph, Node

# Layouts under the names that people know. Those that change nothing about the numbers are left out.
_LAYOUTS = {
    "broadcast_in_dim": "broadcast",
    "convert_element_type": "cast",
    "dynamic_slice": "slice",
    "dynamic_update_slice": "update",
    "expand_dims": "reshape",
    "reduce_precision": "round",
    "rev": "reverse",
    "select_n": "where",
    "sharding_constraint": "",
    "squeeze": "reshape",
    "vector": "",
}


def layout_names(layouts: Sequence[str]) -> tuple[str, ...]:
    """Layouts on a wire, without those that do nothing and without repetition.

    >>> layout_names(["vector", "broadcast_in_dim", "broadcast_in_dim", "gather"])
    ('broadcast', 'gather')
    """
    found = (_LAYOUTS.get(name, name) for name in layouts)
    return tuple(dict.fromkeys(name for name in found if name))


def shape_name(shape: Sequence[int]) -> str:
    """A shape in words.

    >>> shape_name((32, 784)), shape_name((7,)), shape_name(())
    ('32 × 784', '7', 'scalar')
    """
    return " × ".join(map(str, shape)) or "scalar"


def folded_name(names: Sequence[str]) -> str:
    """One name for several.

    >>> folded_name(["hidden.1.weight", "hidden.2.weight", "hidden.3.weight"])
    'hidden.1…3.weight'
    >>> folded_name(["a", "b.c"]), folded_name(["w"])
    ('a … b.c', 'w')
    """
    if len(names) == 1:
        return names[0]
    first, last = names[0].split("."), names[-1].split(".")
    differ = [i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b]
    if len(first) != len(last) or len(differ) != 1:
        return f"{names[0]} … {names[-1]}"
    i = differ[0]
    return ".".join([*first[:i], f"{first[i]}…{last[i]}", *first[i + 1 :]])


def short(text: str, length: int) -> str:
    """A text that is not longer than so many letters: the middle is left out.

    >>> short("encoder.layers.0.attention.weight", 20)
    'encoder.l…ion.weight'
    """
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


def table(rows: Sequence[Sequence[str]], sides: str = "") -> str:
    """Rows in columns as wide as their widest entries, which stand at the left or at the right.

    >>> print(table([("node", "last"), ("dot_1", "0.5")], "<>"))
    node   last
    dot_1   0.5
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{side}{width}" for side, width in zip(sides or "<" * len(widths), widths, strict=True)]
    return "\n".join("  ".join(map(format, row, forms)).rstrip() for row in rows)


def range_name(low: int, high: int) -> str:
    """How often numbers are read.

    >>> range_name(32, 32), range_name(0, 2048)
    ('×32', '×0–2,048')
    """
    return f"×{low:,}" if low == high else f"×{low:,}–{high:,}"


def clock(seconds: float | None) -> str:
    """Seconds as a clock shows them.

    >>> clock(75.2), clock(3700), clock(None)
    ('1:15', '1:01:40', '-:--')
    """
    if seconds is None or not math.isfinite(seconds):
        return "-:--"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# --- Nodes as people see them ---


@dataclasses.dataclass(frozen=True)
class NodeInfo:
    """A node of a traced function."""

    name: str
    op: str
    parameters: tuple[str, ...]
    """The parameters that it reads itself."""
    shape: tuple[int, ...]
    line: str
    """Of the user's code, as ``file:number``; empty where there is none."""

    @property
    def label(self) -> str:
        """What it computes, and from which parameters.

        >>> NodeInfo("dot_4", "dot", ("hidden.weight",), (8, 16), "model.py:12").label
        'dot(hidden.weight)'
        """
        if self.op == "parameter":
            return self.name
        return f"{self.op}({', '.join(self.parameters)})" if self.parameters else self.name

    @property
    def place(self) -> str:
        """The line without folders."""
        return os.path.basename(self.line)

    def __str__(self) -> str:
        return f"{self.label} at {self.line}" if self.line else self.label


def info(graph: Graph, node: Node) -> NodeInfo:
    """A node of a graph as people see it."""
    sources = dict.fromkeys(s for wire in node.wires for s in wire.sources)
    read = tuple(graph.nodes[s].name for s in sources if graph.nodes[s].is_parameter)
    return NodeInfo(node.name, node.op, read, node.shape, node.line)
