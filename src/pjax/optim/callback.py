"""Python functions that compiled programs call while they run."""

from collections.abc import Callable
from typing import Any

import jax


def call_when(condition: Any, callback: Callable[..., Any], *values: Any, always: bool = False) -> None:
    """Call a function with values of a compiled program, whenever a condition holds there.

    Args:
        condition: a truth value of the program.
        callback: what to call. It gets arrays, and its result is not used.
        values: of the program.
        always: that the condition always holds is known already, so the program need not look.
    """
    if always:
        jax.debug.callback(callback, *values)
        return
    jax.lax.cond(condition, lambda: jax.debug.callback(callback, *values), lambda: None)


class Listeners:
    """Functions by number, so that a program compiled once can call any of them."""

    def __init__(self) -> None:
        self._functions: list[Callable[..., Any]] = []

    def number(self, function: Callable[..., Any]) -> int:
        """The number of a function, the same whenever it is the same object."""
        for i, known in enumerate(self._functions):
            if known is function:
                return i
        self._functions.append(function)
        return len(self._functions) - 1

    def tell(self, number: Any, *values: Any) -> None:
        """Call the function of that number."""
        self._functions[int(number)](*values)
