"""Values some of whose entries are known."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pjax.errors import InputError
from pjax.sets._set import Set, check_numbers


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

    name: ClassVar[str] = "known"
    entries: ClassVar[tuple[str, ...]] = ("mask", "values")

    def __post_init__(self) -> None:
        if isinstance(self.mask, np.ndarray | jax.Array | int | float):
            kind = jnp.result_type(self.mask)
            if not jnp.issubdtype(kind, jnp.bool_):
                raise InputError(f"Known: mask must be booleans; got {kind}.")
        check_numbers("Known", "values", self.values)

    @property
    def core(self) -> int:
        return 0

    def project(self, x: jax.Array) -> jax.Array:
        return jnp.where(self.mask, jnp.asarray(self.values, x.dtype), x)
