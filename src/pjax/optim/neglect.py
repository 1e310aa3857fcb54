"""What is done where short histories of edges have left out too much.

A run that has neglected terms larger than `BOUND` is not the method that was asked for. Outside `jit` it is
made again, with the edges of those nodes stored, and so are all later runs of the same program. Where these
edges are too many to store, and inside `jit`, where it is too late, a warning names the nodes.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp

from pjax.errors import NeglectedWarning
from pjax.graph.fan_out import entering
from pjax.optim.callback import call_when

if TYPE_CHECKING:
    from pjax.optim.solver import Program

T = TypeVar("T", bound=tuple[Any, ...])

BOUND = 1e-3
"""The largest term that a history may leave out, relative to the vectors of which it keeps a multiple."""
MOST_STORED = 2**24
"""So many edges of contractions are stored, at most, because their histories neglected too much."""


def watched(program: "Program", run: Callable[[], T]) -> T:
    """The result of a run of a program, made again with more edges stored where histories neglected too much.

    The result is a tuple, second in which is the largest neglected term of each node that has a history.
    """
    while True:
        result = run()
        found: Mapping[int, Any] = result[1]
        if any(isinstance(x, jax.core.Tracer) for x in found.values()):
            if program.solver.check:  # a compiled program cannot be run again
                worst = jnp.max(jnp.stack(list(found.values())))
                call_when(~(worst <= BOUND), lambda found: _warn(program, _over(found)), found)
            return result
        over = _over(found)
        fitting = _fitting(program, over) if over and program.solver.may_store else frozenset()
        if not fitting:
            if over:
                _warn(program, over)
            return result
        program.store(fitting)


def _over(found: Mapping[int, Any]) -> list[int]:
    """The nodes that neglect too much; what is not a number is too much."""
    return [v for v, x in jax.device_get(dict(found)).items() if not x <= BOUND]


def _fitting(program: "Program", nodes: Iterable[int]) -> frozenset[int]:
    """Those of the nodes whose edges there is room for; the smallest first."""
    sizes = {v: entering(program.partition.graph.nodes[v], 0) for v in {*nodes, *program.stored}}
    room = MOST_STORED - sum(map(sizes.__getitem__, program.stored))
    fitting = set()
    for v in sorted(nodes, key=sizes.__getitem__):
        room -= sizes[v]
        if room >= 0:
            fitting.add(v)
    return frozenset(fitting)


def _warn(program: "Program", over: Iterable[int]) -> None:
    names = ", ".join(program.partition.graph.nodes[v].where() for v in over)
    warnings.warn(
        f"the history of edges was cut where it mattered (by over {BOUND:g} of a vector), so the result is"
        f" not that of {type(program.solver).__name__} with all edges: at {names}. Store them"
        ' (edges="explicit"), keep a longer history (history=8), or make fewer steps per update',
        NeglectedWarning,
        stacklevel=4,
    )
