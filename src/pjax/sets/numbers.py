"""Sets of numbers, each for itself: bounds, whole numbers, known entries."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pjax.checks import check_positive
from pjax.errors import InputError
from pjax.sets._set import STATIC, Set


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Box(Set):
    r"""Numbers between bounds: :math:`\{x : l \le x \le u\}`, each for itself.

    Args:
        lower: a number, an array of the shape of the value, or None for no bound.
        upper: likewise. Where it turns out to be below the other, inside `jit`, the result is NaN.

    >>> Box(-1.0, 1.0).project(jnp.array([-3.0, 0.5, 2.0])).tolist()
    [-1.0, 0.5, 1.0]
    """

    lower: Any = None
    upper: Any = None

    core = 0
    entries: ClassVar[tuple[str, ...]] = ("lower", "upper")

    def __post_init__(self) -> None:
        low, high = self.known_numbers("lower"), self.known_numbers("upper")
        if low is None or high is None:
            return
        try:
            crossed = (low > high).any()
        except ValueError:
            shapes = f"{low.shape} and {high.shape}"
            raise InputError(f"Box: lower and upper have shapes that do not fit, {shapes}.") from None
        if crossed:
            raise InputError(f"Box: lower must not be above upper; got {self.lower!r}, {self.upper!r}.")

    def project(self, x: jax.Array) -> jax.Array:
        low, high = (None if bound is None else jnp.asarray(bound) for bound in (self.lower, self.upper))
        found = jnp.clip(x, low, high)
        if low is None or high is None:
            return found
        return jnp.where(low > high, jnp.nan, found).astype(found.dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NonNegative(Set):
    r"""Numbers that are not negative: :math:`\{x : x \ge 0\}`, each for itself.

    >>> NonNegative().project(jnp.array([-3.0, 0.5])).tolist()
    [0.0, 0.5]
    """

    core = 0

    def project(self, x: jax.Array) -> jax.Array:
        return jnp.maximum(x, 0)


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

    core = 0

    def __post_init__(self) -> None:
        for bound in (self.low, self.high):
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int | np.integer)):
                raise InputError(f"Integers: bounds must be whole numbers or None; got {bound!r}.")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise InputError(f"Integers: low must not be above high; got {self.low} and {self.high}.")
        check_positive("Integers: step", self.step)

    def project(self, x: jax.Array) -> jax.Array:
        x = x / self.step
        below = jnp.floor(x)
        whole = below + (x - below > 0.5)  # the difference is exact, also of large numbers
        low, high = (None if b is None else float(b) for b in (self.low, self.high))
        return jnp.clip(whole, low, high) * self.step

    def relaxed(self) -> Set:
        low, high = (None if b is None else b * self.step for b in (self.low, self.high))
        return Box(low, high)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Known(Set):
    r"""Values with given entries where a mask is true: :math:`\{x : x_i = v_i \text{ for } i \in M\}`.

    Args:
        mask: booleans of the shape of the value.
        values: numbers; those where the mask is false are not used, but must be finite.

    >>> Known(jnp.array([True, False]), jnp.array([5.0, 0.0])).project(jnp.array([1.0, 2.0])).tolist()
    [5.0, 2.0]
    """

    mask: Any
    values: Any

    core = 0
    entries: ClassVar[tuple[str, ...]] = ("mask", "values")

    def __post_init__(self) -> None:
        if isinstance(self.mask, np.ndarray | jax.Array | int | float):
            kind = jnp.result_type(self.mask)
            if not jnp.issubdtype(kind, jnp.bool_):
                raise InputError(f"Known: mask must be booleans; got {kind}.")
        self.known_numbers("values")

    def project(self, x: jax.Array) -> jax.Array:
        return jnp.where(self.mask, jnp.asarray(self.values, x.dtype), x)
