"""Why an update was compiled again: what differs between two calls of it."""

import contextlib
import dataclasses
import functools
import inspect
import itertools
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
    "number": "a number written in the function is part of the program: make it an array, jnp.asarray(x)",
    "equation": "another program: what decides in Python, such as if or a loop's length, must not change",
}


@dataclasses.dataclass(frozen=True)
class Difference:
    """One thing that makes two calls different programs."""

    where: str
    """Which argument, captured array or equation."""
    kind: str
    """Shape, type, weak type, device, structure, number or equation."""
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
    """Two calls beside each other. Printed, it says what differs and what to do."""

    call: int
    """The number of the later call; the first is 1."""
    like: int | None
    """The number of the earlier call that is nearest to it; None for the first."""
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        if self.like is None:
            return "update: compiled in its first call"
        head = f"update: call {self.call}, beside call {self.like}"
        if not self.differences:
            return f"{head}: no array and no equation differs, so a setting of JAX has changed, or has_aux"
        shown = [f"  {d}" for d in self.differences[:_MOST]]
        if len(self.differences) > _MOST:
            shown.append(f"  and {len(self.differences) - _MOST} more")
        advice = dict.fromkeys(f"  {d.kind}: {d.advice}" for d in self.differences)
        return "\n".join([head, *shown, "What to do:", *advice])


class Explained(Generic[P, R]):
    """An update that says, each time it was compiled again, what changed and what to do.

    Only compilations that happened are reported. It looks at the arguments, and into the function that is
    trained: at the arrays that it captured and at its equations. For a function that you made by `jax.jit`,
    JAX itself explains: ``jax.config.update("jax_explain_cache_misses", True)``.

    Args:
        fn: the method ``update`` of a solver.
        report: what to do with the text; None only collects, in ``compilations``.

    >>> import jax.numpy as jnp
    >>> import pjax
    >>> update = Explained(pjax.optim.AlternatingProjections().update, report=None)
    >>> for size in (3, 3, 4):
    ...     _ = update(lambda p: pjax.squared_error(p, jnp.zeros(p.shape)), jnp.ones(size))
    >>> [str(d) for d in update.compilations[1].differences]
    ['params: shape [3] -> [4]']
    """

    def __init__(self, fn: Callable[P, R], *, report: Callable[[str], Any] | None = print) -> None:
        if not isinstance(getattr(fn, "__self__", None), Solver):
            raise InputError(
                f"explain_recompile wraps an update, such as optimizer.update; got {fn!r:.200}. JAX explains"
                ' functions made by jax.jit: jax.config.update("jax_explain_cache_misses", True)'
            )
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._report = report
        self._calls: list[_Call] = []
        self._made = 0
        self.compilations: list[Comparison] = []
        """One for each call in which it was compiled, the first among them."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        self._made += 1
        # Before the call, which may donate its arguments.
        call = _call(self._made, **inspect.signature(self._fn).bind(*args, **kwargs).arguments)
        with _compilations() as names:
            result = self._fn(*args, **kwargs)
        if "_update" in names:
            found = [(tuple(_differences(before, call)), before.number) for before in self._calls]
            differences, like = min(reversed(found), key=lambda pair: len(pair[0]), default=((), None))
            self.compilations.append(Comparison(self._made, like, differences))
            if self._report is not None:
                self._report(str(self.compilations[-1]))
        if "_update" in names or not self._calls:
            self._calls.append(call)
        return result


explain_recompile = Explained
"""Short for `Explained`: ``update = explain_recompile(optimizer.update)``."""


# --- What a call looks like to a compiler ---


class _Equation(NamedTuple):
    place: str
    numbers: str
    rest: Any


class _Call(NamedTuple):
    number: int
    arrays: dict[str, dict[str, str]]
    """For each array, by kind of difference, what there is to say of it."""
    structure: str
    equations: tuple[_Equation, ...]


def _call(number: int, fn: Callable[..., Any], params: Any, batch: Any = None, **others: Any) -> _Call:
    traced = tracing.read(fn if batch is None else lambda p: fn(p, batch), params)
    given = {"params": params, "batch": batch, **others}
    given |= {f"captured array {i}": c for i, c in enumerate(traced.constants)}
    paths, treedef = jax.tree_util.tree_flatten_with_path(given)
    arrays = {path[0].key + jax.tree_util.keystr(path[1:]): _facts(x) for path, x in paths}
    return _Call(number, arrays, str(treedef), tuple(_equations(traced.jaxpr)))


def _facts(x: Any) -> dict[str, str]:
    aval = jax.typeof(x)
    kind = str(aval.dtype)
    weak = f"{kind} (weak)" if getattr(aval, "weak_type", False) else kind
    array = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    device = str(x.sharding) if array and getattr(x, "committed", False) else "any"
    shape = str(list(aval.shape))
    return {"structure": "present", "shape": shape, "type": kind, "weak type": weak, "device": device}


def _equations(jaxpr: jex.Jaxpr) -> Iterator[_Equation]:
    """The equations of a function, those inside wrappers among them."""
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name in jaxprs.WRAPPERS:
            yield from _equations(jaxprs.opened(jaxprs.wrapped(eqn)))
            continue
        numbers = ", ".join(f"{v.val}" for v in eqn.invars if isinstance(v, jex.Literal))
        shapes = tuple(str(v.aval) for v in (*eqn.invars, *eqn.outvars))
        yield _Equation(f"{name!r}{lines.at(eqn)}", numbers, (name, jaxprs.params_key(eqn), shapes))


# --- Two calls beside each other ---


def _differences(before: _Call, after: _Call) -> list[Difference]:
    found: list[Difference] = []
    for where in dict.fromkeys((*before.arrays, *after.arrays)):
        old, new = (call.arrays.get(where, {"structure": "absent"}) for call in (before, after))
        kinds = [kind for kind in old if old[kind] != new.get(kind, old[kind])]
        if "type" in kinds and "weak type" in kinds:
            kinds.remove("weak type")
        found += [Difference(where, kind, old[kind], new[kind]) for kind in kinds]
    if not found and before.structure != after.structure:
        found.append(Difference("arguments", "structure", before.structure, after.structure))
    # What follows from others is not said again: other shapes lead to other equations.
    return found or _equation_differences(before.equations, after.equations)


def _equation_differences(before: Sequence[_Equation], after: Sequence[_Equation]) -> list[Difference]:
    numbers = []
    end = _Equation("no equation", "", None)  # of the function that has fewer
    for old, new in itertools.zip_longest(before, after, fillvalue=end):
        if old.rest != new.rest:
            return [Difference("the function", "equation", old.place, new.place)]
        if old.numbers != new.numbers:
            numbers.append(Difference(new.place, "number", old.numbers, new.numbers))
    return numbers


# --- What was compiled ---


@contextlib.contextmanager
def _compilations() -> Iterator[list[str]]:
    """The names of all functions that JAX compiles from now on."""
    names: list[str] = []

    def heard(event: str, duration_secs: float, **details: Any) -> None:  # noqa: ARG001 - one interface
        if event == _EVENT:
            names.append(str(details.get("fun_name", "")).removeprefix("jit(").removesuffix(")"))

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
