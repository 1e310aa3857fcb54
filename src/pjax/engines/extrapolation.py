r"""How far beyond the mean of its readers' moves a node goes.

Readers that are content hold a node where it is: if one of n asks for a move d, their mean is d/n. In the
space of all edges, moves :math:`\delta_e` and their mean :math:`\bar\delta` define the step (Pierra, 1984)

.. math:: \kappa = \frac{\sum_e \delta_e^2}{\sum_e \bar\delta^2} \ge 1 ,

which is 1 where all readers agree and n in the example. For convex sets that meet, a mean extrapolated by
any factor up to :math:`\kappa` still comes closer to every common point, so alternating projections converge
as before. Networks are not convex: readers that contradict each other would make it as large as one likes, so
it is at most the number of readers.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pjax.engines.point import Problem


@dataclasses.dataclass(frozen=True)
class Extrapolation:
    """Which nodes go beyond the mean, and with how many factors.

    Args:
        per_sample: whether nodes with a sample axis get one factor for each sample, instead of one for all.
        parameters: whether parameters are extrapolated, too. An outer optimiser chooses their steps itself.
    """

    per_sample: bool
    parameters: bool

    def factor(self, problem: Problem, v: int, mean: jax.Array, squares: jax.Array) -> jax.Array | float:
        """κ of a node that is read.

        Args:
            problem: the problem.
            v: the node.
            mean: the mean of the moves of the edges that leave it.
            squares: their squares, summed over the edges of each scalar, or of all of them.
        """
        if problem.graph.nodes[v].is_parameter and not self.parameters:
            return 1.0
        known = problem.counts[v]
        count = jnp.asarray(known, problem.dtype)
        # Not left to the compiler where it follows from the program: it takes seconds for large arrays.
        most = jnp.max(count, initial=1) if isinstance(known, jax.Array) else np.max(known, initial=1)
        axes = tuple(range(1, mean.ndim)) if self.per_sample and _has_samples(problem, v) else None

        def total(x: jax.Array) -> jax.Array:
            return jnp.sum(x, axis=axes, keepdims=axes is not None)

        below = total(count * mean**2)
        ratio = total(squares) / jnp.where(below > 0, below, 1)
        return jnp.where(below > 0, jnp.clip(ratio, 1, most), 1)


def _has_samples(problem: Problem, v: int) -> bool:
    """Whether a node's first axis is that of the samples: no parameter, and as long as that of the losses."""
    node, target = problem.graph.nodes[v], problem.graph.targets[0]
    return not node.is_parameter and bool(node.shape and target.shape) and node.shape[0] == target.shape[0]
