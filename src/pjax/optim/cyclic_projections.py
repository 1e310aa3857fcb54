"""Cyclic projections."""

from typing import ClassVar

from pjax.graph.nodes import Graph
from pjax.graph.partition import Partition, cyclic_layers
from pjax.optim.alternating_projections import Projecting
from pjax.optim.solver import method


@method
class CyclicProjections(Projecting):
    """Projects onto the layers of the graph in turn, from the targets backwards: z ← P_m(…P₁(z)).

    The layers come from a backward breadth-first search. Information crosses the whole graph in one step,
    at the price of doing the layers one after the other (Gubin, Polyak, Raik, 1967).
    """

    name: ClassVar[str] = "CP"

    def partition(self, graph: Graph) -> Partition:
        return cyclic_layers(graph)
