"""The computation graph: parameters, operations and targets, joined by wires."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from pjax.graph.wires import Evaluator, Expr, Wire, substitute, walk
from pjax.rules.base import Rule


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """A parameter, an operation or a target.

    The inputs of an operation are in the vector form of its rule; those of a target are the
    predictions and the labels; a parameter has none.
    """

    index: int
    name: str
    rule: Rule | None
    """What it computes; parameters have none."""
    inputs: tuple[Wire, ...]
    shape: tuple[int, ...]
    dtype: Any
    line: str = ""
    is_parameter: bool = dataclasses.field(init=False)
    is_target: bool = dataclasses.field(init=False)
    wires: tuple[Wire, ...] = dataclasses.field(init=False)
    """The inputs that have edges: not the labels of a target, nor what else a rule never moves."""

    def __post_init__(self) -> None:
        rule = self.rule
        vars(self).update(
            is_parameter=rule is None,
            is_target=rule is not None and rule.is_target,
            wires=self.inputs if rule is None else self.inputs[: rule.moving],
        )

    @property
    def op(self) -> str:
        return "parameter" if self.rule is None else self.rule.label

    @functools.cached_property
    def output(self) -> Expr:
        return Expr(self.shape, self.dtype, depends=True, from_loss=self.is_target, node=self.index)

    def rewired(self, change: Callable[[Expr], Expr]) -> "Node":
        """The same node, which reads something else."""
        return dataclasses.replace(self, inputs=tuple(Wire(change(wire.expr)) for wire in self.inputs))

    def where(self) -> str:
        """The node's name and the user's line, for error messages."""
        return f"{self.name!r} ({self.op})" + (f" at {self.line}" if self.line else "")


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in topological order, and how the function's outputs follow from them."""

    nodes: tuple[Node, ...]
    leaves: tuple[int | None, ...]
    """For each leaf of the parameters, its node; None where the function does not use it."""
    outputs: tuple[Expr, ...]
    aux: tuple[Expr, ...]
    """What the function returns beside, as far as it is asked for."""
    still: tuple[Expr, ...]
    """Losses that do not move with any parameter, and those of values in sets that do not."""

    @functools.cached_property
    def dtype(self) -> Any:
        """The type in which displacements are carried: at least float32."""
        return jnp.result_type(jnp.float32, *(n.dtype for n in self.nodes))

    @functools.cached_property
    def readers(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each node, the (reader, input) pairs that read it."""
        readers: list[list[tuple[int, int]]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for i, wire in enumerate(node.wires):
                for source in wire.sources:
                    readers[source].append((node.index, i))
        return tuple(map(tuple, readers))

    @functools.cached_property
    def neighbours(self) -> tuple[frozenset[int], ...]:
        """For each node, the nodes with which it shares an edge."""
        near: list[set[int]] = [set() for _ in self.nodes]
        for source, readers in enumerate(self.readers):
            for reader, _ in readers:
                near[source].add(reader)
                near[reader].add(source)
        return tuple(map(frozenset, near))

    @functools.cached_property
    def holds(self) -> bool:
        """Whether something that follows from parameters is held at the forward evaluation."""
        exprs = [*(wire.expr for node in self.nodes for wire in node.inputs), *self.outputs]
        calls = (e.call for e in walk(*exprs) if e.call is not None and not e.depends)
        return any(arg.depends for call in calls for arg in call.args)

    @functools.cached_property
    def first_order(self) -> bool:
        """Whether a sweep with softness zero asks for nothing but derivatives: see `Rule.first_order`."""
        return all(n.rule is None or n.is_target or n.rule.first_order for n in self.nodes)

    @property
    def parameters(self) -> tuple[Node, ...]:
        """Those that can move: not what the function only holds."""
        return tuple(n for n in self.nodes if n.is_parameter and self.readers[n.index])

    @property
    def targets(self) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.is_target)

    def evaluator(
        self,
        constants: Sequence[Any],
        leaves: Sequence[Any],
        softness: float | None = None,
        nudges: Mapping[int, jax.Array] = MappingProxyType({}),
    ) -> tuple[Evaluator, dict[int, Any]]:
        """Evaluate every node.

        Args:
            constants: what the function captured, and the batch.
            leaves: the parameters.
            softness: for a soft sweep; then JAX's ``vjp`` of this evaluation gives what nodes ask.
            nudges: zeros to add to the values of some nodes: their cotangents are what these are asked.

        Returns:
            An evaluator of expressions, and the values by node.
        """
        values: dict[int, Any] = {
            node: leaf for node, leaf in zip(self.leaves, leaves, strict=True) if node is not None
        }
        evaluate = Evaluator(constants, values, holding=softness is not None)
        for node in self.nodes:
            if node.rule is not None:
                fn = node.rule.forward if softness is None else node.rule.soft(softness)
                value = fn(*evaluate.each(node.inputs))
                nudge = nudges.get(node.index)
                values[node.index] = value if nudge is None else value + nudge.astype(value.dtype)
        return evaluate, values

    @property
    def shardings(self) -> Mapping[int, NamedSharding]:
        """How values of some nodes are divided among devices: of stacks, see `pjax.graph.stack.stacking`."""
        return {}

    def axis_of_members(self, v: int) -> int | None:  # noqa: ARG002
        """The axis of a node along which the members of a stack lie; None where it is a single node."""
        return None

    def origins(self, v: int, i: int) -> list[tuple[int, int]] | None:
        """For each member of a node, the only node that its input i moves with, and the member of that.

        A single node is its member 0. None where some input moves with several.
        """
        sources = self.nodes[v].wires[i].sources
        return [(sources[0], 0)] if len(sources) == 1 else None

    def per_leaf(self, moves: Mapping[int, jax.Array]) -> list[jax.Array | None]:
        """What was found for parameters by node, for each leaf; None where nothing moves with it."""
        return [None if v is None else moves.get(v) for v in self.leaves]

    def loss(self, evaluate: Evaluator) -> jax.Array:
        """The mean of everything that the function returns."""
        parts = [jnp.asarray(evaluate(expr)).astype(self.dtype) for expr in self.outputs]
        return sum((p.sum() for p in parts), start=jnp.zeros((), self.dtype)) / sum(p.size for p in parts)


def renumber(nodes: Sequence[Node], leaves: Sequence[int | None], *ends: Sequence[Expr]) -> Graph:
    """A graph of the given nodes, numbered in their order; ``ends`` are its outputs, and what is beside."""
    index = {node.index: i for i, node in enumerate(nodes)}
    new = {node.index: dataclasses.replace(node, index=index[node.index]).output for node in nodes}
    inputs = (wire.expr for node in nodes for wire in node.inputs)
    exprs = iter(substitute([*inputs, *itertools.chain(*ends)], new))
    done = tuple(
        dataclasses.replace(node.rewired(lambda _: next(exprs)), index=i) for i, node in enumerate(nodes)
    )
    at = tuple(None if leaf is None else index[leaf] for leaf in leaves)
    return Graph(done, at, *(tuple(itertools.islice(exprs, len(end))) for end in ends))
