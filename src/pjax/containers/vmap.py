"""Vectorisation of functions of arrays and computations."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from pjax.containers.computation import (
    Array,
    Computation,
    ancestors,
    as_computation,
    depending,
    lookup,
    replay,
    serial,
    value_of,
)
from pjax.containers.lift import describe
from pjax.errors import InputError, PjaxError


def vmap(
    fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, *, axis_size: int | None = None
) -> Callable[..., Any]:
    """A function applied to every entry along an axis, as `jax.vmap`; computations are mapped too.

    Parameters and other computations that `fn` takes from around it are not mapped: they are shared.

    Args:
        fn: a function of arrays or computations, or of pytrees of them.
        in_axes: the axis of each argument to map over, or None; a pytree as in `jax.vmap`.
        out_axes: where the mapped axis goes in each result.
        axis_size: length of the mapped axis, needed only where no argument has one.

    >>> from pjax.containers.computation import parameter
    >>> from pjax.containers.numpy import dot
    >>> w = parameter([1.0, 2.0], name="w")
    >>> vmap(lambda x: dot(x, w))(jax.numpy.ones((3, 2)))
    Computation(vmap, shape=(3,), float32)
    """

    @functools.wraps(fn)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        return _Mapping(fn, in_axes, out_axes, axis_size)(args, kwargs)

    return mapped


class _Mapping:
    """One call of a vmapped function.

    The function is run once, under `jax.vmap`, on computations that stand for one entry of the arguments.
    What it returns is a graph. Its nodes that depend on the entries are replayed, again under `jax.vmap`;
    all others that it reads are captured, and become inputs beside the arguments.
    """

    def __init__(self, fn: Callable[..., Any], in_axes: Any, out_axes: Any, axis_size: int | None) -> None:
        self.fn, self.axis_size = fn, axis_size
        self.in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
        self.out_axes = out_axes

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, self.tree = jax.tree.flatten((args, kwargs))
        self.leaves = leaves
        self.lifted = any(isinstance(x, Computation) for x in leaves)
        values, loose = self.vmap(self.first, (self.out_axes, 0), [value_of(x) for x in leaves], [], [])
        if not self.lifted:
            return values
        flat, out_tree = jax.tree.flatten(values)
        arguments = [x for x in leaves if isinstance(x, Computation)]
        inputs = [*arguments, *map(Array, loose), *self.captured]
        settings = {
            "fn": getattr(self.fn, "__name__", type(self.fn).__name__),
            "in_axes": self.in_axes,
            "out_axes": self.out_axes,
            "axis_size": self.axis_size,
        }
        call = self.again
        parts = [
            Computation("vmap", inputs, value, None, settings, fn=call, part=i)
            for i, value in enumerate(flat)
        ]
        return jax.tree.unflatten(out_tree, parts)

    def vmap(self, body: Callable[..., Any], out_axes: Any, leaves: Any, loose: Any, captured: Any) -> Any:
        args, kwargs = jax.tree.unflatten(self.tree, leaves)
        in_axes = (self.in_axes, 0, 0, None)
        self.inside = False
        try:
            return jax.vmap(body, in_axes, out_axes, axis_size=self.axis_size)(args, kwargs, loose, captured)
        except (TypeError, ValueError) as error:
            if self.inside or isinstance(error, PjaxError):
                raise
            raise InputError(
                f"pjax.vmap: {str(error).strip()}\nExpected in_axes and out_axes that fit the arguments and "
                f"results, and mapped axes of one length.\nGot in_axes={self.in_axes!r}, "
                f"out_axes={self.out_axes!r}, {', '.join(map(describe, leaves)) or 'no arguments'}."
            ) from error

    def first(self, args: Any, kwargs: Any, loose: Any, captured: Any) -> Any:
        """Run the function on one entry, and keep the graph that it returns."""
        del loose, captured
        entries = jax.tree.leaves((args, kwargs))
        given = [
            Array(e) if isinstance(x, Computation) else e for x, e in zip(self.leaves, entries, strict=True)
        ]
        start = serial()
        args, kwargs = jax.tree.unflatten(self.tree, given)
        self.inside = True
        results = self.fn(*args, **kwargs)
        self.inside = False
        flat, tree = jax.tree.flatten(results)
        self.lifted |= any(isinstance(x, Computation) for x in flat)
        if not self.lifted:
            return results, []
        self.outputs, self.out_tree = list(map(as_computation, flat)), tree
        self.places = [x for x in given if isinstance(x, Computation)]
        order = ancestors(self.outputs)

        # A constant made inside may hold values of this entry: those are mapped over as well.
        def inside(x: Computation) -> bool:
            return isinstance(x, Array) and x._serial > start

        self.loose = [x for x in order if inside(x) and isinstance(x.value, jax.core.Tracer)]
        sources = [*self.places, *self.loose]
        self.nodes = depending(order, sources)
        entry = {id(x) for x in [*sources, *self.nodes]}
        read = {id(x): x for node in self.nodes for x in node.inputs} | {id(x): x for x in self.outputs}
        self.captured = [x for key, x in read.items() if key not in entry and not inside(x)]
        values = [x.value for x in self.outputs], [x.value for x in self.loose]
        for x in [*sources, *self.nodes]:
            x.forget()
        return jax.tree.unflatten(tree, values[0]), values[1]

    def again(self, *values: Any) -> list[Any]:
        """The flat results, from the values of the inputs."""
        rest: Iterator[Any] = iter(values)
        leaves = [next(rest) if isinstance(x, Computation) else x for x in self.leaves]
        loose = [next(rest) for _ in self.loose]
        return jax.tree.leaves(self.vmap(self.replay, self.out_axes, leaves, loose, list(rest)))

    def replay(self, args: Any, kwargs: Any, loose: Any, captured: Any) -> Any:
        """Evaluate the graph on one entry."""
        entries = jax.tree.leaves((args, kwargs))
        entries = [e for x, e in zip(self.leaves, entries, strict=True) if isinstance(x, Computation)]
        sources = [*self.places, *self.loose, *self.captured]
        known = {id(x): v for x, v in zip(sources, [*entries, *loose, *captured], strict=True)}
        replay(self.nodes, known)
        values = [lookup(known, x) for x in self.outputs]
        return jax.tree.unflatten(self.out_tree, values)
