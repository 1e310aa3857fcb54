"""Bounds: numbers between two others, or not below zero."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pjax.errors import InputError
from pjax.sets._set import Set, check_numbers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Box(Set):
    r"""Numbers between bounds: :math:`\{x : l \le x \le u\}`, each for itself.

    Args:
        lower: a number, an array of the shape of the value, or None for no bound.
        upper: likewise.

    >>> Box(-1.0, 1.0).project(jnp.array([-3.0, 0.5, 2.0])).tolist()
    [-1.0, 0.5, 1.0]
    """

    lower: Any = None
    upper: Any = None

    name: ClassVar[str] = "box"
    entries: ClassVar[tuple[str, ...]] = ("lower", "upper")

    def __post_init__(self) -> None:
        check_numbers("Box", "lower", self.lower)
        check_numbers("Box", "upper", self.upper)
        known = (int, float, np.generic, np.ndarray, jax.Array)
        both = [b for b in (self.lower, self.upper) if isinstance(b, known)]
        if len(both) == 2 and not any(isinstance(b, jax.core.Tracer) for b in both):
            low, high = map(np.asarray, both)
            if (low > high).any():
                raise InputError(f"Box: lower must not be above upper; got {self.lower!r}, {self.upper!r}.")

    @property
    def core(self) -> int:
        return 0

    def project(self, x: jax.Array) -> jax.Array:
        if self.lower is not None:
            x = jnp.maximum(x, self.lower)
        return x if self.upper is None else jnp.minimum(x, self.upper)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NonNegative(Set):
    r"""Numbers that are not negative: :math:`\{x : x \ge 0\}`, each for itself.

    >>> NonNegative().project(jnp.array([-3.0, 0.5])).tolist()
    [0.0, 0.5]
    """

    name: ClassVar[str] = "non_negative"

    @property
    def core(self) -> int:
        return 0

    def project(self, x: jax.Array) -> jax.Array:
        return jnp.maximum(x, 0)
