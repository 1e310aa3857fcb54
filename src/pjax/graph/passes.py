"""What is done to the nodes that were read: drop what no output needs, merge sums into relus, number anew."""

import collections
import dataclasses
from collections.abc import Sequence

from pjax.graph import wires as layout
from pjax.graph.nodes import Graph, Node, renumber
from pjax.graph.wires import Expr, Substitution, Wire


def simplified(
    nodes: Sequence[Node],
    leaves: Sequence[int],
    outputs: Sequence[Expr],
    aux: Sequence[Expr] = (),
    still: Sequence[Expr] = (),
) -> Graph:
    """The graph of the nodes that move the outputs, with sums merged into the relu that alone reads them.

    What is only held needs nodes, too; these become part of what is held, and are no constraints.
    """
    moving = {s for out in outputs for s in layout.nodes_of(out)}
    found = {s for out in (*outputs, *aux, *still) for s in layout.needs_of(out)}
    for node in reversed(nodes):
        if node.index in moving:
            moving.update(s for wire in node.wires for s in wire.sources)
        if node.index in found:
            found.update(s for wire in node.inputs for s in wire.needs)
    held: dict[int, Expr] = {}
    for node in nodes:
        if node.index in found - moving and node.rule is not None:
            inputs = map(Substitution(held), (wire.expr for wire in node.inputs))
            value = layout.apply(node.op, node.rule.forward, *inputs, key=("forward", node.rule))
            held[node.index] = dataclasses.replace(value, depends=False, from_loss=False, line=node.line)
    kept = [n for n in nodes if n.index in found and (n.index in moving or n.is_parameter)]
    if held:
        swap = Substitution(held)
        kept = [node.rewired(swap) for node in kept]
        outputs, aux, still = (list(map(swap, ends)) for ends in (outputs, aux, still))
    fused = _fused(kept, [*outputs, *aux, *still])
    return renumber(fused, [leaf if leaf in found else None for leaf in leaves], outputs, aux, still)


def _fused(nodes: Sequence[Node], outputs: Sequence[Expr]) -> list[Node]:
    """The nodes with sums merged into the relu that alone reads them: fewer hops for information."""
    count = collections.Counter(s for out in outputs for s in layout.needs_of(out))
    count.update(s for node in nodes for wire in node.inputs for s in wire.needs)
    kept: dict[int, Node] = {}
    for node in nodes:
        rule = node.rule
        if rule is not None and not rule.only_adds and (outer := rule.terms) is not None:
            signs: list[int] = []
            inputs: list[Wire] = []
            stack = list(zip(outer, node.inputs, strict=True))[::-1]
            while stack:
                sign, wire = stack.pop()
                inner = kept.get(_direct(wire))
                below = None if inner is None else inner.rule
                terms = below.terms if below is not None and below.only_adds else None
                if inner is not None and terms is not None and count[inner.index] == 1:
                    del kept[inner.index]
                    stack.extend(
                        (sign * s, w) for s, w in reversed(list(zip(terms, inner.inputs, strict=True)))
                    )
                else:
                    signs.append(sign)
                    inputs.append(wire)
            node = dataclasses.replace(node, rule=rule.of_terms(tuple(signs)), inputs=tuple(inputs))
        kept[node.index] = node
    return list(kept.values())


def _direct(wire: Wire) -> int:
    """The node that a wire in vector form reads scalar by scalar; -1 where it does more than that."""
    call = wire.expr.call
    if call is not None and call.name == "vector" and wire.expr.shape[-1:] == (1,):
        node = call.args[0].node
        if node is not None and call.args[0].shape == wire.expr.shape[:-1]:
            return node
    return -1
