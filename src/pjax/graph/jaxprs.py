"""Questions about jaxprs: what they capture, what of them is needed, when two do the same, what they compute.

A function captures arrays, such as the batch, at any depth: in a jitted function that a scan calls, say. All
of them are arguments of the program that pjax compiles, so that another batch is no other program. Equality
never looks at them; everything else it sees, at any depth.
"""

import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

# Equations that only wrap another jaxpr, and where they keep it.
WRAPPERS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_lin": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_vmap_call": "call",
}

# Equations whose inner jaxprs are read, too: what these captured is an argument like any other.
_READ = frozenset({*WRAPPERS, "scan", "while", "cond"})

Captured: TypeAlias = Mapping[int, Sequence[Any]]
"""What inner jaxprs captured, by their identity."""


aval = operator.attrgetter("aval")
"""The shape and type of a variable."""


def wrapped(eqn: jex.JaxprEqn) -> Any:
    """The jaxpr that an equation wraps."""
    return eqn.params[WRAPPERS[eqn.primitive.name]]


_LIBRARY = os.path.join(os.path.dirname(jax.__file__), "_src", "")
_HANDED_ON = os.path.join(_LIBRARY, "custom_derivatives.py")  # for users, as by `jax.custom_gradient`
_OWN = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


_OPAQUE = frozenset({"bitcast_convert_type", "while", "zeta"})  # nothing can be asked through them


def states_derivative(eqn: jex.JaxprEqn) -> bool:
    """Whether it calls a function whose derivative users state: by `jax.custom_jvp` or `jax.custom_vjp`.

    Derivatives that JAX itself states are those of what the function computes; they are only needed where the
    function is opaque.
    """
    if eqn.primitive.name not in ("custom_jvp_call", "custom_vjp_call"):
        return False
    _, place = source(eqn)
    return place.startswith(_HANDED_ON) or not place.startswith((_LIBRARY, _OWN)) or _is_opaque(eqn)


def seen(eqn: jex.JaxprEqn, sweeps: bool) -> Any:
    """The jaxpr that an equation wraps; None where a stated derivative counts instead of what is inside."""
    return None if (states_derivative(eqn) if sweeps else _is_opaque(eqn)) else wrapped(eqn)


def _is_opaque(eqn: jex.JaxprEqn) -> bool:
    """Whether it calls a function that can be used only by the derivative that `jax.custom_jvp` states."""
    return eqn.primitive.name == "custom_jvp_call" and holds(eqn, lambda e: e.primitive.name in _OPAQUE)


def holds(eqn: jex.JaxprEqn, such: Callable[[jex.JaxprEqn], bool]) -> bool:
    """Whether there is such an equation in what an equation calls, at any depth."""
    inside = (e for inner in jex.jaxprs_in_params(eqn.params) for e in inner.eqns)
    return any(such(e) or holds(e, such) for e in inside)


def source(eqn: jex.JaxprEqn) -> tuple[str, str]:
    """The name of the function that an equation wraps, and the place of its source."""
    name, _, place = (opened(wrapped(eqn)).debug_info.func_src_info or "").rpartition(" at ")
    return name or eqn.primitive.name, place


def opened(inner: Any) -> jex.Jaxpr:
    """A jaxpr without what it captured."""
    return inner.jaxpr if isinstance(inner, jex.ClosedJaxpr) else inner


def _captures(*equations: jex.JaxprEqn) -> Iterator[Any]:
    """The jaxprs in equations, at any depth, that captured something, in order."""
    for eqn in equations:
        for inner in jax.tree.leaves(dict(eqn.params)) if eqn.primitive.name in _READ else ():
            if isinstance(inner, jex.ClosedJaxpr) and inner.consts:
                yield inner
            if isinstance(inner, jex.ClosedJaxpr | jex.Jaxpr):
                yield from _captures(*opened(inner).eqns)


def capturing(*equations: jex.JaxprEqn) -> list[Any]:
    """The same, each once, however often it is called."""
    return list({id(inner): inner for inner in _captures(*equations)}.values())


def calls(*equations: jex.JaxprEqn) -> tuple[int, ...]:
    """Which of these are called where: their places in `capturing`."""
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(id(inner), len(numbers)) for inner in _captures(*equations))


# --- What is needed ---------------------------------------------------------------------------------------


def needed(
    jaxpr: jex.Jaxpr, wanted: Sequence[bool]
) -> tuple[list[tuple[jex.JaxprEqn, list[bool]]], list[bool]]:
    """The equations that some outputs need, each with which of its results are needed, and which inputs."""
    found = {v for v, want in zip(jaxpr.outvars, wanted, strict=True) if want and is_variable(v)}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        results = [v in found for v in eqn.outvars]
        if any(results):
            kept.append((eqn, results))
            found.update(v for v, need in zip(eqn.invars, reads(eqn, results), strict=True) if need)
    return kept[::-1], [v in found for v in jaxpr.invars]


