"""Whole numbers, or multiples of another step."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.errors import InputError
from pjax.sets._set import STATIC, Set
from pjax.sets.box import Box


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Integers(Set):
    r"""Whole numbers times a step, perhaps between bounds. Not convex. Midpoints are rounded down.

    ``Integers(-1, 1, step=0.1)`` are the three numbers -0.1, 0 and 0.1.

    Args:
        low: the smallest whole number, or None.
        high: the largest, or None.
        step: what they are multiplied by.

    >>> Integers(-1, 1).project(jnp.array([-7.0, 0.5, 0.6])).tolist()
    [-1.0, 0.0, 1.0]
    """

    low: int | None = dataclasses.field(default=None, metadata=STATIC)
    high: int | None = dataclasses.field(default=None, metadata=STATIC)
    step: float = dataclasses.field(default=1.0, metadata=STATIC)

    name: ClassVar[str] = "integers"

    def __post_init__(self) -> None:
        for bound in (self.low, self.high):
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
                raise InputError(f"Integers: bounds must be whole numbers or None; got {bound!r}.")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise InputError(f"Integers: low must not be above high; got {self.low} and {self.high}.")
        if not (math.isfinite(self.step) and self.step > 0):
            raise InputError(f"Integers: step must be a positive finite number; got {self.step!r}.")

    @property
    def core(self) -> int:
        return 0

    def project(self, x: jax.Array) -> jax.Array:
        x = x / self.step
        below = jnp.floor(x)
        whole = below + (x - below > 0.5)  # the difference is exact, also of large numbers
        if self.low is not None:
            whole = jnp.maximum(whole, self.low)
        if self.high is not None:
            whole = jnp.minimum(whole, self.high)
        return whole * self.step

    def relaxed(self) -> Set:
        low, high = (None if b is None else b * self.step for b in (self.low, self.high))
        return Box(low, high)
