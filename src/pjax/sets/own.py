"""A set of one's own."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.errors import InputError
from pjax.sets._set import STATIC, Set


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Own(Set):
    """A set that is given by its projection.

    Args:
        nearest: a function from an array to the nearest members, one for each slice along its last `axes`
            axes. Define it once: every new function is compiled anew. `pjax.testing.check_set` checks it.
        axes: how many axes a member has: 0, 1 or 2.
        convex: whether the set is convex.

    >>> def even(x):
    ...     return 2 * jnp.round(x / 2)
    >>> Own(even, axes=0, convex=False).project(jnp.array([0.9, 3.2])).tolist()
    [0.0, 4.0]
    """

    nearest: Callable[[jax.Array], jax.Array] = dataclasses.field(metadata=STATIC)
    axes: int = dataclasses.field(default=1, metadata=STATIC)
    convex: bool = dataclasses.field(default=True, metadata=STATIC)

    name: ClassVar[str] = "own"

    def __post_init__(self) -> None:
        if not callable(self.nearest):
            raise InputError(f"Own: nearest must be a function of an array; got {self.nearest!r:.120}.")
        self.check_whole("axes", 0)
        if self.axes > 2:
            raise InputError(f"Own: axes must be 0, 1 or 2; got {self.axes}.")

    @property
    def core(self) -> int:
        return self.axes

    def project(self, x: jax.Array) -> jax.Array:
        found = jnp.asarray(self.nearest(x))
        if found.shape != x.shape:
            raise InputError(
                f"Own: {getattr(self.nearest, '__name__', 'nearest')} must keep the shape {x.shape}; "
                f"it returned {found.shape}."
            )
        return found.astype(x.dtype)

    def relaxed(self) -> Set | None:
        return self if self.convex else None
