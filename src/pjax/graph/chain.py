"""Functions that are chains: something first, equal layers one after the other, something last.

One can write them so, or have the layers found in any function: as the steps of its longest `lax.scan`, or
else as equal blocks of equations between which a single wire passes.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from pjax.errors import InputError
from pjax.graph import jaxprs
from pjax.graph.jaxprs import aval, is_variable


@dataclasses.dataclass(frozen=True)
class Chain:
    """A function of parameters and a batch that is a chain of equal layers between two ends.

    Its parameters are a dictionary; those of all layers are its entry ``layers``, every array with the layers
    along its first axis. All others, the *rest*, are those of the ends, and what layers share.

    Args:
        first: from the rest and a batch to the wires that the first layer reads: any pytree of arrays.
        layer: from the rest, the parameters of one layer and its wires to those of the next, of the same
            shapes and types.
        last: from the rest, the wires that the last layer returns and a batch to losses.

    >>> import jax.numpy as jnp
    >>> chain = Chain(
    ...     first=lambda rest, batch: batch[0],
    ...     layer=lambda rest, own, x: x + jnp.tanh(x @ own),
    ...     last=lambda rest, x, batch: ((x @ rest["v"] - batch[1]) ** 2).mean(),
    ... )
    >>> params = {"layers": jnp.zeros((8, 2, 2)), "v": jnp.ones((2, 1))}
    >>> float(chain(params, (jnp.ones((4, 2)), jnp.ones((4, 1)))))
    1.0
    """

    first: Callable[[Any, Any], Any]
    layer: Callable[[Any, Any, Any], Any]
    last: Callable[[Any, Any, Any], Any]

    def __call__(self, params: Any, batch: Any) -> Any:
        """The function as a whole, for any other optimiser."""
        rest, layers = self.split(params)
        return self.last(rest, self.through(rest, layers, self.first(rest, batch)), batch)

    def through(self, rest: Any, layers: Any, wires: Any, number: int | None = None) -> Any:
        """The wires behind some layers; their number, where they have no parameters of their own."""
        return jax.lax.scan(lambda x, one: (self.layer(rest, one, x), None), wires, layers, length=number)[0]

    def split(self, params: Any) -> tuple[Any, Any]:
        """The rest, and the stacks of the layers' parameters."""
        if not isinstance(params, dict) or not jax.tree.leaves(params.get("layers")):
            raise InputError(
                "the parameters of a chain are a dictionary in which 'layers' are those of all layers,"
                f" stacked; got {type(params).__name__}"
                + (f" of {sorted(params)}" if isinstance(params, dict) else "")
            )
        return {k: v for k, v in params.items() if k != "layers"}, params["layers"]

    def join(self, rest: Any, layers: Any) -> Any:
        """The opposite of `split`, also for what is asked of parameters."""
        return {**rest, "layers": layers}

    def number(self, params: Any) -> int:
        """How many layers there are."""
        _, layers = self.split(params)
        sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(layers)}
        if len(sizes) != 1 or () in sizes:
            raise InputError(
                f"the arrays of 'layers' must agree in the length of their first axis; got {sorted(sizes)}"
            )
        return sizes.pop()[0]

    @staticmethod
    def check_layer(given: Any, found: Any) -> None:
        """Refuse a layer that returns something else than the next one takes."""
        shapes = [jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree) for tree in (given, found)]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"a layer of a chain must return what the next one takes: it got {shapes[0]}, and returned"
                f" {shapes[1]}. What differs belongs to first or last"
            )


# --- Chains that are found ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Found(Chain):
    """A chain in a function of any parameters. The rest and the layers are lists of arrays."""

    length: int
    program: "_Program"
    own: tuple[tuple[int, ...], ...]
    """For each array of a layer, the places of the parameters that it is stacked of; one: it is a stack."""
    order: slice
    """From the layers of a stack to those of the chain: the last first, where a scan is reversed."""

    def split(self, params: Any) -> tuple[Any, Any]:
        leaves = jax.tree.leaves(params)
        taken = {i for places in self.own for i in places}
        layers = [
            leaves[places[0]][self.order] if len(places) == 1 else jnp.stack([leaves[i] for i in places])
            for places in self.own
        ]
        return [leaf for i, leaf in enumerate(leaves) if i not in taken], layers

    def join(self, rest: Any, layers: Any) -> Any:
        found: dict[int, Any] = {}
        for places, stack in zip(self.own, layers, strict=True):
            one = len(places) == 1
            found |= {places[0]: stack[self.order]} if one else dict(zip(places, stack, strict=True))
        others = iter(rest)
        leaves = [found[i] if i in found else next(others) for i in range(self.program.parameters.num_leaves)]
        return jax.tree.unflatten(self.program.parameters, leaves)

    def number(self, params: Any) -> int:  # noqa: ARG002 - known
        return self.length


