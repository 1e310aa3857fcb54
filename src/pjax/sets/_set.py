"""What a set is: numbers that describe it, and the projection onto it; and one of one's own."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from pjax.checks import check_whole
from pjax.errors import InputError

STATIC = {"static": True}
"""Of a field that is no array: it is part of the program, and a new value compiles it anew."""


@dataclasses.dataclass(frozen=True)
class Set(abc.ABC):
    """A set with a known projection, for `pjax.constrain`.

    A subclass is a frozen dataclass and a pytree (``jax.tree_util.register_dataclass``): its fields are
    numbers or arrays, so that sets can be passed through `jax.vmap` and `jax.jit`, or marked as static.
    """

    entries: ClassVar[tuple[str, ...]] = ()
    """Fields with a number for every entry of the value; all other fields have one for every member."""

    @property
    def core(self) -> int:
        """How many axes a member has in `project`: 0 for numbers, 1 for vectors, 2 for matrices."""
        return 1

    @abc.abstractmethod
    def project(self, x: jax.Array) -> jax.Array:
        """The nearest member, for each of the slices along the last `core` axes of ``x``."""

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise `InputError` if nothing of this shape (the `core` axes) can be in the set."""
        del shape

    def relaxed(self) -> "Set | None":
        """A convex set that holds this one, or None for the whole space; the set itself if it is convex.

        `ExtrapolatedProjections` uses it in place of the set: most small moves do not change, for example,
        the nearest integer, so that its small steps would learn nothing from the set itself.
        """
        return self

    def fitted(self, shape: tuple[int, ...], members: tuple[int, ...], dtype: Any) -> Self:
        """The set with its arrays broadcast to the value that is put into it.

        Args:
            shape: of the value.
            members: the same without the axes of a member.
            dtype: of the value.
        """
        found = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata.get("static") or value is None:
                continue
            array = jnp.asarray(value)
            wanted = shape if field.name in self.entries else members
            try:
                array = jnp.broadcast_to(array, wanted)
            except ValueError:
                raise InputError(
                    f"{type(self).__name__}: {field.name} has shape {array.shape}, which does not broadcast "
                    f"to {wanted}, the shape of the {'value' if wanted == shape else 'members'}."
                ) from None
            found[field.name] = array if array.dtype == bool else array.astype(dtype)
        return dataclasses.replace(self, **found)

    def known_numbers(self, field: str, least: float = -np.inf) -> np.ndarray | None:
        """The numbers of a field, as far as they are known now.

        Raises:
            InputError: if they are not finite, or below the least.
        """
        value = getattr(self, field)
        # JAX puts placeholders here when it takes pytrees apart.
        seen = isinstance(value, int | float | np.generic | np.ndarray | jax.Array)
        if not seen or isinstance(value, jax.core.Tracer):
            return None
        known = np.asarray(value).astype(np.float64)
        bad = ~(np.isfinite(known) & (known >= least))
        if bad.any():
            wanted = "finite" if least == -np.inf else f"finite and at least {least:g}"
            raise InputError(f"{type(self).__name__}: {field} must be {wanted}; got {known[bad][0]:g}.")
        return known


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

    def __post_init__(self) -> None:
        if not callable(self.nearest):
            raise InputError(f"Own: nearest must be a function of an array; got {self.nearest!r:.120}.")
        check_whole("Own: axes", self.axes, 0, 3)

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
