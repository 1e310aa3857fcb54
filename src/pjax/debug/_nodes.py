"""Nodes as people see them: what they are called, what they compute, where they come from."""

import dataclasses

from pjax.graph.nodes import Graph, Node
from pjax.tools.drawing.names import place_name


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
        return place_name(self.line)

    def __str__(self) -> str:
        return f"{self.label} at {self.line}" if self.line else self.label


def info(graph: Graph, node: Node) -> NodeInfo:
    """A node of a graph as people see it."""
    sources = dict.fromkeys(s for wire in node.wires for s in wire.sources)
    read = tuple(graph.nodes[s].name for s in sources if graph.nodes[s].is_parameter)
    return NodeInfo(node.name, node.op, read, node.shape, node.line)
