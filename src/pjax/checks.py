"""Looks at inputs before work begins, so that errors speak of what the user gave."""

import contextlib
import contextvars
import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from pjax.errors import InputError

if TYPE_CHECKING:
    from pjax.graph.read import Traced

Look = Callable[[Any], None]

_LATER: contextvars.ContextVar[dict[int, list[Look]]] = contextvars.ContextVar("later")


@contextlib.contextmanager
def postponed(arrays: Sequence[Any]) -> Iterator[list[tuple[int, Look]]]:
    """Collect the checks of traced arrays, whose values are not known yet, to be made when they are.

    Yields a list that is filled at the end of the block: the place of an array, and its check.
    """
    looks: dict[int, list[Look]] = {id(x): [] for x in arrays}
    found: list[tuple[int, Look]] = []
    token = _LATER.set(looks)
    try:
        yield found
    finally:
        _LATER.reset(token)
    found += [(i, look) for i, x in enumerate(arrays) for look in looks[id(x)]]


def look_later(x: Any, look: Look) -> None:
    """Make a check of a traced array as soon as its values are known, if they ever are: see `postponed`."""
    _LATER.get({}).get(id(x), []).append(look)


def check_finite(traced: "Traced", leaves: list[Any]) -> None:
    """Refuse parameters and constants that hold NaN or infinity. Values inside `jit` are not seen."""
    given = {f"parameter {name!r}": leaf for name, leaf in zip(traced.names, leaves, strict=True)}
    captured = {f"captured array {i} of shape {np.shape(c)}": c for i, c in enumerate(traced.constants)}
    for what, x in {**given, **captured}.items():
        if bad := _not_finite(x):
            advice = "restart from parameters that are finite" if what in given else "clean the batch"
            raise InputError(
                f"{what} has {bad} of {np.size(x)} values that are NaN or infinite:"
                f" {advice}; pjax.optim solvers accept check=False to go on regardless"
            )


def _not_finite(x: Any) -> int:
    """How many values are not finite; 0 for what cannot be looked at."""
    if isinstance(x, jax.core.Tracer) or not jnp.issubdtype(jnp.result_type(x), jnp.inexact):
        return 0
    if isinstance(x, jax.Array) and next(iter(x.devices())).platform != "cpu":  # it need not be copied here
        with jax.ensure_compile_time_eval():  # it may be captured by a function that is being traced
            return int(_count_not_finite(x))
    array = np.asarray(x)
    if array.dtype.kind not in "fc":  # bfloat16 and such
        array = array.astype(np.float32)
    # A sum is finite exactly when all values are, short of overflow: one fast pass in the common case.
    with np.errstate(all="ignore"):
        if np.isfinite(array.sum()):
            return 0
    return int(array.size - np.count_nonzero(np.isfinite(array)))


@jax.jit
def _count_not_finite(x: jax.Array) -> jax.Array:
    return jnp.sum(~jnp.isfinite(x))


def check_mesh(arrays: Iterable[Any]) -> None:
    """Refuse arrays over manual or explicit mesh axes: JAX would have to be told how results are divided."""
    for x in arrays:
        if not isinstance(x, jax.Array):
            continue
        if isinstance(x, jax.core.Tracer) and "{V:" in str(jax.typeof(x)):
            raise InputError(
                f"an array of type {jax.typeof(x)} differs among devices, which JAX would have to be told of"
                " all that is computed: write jax.shard_map(…, check_vma=False)"
            )
        sharding = jax.typeof(x).sharding
        named = jax.tree.leaves(tuple(sharding.spec))
        if explicit := set(named).intersection(sharding.mesh.explicit_axes):
            axes = ", ".join(map(repr, sorted(explicit)))
            raise InputError(
                f"an array of type {jax.typeof(x)} is divided over the explicit mesh axis {axes}; pjax leaves"
                " it to the compiler how results are divided: make the mesh with"
                " jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(names))"
            )


def check_name(kind: str, name: Any, names: Iterable[str]) -> None:
    """Refuse a name that is not one of several, with the nearest ones."""
    known = list(names)
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"{kind} must be one of {', '.join(known)}; got {name!r}.{hint}")


_LARGEST = 2**63


def check_whole(name: str, value: Any, least: int = 1, end: int = _LARGEST) -> int:
    """A whole number, as Python's; refuse anything else, and one that is too small or too large."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not (whole and least <= value < end):
        wanted = f"of at least {least}" if end == _LARGEST else f"from {least} to {end - 1}"
        raise InputError(f"{name} must be a whole number {wanted}, got {value!r}")
    return int(value)


def check_function(fn: Any) -> None:
    """Refuse what cannot be called."""
    if not callable(fn):
        raise InputError(
            "expected a function of the parameters that ends in a loss, and not its gradient; got"
            f" {fn!r:.120}"
        )


def is_number(value: Any) -> bool:
    """Whether a setting is a finite number."""
    return isinstance(value, int | float | np.generic) and bool(np.isfinite(value))


def check_positive(name: str, value: Any) -> None:
    """Refuse what is not a positive finite number."""
    if not (is_number(value) and value > 0):
        raise InputError(f"{name} must be a positive finite number; got {value!r}.")


def check_float(name: str, value: jax.typing.ArrayLike) -> jax.Array:
    """The value as an array, which must be of floating-point numbers."""
    array = jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise InputError(
            f"{name} must be floating-point numbers, got {array.dtype}; "
            f"convert them, e.g. with .astype(jnp.float32)."
        )
    return array


def check_multiple(name: str, value: int, of: int, what: str) -> None:
    """Refuse a number that is no multiple of another one."""
    if value % of:
        near = max(value // of, 1) * of
        raise InputError(f"{name} must be a multiple of the {of} {what}, got {value}: take {near}")


def some(names: Sequence[str], most: int = 5) -> str:
    """The first of some names, and how many there are more.

    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
