"""Modules: trees of layers whose parameters are passed in."""

import copy
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp

from pjax.containers.lift import describe
from pjax.errors import InputError
from pjax.nn._mismatch import check_parameters
from pjax.nn._parameter import Parameter, floating

_RESERVED = ("apply", "bind", "init", "shapes")


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
        _check_key(self, key)
        chosen = None if dtype is None else floating(dtype)
        values: dict[str, jax.Array] = {}
        for name, parameter in self._parameters().items():
            to = parameter.dtype if chosen is None else chosen
            value = parameter.initialiser(jax.random.fold_in(key, _stable_hash(name)), parameter.shape, to)
            if jnp.shape(value) != parameter.shape:
                raise InputError(
                    f"{type(self).__name__}.init: the initialiser of {name!r} returned the shape "
                    f"{jnp.shape(value)}; expected {parameter.shape}."
                )
            values[name] = jnp.asarray(value, to)
        return values

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape and type of every parameter, by name; nothing is computed.

        >>> from pjax import nn
        >>> nn.Linear(2, 3).shapes()
        {'weight': ShapeDtypeStruct(shape=(2, 3), dtype=float32)}
        """
        return {name: jax.ShapeDtypeStruct(p.shape, p.dtype) for name, p in self._parameters().items()}

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
        root = self._declaration()
        parameters = root._parameters()
        check_parameters(type(self).__name__, parameters, params)
        values = {id(p): params[name] for name, p in parameters.items()}
        return _with_values(root, values)

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
        root = self._declaration()
        found: dict[str, Parameter] = {}
        done: set[int] = set()
        for path, value in _walk(root, done):
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


def _walk(root: Module, done: set[int]) -> Iterator[tuple[str, Module | Parameter]]:
    """The modules and parameters of a tree with their paths, in the order of assignment, each once."""
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
        found = (x.size for _, x in _walk(value, set()) if isinstance(x, Parameter))
        return sum(found)

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


def _stable_hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")


def _check_key(model: Module, key: Any) -> None:
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    new = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    old = dtype == jnp.uint32 and shape in ((2,), (4,))
    if new and shape != ():
        raise InputError(
            f"{type(model).__name__}.init: expected one key, got {shape} of them. Use "
            "jax.vmap(model.init)(keys) for several models at once."
        )
    if not new and not old:
        raise InputError(
            f"{type(model).__name__}.init: expected a key, such as jax.random.key(0), got {describe(key)}."
        )
