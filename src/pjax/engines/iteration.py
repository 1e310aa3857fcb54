"""What a solver does between two updates: start, step, read off."""

from collections.abc import Callable
from typing import Any, Protocol

import jax


class Iteration(Protocol):
    """A projection method on one problem. All methods are pure.

    The state is a pytree. It has the squared violation that the last step saw, summed over edges (`squared`),
    and for each node with a history the largest term that it left out so far, relative (`neglected`).
    """

    def start(self) -> Any:
        """The state at the forward evaluation."""

    def step(self, state: Any) -> Any:
        """One step of the method."""

    def values(self, state: Any) -> dict[int, jax.Array]:
        """How far the consensus of each node that is read has moved: the mean of the edges that leave it."""

    def parameters(self, state: Any) -> dict[int, jax.Array]:
        """How far each parameter has moved, by node."""

    def agreed(self, state: Any, mean: Callable[[jax.Array], jax.Array]) -> Any:
        """The state after an exchange between groups: its parameters are moved to their mean."""
