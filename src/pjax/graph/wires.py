"""Layouts: the wires between nodes.

A layout only moves numbers: each slot of its result copies one scalar of a source, or holds a constant.
So it is linear with entries 0 and 1 (plus a constant part), and JAX can transpose it. No inverse is ever
written by hand: the consensus of a node over everything that reads it is ``sum Lᵀ(v) / sum Lᵀ(1)``.

An `Expr` is a lazily evaluated value: a constant, the output of a node, or an equation applied to such.
A `Wire` is an expression that one input of a node reads, seen as a function of the nodes behind it.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax

from pjax.devices import end_kernel
from pjax.rules.arithmetic import condensed

# Layouts of one operand in which every source scalar is read equally often.
UNIFORM = frozenset(
    {
        "broadcast_in_dim",
        "convert_element_type",
        "copy",
        "device_put",
        "expand_dims",
        "name",
        "reduce_precision",
        "reshape",
        "rev",
        "sharding_constraint",
        "squeeze",
        "transpose",
        "vector",
    }
)

# Layout equations, with the positions of the operands that carry values. The others (indices,
# predicates) steer the movement and must be constant. `None`: every operand carries values.
LAYOUTS: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(UNIFORM, (0,)),
    "concatenate": None,
    "dynamic_slice": (0,),
    "dynamic_update_slice": (0, 1),
    "gather": (0,),
    "pad": (0, 1),
    "select_n": (1, 2, 3, 4, 5, 6, 7, 8),
    "slice": (0,),
    "split": (0,),
    "stack": None,
    "tile": (0,),
    "unstack": (0,),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """A function applied to expressions; an expression picks one of its results."""

    name: str
    fn: Callable[..., Sequence[Any]]
    args: tuple["Expr", ...]
    data: frozenset[int]
    """Positions of the arguments that carry values."""
    key: Any
    """The same for calls that do the same."""


@dataclasses.dataclass(frozen=True, eq=False)
class Expr:
    """A value known only at run time. Exactly one of `call`, `node`, `constant`, `literal` is set."""

    shape: tuple[int, ...]
    dtype: Any
    line: str = ""
    depends: bool = False
    """Whether it moves with a parameter. A held value does not, even where it follows from one."""
    from_loss: bool = False
    """Whether it is a loss, or computed from one."""
    call: Call | None = None
    index: int = 0
    node: int | None = None
    constant: int | None = None
    literal: Any = None
    form: "Form | None" = None
    """If it is known to follow from other values number by number: by which equations."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One equation of a `Form`."""

    eqn: jex.JaxprEqn
    operands: tuple["Expr | tuple[Step, int]", ...]
    """Each is an expression that the form starts from, or an earlier step and the number of its result."""


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """The equations between a value and few others from which it follows: many equations, for one node."""

    steps: tuple[Step, ...]
    """The value is a result of the last."""
    result: int
    is_curved: bool
    """Whether it is more than sums, products with constants, and bounds."""

    @functools.cached_property
    def leaves(self) -> tuple[Expr, ...]:
        """What it starts from, each once, but for numbers that are written in the program."""
        every = (x for step in self.steps for x in step.operands if isinstance(x, Expr))
        return tuple(
            {id(x): x for x in every if x.depends or np.ndim(x.literal) or x.literal is None}.values()
        )

    @functools.cached_property
    def bases(self) -> tuple[Expr, ...]:
        """What moves with parameters."""
        return tuple(x for x in self.leaves if x.depends)

    @functools.cached_property
    def constants(self) -> tuple[Expr, ...]:
        """What does not."""
        return tuple(x for x in self.leaves if not x.depends)


def literal(value: Any) -> Expr:
    """A constant written in the program."""
    return Expr(jnp.shape(value), jnp.result_type(value), literal=value)