def chain_of(fn: Callable[[Any, Any], Any], params: Any, batch: Any) -> Chain:
    """A function of parameters and a batch, of which only the shapes count, as a chain."""
    if isinstance(fn, Chain):
        return fn
    program = _program(fn, params, batch)
    found = _from_scan(program) or _from_blocks(program)
    if found is None:
        raise InputError(
            "no chain was found in the function: neither a jax.lax.scan over layers nor equal blocks between"
            " which one array passes. Say what its layers are: pjax.optim.Chain(first, layer, last)"
        )
    return found


class _Program(NamedTuple):
    """A function as a flat list of equations."""

    parameters: Any
    """The tree of the parameters."""
    jaxpr: jex.Jaxpr
    """Its inputs are the parameters, then the arrays of the batch."""
    constants: Mapping[Any, Any]
    depends: Mapping[Any, tuple[bool, bool]]
    """Of each variable, whether it depends on parameters, and whether on the batch."""

    @property
    def leaves(self) -> list[Any]:
        return self.jaxpr.invars[: self.parameters.num_leaves]

    def on(self, var: Any) -> tuple[bool, bool]:
        return (False, False) if isinstance(var, jex.Literal) else self.depends.get(var, (False, False))

    def between(self, known: Iterable[Any], wanted: Sequence[Any]) -> jex.Jaxpr:
        """From some variables to others. Its inputs are what it reads, in the order in which it does."""
        known, equations = set(known), []
        ahead = {*filter(is_variable, wanted)} - known
        for eqn in reversed(self.jaxpr.eqns):
            if ahead.intersection(eqn.outvars):
                equations.append(eqn)
                ahead |= {*filter(is_variable, eqn.invars)} - known
        equations.reverse()
        made = {v for eqn in equations for v in eqn.outvars} - known
        reads = [*(v for eqn in equations for v in eqn.invars), *wanted]
        inputs = [v for v in dict.fromkeys(filter(is_variable, reads)) if v not in made]
        return jex.Jaxpr((), inputs, wanted, equations, debug_info=self.jaxpr.debug_info)

    def evaluate(self, wanted: Sequence[Any], known: Mapping[Any, Any]) -> list[Any]:
        """The values of some variables, given those of others."""
        between, values = self.between(known, wanted), {**self.constants, **known}
        return jaxprs.evaluate(between, (), [values[v] for v in between.invars], {})

    def given(self, rest: Sequence[Any], own: Iterable[int], batch: Any = None) -> dict[Any, Any]:
        """The variables of parameters that belong to no layer, and of the batch, with their values."""
        taken = set(own)
        others = [var for i, var in enumerate(self.leaves) if i not in taken]
        known = dict(zip(others, rest, strict=True))
        if batch is not None:
            known |= zip(self.jaxpr.invars[self.parameters.num_leaves :], jax.tree.leaves(batch), strict=True)
        return known


def _program(fn: Callable[[Any, Any], Any], params: Any, batch: Any) -> _Program:
    leaves, tree = jax.tree.flatten((params, batch))
    closed = jaxprs.flat(lambda *leaves: jax.tree.leaves(fn(*jax.tree.unflatten(tree, leaves))), *leaves)
    parameters: Any = jax.tree.structure(params)
    number, jaxpr = parameters.num_leaves, closed.jaxpr
    depends = {v: (i < number, i >= number) for i, v in enumerate(jaxpr.invars)}
    for eqn in jaxpr.eqns:
        on = [depends.get(v, (False, False)) for v in filter(is_variable, eqn.invars)]
        depends |= dict.fromkeys(eqn.outvars, (any(p for p, _ in on), any(b for _, b in on)))
    return _Program(parameters, jaxpr, dict(zip(jaxpr.constvars, closed.consts, strict=True)), depends)


