"""Products of matrices and tensors: `lax.dot_general`."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pjax.devices import divisor, end_kernel, on_one_device, sum_apart, sum_in_parts
from pjax.rules.contraction import Contraction, added


@dataclasses.dataclass(frozen=True)
class DotGeneral(Contraction):
    """`lax.dot_general`."""

    operation = staticmethod(lax.dot_general)
    contract: tuple[tuple[int, ...], ...]
    batch: tuple[tuple[int, ...], ...]

    def pairs(self, *terms: tuple[jax.Array, jax.Array]) -> jax.Array:
        def by_edges(*terms: Any) -> jax.Array:
            """One kernel that adds, where those that multiply matrices would take longer to start."""
            return added(self._products, *terms).sum(-1)

        in_parts = functools.partial(added, self._in_parts) if self._parts > 1 else None
        return on_one_device(
            *terms,
            cuda=by_edges if self.edges <= 2**20 else in_parts,
            default=functools.partial(added, self._plain),
        )

    @functools.cached_property
    def settings(self) -> tuple[Any, ...]:
        return ((self.contract, self.batch),)

    def _products(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """The products before they are summed."""
        dtype = jnp.promote_types(jnp.result_type(x, y), jnp.float32)
        return self.expand(0, x).astype(dtype) * self.expand(1, y).astype(dtype)

    @functools.cached_property
    def _parts(self) -> int:
        """In how many parts a GPU sums products that are long and few: it has work for all its cores then.

        The compiler does that by itself, but first copies to a multiple of some power of two what is not one.
        """
        if self.batch != ((), ()) or [len(s) for s in self.shapes] != [2, 2]:
            return 1
        if self.length % 256 == 0 or self.length % 16 or math.prod(self.out) > 2**17:
            return 1
        return divisor(self.length // 16, self.length // 64)

    def _in_parts(self, x: jax.Array, y: jax.Array) -> jax.Array:
        (a,), (b,) = self.contract
        x, y = (z.reshape(*z.shape[:d], self._parts, -1, *z.shape[d + 1 :]) for z, d in ((x, a), (y, b)))
        return self._plain(x, y, (((a + 1,), (b + 1,)), ((a,), (b,)))).sum(0)

    @functools.cached_property
    def free(self) -> tuple[tuple[int, ...], ...]:
        sides = zip(self.shapes, self.contract, self.batch, strict=True)
        return tuple(tuple(d for d in range(len(s)) if d not in (*c, *b)) for s, c, b in sides)

    @functools.cached_property
    def length(self) -> int:
        return math.prod(self.shapes[0][d] for d in self.contract[0])

    def rows(self, i: int, x: jax.Array) -> jax.Array:
        """Input i as the rows that dot products are made of: of axes ``(*batch, *free, K)``."""
        x = x.transpose(self.batch[i] + self.free[i] + self.contract[i])
        return x.reshape(*x.shape[: x.ndim - len(self.contract[i])], self.length)

    def _beside(self, i: int, x: jax.Array) -> jax.Array:
        """What begins with the axes ``(*batch, *free)`` of input i, with those of the other one, too."""
        at = len(self.batch[i]) + (len(self.free[0]) if i == 0 else 0)
        return x.reshape(*x.shape[:at], *(1 for _ in self.free[1 - i]), *x.shape[at:])

    def expand(self, i: int, x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(self._beside(i, self.rows(i, x)), (*self.out, self.length))

    def align(self, i: int, x: jax.Array, edges: jax.Array) -> jax.Array:
        *out, slot = range(edges.ndim)
        first = len(self.batch[0]) + len(self.free[0])
        mine = out[:first] if i == 0 else out[: len(self.batch[0])] + out[first:]
        rows = self.rows(i, x)
        return jnp.einsum(rows, [*mine, slot], edges, [*out, slot], out, precision=self.precision)

    def reduce(self, i: int, q: jax.Array) -> jax.Array:
        in_memory = self.contract[i][-1] == q.ndim - 1
        rows = self.rows(i, q)
        return self._beside(i, sum_apart(rows) if in_memory else sum_in_parts(rows))

    def scatter(self, i: int, c: jax.Array) -> jax.Array:
        first = len(self.batch[0]) + (len(self.free[0]) if i == 0 else 0)
        axes = tuple(range(first, first + len(self.free[1 - i])))
        mine = self.batch[i] + self.free[i]
        shape = [size if d in mine else 1 for d, size in enumerate(self.shapes[i])]
        return end_kernel(c).sum(axes).transpose(np.argsort(mine)).reshape(shape)

    def count(self, i: int) -> int:
        return math.prod(self.shapes[1 - i][d] for d in self.free[1 - i])

    @property
    def stackable(self) -> bool:
        return self.batch == ((), ())

    def stacked(self, number: int, differ: Sequence[bool]) -> "tuple[DotGeneral, tuple[bool, ...], int]":
        """A factor that is the same for all is not stacked."""
        many = tuple(differ) if any(differ) else (True, True)
        sides = list(zip(self.shapes, self.contract, many, strict=True))
        made = dataclasses.replace(
            self,
            shapes=tuple((number, *shape) if stacks else shape for shape, _, stacks in sides),
            contract=tuple(tuple(d + 1 if stacks else d for d in axes) for _, axes, stacks in sides),
            batch=((0,), (0,)) if all(many) else ((), ()),
        )
        return made, many, 0 if many[0] else len(self.free[0])
