r"""How far beyond the mean of its readers' moves a node goes.

Readers that are content hold a node where it is: if one of n asks for a move d, their mean is d/n. In the
space of all edges, moves :math:`\delta_e` and their mean :math:`\bar\delta` define the step (Pierra, 1984)

.. math:: \kappa = \frac{\sum_e \delta_e^2}{\sum_e \bar\delta^2} \ge 1 ,

which is 1 where all readers agree and n in the example. For convex sets that meet, a mean extrapolated by
any factor up to :math:`\kappa` still comes closer to every common point, so alternating projections converge
as before. Networks are not convex: readers that contradict each other would make it as large as one likes, so
it is at most the number of readers.
"""

import jax
import jax.numpy as jnp
import numpy as np

from pjax.engines.point import Problem


def factor(problem: Problem, v: int, mean: jax.Array, squares: jax.Array) -> jax.Array | float:
    """κ of a node that is read. An outer optimiser chooses the steps of parameters itself: theirs is 1.

    Args:
        problem: the problem.
        v: the node.
        mean: the mean of the moves of the edges that leave it.
        squares: the sum of their squares; for a stack, that of each member: it has a factor of its own.
    """
    if problem.graph.nodes[v].is_parameter and problem.has_outer:
        return 1.0
    known, axis = problem.counts[v], problem.graph.axis_of_members(v)
    over = tuple(d for d in range(np.ndim(known)) if d != axis)
    # Not left to the compiler where it follows from the program: it takes seconds for large arrays.
    largest = jnp.max if isinstance(known, jax.Array) else np.max
    most = largest(known, axis=over, initial=1)
    below = problem.over_members(v, jnp.asarray(known, problem.dtype) * mean**2)
    ratio = squares / jnp.where(below > 0, below, 1)
    found = jnp.where(below > 0, jnp.clip(ratio, 1, most), 1)
    return found if axis is None else jnp.expand_dims(found, [d for d in range(mean.ndim) if d != axis])
