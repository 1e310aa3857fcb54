"""From a JAX function to a graph.

The function is read with `jax.make_jaxpr`. What it captured, at any depth, are the constants of its graph;
`pjax.graph.builder` says what becomes of its equations.
"""

import contextlib
import copy
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from pjax.checks import Look, postponed
from pjax.errors import InputError
from pjax.graph import equations, jaxprs
from pjax.graph.builder import Builder, NoTargetError
from pjax.graph.nodes import Graph
from pjax.rules.arithmetic import usual_promotion


@jax.tree_util.register_static
class _Text(str):
    """Text that a function returns beside its losses: for JAX part of the tree, and no leaf."""


def _array(x: Any) -> Any:
    try:
        jax.typeof(x)
    except TypeError:
        raise InputError(
            f"the function returns {x!r:.120}, which is no array; with has_aux=True, there can be text beside"
            " the loss"
        ) from None
    return x


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function read into a jaxpr, with the constants that it captured."""

    jaxpr: jex.Jaxpr
    """Its inputs are the parameters, and behind them arrays that are constants all the same."""
    constants: tuple[Any, ...]
    """Those of the jaxpr, those of jaxprs inside, in the order of `jaxprs.capturing`, and these arrays."""
    names: tuple[str, ...]
    """The names of the parameters."""
    outputs: int
    """How many of the jaxpr's outputs, the first ones, are losses."""
    aux: Any = None
    """The tree of what the function returns beside the losses; None without ``has_aux``."""
    batch_arrays: int = 0
    """How many of the constants, the last ones, are the arrays of a batch."""
    looks: tuple[tuple[int, Look], ...] = ()
    """Checks that wait for values of arrays: see `pjax.checks.postponed`; each with its constant's place."""

    @functools.cached_property
    def key(self) -> "Key":
        """What distinguishes one graph from another: all but the values of captured arrays."""
        constants = tuple((jnp.shape(c), str(jnp.result_type(c))) for c in self.constants)
        program = (jaxprs.jaxpr_key(self.jaxpr), self.outputs, self.aux)
        parts = program, constants, self.names, equations.registered
        return _KEYS.setdefault(parts, Key(parts))

    def with_arrays(self, arrays: Sequence[Any]) -> "Traced":
        """The same with other arrays of a batch, of the same shapes and types."""
        _ = self.key  # found before the copy, which then has it: arrays of the same shapes make no other key
        other = copy.copy(self)
        vars(other)["constants"] = (*self.constants[: len(self.constants) - self.batch_arrays], *arrays)
        return other

    @property
    def has_effects(self) -> bool:
        """Whether the function prints, or calls back."""
        return bool(self.jaxpr.effects)

    def evaluate(self, leaves: list[Any], constants: tuple[Any, ...]) -> list[Any]:
        """Everything that the function returns, flat, by plain JAX."""
        rest = iter(constants)
        own = list(itertools.islice(rest, len(self.jaxpr.constvars)))
        inside = jaxprs.capturing(*self.jaxpr.eqns)
        captured = {id(inner): list(itertools.islice(rest, len(inner.consts))) for inner in inside}
        return jaxprs.evaluate(self.jaxpr, own, [*leaves, *rest], captured)


def read(fn: Callable[[Any], Any], params: Any, *, has_aux: bool = False) -> Traced:
    """Read a function of parameters; with ``has_aux`` one that returns a pair, of losses and of more."""
    return _read_with(lambda params, _: fn(params), params, (), has_aux)


def _read_with(fn: Callable[[Any, Any], Any], params: Any, arrays: Sequence[Any], has_aux: bool) -> Traced:
    """A function of parameters and arrays, which become constants behind those that it captured itself."""
    names = check_parameters(params)
    structure: Any = None
    looks: list[tuple[int, Look]] = []

    def plain(params: Any, arrays: Sequence[Any]) -> Any:
        nonlocal structure, looks
        with postponed(arrays) if arrays else contextlib.nullcontext(looks) as looks:
            found = jax.tree.map(_value, fn(params, arrays), is_leaf=_is_computation)
        if not has_aux:
            return list(map(_array, jax.tree.leaves(found))), []
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise InputError(
                f"with has_aux=True the function must return a pair, (loss, aux); got {type(found).__name__}"
            )
        beside = jax.tree.map(lambda x: _Text(x) if isinstance(x, str) else _array(x), found[1])
        aux, structure = jax.tree.flatten(beside)
        return list(map(_array, jax.tree.leaves(found[0]))), aux

    closed, shapes = jax.make_jaxpr(plain, return_shape=True)(params, list(arrays))
    inside = (c for inner in jaxprs.capturing(*closed.jaxpr.eqns) for c in inner.consts)
    own = (*closed.consts, *inside)
    later = tuple((len(own) + i, look) for i, look in looks)
    return Traced(closed.jaxpr, (*own, *arrays), names, len(shapes[0]), structure, len(arrays), later)


