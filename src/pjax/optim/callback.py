"""Python functions that compiled programs call while they run."""

from collections.abc import Callable
from typing import Any

import jax


def call_when(condition: Any, callback: Callable[..., Any], *values: Any) -> None:
    """Call a function with values of a compiled program, whenever a condition is true there."""
    if condition is True:
        jax.debug.callback(callback, *values)
    else:
        jax.lax.cond(condition, lambda: jax.debug.callback(callback, *values), lambda: None)


class Listeners:
    """Functions by number, so that a program compiled once can call any of them."""

    def __init__(self) -> None:
        self._functions: list[Callable[..., Any]] = []

    def number(self, function: Callable[..., Any]) -> int:
        """The number of a function, the same whenever it is the same object."""
        if not any(known is function for known in self._functions):
            self._functions.append(function)
        return next(i for i, known in enumerate(self._functions) if known is function)

    def tell(self, number: Any, *values: Any) -> None:
        """Call the function of that number."""
        self._functions[int(number)](*values)
