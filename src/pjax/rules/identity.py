"""The identity: a node that passes a number on."""

import dataclasses
from typing import ClassVar

import jax

from pjax.rules.arithmetic import weight_like, wide
from pjax.rules.base import Arrays, Primitive, apply


@dataclasses.dataclass(frozen=True)
class Identity(Primitive):
    r"""The identity, one number to one number.

    Set: :math:`\{(x, z) : z = x\}`. The projection of :math:`(x_0, z_0)` is the weighted average
    :math:`x = z = (x_0 + w z_0) / (1 + w)`.

    >>> Identity().project((jax.numpy.array(1.0),), jax.numpy.array(3.0))
    ((Array(2., dtype=float32),), Array(2., dtype=float32))

    Reference: the theorem "Identity" of the paper.
    """

    name: ClassVar[str] = "identity"
    core: ClassVar[int] = 0

    def forward(self, *inputs: jax.Array) -> jax.Array:
        (x,) = inputs
        return x

    def displace(
        self,
        inputs: Arrays,
        shifts: Arrays,
        output: jax.Array,
        shift: jax.Array,
        weight: jax.typing.ArrayLike = 1.0,
    ) -> tuple[Arrays, jax.Array]:
        residual = wide(shift) - wide(shifts[0])
        w = weight_like(weight, residual)
        back = residual / (1 + w)
        return ((w * back).astype(inputs[0].dtype),), -back.astype(output.dtype)


def identity(x: jax.typing.ArrayLike) -> jax.Array:
    """Return ``x`` unchanged, as a node of its own in the traced graph.

    >>> identity(3.0)
    Array(3., dtype=float32, weak_type=True)
    """
    return apply(Identity(), jax.numpy.asarray(x))
