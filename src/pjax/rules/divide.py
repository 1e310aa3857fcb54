"""Division of two numbers, both of which move."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.rules.arithmetic import weight_like, wide
from pjax.rules.base import Arrays, Primitive, Projection, Weight
from pjax.rules.nearest import derivatives, finite, length, nearest


@dataclasses.dataclass(frozen=True)
class Divide(Primitive):
    r"""The quotient of two numbers, element by element.

    Set: :math:`\{(x, y, z) : z y = x\}` with :math:`y` on its side of zero. Given :math:`y`, the nearest
    :math:`x` and :math:`z` are known: with :math:`e = z_0 y - x_0` they move by :math:`w e / (w + y^2)` and
    :math:`-y e / (w + y^2)`. What is left is a function of :math:`y`,

    .. math:: (y - y_0)^2 + \frac{w (z_0 y - x_0)^2}{w + y^2},

    which is the distance from a curve: it is searched as that of `Scalar`.

    >>> (x, y), z = Divide().project((jnp.array(1.0), jnp.array(1.0)), jnp.array(3.0))
    >>> [round(float(v), 2) for v in (x, y, z)]
    [1.2, 0.41, 2.92]
    """

    name: ClassVar[str] = "divide"
    first_order: ClassVar[bool] = True

    def forward(self, *inputs: jax.Array) -> jax.Array:
        x, y = inputs
        return (wide(x) / wide(y)).astype(jnp.result_type(x, y))

    def displace(
        self, inputs: Arrays, shifts: Arrays, output: jax.Array, shift: jax.Array, weight: Weight = 1.0
    ) -> Projection:
        x, y, dx, dy, z, dz = map(wide, (*inputs, *shifts, output, shift))
        w = weight_like(weight, z)
        shape = jnp.broadcast_shapes(x.shape, y.shape, z.shape, w.shape)
        x, y, dx, dy, z, dz, w = (jnp.broadcast_to(v, shape) for v in (x, y, dx, dy, z, dz, w))
        side = jnp.where(y < 0, -1, 1).astype(y.dtype)
        goal, start = z + dz, y + dy
        residual = z * dy + dz * start - dx  # z y = x, unless y is zero
        residual = jnp.where(y == 0, goal * start - (x + dx), residual)
        least = jnp.finfo(y.dtype).eps * jnp.maximum(jnp.abs(y), jnp.abs(start))
        least = jnp.maximum(least, jnp.sqrt(jnp.finfo(y.dtype).tiny))
        root = jnp.sqrt(w)

        def error(t: jax.Array) -> jax.Array:
            """Of ``z y = x`` with the new ``y``: from the small shifts, unless ``y`` moves far."""
            small = 2 * jnp.abs(t) < jnp.abs(start)
            return jnp.where(small, residual + goal * t, goal * (start + t) - (x + dx))

        def curve(t: jax.Array) -> jax.Array:
            on_side = side * (start + t) >= least
            return jnp.where(on_side, root * error(t) / length(root, start + t), jnp.inf)

        border = side * least - start
        seeds = jnp.stack([jnp.zeros_like(start), -dy, border])
        fine = jnp.finfo(y.dtype).eps
        centres = [(jnp.zeros_like(start), fine * jnp.abs(start)), (-start, fine * jnp.abs(start))]
        slopes = functools.partial(derivatives, curve)
        move, _ = nearest(curve, slopes, seeds, centres)
        end = start + move
        scale = jnp.maximum(root, jnp.abs(end))
        over = error(move) / scale
        total = (root / scale) ** 2 + (end / scale) ** 2
        moves = w * (over / scale) / total, move
        back = -(end / scale) * over / total
        kept = tuple(m.astype(i.dtype) for m, i in zip(moves, inputs, strict=True))
        return kept, back.astype(output.dtype)

    def ask(
        self, inputs: Arrays, output: jax.Array, goal: jax.Array, softness: float
    ) -> tuple[jax.Array, jax.Array]:
        """The soft projection over its weight, to first order."""
        del softness
        y, z = wide(inputs[1]), wide(output)
        above = wide(goal) / y
        return finite(above), finite(-above * z)
