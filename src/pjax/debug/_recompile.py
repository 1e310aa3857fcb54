"""Why a function was compiled again: what differs between two calls of it."""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import jax
import jax.extend.core as jex

from pjax.errors import InputError
from pjax.graph import jaxprs, lines
from pjax.graph import read as tracing
from pjax.optim.solver import Solver

P = ParamSpec("P")
R = TypeVar("R")

_EVENT = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_MOST = 5  # differences that are printed

_ADVICE = {
    "shape": "every shape is compiled for: pad to one shape, or drop the last, smaller batch",
    "type": "convert it once, before the loop: x.astype(jnp.float32)",
    "weak type": "it comes from a Python number, and has no type of its own: jnp.asarray(x, jnp.float32)",
    "device": "put it in the same place in every call: jax.device_put(x, device)",
    "structure": "give every call the same keys and containers",
    "value": "each value of a static argument is compiled for: pass it as an array, and not as static",
    "function": "a function that is an argument must be the same in every call: define it outside the loop",
    "number": "a number written in the function is part of the program: make it an array, jnp.asarray(x)",
    "equation": "another program: what decides in Python, such as if or a loop's length, must not change",
}


@dataclasses.dataclass(frozen=True)
class Difference:
    """One thing that makes two calls different programs."""

    where: str
    """Which argument, captured array or equation."""
    kind: str
    """Shape, type, weak type, device, structure, value, function, number or equation."""
    before: str
    after: str

    @property
    def advice(self) -> str:
        """What to do about it."""
        return _ADVICE[self.kind]

    def __str__(self) -> str:
        return f"{self.where}: {self.kind} {self.before} -> {self.after}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two calls of a function beside each other. Printed, it says what differs and what to do."""

    name: str
    call: int
    """The number of the later call; the first is 1."""
    like: int | None
    """The number of the earlier call that is nearest to it; None for the first."""
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        if self.like is None:
            return f"{self.name}: compiled in its first call"
        head = f"{self.name}: call {self.call}, beside call {self.like}"
        if not self.differences:
            return (
                f"{head}: no argument differs. If it was compiled again, it is another function"
                " (jax.jit of a new closure), or a setting of JAX has changed"
            )
        shown = [f"  {d}" for d in self.differences[:_MOST]]
        if len(self.differences) > _MOST:
            shown.append(f"  and {len(self.differences) - _MOST} more")
        advice = dict.fromkeys(f"  {d.kind}: {d.advice}" for d in self.differences)
        return "\n".join([head, *shown, "What to do:", *advice])


