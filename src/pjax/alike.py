"""Expressions that are the same, and those that are alike: the same but for what stands at their leaves."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pjax import layout
from pjax.layout import Expr


def places(members: Sequence[Sequence[int]]) -> dict[int, tuple[int, int]]:
    """For each node, its stack and its place there, given the nodes of each stack.

    >>> places([[3], [0, 2]])
    {3: (0, 0), 0: (1, 0), 2: (1, 1)}
    """
    return {node: (u, p) for u, unit in enumerate(members) for p, node in enumerate(unit)}


class Signatures:
    """Numbers for expressions: the same number for the same value."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._known: dict[int, int] = {}
        self._keep: list[Expr] = []

    def __call__(self, root: Expr) -> int:
        for expr in layout.walk(root):
            if id(expr) not in self._known:
                self._keep.append(expr)  # an id is one's own only while one lives
                self._known[id(expr)] = self._numbers.setdefault(self._key(expr), len(self._numbers))
        return self._known[id(root)]

    def _key(self, expr: Expr) -> Any:
        if expr.node is not None:
            return ("node", expr.node)
        if expr.constant is not None:
            return ("constant", expr.constant)
        if expr.call is None:
            value = expr.literal
            if isinstance(value, jax.core.Tracer) or np.size(value) > 16:
                return ("literal", id(value))
            array = np.asarray(value)
            return ("literal", array.shape, str(array.dtype), array.tobytes())
        call = expr.call
        key = ("unknown", id(call)) if call.key is None else call.key
        return ("call", key, expr.index, tuple(self._known[id(arg)] for arg in call.args))


class Skeletons:
    """What expressions do, apart from which constants and which members of stacks they read."""

    def __init__(self, members: Sequence[Sequence[int]]) -> None:
        """``members`` are the nodes of each stack; a stack may have one."""
        self.places = places(members)
        self._single = [len(unit) == 1 for unit in members]
        self._found: dict[int, tuple[Any, tuple[Expr, ...]]] = {}
        self._keep: list[Expr] = []

    def single(self, node: int) -> bool:
        """Whether a node is not a member of a stack."""
        return self._single[self.places[node][0]]

    def __call__(self, root: Expr) -> tuple[Any, tuple[Expr, ...]]:
        """The form of an expression, and the constants and members of stacks at its leaves."""
        for expr in layout.walk(root):
            if id(expr) not in self._found:
                self._keep.append(expr)
                self._found[id(expr)] = self._look(expr)
        return self._found[id(root)]

    def _look(self, expr: Expr) -> tuple[Any, tuple[Expr, ...]]:
        if not expr.depends:
            return ("constant", expr.shape, str(expr.dtype)), (expr,)
        if expr.node is not None:
            unit, _ = self.places[expr.node]
            return (("node", unit), ()) if self.single(expr.node) else (("stack", unit), (expr,))
        assert expr.call is not None
        below = [self._found[id(arg)] for arg in expr.call.args]
        key = ("unknown", id(expr.call)) if expr.call.key is None else expr.call.key
        return (key, expr.index, tuple(form for form, _ in below)), tuple(e for _, es in below for e in es)