def apply(
    name: str,
    fn: Callable[..., Any],
    *args: Expr,
    key: Any,
    shape: tuple[int, ...] | None = None,
    data: Iterable[int] | None = None,
) -> Expr:
    """A function applied to expressions, as an expression.

    Args:
        name: what the layout is called.
        fn: the function, with one result.
        args: the expressions.
        key: the same for functions that do the same.
        shape: of the result, to save the time to find it; the type is then that of the first argument.
        data: the places of the arguments that carry values, if not all do.
    """
    out = _result(fn, key, args) if shape is None else jax.ShapeDtypeStruct(shape, args[0].dtype)
    places = frozenset(range(len(args)) if data is None else data)
    call = Call(name, lambda *xs: (fn(*xs),), args, places, key)
    depends, from_loss = any(args[i].depends for i in places), any(a.from_loss for a in args)
    return Expr(out.shape, out.dtype, "", depends, from_loss, call)


_RESULTS: dict[Any, jax.ShapeDtypeStruct] = {}
_MOST_RESULTS = 4096


def _result(fn: Callable[..., Any], key: Any, args: Sequence[Expr]) -> jax.ShapeDtypeStruct:
    """The shape and type of what a function returns, found once for all that do the same: it takes time."""
    known = (key, *((a.shape, a.dtype) for a in args))
    if known not in _RESULTS:
        if len(_RESULTS) >= _MOST_RESULTS:
            _RESULTS.clear()
        _RESULTS[known] = jax.eval_shape(fn, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args))
    return _RESULTS[known]


def held(expr: Expr) -> Expr:
    """What a value is at the forward evaluation, as a constant: it does not move with parameters."""
    if not expr.depends:
        return expr
    same = apply("held", lambda x: x, expr, key=("held",), shape=expr.shape)
    return dataclasses.replace(same, depends=False, line=expr.line)


def broadcast(expr: Expr, shape: tuple[int, ...]) -> Expr:
    """An expression in a larger shape."""
    if expr.shape == shape:
        return expr
    fn = functools.partial(jnp.broadcast_to, shape=shape)
    return apply("broadcast_in_dim", fn, expr, key=("broadcast", shape), shape=shape)


STACK = ("stack",)
"""The key of `stack`."""


def stack(*args: Expr) -> Expr:
    """Expressions along a new first axis."""
    return apply("concatenate", lambda *xs: jnp.stack(xs), *args, key=STACK)


def index(expr: Expr, place: int, axis: int = 0) -> Expr:
    """One entry along an axis."""
    fn = functools.partial(lax.index_in_dim, index=place, axis=axis, keepdims=False)
    shape = expr.shape[:axis] + expr.shape[axis + 1 :]
    return apply("slice", fn, expr, key=("index", place, axis), shape=shape)


T = TypeVar("T")


def postorder(roots: Iterable[T], below: Callable[[T], Sequence[T]]) -> Iterator[T]:
    """Everything that stands below some roots, themselves included: what is below first, each once."""
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(list(roots))]
    while stack:
        one, ready = stack.pop()
        if id(one) in seen:
            continue
        others = () if ready else below(one)
        if others:
            stack.append((one, True))
            stack.extend((other, False) for other in reversed(others))
        else:
            seen.add(id(one))
            yield one


def walk(*roots: Expr, held: bool = True) -> Iterator[Expr]:
    """Every expression below the roots, arguments first, each once; by default also below what is held."""
    return postorder(roots, lambda e: e.call.args if e.call is not None and (held or e.depends) else ())


def nodes_of(expr: Expr) -> tuple[int, ...]:
    """The nodes with which an expression moves, in order."""
    if expr.call is None or not expr.depends:
        return (expr.node,) if expr.node is not None and expr.depends else ()
    return tuple(sorted({e.node for e in walk(expr, held=False) if e.node is not None and e.depends}))


def needs_of(expr: Expr) -> set[int]:
    """The nodes that are evaluated before an expression: also what is held follows from some."""
    return {e.node for e in walk(expr) if e.node is not None}


