"""The declaration of a parameter: its shape, its type, and how it starts."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from pjax.errors import InputError
from pjax.nn import initialisers

Initialiser: TypeAlias = Callable[[jax.Array, tuple[int, ...], Any], jax.Array]
"""A function of a key, a shape and a dtype, such as those of `jax.nn.initializers`."""


class Parameter:
    """Declares a parameter of a `Module`; it holds no value.

    Inside `Module.apply` the attribute is the array that was passed under the parameter's name. The same
    object in two places is one parameter, named after the first of them.

    Args:
        shape: the shape; an integer stands for one axis.
        initialiser: a function of a key, the shape and the dtype that returns the initial value.
        dtype: a type of floating point.

    >>> Parameter((2, 3), initialisers.normal())
    Parameter(shape=(2, 3), float32)
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        initialiser: Initialiser = initialisers.zeros,
        dtype: Any = np.float32,
    ) -> None:
        try:
            self.shape = tuple(
                map(operator.index, (shape,) if isinstance(shape, int | np.integer) else shape)
            )
        except TypeError as error:
            raise InputError(
                f"Parameter: a shape is a tuple of whole numbers, got {shape!r:.120}."
            ) from error
        if any(n < 0 for n in self.shape):
            raise InputError(f"Parameter: lengths must not be negative, got the shape {self.shape}.")
        if not callable(initialiser):
            raise InputError(
                "Parameter: the initialiser must be a function of a key, a shape and a dtype, such as "
                f"nn.initialisers.normal(); got {type(initialiser).__name__} {initialiser!r:.120}."
            )
        self.initialiser = initialiser
        self.dtype = floating(dtype)

    @property
    def size(self) -> int:
        """The number of scalars."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __repr__(self) -> str:
        return f"Parameter(shape={self.shape}, {self.dtype})"

    # A declaration that is used like an array says where the array is.

    def _no_value(self, *_: Any, **__: Any) -> NoReturn:
        raise InputError(
            f"{self!r} declares a parameter and has no value. Call the model through "
            "model.apply(params, …), with params = model.init(key); model.bind(params) gives a model whose "
            "parameters are arrays."
        )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}: it declares a parameter and has no value. "
            "Call the model through model.apply(params, …)."
        )

    __array__ = __getitem__ = __iter__ = __len__ = __float__ = __bool__ = _no_value
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_value
    __matmul__ = __rmatmul__ = __pow__ = __neg__ = __abs__ = _no_value
    # JAX asks whether there is such a method before it does anything else.
    __jax_array__ = property(_no_value)
    # NumPy leaves `array @ parameter` to the operators above.
    __array_ufunc__ = None


def floating(dtype: Any) -> np.dtype[Any]:
    """The dtype; `InputError` unless it is one of floating point."""
    try:
        found = jnp.dtype(dtype)
    except TypeError as error:
        raise InputError(f"Parameter: {dtype!r:.120} is no dtype; use jnp.float32 or the like.") from error
    if not jnp.issubdtype(found, jnp.floating):
        raise InputError(f"Parameter: the dtype must be one of floating point, got {found}.")
    return found
