"""Which line of the user's code an equation comes from, and how it is called there."""

import contextlib
import contextvars
import os
import sysconfig
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

_HERE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_JAX = os.path.join(os.path.dirname(jax.__file__), "")
# Where Python and installed packages are: such lines are not the user's.
_INSTALLED = tuple(
    os.path.join(sysconfig.get_path(kind), "")
    for kind in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
)

# The line of the user's code that called the function being read, where it is not the user's own, and the
# name of that function.
_ENCLOSING: contextvars.ContextVar[tuple[str, str]] = contextvars.ContextVar("enclosing", default=("", ""))


@contextlib.contextmanager
def inside(eqn: jex.JaxprEqn) -> Iterator[None]:
    """While the function that an equation wraps is read."""
    name = eqn.params.get("name")
    name = name if isinstance(name, str) and name.isidentifier() else enclosing()
    token = _ENCLOSING.set((user_line(eqn), name))
    try:
        yield
    finally:
        _ENCLOSING.reset(token)


def enclosing() -> str:
    """The name of the jitted function that is being read, such as ``silu``; empty outside of any."""
    return _ENCLOSING.get()[1]


def user_line(eqn: jex.JaxprEqn) -> str:
    """The line of the user's code that made an equation; that of a library if there is none."""
    traceback: Any = eqn.source_info.traceback
    library = ""
    for frame in traceback.frames if traceback is not None else ():
        if not frame.file_name.startswith((_JAX, _HERE, "<")):
            line = f"{frame.file_name}:{frame.line_num}"
            if not frame.file_name.startswith(_INSTALLED):
                return line
            library = library or line
    return _ENCLOSING.get()[0] or library  # inside a function of JAX, such as jax.nn.relu


def at(eqn: jex.JaxprEqn) -> str:
    """`user_line` for the middle of an error message: with a word before it, or empty."""
    line = user_line(eqn)
    return f" at {line}" if line else ""


def describe(x: Any) -> str:
    """The type and the shape of a value, as JAX writes them."""
    return f"{jnp.dtype(x.dtype).name}[{','.join(map(str, x.shape))}]"