class Memo(abc.ABC, Generic[T]):
    """A property of expressions that follows from that of their arguments. It is found once for each."""

    below_held = True
    """Whether to look at the arguments of held values, too."""

    def __init__(self) -> None:
        self.found: dict[int, T] = {}
        self._keep: list[Any] = []  # ids stay valid only while the objects live

    def __call__(self, root: Expr) -> T:
        if id(root) not in self.found:
            for expr in walk(root, held=self.below_held):
                if id(expr) not in self.found:
                    self._keep.append(expr)
                    self.found[id(expr)] = self.look(expr)
        return self.found[id(root)]

    @abc.abstractmethod
    def look(self, expr: Expr) -> T:
        """What follows for an expression."""


class Substitution(Memo[Expr]):
    """Expressions with the outputs of some nodes replaced by other expressions."""

    def __init__(self, nodes: Mapping[int, Expr]) -> None:
        super().__init__()
        self._nodes = nodes
        self._calls: dict[int, Call] = {}

    def look(self, expr: Expr) -> Expr:
        call = expr.call
        if call is None or all(self.found[id(a)] is a for a in call.args):
            return expr if expr.node is None else self._nodes.get(expr.node, expr)
        if id(call) not in self._calls:
            args = tuple(self.found[id(a)] for a in call.args)
            self._calls[id(call)] = dataclasses.replace(call, args=args)
        return dataclasses.replace(expr, call=self._calls[id(call)])


def substitute(exprs: Iterable[Expr], nodes: Mapping[int, Expr]) -> list[Expr]:
    """The expressions with the outputs of some nodes replaced by other expressions."""
    return list(map(Substitution(nodes), exprs))


class Evaluator(Memo[Any]):
    """Evaluates expressions, each once, on given constants and node outputs.

    With ``known``, another evaluator that has met them, constants are taken from there.

    With ``linear``, a floating type, it evaluates the linear part in that type: constants that carry
    values count as zero, and casts are left out, since displacements keep the type they are carried in.

    With ``holding``, what is held has no derivative: for functions that JAX will transpose.
    """

    def __init__(
        self,
        constants: Sequence[Any],
        nodes: Mapping[int, Any],
        *,
        linear: Any = None,
        known: Callable[[Expr], Any] | None = None,
        holding: bool = False,
    ) -> None:
        super().__init__()
        self._constants = constants
        self._nodes = nodes
        self._linear = linear
        self._holding = holding
        self._known = self if known is None else known
        self.below_held = known is None and linear is None
        self._results: dict[tuple[int, bool], Sequence[Any]] = {}

    def each(self, wires: Iterable["Wire"]) -> tuple[Any, ...]:
        """What wires carry."""
        return tuple(self(wire.expr) for wire in wires)

    def every(self, wires: Mapping[int, Iterable["Wire"]]) -> dict[int, tuple[Any, ...]]:
        """What the wires of some nodes carry."""
        return {v: self.each(own) for v, own in wires.items()}

    def look(self, expr: Expr) -> Any:
        if not expr.depends and not self.below_held:
            return None if self._linear is not None else self._known(expr)
        if expr.node is not None:
            value = self._nodes[expr.node]
            # Products of bfloat16 come in float32, which the layouts behind them do not expect.
            return value if self._linear is not None else jnp.asarray(value, expr.dtype)
        if expr.constant is not None:
            return self._constants[expr.constant]
        if expr.call is None:
            return jnp.asarray(expr.literal, expr.dtype)  # a number of JAX's own types is no array
        call, held = expr.call, self._holding and not expr.depends
        key = id(call), held  # of one call, some results may be held and others not
        if key not in self._results:
            args = [self._argument(call, i) for i in range(len(call.args))]
            if held:
                pairs = zip(args, call.args, strict=True)
                args = [lax.stop_gradient(x) if arg.depends else x for x, arg in pairs]
            cast = self._linear is not None and call.name in ("convert_element_type", "reduce_precision")
            self._results[key] = args if cast else call.fn(*args)
        return self._results[key][expr.index]

    def _argument(self, call: Call, i: int) -> Any:
        arg = call.args[i]
        if self._linear is None or (arg.depends and i in call.data):
            return self.found[id(arg)]
        if i not in call.data:  # an index or a predicate: the same in both readings
            return self._known(arg)
        return jnp.zeros(arg.shape, self._linear)


