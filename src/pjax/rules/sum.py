"""Sums of any number of arrays, each with a sign."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from pjax.errors import InputError
from pjax.rules.arithmetic import weight_like, wide
from pjax.rules.base import Arrays, Primitive


def check_signs(name: str, signs: tuple[int, ...]) -> None:
    """Raise `InputError` unless there is at least one sign and each is 1 or -1."""
    if not signs or any(s not in (1, -1) for s in signs):
        raise InputError(
            f"{name}: signs must be a non-empty tuple of 1 and -1, one per input; got {signs!r}."
        )


def signed_sum(name: str, signs: tuple[int, ...], arrays: Arrays) -> jax.Array:
    """The sum of all arrays over their last axes, in float32 or wider."""
    if len(arrays) != len(signs):
        raise InputError(f"{name}: expected {len(signs)} inputs, one for each sign; got {len(arrays)}.")
    dtype = jnp.result_type(jnp.float32, *arrays)
    terms = [
        x.astype(dtype).squeeze(-1) if x.shape[-1] == 1 else jnp.sum(x, axis=-1, dtype=dtype) for x in arrays
    ]
    total = terms[0] if signs[0] == 1 else -terms[0]
    for sign, term in zip(signs[1:], terms[1:], strict=True):
        total = total + term if sign == 1 else total - term
    return total


def spread(step: jax.Array, signs: tuple[int, ...], inputs: Arrays) -> Arrays:
    """Move every entry of every input by ``step`` in the direction of its sign."""
    return tuple(
        jnp.broadcast_to((step if sign == 1 else -step).astype(x.dtype)[..., None], x.shape)
        for sign, x in zip(signs, inputs, strict=True)
    )


@dataclasses.dataclass(frozen=True)
class Sum(Primitive):
    r"""A sum of arrays of any lengths, each with a sign.

    Set: :math:`\{(x_1, \dots, x_k, z) : z = \sum_i s_i \mathbf 1^\top x_i\}` with signs :math:`s_i = \pm 1`,
    a hyperplane. With :math:`m` numbers in all and the residual
    :math:`r = z_0 - \sum_i s_i \mathbf 1^\top x_i`, the projection moves :math:`x_i` by
    :math:`s_i \lambda` and :math:`z` by :math:`-\lambda / w`, where :math:`\lambda = r / (m + 1/w)`.

    Args:
        signs: 1 or -1 for each input.

    >>> (x,), z = Sum((1,)).project((jnp.array([1.0, 2.0]),), jnp.array(6.0))
    >>> x, z
    (Array([2., 3.], dtype=float32), Array(5., dtype=float32))

    Reference: the theorem "Sum" of the paper.
    """

    signs: tuple[int, ...] = (1,)

    name: ClassVar[str] = "sum"
    core: ClassVar[int] = 1
    smooth: ClassVar[bool] = True
    only_adds: ClassVar[bool] = True

    @property
    def terms(self) -> tuple[int, ...]:
        return self.signs

    def __post_init__(self) -> None:
        check_signs(self.name, self.signs)

    def forward(self, *inputs: jax.Array) -> jax.Array:
        return signed_sum(self.name, self.signs, inputs).astype(inputs[0].dtype)

    def displace(
        self,
        inputs: Arrays,
        shifts: Arrays,
        output: jax.Array,
        shift: jax.Array,
        weight: jax.typing.ArrayLike = 1.0,
    ) -> tuple[Arrays, jax.Array]:
        residual = wide(shift) - signed_sum(self.name, self.signs, shifts)
        w = weight_like(weight, residual)
        back = residual / (1 + w * math.fsum(x.shape[-1] for x in inputs))
        return spread(w * back, self.signs, inputs), -back.astype(output.dtype)
