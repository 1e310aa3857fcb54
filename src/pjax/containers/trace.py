"""The graph of a function, as computations that can be inspected."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from pjax.checks import check_function
from pjax.containers.computation import Array, Computation, Parameter
from pjax.graph.read import build, read
from pjax.graph.wires import Evaluator


def trace(fn: Callable[[Any], Any], params: Any) -> Any:
    """The computation graph of a function, as `Computation`s that can be inspected.

    Args:
        fn: an ordinary JAX function of the parameters that ends in a target.
        params: any pytree of floating-point arrays.

    Returns:
        The function's target as a `Computation`; a tuple of them where it has several. Follow `.inputs` to
        the operations, the `Array`s and the `Parameter`s behind it. Layouts are part of the wires and do not
        appear; sums and biases are merged into the relu that reads them.
    """
    check_function(fn)
    traced = read(fn, params)
    graph = build(traced)
    leaves = jax.tree.leaves(params)

    @functools.cache
    def forward() -> tuple[Evaluator, dict[int, Any]]:
        return graph.evaluator(traced.constants, leaves)

    shown: dict[int, Any] = {}
    for node in graph.nodes:
        if node.is_parameter:
            leaf = leaves[graph.leaves.index(node.index)]
            shown[node.index] = Parameter(leaf, name=node.name)
            continue
        inputs: list[Any] = []
        for wire in node.inputs:
            if wire.constant:
                expr = wire.expr
                while expr.call is not None and expr.call.name == "vector":
                    expr = expr.call.args[0]
                inputs.append(Array(forward()[0](expr)))
            else:
                inputs.extend(shown[s] for s in wire.sources)
        shown[node.index] = Computation(
            node.op,
            inputs,
            functools.partial(lambda v: forward()[1][v], node.index),
            name=node.name,
            kwargs={"line": node.line} if node.line else {},
            shape=node.shape,
            dtype=node.dtype,
        )
    targets = tuple(shown[t.index] for t in graph.targets)
    origin = fn, params
    for target in targets:
        target.origin = origin
    return targets[0] if len(targets) == 1 else targets