def zeros(expr: Expr) -> jax.Array:
    """What stands for the value of an expression that makes no difference."""
    return jnp.zeros(expr.shape, expr.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Wire:
    """One input of a node: a layout of the nodes and constants that it reads."""

    expr: Expr
    sources: tuple[int, ...] = dataclasses.field(init=False)
    """The nodes with which it moves."""
    constant: bool = dataclasses.field(init=False)
    """Whether it moves with none."""
    shape: tuple[int, ...] = dataclasses.field(init=False)
    dtype: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        sources = nodes_of(self.expr)
        vars(self).update(sources=sources, constant=not sources, shape=self.expr.shape, dtype=self.expr.dtype)

    @functools.cached_property
    def needs(self) -> frozenset[int]:
        """The nodes that are evaluated before: the sources, and those behind what is held."""
        return frozenset(needs_of(self.expr))

    @property
    def steered(self) -> set[int]:
        """The sources whose numbers move to places that are computed: by indices or predicates."""
        found: set[int] = set()
        for e in walk(self.expr, held=False):
            if e.call is not None and e.depends and set(range(len(e.call.args))) - e.call.data:
                found.update(nodes_of(e))
        return found

    def fan_out(self) -> int | None:
        """How often each scalar of the only source is read, where that is one number for all."""
        source, times = evenly_read(self.expr)
        return times if source.node is not None and source.depends else None


def evenly_read(expr: Expr) -> tuple[Expr, int]:
    """The source of an expression that reads all numbers of it equally often, and how often it reads each."""
    source = expr
    while source.call is not None and source.call.name in UNIFORM and len(source.call.args) == 1:
        source = source.call.args[0]
    return source, expr.size // max(source.size, 1)


class Wiring:
    """A wire at run time: its linear part, forwards and backwards."""

    def __init__(
        self, wire: Wire, avals: Sequence[jax.ShapeDtypeStruct], known: Callable[[Expr], Any]
    ) -> None:
        """``avals`` are the outputs of ``wire.sources``, in the type of the displacements."""
        self.wire = wire

        self._linear = functools.partial(self._evaluated, known=known)
        self._avals = avals
        self._transpose = jax.linear_transpose(self._linear, *avals) if avals else None
        self._plain = wire.expr.node is not None

    def _evaluated(self, *values: Any, known: Any) -> Any:
        nodes = dict(zip(self.wire.sources, values, strict=True))
        return Evaluator((), nodes, linear=self._avals[0].dtype, known=known)(self.wire.expr)

    def push(self, *values: jax.Array) -> jax.Array:
        """Displacements of the sources, as the reader sees them."""
        return values[0] if self._plain else self._linear(*values)

    def pull(self, value: jax.Array) -> tuple[jax.Array, ...]:
        """Sums, for every scalar of every source, over the slots that read it."""
        if self._plain:
            return (value,)
        assert self._transpose is not None
        if sum(math.prod(aval.shape) for aval in self._avals) < value.size:
            value = end_kernel(value)
        return tuple(self._transpose(value))

    def counts(self, edges: int | np.ndarray = 1) -> tuple[Any, ...]:
        """How many edges leave each scalar of each source, given how many enter each slot.

        Numbers where they are the same for all, else arrays: of NumPy, without axes along which they are the
        same, where they follow from the program alone.
        """
        uniform = self.wire.fan_out()
        if uniform is not None and (isinstance(edges, int) or self._plain):
            return (edges * uniform,)
        # Any index will do: where they count, the result is not used.
        linear = functools.partial(self._evaluated, known=zeros)
        fixed = _counted(jax.make_jaxpr(linear)(*self._avals).jaxpr, np.asarray(edges, self._avals[0].dtype))
        entering = np.broadcast_to(np.asarray(edges, self._avals[0].dtype), self.wire.shape)
        steered = self.wire.steered
        if fixed is None:
            with jax.ensure_compile_time_eval():
                found = jax.jit(jax.linear_transpose(linear, *self._avals))(entering)
                fixed = [condensed(np.asarray(x)) for x in found]
        if not steered:
            return tuple(fixed)
        moved = self.pull(jnp.asarray(entering))
        return tuple(
            m if s in steered else f for s, m, f in zip(self.wire.sources, moved, fixed, strict=True)
        )


_AXES = frozenset({"convert_element_type", "copy", "expand_dims", "reshape", "squeeze"})


def _long(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _counted(jaxpr: Any, edges: np.ndarray) -> list[int | np.ndarray] | None:
    """How often a layout reads each number of each input, without running anything.

    ``edges`` is how often its result is read, without axes along which that is the same. None for layouts
    that do more than cut, join and repeat as a whole.
    """
    (result,) = jaxpr.outvars
    found = {result: edges.reshape((1,) * (result.aval.ndim - edges.ndim) + edges.shape)}
    for eqn in reversed(jaxpr.eqns):
        if not any(v in found for v in eqn.outvars):
            continue
        read, name = found.pop(eqn.outvars[0], None), eqn.primitive.name
        whole, *shapes = (v.aval.shape for v in (eqn.outvars[0], *eqn.invars))
        if read is None or any(0 in shape for shape in shapes):
            return None
        if name == "concatenate":
            axis = eqn.params["dimension"]
            ends = np.cumsum([shape[axis] for shape in shapes])[:-1]
            parts = np.split(read, ends, axis) if read.shape[axis] > 1 else [read] * len(shapes)
        elif name == "slice":
            strides = eqn.params["strides"] or (1,) * read.ndim
            limits = zip(eqn.params["start_indices"], eqn.params["limit_indices"], strides, strict=True)
            place = [
                slice(*p) if n < size else None for p, n, size in zip(limits, whole, *shapes, strict=True)
            ]
            sizes = zip(place, read.shape, *shapes, strict=True)
            parts = [np.zeros([size if p else n for p, n, size in sizes], read.dtype)]
            parts[0][tuple(p or slice(None) for p in place)] = read
        elif name in _AXES and _long(whole) == _long(shapes[0]):
            long = iter([n for n, size in zip(read.shape, whole, strict=True) if size != 1])
            parts = [read.reshape([1 if size == 1 else next(long) for size in shapes[0]])]
        elif name in UNIFORM and read.size == 1:
            times = math.prod(whole) // math.prod(shapes[0])
            parts = [(read * times).reshape((1,) * len(shapes[0]))]
        else:
            return None
        for var, part in zip(eqn.invars, parts, strict=True):
            if not isinstance(var, jex.Literal):
                found[var] = found.get(var, 0) + part
    nothing = np.zeros(1, edges.dtype)
    return [condensed(found.get(v, nothing.reshape((1,) * v.aval.ndim))) for v in jaxpr.invars]


def wirings(
    wires: Mapping[tuple[int, int], Wire],
    shapes: Sequence[tuple[int, ...]],
    dtype: Any,
    known: Callable[[Expr], Any],
) -> dict[tuple[int, int], Wiring]:
    """Those of wires that move, by node and input, given shapes of nodes and the type of displacements."""
    avals = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return {
        place: Wiring(wire, [avals[s] for s in wire.sources], known)
        for place, wire in wires.items()
        if not wire.constant
    }


def leaving(
    wirings: Mapping[tuple[int, int], Wiring], entering: Mapping[tuple[int, int], Any]
) -> list[tuple[int, Any]]:
    """The sources of wires, each with how many edges leave its scalars for that wire; see `Wiring.counts`."""
    return [
        pair
        for place, wiring in wirings.items()
        for pair in zip(wiring.wire.sources, wiring.counts(entering[place]), strict=True)
    ]
