"""pjax: projections for JAX.

Write an ordinary JAX function that ends in a loss, and hand it with its parameters to a solver of
`pjax.optim`. pjax traces it into a graph of elementary functions, knows how to project onto the graph of
each, and finds parameters that satisfy all constraints at once.
"""

from pjax import debug as debug
from pjax import nn as nn
from pjax import optim as optim
from pjax import sets as sets
from pjax.containers.computation import Array as Array
from pjax.containers.computation import Computation as Computation
from pjax.containers.computation import Parameter as Parameter
from pjax.containers.computation import array as array
from pjax.containers.computation import as_function as as_function
from pjax.containers.computation import parameter as parameter
from pjax.containers.numpy import add as add
from pjax.containers.numpy import apply as apply
from pjax.containers.numpy import broadcast_to as broadcast_to
from pjax.containers.numpy import concatenate as concatenate
from pjax.containers.numpy import constrain as constrain
from pjax.containers.numpy import conv as conv
from pjax.containers.numpy import conv_patch as conv_patch
from pjax.containers.numpy import cross_entropy as cross_entropy
from pjax.containers.numpy import dot as dot
from pjax.containers.numpy import einsum as einsum
from pjax.containers.numpy import expand_dims as expand_dims
from pjax.containers.numpy import identity as identity
from pjax.containers.numpy import index as index
from pjax.containers.numpy import margin_loss as margin_loss
from pjax.containers.numpy import matmul as matmul
from pjax.containers.numpy import max as max
from pjax.containers.numpy import max_pool as max_pool
from pjax.containers.numpy import maximum as maximum
from pjax.containers.numpy import mean as mean
from pjax.containers.numpy import min as min
from pjax.containers.numpy import minimise as minimise
from pjax.containers.numpy import minimum as minimum
from pjax.containers.numpy import moveaxis as moveaxis
from pjax.containers.numpy import multiply as multiply
from pjax.containers.numpy import negative as negative
from pjax.containers.numpy import pad as pad
from pjax.containers.numpy import quantize as quantize
from pjax.containers.numpy import relu as relu
from pjax.containers.numpy import repeat as repeat
from pjax.containers.numpy import reshape as reshape
from pjax.containers.numpy import square as square
from pjax.containers.numpy import squared_error as squared_error
from pjax.containers.numpy import squeeze as squeeze
from pjax.containers.numpy import stack as stack
from pjax.containers.numpy import subtract as subtract
from pjax.containers.numpy import sum as sum
from pjax.containers.numpy import sum_relu as sum_relu
from pjax.containers.numpy import swapaxes as swapaxes
from pjax.containers.numpy import transpose as transpose
from pjax.containers.numpy import vmap as vmap
from pjax.containers.register import register_primitive as register_primitive
from pjax.containers.trace import trace as trace
from pjax.errors import GraphError as GraphError
from pjax.errors import InputError as InputError
from pjax.errors import PjaxError as PjaxError
from pjax.errors import UnsupportedEquationError as UnsupportedEquationError
from pjax.graph.equations import register_equation as register_equation
from pjax.optim.solve import NotConvergedError as NotConvergedError
from pjax.optim.solve import Solution as Solution
from pjax.optim.solve import Status as Status
from pjax.optim.solve import solve as solve
from pjax.rules import Primitive as Primitive
from pjax.rules import Target as Target
from pjax.tools.drawing import Drawing as Drawing
from pjax.tools.drawing import draw as draw
from pjax.tools.profile import NodeCost as NodeCost
from pjax.tools.profile import Profile as Profile
from pjax.tools.profile import profile as profile
from pjax.tools.summary import NodeSummary as NodeSummary
from pjax.tools.summary import Summary as Summary
from pjax.tools.summary import summary as summary
from pjax.tools.trees import load as load
from pjax.tools.trees import save as save

__version__ = "0.1.0"
