"""What is done differently on a CPU that works alone."""

from collections.abc import Callable
from typing import Any

import jax


def several() -> bool:
    """Whether there are several devices, among which arrays may be divided."""
    return jax.device_count() > 1


def on_one_cpu(*args: Any, cpu: Callable[..., Any], default: Callable[..., Any]) -> Any:
    """A function of the arguments, with a variant for the CPU.

    Not where there are several devices: arrays may then be divided among them, and what a variant saves on
    one would make several exchange data.
    """
    if several():
        return default(*args)
    return jax.lax.platform_dependent(*args, cpu=cpu, default=default)
