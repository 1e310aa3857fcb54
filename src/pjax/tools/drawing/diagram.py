"""What a drawing shows: boxes and arrows, before anything has a place."""

import collections
import dataclasses
import os
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from pjax.graph import fan_out
from pjax.graph import wires as layout
from pjax.graph.nodes import Node
from pjax.graph.partition import Partition
from pjax.graph.read import Traced
from pjax.graph.stack.alike import places
from pjax.graph.stack.stacking import stacked, unstacked
from pjax.graph.wires import Evaluator, Expr
from pjax.tools.drawing import names

Kind: TypeAlias = Literal["parameter", "constant", "operation", "identity", "target"]
Role: TypeAlias = Literal["edges", "labels", "indices"]


@dataclasses.dataclass(frozen=True)
class Box:
    """A node, or several equal ones; or a constant."""

    key: str
    kind: Kind
    """``"identity"``: a node that was inserted so that two sets are enough."""
    title: str
    """The operation, the path of a parameter, the name or the value of a constant."""
    shape: tuple[int, ...]
    """Of one node."""
    dtype: str
    names: tuple[str, ...] = ()
    """Of all nodes."""
    set: int | None = None
    """In which set it projects, from 0; constants do not."""
    line: str = ""
    """The user's."""
    steps: int = 0
    """Of a loop that is one node."""

    @property
    def count(self) -> int:
        """How many nodes it stands for."""
        return max(len(self.names), 1)

    @property
    def times(self) -> str:
        """That number in short; nothing for one node."""
        return f"×{self.count}" if self.count > 1 else ""

    @property
    def subtitle(self) -> str:
        """Shape and type, and the steps of a loop."""
        parts = [names.shape_name(self.shape)]
        if self.dtype != "float32":
            parts.append(self.dtype)
        if self.steps:
            parts.append(f"{self.steps} steps")
        return " · ".join(parts)

    @property
    def tooltip(self) -> str:
        """Everything there is to say, line by line."""
        kind = "inserted identity" if self.kind == "identity" else self.kind
        lines = [f"{kind} {names.folded_name(self.names) if self.names else self.title}".strip()]
        if self.kind != "parameter" and self.names and self.title:
            lines[0] += f" ({self.title})"
        lines.append(f"{self.dtype} {names.shape_name(self.shape)}")
        if self.count > 1:
            lines.append(f"{self.count} equal nodes that project as one")
        if self.set is not None:
            lines.append(f"set {self.set + 1}")
        if self.line:
            lines.append(os.path.basename(self.line))
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Arrow:
    """An input of a node, from one of the boxes it reads."""

    source: str
    target: str
    input: int
    layouts: tuple[str, ...] = ()
    """What moves the numbers on the way."""
    role: Role = "edges"
    """Labels of a target, and indices or conditions that say where numbers go, have no edges."""
    edges: int = 0
    """How many edges it stands for."""
    fan_out: tuple[int, int] | None = None
    """How many edges leave a number that is read: the least and the most; None where that is not known."""
    offset: int = 0
    """Between equal nodes: which neighbour is read, -1 for the one before."""
    back: bool = False
    """Whether it closes a cycle of boxes."""

    @property
    def label(self) -> str:
        """Layouts and fan-out in short."""
        return " · ".join(self.label_lines)

    @property
    def label_lines(self) -> tuple[str, ...]:
        """The parts of the label."""
        if self.role != "edges":
            return (self.role,)
        words = list(self.layouts)
        if self.offset:
            words.insert(0, {-1: "previous", 1: "next"}.get(self.offset, f"{self.offset:+d}"))
        parts = [", ".join(words)] if words else []
        if self.fan_out is not None and self.fan_out != (1, 1):
            parts.append(names.range_name(*self.fan_out))
        return tuple(parts)

    @property
    def tooltip(self) -> str:
        """Everything there is to say, line by line."""
        lines = [f"input {self.input}"]
        if self.layouts:
            lines.append(f"through {', '.join(self.layouts)}")
        if self.role != "edges":
            lines.append(f"{self.role}: not projected")
        elif self.edges:
            lines.append(f"{self.edges:,} edges")
        if self.fan_out is not None:
            low, high = self.fan_out
            each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            lines.append(f"{each} for each number that is read")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Diagram:
    """Boxes in an order of evaluation, and the arrows between them."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    sets: int
    """How many sets there are."""


# --- Colours, the same for all kinds of files ---


class Style(NamedTuple):
    """The colours of a box."""

    fill: str
    line: str


SETS = (Style("#dce9f7", "#2f6db3"), Style("#fde9d0", "#c4741a"))
"""Of the sets, in turns."""
CONSTANT = Style("#f1f2f4", "#8d949b")
INK = "#22262a"


def paint(box: Box) -> Style:
    """The colours of a box."""
    return CONSTANT if box.set is None else SETS[box.set % len(SETS)]


# --- From wires to arrows ---

Leaf: TypeAlias = tuple[Literal["node", "constant", "literal"], int, bool]
"""What a wire starts from: a node, a captured array, what is written down; and whether that says where
numbers go."""


def ways(root: Expr) -> dict[Leaf, tuple[str, ...]]:
    """What an expression is made of, each with the layouts on the way."""
    found: dict[int, dict[Leaf, tuple[str, ...]]] = {}
    for expr in layout.walk(root):
        here: dict[Leaf, tuple[str, ...]] = {}
        if expr.node is not None:
            here["node", expr.node, False] = ()
        elif expr.constant is not None:
            here["constant", expr.constant, False] = ()
        elif expr.call is not None:
            for i, arg in enumerate(expr.call.args):
                for (kind, index, steers), names_ in found[id(arg)].items():
                    leaf: Leaf = (kind, index, steers or i not in expr.call.data)
                    here.setdefault(leaf, (*names_, expr.call.name) if expr.depends else ())
        found[id(expr)] = here
    return found[id(root)]


# --- From graphs to diagrams ---


class DiagramMaker:
    """Makes the boxes and arrows of a partitioned graph.

    Args:
        traced: what it was made from.
        partition: the graph and its sets, nothing stacked.
        constants: the name of each captured array, or nothing.
        fold: whether equal nodes that project together are one box.
    """

    def __init__(self, traced: Traced, partition: Partition, constants: Sequence[str], fold: bool) -> None:
        self._traced = traced
        self._names = constants
        self._partition = stacked(partition) if fold else partition
        self._graph = self._partition.graph
        original, members = unstacked(self._graph)
        self._units = [[original.nodes[m] for m in unit] for unit in members]
        self._place = places(members)
        self._known = Evaluator(traced.constants, {})
        self._constants: dict[str, Box] = {}
        self._arrows: list[Arrow] = []

    def made(self) -> Diagram:
        place = self._partition.set_of()
        boxes = [self._box(u, place[u]) for u in range(len(self._units))]
        for u, unit in enumerate(self._units):
            for i in range(len(unit[0].inputs)):
                self._input(u, i)
        return Diagram((*self._constants.values(), *boxes), tuple(self._arrows), len(self._partition.sets))

    def _box(self, u: int, place: int) -> Box:
        nodes, first = self._units[u], self._units[u][0]
        kind: Kind = "parameter" if first.is_parameter else "target" if first.is_target else "operation"
        if first.op == "identity" and first.name.endswith(".identity"):
            kind = "identity"
        every = tuple(node.name for node in nodes)
        title = names.folded_name(every) if first.is_parameter else first.op
        steps = 0 if first.rule is None else first.rule.steps
        dtype = jnp.dtype(first.dtype).name
        return Box(f"n{u}", kind, title, first.shape, dtype, every, place, first.line, steps)

    def _input(self, u: int, i: int) -> None:
        """The arrows of one input of a box."""
        units = self._units[u]
        offsets: dict[int, set[int]] = collections.defaultdict(set)
        layouts: dict[Leaf, tuple[str, ...]] = {}
        for p, node in enumerate(units):
            for place, way in ways(node.inputs[i].expr).items():
                if place[0] == "node":
                    source, q = self._place[place[1]]
                    place = ("node", source, place[2])
                    offsets[source].add(q - p if len(self._units[source]) > 1 and len(units) > 1 else 0)
                seen = layouts.get(place, ())
                layouts[place] = way if len(way) > len(seen) else seen
        reader = self._graph.nodes[u]
        counts = fan_out.leaving(self._graph, reader, i, self._known)
        carries: Role = "edges" if i < len(reader.wires) else "labels"
        for (kind, index, steers), way in (layouts or {("literal", i, False): ()}).items():
            role: Role = "indices" if steers else carries
            shown = names.layout_names(way) if role == "edges" else ()
            offset, back = 0, False
            if kind == "node":
                start, shape = f"n{index}", self._graph.nodes[index].shape
                count = counts.get(index) if role == "edges" else None
                (offset,) = offsets[index] if len(offsets[index]) == 1 else (0,)
                back = self._units[index][0].index >= units[0].index
            else:
                box = self._literal(u, i, units[0]) if kind == "literal" else self._constant(index)
                start, shape = box.key, box.shape
                count = fan_out.of_constant(reader, i) if role == "edges" else None
            edges = 0 if count is None else fan_out.total(count, shape)
            each = None if count is None else fan_out.least_and_most(count, read=True)
            self._arrows.append(Arrow(start, f"n{u}", i, shown, role, edges, each, offset, back))

    def _constant(self, index: int) -> Box:
        value = self._traced.constants[index]
        title = self._names[index] or "constant"
        box = Box(f"c{index}", "constant", title, jnp.shape(value), jnp.result_type(value).name)
        return self._constants.setdefault(box.key, box)

    def _literal(self, u: int, i: int, node: Node) -> Box:
        """A constant that is written in the program, and not captured."""
        expr = node.inputs[i].expr
        literals = [e.literal for e in layout.walk(expr) if e.literal is not None]
        alone = len(literals) == 1 and np.size(literals[0]) == 1
        title = f"{float(literals[0]):g}" if alone else "constant"
        box = Box(f"l{u}_{i}", "constant", title, expr.shape, jnp.dtype(expr.dtype).name)
        return self._constants.setdefault(box.key, box)
