"""From a JAX function to a graph.

The function is read with `jax.make_jaxpr`. What it captured, at any depth, are the constants of its graph;
`pjax.graph.builder` says what becomes of its equations.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from pjax.errors import InputError
from pjax.graph import equations, jaxprs
from pjax.graph.builder import build_graph
from pjax.graph.nodes import Graph


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function read into a jaxpr, with the constants that it captured."""

    jaxpr: jex.Jaxpr
    constants: tuple[Any, ...]
    """Those of the jaxpr, then those of jaxprs inside, in the order of `jaxprs.capturing`."""
    names: tuple[str, ...]
    """Of the parameters."""
    outputs: int
    """How many of the jaxpr's outputs, the first ones, are losses."""
    aux: Any = None
    """The structure of what the function returns beside."""

    @functools.cached_property
    def key(self) -> tuple[Any, ...]:
        """What distinguishes one graph from another: all but the values of captured arrays."""
        constants = tuple((jnp.shape(c), str(jnp.result_type(c))) for c in self.constants)
        program = (jaxprs.jaxpr_key(self.jaxpr), self.outputs, self.aux)
        return (program, constants, self.names, equations.registered)

    @functools.cached_property
    def has_effects(self) -> bool:
        """Whether the function prints, or calls back."""
        return jaxprs.has_effects(self.jaxpr)

    def evaluate(self, leaves: list[Any], constants: tuple[Any, ...]) -> list[Any]:
        """Everything that the function returns, flat, by plain JAX."""
        own = len(self.jaxpr.constvars)
        captured, rest = {}, list(constants[own:])
        for inner in jaxprs.capturing(*self.jaxpr.eqns):
            captured[id(inner)] = rest[: len(inner.consts)]
            rest = rest[len(inner.consts) :]
        return jaxprs.evaluate(self.jaxpr, constants[:own], leaves, captured)


def read(fn: Callable[[Any], Any], params: Any, *, has_aux: bool = False) -> Traced:
    """Read a function of parameters into a jaxpr.

    Args:
        fn: the function.
        params: any pytree of floating-point arrays.
        has_aux: whether it returns a pair, of losses and of anything else.
    """
    names = check_parameters(params)
    structure: Any = None

    def plain(params: Any) -> Any:
        nonlocal structure
        found = jax.tree.map(_value, fn(params), is_leaf=_is_computation)
        if not has_aux:
            return jax.tree.leaves(found), []
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise InputError(
                f"with has_aux=True the function must return a pair, (loss, aux); got {type(found).__name__}"
            )
        aux, structure = jax.tree.flatten(found[1])
        return jax.tree.leaves(found[0]), aux

    closed, shapes = jax.make_jaxpr(plain, return_shape=True)(params)
    inside = (c for inner in jaxprs.capturing(*closed.jaxpr.eqns) for c in inner.consts)
    return Traced(closed.jaxpr, (*closed.consts, *inside), names, len(shapes[0]), structure)


def build(traced: Traced, *, keep_loops: bool = False, losses: bool = True, aux: bool = False) -> Graph:
    """Turn what was read into a graph.

    Args:
        traced: what was read.
        keep_loops: whether a scan becomes one node, where that is possible, instead of as many steps.
        losses: whether it ends in losses; otherwise in values of which something will be asked.
        aux: whether it also has what the function returns beside.
    """
    ends = {"keep_loops": keep_loops, "losses": losses, "aux": aux}
    graph = build_graph(traced.jaxpr, traced.names, traced.outputs, **ends)
    for node in graph.nodes:
        for i, wire in enumerate(node.inputs):
            if not math.prod(wire.shape):
                raise InputError(
                    f"input {i} of {node.where()} is empty, shape {wire.shape}: an empty batch has nothing to"
                    " project. Skip it, or drop the incomplete batch in the data loader"
                )
    return graph


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
    for path, leaf in paths:
        _check_parameter(path_name(path), leaf)
    return tuple(path_name(path) for path, _ in paths)


def path_name(path: Any) -> str:
    """The path of a leaf in a pytree, as users write it."""
    parts = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path]
    return ".".join(parts) or "params"


def _check_parameter(name: str, leaf: Any) -> None:
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
            f"parameter {name!r} has type {dtype}: a parameter must be a floating-point array. Capture it in"
            " the function as a constant, or convert it with .astype(jnp.float32)"
        )
