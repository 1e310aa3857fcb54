"""Python functions that compiled programs call while they run."""

from collections.abc import Callable
from typing import Any

import jax


def call_when(condition: Any, callback: Callable[..., Any], *values: Any) -> None:
    """Call a function with values of a compiled program, whenever a condition is true there."""

    def checked(condition: Any, *values: Any) -> None:  # once more: under `jax.vmap` both branches run
        if condition:
            callback(*values)

    if condition is True:
        jax.debug.callback(callback, *values)
    else:
        jax.lax.cond(condition, lambda: jax.debug.callback(checked, condition, *values), lambda: None)
