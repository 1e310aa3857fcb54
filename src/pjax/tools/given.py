"""What users hand in to be looked at: a function with its parameters, or computations."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pjax.containers.computation import Array, Computation, ancestors, as_function
from pjax.errors import InputError
from pjax.graph import read as tracing


def given(what: Any, params: Any) -> tuple[Callable[[Any], Any], Any, tracing.Traced]:
    """A function and its parameters, from the same, or from computations; and the function as it is read."""
    found = [x for x in jax.tree.leaves(what) if isinstance(x, Computation)]
    if found:
        if params is not None:
            raise InputError(
                "a computation brings its parameters along: leave params out, or pass the function instead"
            )
        origin, *others = {id(x.origin): x.origin for x in found}.values()
        what, params = as_function(what) if origin is None or others else origin
    elif not callable(what):
        raise InputError(
            "expected a function with its parameters, or a Computation made by the functions of pjax; got"
            f" {type(what).__name__} {what!r:.120}"
        )
    elif params is None:
        raise InputError("a function needs its parameters: pass a pytree of floating-point arrays as params")
    return what, params, tracing.read(what, params)


def constant_names(what: Any, fn: Callable[[Any], Any], constants: Sequence[Any]) -> tuple[str, ...]:
    """For each array that a function captured, the user's name for it; empty where there is none.

    >>> x, y = jax.numpy.ones(3), jax.numpy.zeros(3)
    >>> constant_names(None, lambda p: (p * x, y), [y, jax.numpy.ones(2), x])
    ('y', '', 'x')
    """
    arrays = ancestors([x for x in jax.tree.leaves(what) if isinstance(x, Computation)])
    known = [(a.name, a.value) for a in arrays if isinstance(a, Array) and a.name]
    for name, value in _captured(fn).items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            known.append((f"{name}.{tracing.path_name(path)}" if path else name, leaf))
    return tuple(
        next((name for name, value in known if _same(value, constant)), "") for constant in constants
    )


def _same(value: Any, constant: Any) -> bool:
    """Whether an array of the user's is what was captured, which is a copy where it was one of NumPy."""
    if value is constant:
        return True
    copied = isinstance(value, np.ndarray) and not isinstance(constant, jax.core.Tracer)
    return copied and value.shape == np.shape(constant) and bool(np.all(value == np.asarray(constant)))


def _captured(fn: Any) -> Mapping[str, Any]:
    """What a function reads from around it, by name."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    try:
        found = inspect.getclosurevars(inspect.unwrap(fn))
    except (TypeError, ValueError):  # no function of Python, or one that reads what is not assigned yet
        return {}
    return {**found.globals, **found.nonlocals}