def _from_scan(program: _Program) -> Chain | None:
    """The steps of the longest scan through which batch and parameters go, as layers."""
    used = program.between((), program.jaxpr.outvars)
    scans = [
        eqn
        for eqn in used.eqns
        if eqn.primitive.name == "scan"
        and eqn.params["length"] > 1
        and any(all(program.on(v)) for v in eqn.outvars)
    ]
    if not scans:
        return None
    scan = max(scans, key=lambda eqn: eqn.params["length"])
    length, reverse = scan.params["length"], scan.params["reverse"]
    fixed, carry = jaxprs.scan_counts(scan)
    step = jaxprs.function(scan.params["jaxpr"], {})
    start, rows = scan.invars[fixed : fixed + carry], scan.invars[fixed + carry :]
    places = {var: i for i, var in enumerate(program.leaves)}
    reads = [v for vs in (*(eqn.invars for eqn in used.eqns), used.outvars) for v in filter(is_variable, vs)]
    own = [v for v in rows if v in places and reads.count(v) == 1]
    taken = [places[v] for v in own]
    others = [*scan.invars[:fixed], *(v for v in rows if v not in own)]
    along = [v for v in others if program.on(v)[1]]  # what comes from the batch; the rest is found again

    def first(rest: Any, batch: Any) -> Any:
        values = program.evaluate([*start, *along], program.given(rest, taken, batch))
        state = [jnp.asarray(x, aval(v).dtype) for x, v in zip(values, start, strict=False)]
        outs = [jnp.zeros(aval(v).shape, aval(v).dtype) for v in scan.outvars[carry:]]
        return jnp.zeros((), jnp.int32), state, values[carry:], outs

    def layer(rest: Any, layers: Any, wires: Any) -> Any:
        number, state, carried, outs = wires
        at = length - 1 - number if reverse else number
        known = program.given(rest, taken) | dict(zip(along, carried, strict=True))
        values = program.evaluate(others, known)
        mine, arrays = dict(zip(own, layers, strict=True)), iter(values[fixed:])
        now = [
            mine[v] if v in mine else jax.lax.dynamic_index_in_dim(next(arrays), at, 0, False) for v in rows
        ]
        found = step(*values[:fixed], *state, *now)
        outs = [
            jax.lax.dynamic_update_index_in_dim(ys, y, at, 0)
            for ys, y in zip(outs, found[carry:], strict=True)
        ]
        return number + 1, found[:carry], carried, outs

    def last(rest: Any, wires: Any, batch: Any) -> Any:
        _, state, _, outs = wires
        known = program.given(rest, taken, batch) | dict(zip(scan.outvars, [*state, *outs], strict=True))
        return program.evaluate(program.jaxpr.outvars, known)

    order = slice(None, None, -1 if reverse else None)
    return _Found(first, layer, last, length, program, tuple((i,) for i in taken), order)


def _from_blocks(program: _Program) -> Chain | None:
    """The longest run of equal blocks, between each of which one array passes."""
    wires = _cuts(program)
    keys = [_block_key(program, a, b) for a, b in itertools.pairwise(wires)]
    best, start, period = 0, 0, 0
    for p in range(1, len(keys) // 2 + 1):
        run = 0
        for i in range(len(keys) - p):
            run = run + 1 if keys[i] == keys[i + p] else 0
            count = run // p + 1
            if count > 1 and count * p > best:
                best, start, period = count * p, i - run + 1, p
    if not best:
        return None
    cuts = wires[start : start + best + 1 : period]
    places = {var: i for i, var in enumerate(program.leaves)}

    def parameters(known: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
        """Those that are read from some variables to others."""
        return [v for v in program.between(known, wanted).invars if v in places]

    slots = list(zip(*(parameters([a], [b]) for a, b in itertools.pairwise(cuts)), strict=True))
    varying = [slot for slot in slots if len(set(slot)) > 1]
    taken = [places[v] for slot in varying for v in slot]
    ends = parameters([], cuts[:1]) + parameters(cuts[-1:], program.jaxpr.outvars)
    shapes = {(aval(v).shape, aval(v).dtype) for v in cuts}
    if len(set(taken)) != len(taken) or {places[v] for v in ends} & set(taken) or len(shapes) > 1:
        return None

    def first(rest: Any, batch: Any) -> Any:
        return program.evaluate(cuts[:1], program.given(rest, taken, batch))[0]

    def layer(rest: Any, layers: Any, wire: Any) -> Any:
        mine = {slot[0]: leaf for slot, leaf in zip(varying, layers, strict=True)}
        return program.evaluate(cuts[1:2], {**program.given(rest, taken), **mine, cuts[0]: wire})[0]

    def last(rest: Any, wire: Any, batch: Any) -> Any:
        return program.evaluate(program.jaxpr.outvars, {**program.given(rest, taken, batch), cuts[-1]: wire})

    own = tuple(tuple(places[v] for v in slot) for slot in varying)
    return _Found(first, layer, last, len(cuts) - 1, program, own, slice(None))


def _cuts(program: _Program) -> list[Any]:
    """The variables through which all passes that depends on both parameters and the batch."""
    used = program.between((), program.jaxpr.outvars)
    last_read = {v: i for i, eqn in enumerate(used.eqns) for v in filter(is_variable, eqn.invars)}
    last_read |= dict.fromkeys(filter(is_variable, used.outvars), len(used.eqns))
    crossing: set[Any] = set()
    found: list[Any] = []
    for i, eqn in enumerate(used.eqns):
        crossing |= {v for v in eqn.outvars if all(program.on(v)) and last_read.get(v, -1) > i}
        crossing = {v for v in crossing if last_read[v] > i}
        if len(crossing) == 1 and crossing != set(found[-1:]):
            found += crossing
    return found


def _block_key(program: _Program, a: Any, b: Any) -> Any:
    """A key that is the same for blocks that do the same; one of its own where a block reads the batch."""
    block, leaves = program.between([a], [b]), set(program.leaves)
    if any(v != a and program.on(v) == (False, True) for v in block.invars):
        return object()
    kinds = tuple("wire" if v == a else "parameter" if v in leaves else v for v in block.invars)
    return jaxprs.jaxpr_key(block, by_value=True), kinds