def reads(eqn: jex.JaxprEqn, wanted: Sequence[bool]) -> list[bool]:
    """Which of its operands an equation needs for some of its results."""
    needs = [True] * len(eqn.invars)
    if eqn.primitive.name == "scan":
        _, needs = needed(opened(eqn.params["jaxpr"]), live_in_scan(eqn, wanted))
    elif eqn.primitive.name in WRAPPERS and not states_derivative(eqn):
        _, found = needed(opened(wrapped(eqn)), wanted)
        needs = found if len(found) == len(needs) else needs
    return [is_variable(v) and need for v, need in zip(eqn.invars, needs, strict=True)]


def live_in_scan(eqn: jex.JaxprEqn, wanted: Sequence[bool]) -> list[bool]:
    """Which outputs of a scan's body are needed: what is wanted, and the states that it comes from."""
    body, now = opened(eqn.params["jaxpr"]), list(wanted)
    fixed, carry = scan_counts(eqn)
    while True:
        _, found = needed(body, now)
        more = [now[i] or (i < carry and found[fixed + i]) for i in range(len(now))]
        if more == now:
            return now
        now = more


def scan_counts(eqn: jex.JaxprEqn) -> tuple[int, int]:
    """How many of a scan's inputs are fixed, and how many are its initial state."""
    body = opened(eqn.params["jaxpr"])
    # What is scanned over has one axis more outside than inside; how the counts are named varies.
    carry = sum(aval(o).ndim == aval(i).ndim for o, i in zip(eqn.outvars, body.outvars, strict=True))
    scanned = sum(aval(a).ndim != aval(i).ndim for a, i in zip(eqn.invars, body.invars, strict=True))
    return len(eqn.invars) - scanned - carry, carry


def is_variable(v: Any) -> bool:
    """Whether it is not a number that is written in the program."""
    return not isinstance(v, jex.Literal)


# --- When two do the same ---------------------------------------------------------------------------------


def jaxpr_key(jaxpr: jex.Jaxpr, stated: bool = True, by_value: bool = False) -> tuple[Any, ...]:
    """A key that is the same for jaxprs that do the same with the same captured arrays.

    ``stated``: whether derivatives that users state are part of what they do.
    ``by_value``: whether what inner jaxprs captured is.
    """
    number: dict[Any, int] = {}

    def var(v: Any) -> Any:
        if isinstance(v, jex.Literal):
            return ("literal", freeze(v.val), str(v.aval))
        return number.setdefault(v, len(number))

    head = tuple((var(v), str(v.aval)) for v in (*jaxpr.constvars, *jaxpr.invars))
    eqns = tuple(
        (
            eqn.primitive.name,
            tuple(var(v) for v in eqn.invars),
            params_key(eqn, stated, by_value),
            tuple(var(v) for v in eqn.outvars),
        )
        for eqn in jaxpr.eqns
    )
    return (head, eqns, tuple(var(v) for v in jaxpr.outvars), calls(*jaxpr.eqns))


def params_key(eqn: jex.JaxprEqn, stated: bool = True, by_value: bool = False) -> Any:
    """A key that is the same for static arguments that mean the same; see `jaxpr_key`."""
    if eqn.primitive.name in WRAPPERS:  # only what is inside matters
        if stated and states_derivative(eqn):
            return freeze(wrapped(eqn)), _derivative_key(eqn)
        return freeze(wrapped(eqn), by_value, stated)
    by_value = by_value or eqn.primitive.name not in _READ
    return tuple(sorted((k, freeze(v, by_value, stated)) for k, v in eqn.params.items()))


def _derivative_key(eqn: jex.JaxprEqn) -> Any:
    """A key that is the same for derivatives that do the same."""

    def is_real(v: Any) -> bool:
        return jnp.issubdtype(v.aval.dtype, jnp.inexact)

    def pulled(args: Sequence[Any], asked: Sequence[Any]) -> Sequence[Any]:
        def fn(*moving: Any) -> list[Any]:
            rest = iter(moving)
            given = (next(rest) if is_real(v) else x for v, x in zip(eqn.invars, args, strict=True))
            found = bind(eqn, *given)
            return [x for v, x in zip(eqn.outvars, found, strict=True) if is_real(v)]

        moving = [x for v, x in zip(eqn.invars, args, strict=True) if is_real(v)]
        return jax.vjp(fn, *moving)[1](list(asked))

    def shapes(variables: Sequence[Any]) -> list[Any]:
        return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in variables]

    try:
        closed = jax.make_jaxpr(pulled)(shapes(eqn.invars), shapes([v for v in eqn.outvars if is_real(v)]))
    except Exception:  # whatever a rule says that is wrong, or of no use here: methods may do without it
        return eqn
    return freeze(closed, stated=False)


