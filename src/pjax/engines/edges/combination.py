"""Linear combinations of arrays that cancel before they are computed.

The steps of reflecting methods, such as z + P₂(2 P₁(z) − z) − P₁(z), name the same arrays several times.
Written as combinations that add up the factors of one array, what cancels on paper cancels in the program:
no rounding, no pass over memory.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_pytree_node_class
class Linear:
    """Σ factor · array. The same array object occurs once."""

    __slots__ = ("_value", "terms")

    def __init__(self, terms: Iterable[tuple[float, jax.Array]]) -> None:
        merged: dict[int, tuple[float, jax.Array]] = {}
        for factor, array in terms:
            before = merged.get(id(array), (0.0, array))[0]
            merged[id(array)] = (before + factor, array)
        self.terms = tuple((f, a) for f, a in merged.values() if f != 0)
        self._value: Any = None

    @classmethod
    def of(cls, array: jax.Array) -> "Linear":
        return cls([(1.0, array)])

    @staticmethod
    def combine(parts: Iterable[tuple[float, "Linear"]]) -> "Linear":
        return Linear((factor * f, a) for factor, part in parts for f, a in part.terms)

    def __add__(self, array: jax.Array) -> "Linear":
        return Linear([*self.terms, (1.0, array)])

    @property
    def value(self) -> jax.Array:
        """The array, in float32 or wider. A combination of nothing has no shape: it must not be asked for."""
        if self._value is None:
            # Factors of one first: x + 2y needs one product less than 2y + x with a zero to start from.
            total: Any = None
            for factor, array in sorted(self.terms, key=lambda term: term[0] != 1):
                part = array.astype(jnp.promote_types(array.dtype, jnp.float32))
                part = part if abs(factor) == 1 else abs(factor) * part
                if total is None:
                    total = part if factor > 0 else -part
                else:
                    total = total + part if factor > 0 else total - part
            self._value = total
        return self._value

    def settled(self) -> "Linear":
        """The same combination as one array, with nothing left to cancel."""
        return Linear.of(self.value)

    def tree_flatten(self) -> tuple[tuple[jax.Array, ...], tuple[float, ...]]:
        return tuple(a for _, a in self.terms), tuple(f for f, _ in self.terms)

    @classmethod
    def tree_unflatten(cls, factors: tuple[float, ...], arrays: tuple[jax.Array, ...]) -> "Linear":
        made = cls(())
        made.terms = tuple(zip(factors, arrays, strict=True))
        return made