class Explained(Generic[P, R]):
    """A function that says, each time it was compiled again, what changed and what to do.

    Only compilations that happened are reported. Beside the arguments of a jitted function it looks, for
    ``optimizer.update``, into the function that is trained: at the arrays that it captured and at its
    equations.

    Args:
        fn: a function made by `jax.jit`, the method ``update`` of a solver, or a function that calls such.
        report: what to do with the text; None only collects, in ``compilations``.

    >>> import jax.numpy as jnp
    >>> double = Explained(jax.jit(lambda x: 2 * x), report=None)
    >>> for size in (3, 3, 4):
    ...     _ = double(jnp.ones(size))
    >>> [str(d) for d in double.compilations[1].differences]
    ['x: shape [3] -> [4]']
    """

    def __init__(self, fn: Callable[P, R], *, report: Callable[[str], Any] | None = print) -> None:
        if not callable(fn):
            raise InputError(f"explain_recompile wraps a function, such as optimizer.update; got {fn!r:.200}")
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._report = report
        self._calls: list[_Signature] = []
        self._made = 0
        self.compilations: list[Comparison] = []
        """One for each call in which it was compiled, the first among them."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        call = _signature(self._fn, args, kwargs)  # before the call, which may donate its arguments
        with _compilations() as names:
            result = self._fn(*args, **kwargs)
        self._made += 1
        compiled = _about(self._fn, names)
        if compiled:
            found = _nearest(_name(self._fn), self._made, call, self._calls)
            self.compilations.append(found)
            if self._report is not None:
                self._report(str(found))
        if compiled or not self._calls:
            self._calls.append(call._replace(number=self._made))
        return result


explain_recompile = Explained
"""Short for `Explained`: ``update = explain_recompile(optimizer.update)``."""


def compare_calls(fn: Callable[..., Any], before: Sequence[Any], after: Sequence[Any]) -> Comparison:
    """What differs between two calls of a function, without making them.

    Args:
        fn: a function made by `jax.jit`, or the method ``update`` of a solver.
        before, after: the arguments of the two calls.

    >>> import jax.numpy as jnp
    >>> step = jax.jit(lambda params, rate: params)
    >>> print(compare_calls(step, (jnp.ones(3), 0.1), (jnp.ones(3), jnp.float32(0.1))))
    <lambda>: call 2, beside call 1
      rate: weak type float32 (weak) -> float32
    What to do:
      weak type: it comes from a Python number, and has no type of its own: jnp.asarray(x, jnp.float32)
    """
    first, second = (_signature(fn, tuple(args), {}) for args in (before, after))
    return _nearest(_name(fn), 2, second, [first._replace(number=1)])


# --- What a call looks like to a compiler ---


class _Equation(NamedTuple):
    name: str
    line: str
    numbers: tuple[str, ...]
    rest: Any


class _Signature(NamedTuple):
    leaves: dict[str, dict[str, Any]]
    """For each argument, or part of one, what there is to say of it, by kind of difference."""
    numbers: dict[str, Any]
    """Those of Python among them: they count where they are static."""
    structure: str
    equations: tuple[_Equation, ...] = ()
    number: int = 0


def _signature(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Signature:
    try:
        named = dict(inspect.signature(fn).bind_partial(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        named = {f"argument {i}": x for i, x in enumerate(args)} | kwargs
    equations: tuple[_Equation, ...] = ()
    if isinstance(getattr(fn, "__self__", None), Solver) and callable(named.get("fn")) and "params" in named:
        call, batch = named.pop("fn"), named.get("batch")
        traced = tracing.read(call if batch is None else lambda p: call(p, batch), named["params"])
        named |= {f"captured array {i}": c for i, c in enumerate(traced.constants)}
        equations = tuple(_equations(traced.jaxpr))
    leaves, structure = {}, []
    for name, tree in named.items():
        paths, treedef = jax.tree_util.tree_flatten_with_path(tree)
        structure.append(f"{name}: {treedef}")
        leaves.update({name + jax.tree_util.keystr(path): x for path, x in paths})
    numbers = {where: x for where, x in leaves.items() if isinstance(x, bool | int | float | complex)}
    facts = {where: _facts(x) for where, x in leaves.items()}
    return _Signature(facts, numbers, "; ".join(structure), equations)


def _facts(x: Any) -> dict[str, Any]:
    try:
        aval = jax.typeof(x)
        kind, weak = str(aval.dtype), getattr(aval, "weak_type", False)
        facts = {"shape": list(aval.shape), "type": kind, "weak type": f"{kind} (weak)" if weak else kind}
    except (TypeError, AttributeError):
        return {"function" if callable(x) else "value": x}
    array = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    return facts | {"device": str(x.sharding) if array and getattr(x, "committed", False) else "any"}


def _equations(jaxpr: jex.Jaxpr) -> Iterator[_Equation]:
    """The equations of a function, those inside wrappers among them."""
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name in jaxprs.WRAPPERS:
            inner = jaxprs.wrapped(eqn)
            yield from _equations(inner.jaxpr if isinstance(inner, jex.ClosedJaxpr) else inner)
            continue
        numbers = tuple(f"{v.val}" for v in eqn.invars if isinstance(v, jex.Literal))
        shapes = tuple(str(v.aval) for v in (*eqn.invars, *eqn.outvars))
        yield _Equation(name, lines.user_line(eqn), numbers, (jaxprs.params_key(eqn), shapes))


# --- Two calls beside each other ---


def _nearest(name: str, number: int, call: _Signature, earlier: Sequence[_Signature]) -> Comparison:
    """A call beside the one before it that it differs least from."""
    found = [(tuple(_differences(before, call)), before.number) for before in earlier]
    differences, like = min(reversed(found), key=lambda pair: len(pair[0]), default=((), None))
    return Comparison(name, number, like, differences)


def _differences(before: _Signature, after: _Signature) -> list[Difference]:
    found: list[Difference] = []
    for where in dict.fromkeys((*before.leaves, *after.leaves)):
        found += _leaf_differences(where, before.leaves.get(where), after.leaves.get(where))
    if not found and before.structure != after.structure:
        found.append(Difference("arguments", "structure", before.structure, after.structure))
    # What follows from others is not said again: other shapes lead to other equations.
    found = found or _equation_differences(before.equations, after.equations)
    return found or [
        Difference(where, "value", repr(old), repr(after.numbers.get(where)))
        for where, old in before.numbers.items()
        if not _same(old, after.numbers.get(where))
    ]


def _leaf_differences(
    where: str, old: dict[str, Any] | None, new: dict[str, Any] | None
) -> Iterator[Difference]:
    if old is None or new is None:
        there = ("absent" if facts is None else "present" for facts in (old, new))
        yield Difference(where, "structure", *there)
    elif old.keys() != new.keys():
        yield Difference(where, "value", _brief(old), _brief(new))
    else:
        kinds = [kind for kind in old if not _same(old[kind], new[kind])]
        for kind in kinds:
            if kind != "weak type" or "type" not in kinds:
                yield Difference(where, kind, _shown(kind, old[kind]), _shown(kind, new[kind]))


def _brief(facts: dict[str, Any]) -> str:
    value = next(iter(facts.values()))
    return f"{facts['type']}{facts['shape']}" if "type" in facts else f"{value!r:.80}"


def _shown(kind: str, fact: Any) -> str:
    return f"{fact!r:.80}" if kind in ("value", "function") else str(fact)


def _same(a: Any, b: Any) -> bool:
    try:
        return type(a) is type(b) and bool(a == b)
    except (TypeError, ValueError):
        return a is b


def _equation_differences(before: Sequence[_Equation], after: Sequence[_Equation]) -> list[Difference]:
    numbers = []
    for old, new in zip(before, after, strict=False):
        if (old.name, old.rest) != (new.name, new.rest):
            return [Difference("the function", "equation", _at(old), _at(new))]
        if old.numbers != new.numbers:
            numbers.append(Difference(_at(new), "number", ", ".join(old.numbers), ", ".join(new.numbers)))
    if len(before) != len(after):
        return [Difference("the function", "equation", f"{len(before)} equations", f"{len(after)} equations")]
    return numbers


def _at(eqn: _Equation) -> str:
    return f"{eqn.name!r} at {eqn.line}" if eqn.line else repr(eqn.name)


# --- What was compiled ---

_listeners: list[list[str]] = []


@contextlib.contextmanager
def _compilations() -> Iterator[list[str]]:
    """The names of all functions that JAX compiles from now on."""
    _listen()
    names: list[str] = []
    _listeners.append(names)
    try:
        yield names
    finally:
        _listeners[:] = [other for other in _listeners if other is not names]


@functools.cache
def _listen() -> None:
    """Hear of every compilation; registered once, since JAX has no way to take it back."""

    def heard(event: str, duration_secs: float, **details: Any) -> None:  # noqa: ARG001 - one interface
        if event == _EVENT:
            for names in _listeners:
                names.append(str(details.get("fun_name", "")).removeprefix("jit(").removesuffix(")"))

    jax.monitoring.register_event_duration_secs_listener(heard)


def _about(fn: Callable[..., Any], names: list[str]) -> bool:
    """Whether a function is among those compiled, and not only what JAX compiles on the way."""
    if isinstance(getattr(fn, "__self__", None), Solver):
        return "_update" in names
    if hasattr(fn, "lower"):  # made by jax.jit
        return _name(fn) in names or "" in names
    return bool(names)


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
