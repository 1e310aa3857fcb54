"""Vectorisation of functions of arrays and computations."""

import contextvars
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from pjax.containers.computation import INSIDE, Array, Computation, value_in
from pjax.containers.lift import describe
from pjax.errors import InputError, PjaxError


def vmap(
    fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, *, axis_size: int | None = None
) -> Callable[..., Any]:
    """A function applied to every entry along an axis, as `jax.vmap`; computations are mapped too.

    The function itself sees arrays. Parameters and other computations that it captures are shared by all
    entries. It is called again when the result is evaluated with other values of these, or of its arguments.

    Args:
        fn: a function of arrays, or of pytrees of them.
        in_axes: the axis of each argument to map over, or None; a pytree as in `jax.vmap`.
        out_axes: where the mapped axis goes in each result.
        axis_size: length of the mapped axis, needed only where no argument has one.

    >>> from pjax.containers.computation import parameter
    >>> from pjax.containers.numpy import dot
    >>> w = parameter([1.0, 2.0], name="w")
    >>> vmap(lambda x: dot(x, w))(jax.numpy.ones((3, 2)))
    Computation(vmap, shape=(3,), float32)
    """
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    axes = {"in_axes": in_axes, "out_axes": out_axes, "axis_size": axis_size}
    settings = {"fn": getattr(fn, "__name__", type(fn).__name__), **axes}

    def evaluate(args: Any, kwargs: Any, value_of: Callable[[Computation], Any]) -> Any:
        """The results, given the values of computations."""
        inside = False

        def body(args: Any, kwargs: Any) -> Any:
            nonlocal inside
            inside, around = True, contextvars.copy_context()
            around.run(INSIDE.set, value_of)
            results = jax.tree.map(plain, around.run(fn, *args, **kwargs))
            inside = False
            return results

        def plain(x: Any) -> Any:
            return value_of(x) if isinstance(x, Computation) else x

        args, kwargs = jax.tree.map(plain, (args, kwargs))
        try:
            return jax.vmap(body, (in_axes, 0), out_axes, axis_size=axis_size)(args, kwargs)
        except (TypeError, ValueError) as error:
            if inside or isinstance(error, PjaxError):
                raise
            given = ", ".join(map(describe, jax.tree.leaves((args, kwargs)))) or "no arguments"
            raise InputError(
                f"pjax.vmap: {str(error).strip()}\nExpected in_axes and out_axes that fit the arguments and "
                f"results, and mapped axes of one length.\nGot in_axes={in_axes!r}, out_axes={out_axes!r}, "
                f"{given}."
            ) from error

    @functools.wraps(fn)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        around = INSIDE.get()
        if around is not None:  # in a mapped function, nothing is a computation
            return evaluate(args, kwargs, around)
        inputs = {id(x): x for x in jax.tree.leaves((args, kwargs)) if isinstance(x, Computation)}

        def present(x: Computation) -> Any:
            if not isinstance(x, Array):  # those made inside may hold what belongs to one entry
                inputs.setdefault(id(x), x)
            return x.value

        flat, tree = jax.tree.flatten(evaluate(args, kwargs, present))
        if not inputs:
            return jax.tree.unflatten(tree, flat)

        def again(*values: Any) -> list[Any]:
            known: Mapping[int, Any] = dict(zip(inputs, values, strict=True))
            found = evaluate(args, kwargs, functools.partial(value_in, known))
            return jax.tree.leaves(found)

        parts = [
            Computation("vmap", inputs.values(), value, None, settings, fn=again, part=i)
            for i, value in enumerate(flat)
        ]
        return jax.tree.unflatten(tree, parts)

    return mapped
