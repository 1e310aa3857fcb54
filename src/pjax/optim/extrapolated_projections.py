"""Extrapolated projections: the method to train networks with."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax

from pjax.checks import check_positive, check_whole
from pjax.engines import soft
from pjax.engines.point import Problem
from pjax.errors import InputError
from pjax.graph.nodes import Graph, Node
from pjax.graph.partition import Partition, last_to_first
from pjax.optim.solver import Iteration, Solver, check_transformation, method


@method
class ExtrapolatedProjections(Solver):
    r"""Soft projections from the targets back to the parameters, and an outer optimiser.

    Each step is one sweep: every node is projected once, after all nodes that read it, with a soft weight on
    its output; what its readers ask of it is summed instead of averaged (an extrapolation by their number).
    What the parameters are asked to do is a step that `outer` takes for a gradient.
    See `pjax.engines.soft` for the formulas.

    With differentiable functions the moves are, to first order, gradients of the mean of what the function
    returns, so the method learns as fast as its outer optimiser does with gradients, and a step costs as
    much: JAX's reverse mode carries what nodes ask. Smooth nodes ask by their derivatives; kinks, maxima and
    sets are projected onto. A staircase such as `pjax.quantize`, which small moves do not change, is
    projected as the mean over a dither of its input (`pjax.Primitive.dithered`). A `lax.scan` is swept step
    by step, from the last to the first, and takes no longer to compile than one step.

    Args:
        steps_per_update: sweeps on one batch, each followed by a step of `outer`.
        check: whether to look for values that are not finite before each update outside `jit`.
        softness: τ, how much a node's output counts against its inputs when it is projected. It matters where
            a node has a kink (a relu, a maximum, a bound): large values come closer to plain projections,
            which move numbers across kinks.
        reach: how far the losses ask the predictions to move, as a fraction of their size; the answer is
            divided by it. With small values the answer is that of the network near its present parameters.
            With large ones it is that of a network with other active units and other maxima, less reliably.
        learning_rate: of Adam, which is the outer optimiser if none is given: 0.001, if not given.
        outer: an `optax.GradientTransformation`.

    >>> import jax.numpy as jnp
    >>> import pjax
    >>> optimizer = ExtrapolatedProjections(learning_rate=0.1)
    >>> params = {"w": jnp.zeros(2)}
    >>> state = optimizer.init(params)
    >>> x, y = jnp.array([[1.0, 2.0], [2.0, -1.0]]), jnp.array([3.0, 1.0])
    >>> for _ in range(100):
    ...     params, state, loss = optimizer.update(
    ...         lambda p: pjax.squared_error((x @ p["w"])[:, None], y[:, None]), params, state
    ...     )
    >>> bool(jnp.allclose(params["w"], jnp.ones(2), atol=0.05))
    True
    """

    name: ClassVar[str] = "EP"
    sweeps: ClassVar[bool] = True

    steps_per_update: int = 1
    check: bool = True
    softness: float = 0.01
    reach: float = 0.001
    learning_rate: float | None = None
    outer: Any = None

    def __post_init__(self) -> None:
        check_whole("steps_per_update", self.steps_per_update)
        rate = 1.0 if self.learning_rate is None else self.learning_rate
        if callable(rate) or isinstance(rate, jax.core.Tracer):
            raise InputError(
                f"learning_rate must be a number, got {rate!r:.80}: write a schedule, or a rate that is an"
                " argument of a compiled function, as outer=optax.adam(rate)"
            )
        for name, value in (("softness", self.softness), ("reach", self.reach), ("learning_rate", rate)):
            check_positive(name, value)
        if self.outer is None:
            return
        check_transformation(self.outer)
        if self.learning_rate is not None:
            raise InputError(
                "learning_rate is that of Adam, which is the outer optimiser if no other is given; here it is"
                f" {self.outer!r:.80}, with a rate of its own: leave learning_rate out"
            )

    @property
    def outer_optimizer(self) -> Any:
        return _adam(self.learning_rate or 1e-3) if self.outer is None else self.outer

    def partition(self, graph: Graph) -> Partition:
        return last_to_first(graph)

    def iteration(self, problem: Problem, *, measure: bool = False) -> Iteration:  # noqa: ARG002
        raise InputError(
            "ExtrapolatedProjections trains networks batch by batch, with `update`; to solve a feasibility "
            "problem, take DouglasRachford or AlternatingProjections"
        )

    def moves(
        self,
        problem: Problem,
        mean: Callable[[jax.Array], jax.Array] | None = None,  # noqa: ARG002 - taken of what it returns
        every: int = 1,  # noqa: ARG002
    ) -> tuple[dict[int, jax.Array], dict[int, jax.Array]]:
        moves, scale = soft.sweep(problem, self.softness, self.reach)
        nodes = zip(problem.graph.leaves, moves, strict=True)
        return {v: move / scale for v, move in nodes if v is not None}, {}

    def asks(
        self, problem: Problem, node: Node, values: Mapping[int, jax.Array], goal: jax.Array | None
    ) -> Sequence[jax.Array | None]:
        if goal is not None:
            assert node.rule is not None
            softness = soft.vanishing(self.softness, self.reach)
            output, pull = jax.vjp(node.rule.soft(softness), *problem.inputs[node.index])
            return pull(goal.astype(output.dtype))[: node.rule.moving]
        predictions, *labels = problem.inputs[node.index]
        rule: Any = node.rule
        return (rule.descent(predictions + problem.push(node.index, 0, values), *labels),)

    @property
    def rounds(self) -> int:
        return self.steps_per_update


@functools.cache  # so that equal rates are equal optimisers, and compile once
def _adam(learning_rate: float) -> Any:
    import optax  # takes long, and may not be needed

    return optax.adam(learning_rate)
