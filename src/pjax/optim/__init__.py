"""Solvers: how to find a point that satisfies all constraints at once."""

from pjax.devices import compiler_options as compiler_options
from pjax.graph.chain import Chain as Chain
from pjax.optim.alternating_projections import AlternatingProjections as AlternatingProjections
from pjax.optim.cyclic_projections import CyclicProjections as CyclicProjections
from pjax.optim.difference_map import DifferenceMap as DifferenceMap
from pjax.optim.douglas_rachford import DouglasRachford as DouglasRachford
from pjax.optim.extrapolated_projections import ExtrapolatedProjections as ExtrapolatedProjections
from pjax.optim.solver import EdgeSolver as EdgeSolver
from pjax.optim.solver import OptimizerState as OptimizerState
from pjax.optim.solver import Solver as Solver
from pjax.optim.streamed import Streamed as Streamed
from pjax.optim.streamed import StreamState as StreamState
from pjax.optim.wrappers import Accumulated as Accumulated
from pjax.optim.wrappers import Groups as Groups
from pjax.optim.wrappers import Outer as Outer
