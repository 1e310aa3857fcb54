"""Expressions that are the same, and those that are alike: the same but for what stands at their leaves."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pjax.graph import jaxprs
from pjax.graph import wires as layout
from pjax.graph.wires import Call, Expr, Memo


def places(members: Sequence[Sequence[int]]) -> dict[int, tuple[int, int]]:
    """For each node, its stack and its place there, given the nodes of each stack.

    >>> places([[3], [0, 2]])
    {3: (0, 0), 0: (1, 0), 2: (1, 1)}
    """
    return {node: (u, p) for u, unit in enumerate(members) for p, node in enumerate(unit)}


class Signatures(Memo[int]):
    """Numbers for expressions: the same number for the same value."""

    @functools.cached_property
    def _numbers(self) -> dict[Any, int]:
        return {}

    def look(self, expr: Expr) -> int:
        return self._numbers.setdefault(self._key(expr), len(self._numbers))

    def _key(self, expr: Expr) -> Any:
        if expr.node is not None:
            return ("node", expr.node)
        if expr.constant is not None:
            return ("constant", expr.constant)
        if expr.call is None:
            value = expr.literal
            if isinstance(value, jax.core.Tracer) or np.size(value) > 16:
                return ("literal", id(value))
            return ("literal", *jaxprs.freeze(np.asarray(value)))
        return ("call", expr.call.key, expr.index, tuple(self.found[id(arg)] for arg in expr.call.args))


class Skeletons(Memo[tuple[Any, tuple[Expr, ...]]]):
    """The form of each expression, and what stands at its leaves.

    The form says what is done, and leaves out to which constants, members of stacks, or entries of arrays.
    """

    def __init__(self, members: Sequence[Sequence[int]]) -> None:
        """``members`` are the nodes of each stack; a stack may have one."""
        super().__init__()
        self.places = places(members)
        self._stacked = {node for unit in members if len(unit) > 1 for node in unit}

    def place(self, expr: Expr) -> tuple[int, int, int | None] | None:
        """Of a member of a stack, or of an entry of another node: the stack or node, the place there, and the
        axis of the entry; None for other expressions."""
        if not expr.depends:
            return None
        if expr.node is not None:
            return (*self.places[expr.node], None) if expr.node in self._stacked else None
        assert expr.call is not None
        key, whole = expr.call.key, expr.call.args[0]
        if key[0] != "index" or whole.node is None or whole.node in self._stacked:
            return None
        return self.places[whole.node][0], key[1], key[2]

    def look(self, expr: Expr) -> tuple[Any, tuple[Expr, ...]]:
        if not expr.depends:
            return ("constant", expr.shape, expr.dtype), (expr,)
        place = self.place(expr)
        if place is not None:
            unit, _, axis = place
            return ("member", unit, axis), (expr,)
        if expr.node is not None:
            return ("node", self.places[expr.node][0]), ()
        assert expr.call is not None
        below = [self.found[id(arg)] for arg in expr.call.args]
        form = expr.call.key, expr.index, tuple(form for form, _ in below)
        return form, tuple(e for _, es in below for e in es)


# --- Many expressions as one ---


def together(exprs: Sequence[Expr], signature: Signatures) -> tuple[Expr, bool]:
    """Expressions without parameters as one, and whether it has a new first axis (not if all are the same).

    In few operations where they are alike: entries of one array that follow each other are a part of it.
    """
    first = exprs[0]
    if len({signature(expr) for expr in exprs}) == 1:
        return first, False
    calls = [expr.call for expr in exprs if expr.call is not None and expr.index == first.index]
    keys = [call.key for call in calls]
    if len(calls) == len(exprs):
        args = list(zip(*(call.args for call in calls), strict=False))
        if len(set(keys)) == 1 and all(len({(a.shape, a.dtype) for a in arg}) == 1 for arg in args):
            return mapped(exprs, [together(arg, signature) for arg in args]), True
        if keys[0][0] == "index" and len({signature(array) for array in args[0]}) == 1:
            whole, (_, start, axis) = args[0][0], keys[0]
            if keys == [("index", start + t, axis) for t in range(len(keys))]:
                return neighbours(whole, start, len(keys), axis), True
    return layout.stack(*exprs), True


def mapped(exprs: Sequence[Expr], built: Sequence[tuple[Expr, bool]]) -> Expr:
    """Calls of one function as one, given each of their arguments, some of them along a new first axis."""
    first = exprs[0]
    assert first.call is not None
    axes = tuple(0 if batched else None for _, batched in built)
    one = first.call.fn

    def each(*xs: jax.Array) -> tuple[Any, ...]:
        return tuple(one(*xs))

    def fn(*xs: jax.Array) -> tuple[Any, ...]:
        try:
            return jax.vmap(each, axes)(*xs)
        except NotImplementedError:  # as of some callbacks
            return jax.vmap(jax.custom_batching.sequential_vmap(each), axes)(*xs)

    args = tuple(expr for expr, _ in built)
    call = Call(first.call.name, fn, args, first.call.data, ("map", axes, first.call.key))
    shape = (len(exprs), *first.shape)
    return Expr(shape, first.dtype, first.line, first.depends, first.from_loss, call, first.index)


def neighbours(expr: Expr, start: int, length: int, axis: int) -> Expr:
    """Some entries along an axis that follow each other, along the first axis."""
    if length < expr.shape[axis]:
        fn = functools.partial(lax.slice_in_dim, start_index=start, limit_index=start + length, axis=axis)
        expr = layout.apply("slice", fn, expr, key=("slice", start, length, axis))
    if axis:
        expr = layout.apply("transpose", lambda x: jnp.moveaxis(x, axis, 0), expr, key=("front", axis))
    return expr
