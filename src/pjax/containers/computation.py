"""The containers a user can build by hand and inspect: `Computation`, `Array` and `Parameter`.

A `Computation` is the result of a function of pjax: it knows its value, the function and its inputs.
The leaves are `Array` (constant) and `Parameter` (to be found by an optimiser).
"""

import collections
import contextvars
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from pjax.errors import InputError
from pjax.graph.wires import postorder

Operand: TypeAlias = Any
"""What the functions of pjax take: a `Computation`, an array, a number, or a nested list of numbers."""

FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""The functions behind operators and methods, by name. `pjax.containers.numpy`, which needs the classes of
this module, hands them in."""

INSIDE: contextvars.ContextVar[Callable[["Computation"], Any] | None] = contextvars.ContextVar(
    "inside", default=None
)
"""In a function under `pjax.vmap`, where nothing is a computation: the values of those from around it."""


def _operator(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    def method(self: "Computation", *other: Operand, **settings: Any) -> Any:
        return FUNCTIONS[name](*other, self) if reflected else FUNCTIONS[name](self, *other, **settings)

    return method


class Computation:
    """The result of an operation, with its inputs. Made by the functions of pjax, seldom by hand.

    Args:
        op: name of the function that made it.
        inputs: the computations it was made from.
        value: its value, or a function without arguments that is called once, when the value is needed.
        name: a name for messages and drawings.
        kwargs: the static arguments of the function.
        fn: the function itself, from the values of `inputs` to the value; without it `as_function` cannot
            replay this computation.
        shape: the shape, when `value` is a function.
        dtype: the dtype, when `value` is a function.

    >>> from pjax.containers import numpy as pnp
    >>> y = pnp.dot(array([[1.0, 2.0]]), parameter([3.0, 4.0], name="w"))
    >>> y
    Computation(dot, shape=(1,), float32)
    >>> y.value.tolist(), y.op, y.inputs
    ([11.0], 'dot', (Array(shape=(1, 2), float32), Parameter(w, shape=(2,), float32)))
    """

    origin: tuple[Callable[[Any], Any], Any] | None = None
    """The function and the parameters that `pjax.trace` has shown as this target."""

    # NumPy arrays and scalars leave `array + computation` to the reflected operators below.
    __array_ufunc__ = None

    def __init__(
        self,
        op: str,
        inputs: Iterable["Computation"] = (),
        value: jax.Array | Callable[[], jax.Array] | None = None,
        name: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        fn: Callable[..., Any] | None = None,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        part: int | None = None,
    ) -> None:
        if value is None:
            raise InputError(
                f"Computation({op}) needs a value: pass an array, or a function that returns one with shape "
                "and dtype given apart."
            )
        self.op = op
        self.inputs = tuple(inputs)
        self.name = name
        self.kwargs: dict[str, Any] = dict(kwargs or {})
        self._thunk: Callable[[], jax.Array] | None = value if callable(value) else None
        self._value: Any = None if callable(value) else value
        self._shape = None if shape is None else tuple(shape)
        self._dtype = None if dtype is None else jnp.dtype(dtype)
        self._fn = fn
        self._part = part  # which of the results of `fn`, where it has several

    @property
    def value(self) -> jax.Array:
        """The value, an array of JAX."""
        if self._thunk is not None:
            self._value, self._thunk = self._thunk(), None
        value: jax.Array = self._value
        return value

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self._shape if self._shape is not None else self.value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""
        return self._dtype if self._dtype is not None else self.value.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of scalars."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def T(self) -> Any:  # noqa: N802
        """With the axes reversed."""
        return FUNCTIONS["transpose"](self)

    def reshape(self, *shape: Any) -> Any:
        """With another shape: ``x.reshape(2, 3)`` or ``x.reshape((2, 3))``."""
        return FUNCTIONS["reshape"](self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Any:
        """With the axes in another order, reversed by default."""
        return FUNCTIONS["transpose"](self, (axes[0] if len(axes) == 1 else axes) if axes else None)

    # Over some axes, as the functions of these names: x.sum(axis=0, keepdims=True).
    sum, mean, max, min = map(_operator, ("sum", "mean", "max", "min"))

    __add__, __radd__ = _operator("add"), _operator("add", reflected=True)
    __sub__, __rsub__ = _operator("subtract"), _operator("subtract", reflected=True)
    __mul__, __rmul__ = _operator("multiply"), _operator("multiply", reflected=True)
    __matmul__, __rmatmul__ = _operator("matmul"), _operator("matmul", reflected=True)
    __neg__, __getitem__ = _operator("negative"), _operator("index")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a Computation without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.value, dtype, copy=copy)

    def __repr__(self) -> str:
        head = self.op if self.name is None else f"{self.op} {self.name!r}"
        return f"{type(self).__name__}({head}, shape={self.shape}, {self.dtype})"


class _Leaf(Computation):
    def __repr__(self) -> str:
        head = "" if self.name is None else f"{self.name}, "
        return f"{type(self).__name__}({head}shape={self.shape}, {self.dtype})"


class Array(_Leaf):
    """A constant.

    Args:
        value: anything that NumPy can turn into an array; of a `Computation` only the value is kept.
        name: a name for messages and drawings.

    >>> Array(jnp.zeros(3)).op
    'array'
    """

    def __init__(self, value: Operand, name: str | None = None) -> None:
        super().__init__("array", (), _as_array("array", value), name)


class Parameter(_Leaf):
    """A variable, to be found by an optimiser.

    Args:
        value: its initial value, of floating point.
        name: its key in the dictionary of parameters.

    >>> Parameter(jnp.zeros(3), name="bias")
    Parameter(bias, shape=(3,), float32)
    """

    def __init__(self, value: Operand, name: str | None = None) -> None:
        value = _as_array("parameter", value)
        if not callable(value) and not jnp.issubdtype(value.dtype, jnp.floating):
            raise InputError(
                f"parameter: values must be floating point, got {value.dtype} of shape {value.shape}. "
                "Convert them, e.g. jnp.asarray(x, jnp.float32), or use pjax.array for a constant."
            )
        super().__init__("parameter", (), value, name)


array = Array
"""Short for `Array`: ``pjax.array([[1, 2]])``."""
parameter = Parameter
"""Short for `Parameter`: ``pjax.parameter([1.0, 2.0], name="w")``."""


def as_computation(x: Operand) -> Computation:
    """A `Computation` as it is; anything else as a constant.

    >>> as_computation(1.0)
    Array(shape=(), float32)
    """
    return x if isinstance(x, Computation) else array(x)


def as_function(outputs: Any) -> tuple[Callable[[Mapping[str, jax.Array]], Any], dict[str, jax.Array]]:
    """A computation built by hand, as a function that an optimiser can solve.

    Args:
        outputs: a `Computation`, or a pytree with computations as leaves.

    Returns:
        A function from a dictionary of values to the values of `outputs`, and the dictionary of the
        present values of the parameters. Unnamed parameters are called ``parameter_0`` and so on.

    >>> y = parameter([1.0, 2.0], name="w") * 3.0
    >>> fn, params = as_function(y)
    >>> fn({"w": params["w"] + 1.0}).tolist()
    [6.0, 9.0]
    """
    leaves, tree = jax.tree.flatten(outputs)
    results = [x for x in leaves if isinstance(x, Computation)]
    order = ancestors(results)
    parameters = [x for x in order if isinstance(x, Parameter)]
    names = _name_parameters(parameters)

    def fn(params: Mapping[str, jax.Array]) -> Any:
        if set(params) != set(names):
            raise InputError(
                f"The function takes a dictionary of the parameters {sorted(names)}, got {sorted(params)}: "
                "pass all of them and no others."
            )
        known = {id(p): jnp.asarray(params[name]) for name, p in zip(names, parameters, strict=True)}
        several: dict[int, Any] = {}  # the results of one call share their function, which is called once
        for node in order:
            if any(id(x) in known for x in node.inputs):
                known[id(node)] = _replayed(node, known, several)
        values = [value_in(known, x) if isinstance(x, Computation) else x for x in leaves]
        return jax.tree.unflatten(tree, values)

    return fn, {name: p.value for name, p in zip(names, parameters, strict=True)}


def ancestors(outputs: Iterable[Computation]) -> list[Computation]:
    """Everything that `outputs` are made of, themselves included: inputs first, in order of first use.

    >>> x = array(1.0)
    >>> [c.op for c in ancestors([x + x])]
    ['array', 'add']
    """
    return list(postorder(outputs, lambda x: x.inputs))


def _replayed(node: Computation, known: Mapping[int, Any], several: dict[int, Any]) -> Any:
    """The value of a computation, from those in `known` (by identity); other inputs keep their values."""
    if node._fn is None:
        raise InputError(
            f"{node!r} cannot be replayed: it was made without the function that computes it. "
            "Build it with the functions of pjax, or pass fn= to Computation."
        )
    values = [value_in(known, x) for x in node.inputs]
    if node._part is None:
        return node._fn(*values)
    if id(node._fn) not in several:
        several[id(node._fn)] = node._fn(*values)
    return several[id(node._fn)][node._part]


def value_in(known: Mapping[int, Any], x: Computation) -> Any:
    """The value of a computation in `known` (by identity), or its present value."""
    return known[id(x)] if id(x) in known else x.value  # noqa: SIM401 (a lazy value must not be evaluated)


def _name_parameters(parameters: Sequence[Parameter]) -> list[str]:
    given = collections.Counter(p.name for p in parameters if p.name is not None)
    twice = sorted(name for name, count in given.items() if count > 1)
    if twice:
        raise InputError(
            f"Several parameters are called {', '.join(map(repr, twice))}: give each another name, or "
            "use one and the same Parameter object to share it."
        )
    free = (name for i in itertools.count() if (name := f"parameter_{i}") not in given)
    return [next(free) if p.name is None else p.name for p in parameters]


def _as_array(caller: str, x: Operand) -> Any:
    if isinstance(x, Computation):
        return x.value
    if isinstance(x, jax.Array) or callable(x):
        return x
    try:
        return jnp.array(x)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{caller}: expected an array, a number or a nested list of numbers, "
            f"got {type(x).__name__} {x!r:.200}."
        ) from error