def freeze(value: Any, by_value: bool = True, stated: bool = True) -> Any:
    """A hashable stand-in for a static argument.

    ``by_value`` and ``stated`` are those of `jaxpr_key`.
    """
    if isinstance(value, jex.ClosedJaxpr):
        constants = tuple(map(freeze, value.consts)) if by_value else ()
        return ("closed", jaxpr_key(value.jaxpr, stated, by_value), constants)
    if isinstance(value, jex.Jaxpr):
        return ("jaxpr", jaxpr_key(value, stated, by_value))
    if isinstance(value, (tuple, list)):
        return tuple(freeze(v, by_value, stated) for v in value)
    if isinstance(value, dict):
        return tuple(sorted((str(k), freeze(v, by_value, stated)) for k, v in value.items()))
    if isinstance(value, (np.ndarray, jax.Array)) and not isinstance(value, jax.core.Tracer):
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return (str(value.dtype), freeze(jax.random.key_data(value)))
        array = np.asarray(value)
        numbers = freeze(array.tolist()) if array.dtype.hasobject else array.tobytes()
        return (array.shape, str(array.dtype), numbers)
    # Not all that are equal are the same: 0.0 and -0.0, 1 and True.
    if isinstance(value, bool | float | complex | np.generic):
        return (type(value), repr(value))
    try:
        hash(value)
    except TypeError:  # as of what is traced: it is the same as itself alone
        return _Itself(value)
    return value


class _Itself:
    """Stands for an object that cannot be compared."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)


# --- What they compute ------------------------------------------------------------------------------------


def evaluate(
    jaxpr: jex.Jaxpr, constants: Sequence[Any], args: Sequence[Any], captured: Captured
) -> list[Any]:
    """The outputs of a jaxpr, where what inner jaxprs captured is given."""
    env: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *args), strict=True))

    def read(v: Any) -> Any:
        return v.val if isinstance(v, jex.Literal) else env[v]

    for eqn in jaxpr.eqns:
        found = bind(eqn, *(read(v) for v in eqn.invars), captured=captured)
        env.update(zip(eqn.outvars, found, strict=True))
    return [read(v) for v in jaxpr.outvars]


def flat(fn: Callable[..., Any], *args: Any) -> jex.ClosedJaxpr:
    """A function of arrays as a jaxpr without functions inside of functions."""
    closed = jax.make_jaxpr(fn)(*args)
    return jax.make_jaxpr(lambda *args: evaluate(closed.jaxpr, closed.consts, args, {}))(*args)


def function(inner: Any, captured: Captured) -> Callable[..., list[Any]]:
    """An inner jaxpr as a function of its inputs."""
    own = inner.consts if isinstance(inner, jex.ClosedJaxpr) else ()
    constants = captured.get(id(inner), own)
    return lambda *args: evaluate(opened(inner), constants, args, captured)


def bind(eqn: jex.JaxprEqn, *args: Any, captured: Captured | None = None) -> Sequence[Any]:
    """The results of one equation."""
    captured = captured or {}
    name, p = eqn.primitive.name, eqn.params
    if states_derivative(eqn):  # as it is written: JAX knows the derivative
        about = opened(wrapped(eqn)).debug_info
        variables: list[Any] = [v for v in eqn.invars if is_variable(v)]
        alone = jex.Jaxpr((), variables, eqn.outvars, [eqn], debug_info=about)
        given = [x for v, x in zip(eqn.invars, args, strict=True) if is_variable(v)]
        return jex.jaxpr_as_fun(jex.ClosedJaxpr(alone, ()))(*given)
    if name in WRAPPERS:
        return function(wrapped(eqn), captured)(*args)
    if name in _READ and any(id(inner) in captured for inner in capturing(eqn)):
        return _LOOPS[name](eqn, args, captured)
    out = eqn.primitive.bind(*args, **p)
    return out if eqn.primitive.multiple_results else (out,)


def _scan(eqn: jex.JaxprEqn, args: Sequence[Any], captured: Captured) -> Sequence[Any]:
    fixed, carry = scan_counts(eqn)
    body = function(eqn.params["jaxpr"], captured)

    def step(state: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = body(*args[:fixed], *state, *xs)
        return outs[:carry], outs[carry:]

    start, xs = list(args[fixed : fixed + carry]), list(args[fixed + carry :])
    length, reverse = eqn.params["length"], eqn.params["reverse"]
    last, ys = jax.lax.scan(step, start, xs, length=length, reverse=reverse)
    return [*last, *ys]


def _while(eqn: jex.JaxprEqn, args: Sequence[Any], captured: Captured) -> Sequence[Any]:
    p = eqn.params
    first, second = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    go_on, body = (function(p[key], captured) for key in ("cond_jaxpr", "body_jaxpr"))
    return jax.lax.while_loop(
        lambda state: go_on(*args[:first], *state)[0],
        lambda state: body(*args[first:second], *state),
        list(args[second:]),
    )


def _cond(eqn: jex.JaxprEqn, args: Sequence[Any], captured: Captured) -> Sequence[Any]:
    branches = [function(branch, captured) for branch in eqn.params["branches"]]
    return jax.lax.switch(jnp.asarray(args[0], jnp.int32), branches, *args[1:])


_LOOPS = {"scan": _scan, "while": _while, "cond": _cond}
