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