class Key:
    """Stands for something long that is compared often: there is one for all that is equal."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts


_KEYS: "weakref.WeakValueDictionary[tuple[Any, ...], Key]" = weakref.WeakValueDictionary()

_KNOWN: "weakref.WeakKeyDictionary[Any, dict[Any, Traced]]" = weakref.WeakKeyDictionary()
_MOST_SHAPES = 64
_SETTINGS = ("enable_x64", "default_matmul_precision", "numpy_dtype_promotion", "default_prng_impl")


def read_on(fn: Callable[[Any, Any], Any], params: Any, batch: Any, *, has_aux: bool = False) -> Traced:
    """Read a function of parameters and a batch: once for all batches of the same shapes, as `jax.jit` does.

    Numbers, text and whatever else in a batch is no array counts as part of the function, which is read anew
    where they change. So does the whole batch where Python needs the values of its arrays, as in
    ``if x.sum() > 0``.
    """
    leaves, tree = jax.tree.flatten(batch)
    others = tuple(None if _is_array(leaf) else leaf for leaf in leaves)
    arrays = [leaf for leaf, other in zip(leaves, others, strict=True) if other is None]

    def on(arrays: Sequence[Any]) -> Any:
        found = iter(arrays)
        return jax.tree.unflatten(tree, [next(found) if x is None else x for x in others])

    if not arrays:
        return read(lambda params: fn(params, batch), params, has_aux=has_aux)
    every = [*jax.tree.leaves(params), *arrays]
    settings = tuple(getattr(jax.config, f"jax_{name}") for name in _SETTINGS)
    same = tuple((type(x), jaxprs.freeze(x)) for x in others)
    key = has_aux, jax.tree.structure(params), tree, same, tuple(map(jax.typeof, every)), settings
    try:
        known = {} if any(isinstance(x, jax.core.Tracer) for x in every) else _KNOWN.setdefault(fn, {})
        found = known.get(key)
    except TypeError:  # no such function, or no such batch, can be a key
        known, found = {}, None
    if found is None:
        try:
            found = _read_with(lambda params, arrays: fn(params, on(arrays)), params, arrays, has_aux)
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
            return read(lambda params: fn(params, batch), params, has_aux=has_aux)
        while len(known) >= _MOST_SHAPES:
            known.pop(next(iter(known)))
        known[key] = found = found.with_arrays([None] * len(arrays))  # this batch is not kept
    return found.with_arrays(arrays)


def _is_array(x: Any) -> bool:
    """Whether it is an array for JAX: not one of text, or of dates."""
    return isinstance(x, jax.Array) or (isinstance(x, np.ndarray) and x.dtype.kind not in "OSUMm")


@usual_promotion()
def build(traced: Traced, *, sweeps: bool = False, losses: bool = True, aux: bool = False) -> Graph:
    """Turn what was read into a graph.

    ``sweeps`` and ``losses`` are what `Builder` is told. With ``aux`` it also has what is returned beside.
    """
    plain: set[int] = set()
    while True:
        try:
            builder = Builder(sweeps, plain, targets=losses)
            return builder.graph(traced.jaxpr, traced.names, traced.outputs, aux)
        except NoTargetError as found:
            plain |= found.equations


def _is_computation(x: Any) -> bool:
    return hasattr(x, "op")


def _value(x: Any) -> Any:
    """The value of a computation, or of what is one already."""
    return x.value if _is_computation(x) else x


def check_parameters(params: Any) -> tuple[str, ...]:
    """The names of the parameters. Refuses what is not an array of floating-point numbers."""
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    if not paths:
        raise InputError("the parameters are empty: there is nothing to solve for")
    names = tuple(path_name(path) for path, _ in paths)
    for name, (_, leaf) in zip(names, paths, strict=True):
        try:
            dtype = jnp.result_type(leaf)
        except TypeError:
            raise InputError(
                f"parameter {name!r} is not an array: got {type(leaf).__name__}. Keep it apart from the"
                " parameters, and put both together inside the function; of an Equinox model,"
                " eqx.partition(model, eqx.is_inexact_array) and eqx.combine do that"
            ) from None
        if not jnp.issubdtype(dtype, jnp.floating):
            raise InputError(
                f"parameter {name!r} has type {dtype}: a parameter must be a floating-point array. Capture it"
                " in the function as a constant, or convert it with .astype(jnp.float32)"
            )
    return names


def path_name(path: Any) -> str:
    """The path of a leaf in a pytree, as users write it."""
    parts = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path]
    return ".".join(parts) or "params"
