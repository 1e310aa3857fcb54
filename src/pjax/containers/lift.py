"""How a function of arrays becomes a function of computations too."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np

from pjax.containers.computation import INSIDE, Computation, as_computation
from pjax.errors import InputError

P = ParamSpec("P")


def lift(*arrays: str, expects: str) -> Callable[[Callable[P, jax.Array]], Callable[P, Any]]:
    """Let a function of arrays take computations too, and name it in its errors.

    Args:
        arrays: names of the arguments that are arrays; ``"*name"`` is a sequence of arrays. All other
            arguments are static.
        expects: what the function expects of its arguments, for error messages.

    Returns:
        A decorator. The decorated function returns an array where all its arguments are plain, and a
        `Computation` where one of them is.

    >>> from pjax.containers.computation import Array
    >>> @lift("x", expects="an array")
    ... def twice(x: jax.Array) -> jax.Array:
    ...     return x + x
    >>> twice(1.0).tolist(), twice(Array(jnp.ones(2)))
    (2.0, Computation(twice, shape=(2,), float32))
    """
    several = {name.removeprefix("*"): name.startswith("*") for name in arrays}

    def decorate(function: Callable[P, jax.Array]) -> Callable[P, Any]:
        name = function.__name__.removeprefix("_")
        signature = inspect.signature(function)

        @functools.wraps(function)
        def lifted(*args: P.args, **kwargs: P.kwargs) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            static = {key: value for key, value in bound.arguments.items() if key not in several}
            operands = list[Any]()
            counts = dict[str, int | None]()
            for key, is_sequence in several.items():
                given = _rows(name, key, bound.arguments[key]) if is_sequence else [bound.arguments[key]]
                operands.extend(given)
                counts[key] = len(given) if is_sequence else None
            _check_computations(name, operands, static)
            value_of = INSIDE.get()
            if value_of is not None:
                operands = [value_of(x) if isinstance(x, Computation) else x for x in operands]

            def evaluate(*values: Any) -> jax.Array:
                try:
                    rest = iter(list(map(_as_array, values)))
                    found = dict(static)
                    for key, count in counts.items():
                        found[key] = next(rest) if count is None else tuple(next(rest) for _ in range(count))
                    call = inspect.BoundArguments(signature, found)
                    return function(*call.args, **call.kwargs)
                except (TypeError, ValueError, IndexError, ArithmeticError) as error:
                    raise InputError(_complaint(name, expects, values, static, error)) from error

            if not any(isinstance(x, Computation) for x in operands):
                return evaluate(*operands)
            inputs = tuple(map(as_computation, operands))
            value = evaluate(*(x.value for x in inputs))
            return Computation(name, inputs, value, None, static, fn=evaluate)

        return lifted

    return decorate


def _as_array(value: Any) -> jax.Array:
    """An array; one whose values are known stays known while a function is traced, so it can be checked."""
    if isinstance(value, jax.Array):
        return value
    if np.asarray(value).dtype.kind in "USO":
        raise TypeError(
            "words and other objects are no numbers: make labels whole numbers,"
            " np.unique(labels, return_inverse=True)[1]"
        )
    with jax.ensure_compile_time_eval():
        return jnp.asarray(value)


def _rows(name: str, key: str, given: Any) -> list[Any]:
    """The arrays of a sequence; an array in its place stands for its rows, as in NumPy."""
    try:
        return list(given)
    except TypeError as error:
        raise InputError(
            f"pjax.{name}: {key} must be a sequence of arrays, got {type(given).__name__}; pass a list."
        ) from error


def _check_computations(name: str, operands: Sequence[Any], static: dict[str, Any]) -> None:
    """Computations in places where they would silently lose their graph."""
    for x in operands:
        if isinstance(x, list | tuple) and any(isinstance(leaf, Computation) for leaf in jax.tree.leaves(x)):
            raise InputError(f"pjax.{name}: got a list of computations as one array; use pjax.stack first.")
    for key, setting in static.items():
        if any(isinstance(leaf, Computation) for leaf in jax.tree.leaves(setting)):
            raise InputError(
                f"pjax.{name}: {key} is a static argument and cannot be a Computation, got {setting!r:.120}; "
                "pass a plain value, such as its .value."
            )


def _complaint(
    name: str, expects: str, values: Sequence[Any], static: dict[str, Any], error: Exception
) -> str:
    got = [describe(x) for x in values]
    got += [f"{key}={value!r:.120}" for key, value in static.items()]
    said = str(error).strip().removeprefix(f"{name}: ")  # an error of ours may name the function already
    return f"pjax.{name}: {said}\nExpected {expects}.\nGot {', '.join(got) or 'nothing'}."


def describe(x: Any) -> str:
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"an array of shape {tuple(x.shape)}, {x.dtype}"
    return f"{type(x).__name__} {x!r:.120}"
