"""pjax: projections for JAX.

Write an ordinary JAX function that ends in a loss, and hand it with its parameters to a solver of
`pjax.optim`. pjax traces it into a graph of elementary functions, knows how to project onto the graph of
each, and finds parameters that satisfy all constraints at once. No gradients.
"""

from pjax import debug as debug
from pjax import nn as nn
from pjax import optim as optim
from pjax import sets as sets
from pjax._draw import Drawing as Drawing
from pjax._draw import draw as draw
from pjax._profile import NodeCost as NodeCost
from pjax._profile import Profile as Profile
from pjax._profile import profile as profile
from pjax._register import register_primitive as register_primitive
from pjax._solve import NotConvergedError as NotConvergedError
from pjax._solve import Solution as Solution
from pjax._solve import Status as Status
from pjax._solve import solve as solve
from pjax._summary import NodeSummary as NodeSummary
from pjax._summary import Summary as Summary
from pjax._summary import summary as summary
from pjax._trace import register_equation as register_equation
from pjax._trace import trace as trace
from pjax.computation import Array as Array
from pjax.computation import Computation as Computation
from pjax.computation import Parameter as Parameter
from pjax.computation import array as array
from pjax.computation import as_function as as_function
from pjax.computation import parameter as parameter
from pjax.errors import GraphError as GraphError
from pjax.errors import InputError as InputError
from pjax.errors import PjaxError as PjaxError
from pjax.errors import UnsupportedEquationError as UnsupportedEquationError
from pjax.numpy import add as add
from pjax.numpy import apply as apply
from pjax.numpy import broadcast_to as broadcast_to
from pjax.numpy import concatenate as concatenate
from pjax.numpy import constrain as constrain
from pjax.numpy import conv as conv
from pjax.numpy import conv_patch as conv_patch
from pjax.numpy import cross_entropy as cross_entropy
from pjax.numpy import dot as dot
from pjax.numpy import einsum as einsum
from pjax.numpy import expand_dims as expand_dims
from pjax.numpy import identity as identity
from pjax.numpy import index as index
from pjax.numpy import margin_loss as margin_loss
from pjax.numpy import matmul as matmul
from pjax.numpy import max as max
from pjax.numpy import max_pool as max_pool
from pjax.numpy import maximum as maximum
from pjax.numpy import mean as mean
from pjax.numpy import min as min
from pjax.numpy import minimum as minimum
from pjax.numpy import moveaxis as moveaxis
from pjax.numpy import multiply as multiply
from pjax.numpy import negative as negative
from pjax.numpy import pad as pad
from pjax.numpy import quantize as quantize
from pjax.numpy import relu as relu
from pjax.numpy import repeat as repeat
from pjax.numpy import reshape as reshape
from pjax.numpy import square as square
from pjax.numpy import squared_error as squared_error
from pjax.numpy import squeeze as squeeze
from pjax.numpy import stack as stack
from pjax.numpy import subtract as subtract
from pjax.numpy import sum as sum
from pjax.numpy import sum_relu as sum_relu
from pjax.numpy import swapaxes as swapaxes
from pjax.numpy import transpose as transpose
from pjax.numpy import vmap as vmap
from pjax.primitives import Primitive as Primitive
from pjax.primitives import Target as Target

__version__ = "0.1.0"
