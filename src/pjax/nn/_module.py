"""Modules: trees of layers whose parameters are declared in them, and passed in."""

import copy
import difflib
import fnmatch
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pjax.checks import check_whole
from pjax.containers.lift import describe
from pjax.errors import InputError

# --- The declaration of a parameter: its shape, its type, and how it starts ---

Initialiser: TypeAlias = Callable[[jax.Array, tuple[int, ...], Any], jax.Array]
"""A function of a key, a shape and a dtype, such as those of `jax.nn.initializers`."""


# JAX's own are made inside of functions, and cannot be pickled.


def keeping_size(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """For weights of linear layers and convolutions: their outputs are of the size of their inputs."""
    return jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal")(key, shape, dtype)


def of_size_one(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """For weights of which each output reads one."""
    return jax.nn.initializers.normal(1.0)(key, shape, dtype)


class Parameter:
    """Declares a parameter of a `Module`; it holds no value.

    Inside `Module.apply` the attribute is the array that was passed under the parameter's name. The same
    object in two places is one parameter, named after the first of them.

    Args:
        shape: the shape; an integer stands for one axis.
        initialiser: a function of a key, the shape and the dtype that returns the initial value.
        dtype: a type of floating point.

    >>> Parameter((2, 3), jax.nn.initializers.normal())
    Parameter(shape=(2, 3), float32)
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        initialiser: Initialiser = jax.nn.initializers.zeros,
        dtype: Any = np.float32,
    ) -> None:
        lengths = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        about = f"Parameter: each length of the shape {shape!r:.120}"
        self.shape = tuple(check_whole(about, length, 0) for length in lengths)
        if not callable(initialiser):
            raise InputError(
                "Parameter: the initialiser must be a function of a key, a shape and a dtype, such as "
                f"jax.nn.initializers.normal(); got {type(initialiser).__name__} {initialiser!r:.120}."
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


# --- Whether given values are those of a model's parameters ---

_MOST_LINES = 40


def check_parameters(model: str, declared: Mapping[str, Parameter], given: Any) -> None:
    """Raise an `InputError` unless there is one value of the right shape for each parameter."""
    if not isinstance(given, Mapping):
        raise InputError(
            f"{model}.apply: the parameters must be a dictionary as model.init(key) returns it, got "
            f"{type(given).__name__}. Are the arguments in the order apply(params, x)?"
        )
    missing = {name: p for name, p in declared.items() if name not in given}
    wrong = [f"{name}: missing, of shape {p.shape}" for name, p in missing.items()]
    for name, value in given.items():
        shape = getattr(value, "shape", None)
        if name not in declared:
            # What is missing is meant more likely than what was given too.
            near = (difflib.get_close_matches(str(name), names, 1) for names in (missing, declared))
            hint = next((f"; did you mean {found[0]!r}?" for found in near if found), "")
            if isinstance(value, Mapping):
                hint = "; names are paths with dots in one flat dictionary, such as 'hidden.weight'"
            wrong.append(f"{name}: unknown{hint}")
        elif shape != declared[name].shape:
            got = f"{type(value).__name__}, not an array" if shape is None else shape
            wrong.append(f"{name}: expected {declared[name].shape}, got {got}")
    if wrong:
        more = [f"and {len(wrong) - _MOST_LINES} more"] if len(wrong) > _MOST_LINES else []
        lines = "\n  ".join([*wrong[:_MOST_LINES], *more])
        raise InputError(
            f"{model}: the parameters are not those of the model:\n  {lines}\n"
            "Pass what model.init(key) returned for this model, or an update of it."
        )


# --- Modules ---

_RESERVED = ("apply", "bind", "init")


class Module:
    """A layer, or a network made of layers.

    Subclasses assign parameters and other modules to attributes in ``__init__``, also inside lists, tuples
    and dicts, and compute in ``__call__``. A parameter is named by its path: ``hidden.weight``,
    ``layers.0.weight``. Values are never stored in the module: `init` returns them, and `apply` takes them.
    A module or parameter that is in several places has one set of values, named after the place that was
    assigned first.

    >>> from pjax import nn
    >>> class MLP(nn.Module):
    ...     def __init__(self, inputs, hidden, classes):
    ...         super().__init__()
    ...         self.hidden = nn.Linear(inputs, hidden)
    ...         self.relu = nn.ReLU(hidden)
    ...         self.out = nn.Linear(hidden, classes)
    ...
    ...     def __call__(self, x):
    ...         return self.out(self.relu(self.hidden(x)))
    >>> model = MLP(8, 16, 3)
    >>> model
    MLP: 192 parameters
      hidden: Linear(8 → 16): 128
        weight (8, 16) float32
      relu: ReLU(16): 16
        bias (16,) float32
      out: Linear(16 → 3): 48
        weight (16, 3) float32
    >>> params = model.init(jax.random.key(0))
    >>> model.apply(params, jnp.ones((5, 8))).shape
    (5, 3)
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """What the module computes, with its parameters as arrays; defined by subclasses."""
        raise InputError(
            f"{self._place()}: {type(self).__name__} defines no __call__, so it cannot be applied."
        )

    def init(self, key: jax.Array, dtype: Any = None) -> dict[str, jax.Array]:
        """Initial values for all parameters.

        The value of a parameter depends on the key, on its own name and on its own declaration, and on
        nothing else: other attributes, and their order, do not matter.

        Args:
            key: such as ``jax.random.key(0)``.
            dtype: a type of floating point for all parameters, in place of those they declare.

        Returns:
            A dictionary from names to arrays.
        """
        try:
            jax.eval_shape(jax.random.fold_in, key, 0)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{type(self).__name__}.init: expected a key, such as jax.random.key(0), got {describe(key)}."
                " Use jax.vmap(model.init)(keys) for several models at once."
            ) from error
        chosen = None if dtype is None else floating(dtype)
        values: dict[str, jax.Array] = {}
        for name, parameter in self._parameters().items():
            to = parameter.dtype if chosen is None else chosen
            place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
            value = parameter.initialiser(jax.random.fold_in(key, place), parameter.shape, to)
            if jnp.shape(value) != parameter.shape:
                raise InputError(
                    f"{type(self).__name__}.init: the initialiser of {name!r} returned the shape "
                    f"{jnp.shape(value)}; expected {parameter.shape}."
                )
            values[name] = jnp.asarray(value, to)
        return values

    def bind(self, params: Mapping[str, Any]) -> Self:
        """A copy of the module with arrays in place of its parameters.

        Args:
            params: a value for each parameter, by name. Values may be arrays or computations.

        Returns:
            A module that can be called. The module itself is not changed.

        >>> from pjax import nn
        >>> layer = nn.Linear(2, 3).bind({"weight": jnp.ones((2, 3))})
        >>> layer(jnp.ones(2)).tolist()
        [2.0, 2.0, 2.0]
        """
        parameters = self._parameters()
        check_parameters(type(self).__name__, parameters, params)
        values = {id(p): params[name] for name, p in parameters.items()}
        return _with_values(self._declaration(), values)

    def apply(self, params: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Call the module with the given values for its parameters.

        Args:
            params: a value for each parameter, by name, as `init` returns them.
            args: arguments of the module's ``__call__``.
            kwargs: arguments of the module's ``__call__``.

        >>> from pjax import nn
        >>> nn.Linear(2, 3).apply({"weight": jnp.ones((2, 3))}, jnp.ones(2)).tolist()
        [2.0, 2.0, 2.0]
        """
        return self.bind(params)(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _RESERVED:
            raise InputError(
                f"{type(self).__name__}: the attribute {name!r} would hide the method of modules with that "
                "name; choose another."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        root = self._declaration()
        return "\n".join(_summary(root)) + ("\nbound" if root is not self else "")

    def _label(self) -> str:
        """The module in a few words, for `repr` and messages."""
        return type(self).__name__

    def _place(self) -> str:
        """Which module of a model this is, for messages."""
        path = vars(self).get("_pjax_path", "")
        return f"`{path}`, {self._label()}" if path else self._label()

    def _declaration(self) -> Self:
        """The module that a bound one was made from; otherwise itself."""
        found: Self = vars(self).get("_pjax_declaration", self)
        return found

    def _parameters(self) -> dict[str, Parameter]:
        """The declared parameters by name."""
        found: dict[str, Parameter] = {}
        for path, value in _walk(self._declaration()):
            if isinstance(value, Parameter):
                if path in found:
                    raise InputError(
                        f"{type(self).__name__}: two parameters are called {path!r}. Rename an attribute or "
                        "a key: keys with dots, or 1 beside '1', look alike in a path."
                    )
                found[path] = value
        return found


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """What a module or a container holds, by name; nothing for all else."""
    if isinstance(value, Module):
        # A module that somebody bound already has arrays, which are constants here.
        yield from () if "_pjax_declaration" in vars(value) else vars(value).items()
    elif isinstance(value, Mapping):
        yield from ((str(key), child) for key, child in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(place), child) for place, child in enumerate(value))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _walk(root: Module) -> Iterator[tuple[str, Module | Parameter]]:
    """The modules and parameters of a tree with their paths, in the order of assignment, each once."""
    done: set[int] = set()
    trail: list[int] = []

    def go(path: str, value: Any) -> Iterator[tuple[str, Module | Parameter]]:
        if id(value) in trail:
            raise InputError(
                f"{type(root).__name__}: {path!r} is a {type(value).__name__} that contains itself, so its "
                "parameters would have infinitely many names. Keep no reference to an outer module."
            )
        if isinstance(value, set | frozenset) and any(isinstance(x, Module | Parameter) for x in value):
            raise InputError(
                f"{type(root).__name__}: {path!r} is a set, which has no order. Keep modules and parameters "
                "in attributes, lists, tuples and dicts."
            )
        if isinstance(value, Module | Parameter):
            if id(value) in done:
                return
            done.add(id(value))
            yield path, value
        trail.append(id(value))
        for name, child in _children(value):
            yield from go(_join(path, name), child)
        trail.pop()

    yield from go("", root)


def _with_values(root: Any, values: Mapping[int, Any]) -> Any:
    """A copy of a tree in which parameters, by identity, are replaced; what is shared stays shared."""
    copies: dict[int, Any] = {}

    def go(path: str, value: Any) -> Any:
        if isinstance(value, Parameter):
            return values[id(value)]
        if id(value) in copies:
            return copies[id(value)]
        old = [child for _, child in _children(value)]
        inside = [go(_join(path, name), child) for name, child in _children(value)]
        new: Any
        if isinstance(value, Module):
            if "_pjax_declaration" in vars(value):
                return value
            new = object.__new__(type(value))
            vars(new).update(zip(vars(value), inside, strict=True), _pjax_path=path, _pjax_declaration=value)
        elif all(a is b for a, b in zip(inside, old, strict=True)):
            return value
        elif isinstance(value, tuple):
            new = type(value)(*inside) if hasattr(value, "_fields") else type(value)(inside)
        else:
            new = copy.copy(value)
            places = value if isinstance(value, Mapping) else range(len(value))
            for place, child in zip(places, inside, strict=True):
                new[place] = child
        copies[id(value)] = new
        return new

    return go("", root)


def _summary(root: Module) -> Iterator[str]:
    """The lines of `repr`."""
    names = {id(p): name for name, p in root._parameters().items()}
    shown: dict[int, str] = {}

    def total(value: Any) -> int:
        return sum(x.size for _, x in _walk(value) if isinstance(x, Parameter))

    def lines(indent: str, name: str, path: str, value: Any) -> Iterator[str]:
        title = f"{indent}{name}: " if name else indent
        if isinstance(value, Parameter):
            first = names[id(value)]
            tied = "" if first == path else f", the same as {first}"
            yield f"{indent}{name} {value.shape} {value.dtype}{tied}"
        elif isinstance(value, Module):
            if id(value) in shown:
                yield f"{title}{value._label()}, the same as {shown[id(value)]}"
                return
            shown[id(value)] = path
            unit = "" if name else " parameters" if total(value) != 1 else " parameter"
            yield f"{title}{value._label()}: {total(value):,}{unit}"
            for key, child in _children(value):
                yield from lines(indent + "  ", key, _join(path, key), child)
        else:
            for key, child in _children(value):
                yield from lines(indent, f"{name}.{key}", _join(path, key), child)

    yield from lines("", "", "", root)


# --- Which parameters learn ---

T = TypeVar("T")


def freeze(params: Mapping[str, T], *patterns: str) -> tuple[dict[str, T], dict[str, T]]:
    """Divide parameters into those that learn and those that stay as they are.

    An optimiser is given the first alone; the second enters the function as constants, through
    ``model.apply(trainable | frozen, x)``.

    Args:
        params: values by name, as `Module.init` returns them.
        patterns: names of what stays as it is, with ``*``, ``?`` and ``[…]`` as in the names of files; ``*``
            matches dots too.

    Returns:
        The parameters that learn, and those that do not.

    Raises:
        InputError: if a pattern matches nothing.

    >>> trainable, frozen = freeze({"embed.weight": 1, "out.weight": 2, "out.bias": 3}, "embed.*", "*.bias")
    >>> trainable, frozen
    ({'out.weight': 2}, {'embed.weight': 1, 'out.bias': 3})
    """
    frozen: dict[str, T] = {}
    for pattern in patterns:
        found = {name: value for name, value in params.items() if fnmatch.fnmatchcase(name, pattern)}
        frozen |= found
        if not found:
            near = difflib.get_close_matches(pattern, params, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(
                f"freeze: the pattern {pattern!r} matches no parameter.{hint} The parameters are "
                f"{', '.join(params) or 'none'}."
            )
    return {name: value for name, value in params.items() if name not in frozen}, frozen
