"""From a JAX function to a graph: each equation is a constant, a layout, or a node.

The function is read with `jax.make_jaxpr`. Equations that do not depend on a parameter are evaluated
once, before the iteration. Layouts become part of the wires. The rest become nodes; one function per
equation in `_EQUATIONS` says how. Adding a rule for another equation is one call of `register_equation`.
"""

import contextvars
import dataclasses
import functools
import itertools
import os
import sysconfig
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from pjax.errors import GraphError, InputError, UnsupportedEquationError
from pjax.graph import wires as layout
from pjax.graph.nodes import Graph, Node, Rule
from pjax.graph.wires import Call, Expr, Wire
from pjax.losses import SquaredError
from pjax.rules import Dot, Max, Primitive, Sum, SumRelu, Target
from pjax.rules.contraction import Convolution, DotGeneral
from pjax.rules.scan import Loop
from pjax.rules.windows import windows
from pjax.sets import Constrain, Member

_HERE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_JAX = os.path.join(os.path.dirname(jax.__file__), "")
# Where Python and installed packages are: such lines are not the user's.
_INSTALLED = tuple(
    os.path.join(sysconfig.get_path(kind), "")
    for kind in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
)

# Equations that only wrap another jaxpr, and where they keep it.
_WRAPPERS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_lin": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_vmap_call": "call",
}

# The line of the user's code that called the function being read, where it is not the user's own.
_ENCLOSING = contextvars.ContextVar("enclosing", default="")

_COMPARISONS = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})

# What may be done to losses: it changes the number that is reported, not the targets.
_LOSS_ARITHMETIC = frozenset({"reduce_sum", "add", "add_any", "mul", "div"})


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function read into a jaxpr, with the constants that it captured."""

    jaxpr: jex.Jaxpr
    constants: tuple[Any, ...]
    names: tuple[str, ...]

    @functools.cached_property
    def key(self) -> tuple[Any, ...]:
        """What distinguishes one graph from another: all but the values of captured arrays."""
        constants = tuple((jnp.shape(c), str(jnp.result_type(c))) for c in self.constants)
        return (_jaxpr_key(self.jaxpr), constants, self.names, _registered)


def read(fn: Callable[[Any], Any], params: Any) -> Traced:
    """Read a function of parameters into a jaxpr."""
    from pjax.containers.computation import value_of

    names = check_parameters(params)

    def plain(params: Any) -> Any:
        return jax.tree.map(value_of, fn(params), is_leaf=lambda x: hasattr(x, "op"))

    closed = jax.make_jaxpr(plain)(params)
    constants = [*closed.consts, *(c for inner in _wrapped(closed.jaxpr) for c in inner.consts)]
    return Traced(closed.jaxpr, tuple(constants), names)


def check_parameters(params: Any) -> tuple[str, ...]:
    """The names of the parameters. Refuses what is not an array of floating-point numbers."""
    paths, _ = jax.tree_util.tree_flatten_with_path(params)
    if not paths:
        raise InputError("the parameters are empty: there is nothing to solve for")
    for path, leaf in paths:
        _check_parameter(path_name(path), leaf)
    return tuple(path_name(path) for path, _ in paths)


def _wrapped(jaxpr: jex.Jaxpr) -> list[Any]:
    """The jaxprs inside wrappers that captured constants of their own, such as the batch, in order."""
    found: dict[int, Any] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _WRAPPERS:
            inner = eqn.params[_WRAPPERS[eqn.primitive.name]]
            if isinstance(inner, jex.ClosedJaxpr):
                if inner.consts:
                    found.setdefault(id(inner), inner)
                inner = inner.jaxpr
            found.update({id(x): x for x in _wrapped(inner) if id(x) not in found})
    return list(found.values())


def build(traced: Traced, *, keep_loops: bool = False) -> Graph:
    """Turn what was read into a graph.

    Args:
        traced: what was read.
        keep_loops: whether a scan becomes one node, where that is possible, instead of as many steps.
    """
    builder = _Builder(keep_loops)
    env: dict[Any, Expr] = {}
    leaves = []
    constants = itertools.count()

    def constant(var: Any) -> Expr:
        return Expr(_aval(var).shape, _aval(var).dtype, constant=next(constants))

    for var in traced.jaxpr.constvars:
        env[var] = constant(var)
    for inner in _wrapped(traced.jaxpr):
        builder.captured[id(inner)] = [constant(var) for var in inner.jaxpr.constvars]
    for name, var in zip(traced.names, traced.jaxpr.invars, strict=True):
        node = builder.add(name, None, (), _aval(var).shape, _aval(var).dtype)
        env[var] = node.output
        leaves.append(node.index)
    outputs = builder.run(traced.jaxpr, env)
    return _finish(builder, leaves, outputs)


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


def _user_line(eqn: jex.JaxprEqn) -> str:
    """The line of the user's code that made an equation; that of a library if there is none."""
    traceback: Any = eqn.source_info.traceback
    library = ""
    for frame in traceback.frames if traceback is not None else ():
        if not frame.file_name.startswith((_JAX, _HERE, "<")):
            line = f"{frame.file_name}:{frame.line_num}"
            if not frame.file_name.startswith(_INSTALLED):
                return line
            library = library or line
    return _ENCLOSING.get() or library  # inside a function of JAX, such as jax.nn.relu


class _Builder:
    """Collects nodes while it walks through a jaxpr."""

    def __init__(self, keep_loops: bool = False) -> None:
        self.keep_loops = keep_loops
        self.nodes: list[Node] = []
        self.captured: dict[int, list[Expr]] = {}
        """What wrapped jaxprs captured, by their identity."""

    def add(
        self,
        name: str,
        rule: Rule | None,
        inputs: Sequence[Expr],
        shape: tuple[int, ...],
        dtype: Any,
        line: str = "",
    ) -> Node:
        wires = tuple(map(Wire.of, inputs))
        node = Node(len(self.nodes), name, rule, wires, tuple(shape), dtype, line)
        self.nodes.append(node)
        return node

    def operation(self, rule: Rule, *inputs: Expr, shape: tuple[int, ...], dtype: Any, line: str) -> Expr:
        return self.add(f"{rule.name}_{len(self.nodes)}", rule, inputs, shape, dtype, line).output

    def run(self, jaxpr: jex.Jaxpr, env: dict[Any, Expr]) -> list[Expr]:
        def read(var: Any) -> Expr:
            return layout.literal(var.val) if isinstance(var, jex.Literal) else env[var]

        for eqn in jaxpr.eqns:
            outs = self.equation(eqn, [read(v) for v in eqn.invars])
            env.update(zip(eqn.outvars, outs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def equation(self, eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
        name = eqn.primitive.name
        if not any(a.depends for a in args) and name not in _WRAPPERS:
            return _call(eqn, args, None)
        if name in _WRAPPERS or name == "scan":
            outer = _ENCLOSING.set(_user_line(eqn))
            try:
                if name == "scan":
                    return (self.keep_loops and self._loop(eqn, args)) or self._unroll(eqn, args)
                return self._inline(eqn.params[_WRAPPERS[name]], args)
            finally:
                _ENCLOSING.reset(outer)
        if any(a.after for a in args):
            return self._after_loss(eqn, args)
        if name in layout.LAYOUTS:
            return self._layout(eqn, args)
        if name in _EQUATIONS:
            return [_EQUATIONS[name](self, eqn, args)]
        if name in _COMPARISONS:
            raise UnsupportedEquationError(
                f"{name!r}{_at(eqn)} compares values that depend on a parameter:"
                f" {', '.join(map(_describe, args))}. Which branch of a function is taken must not depend"
                " on one. Instead of where or an if, use jnp.maximum, jnp.minimum or jnp.clip, or a primitive"
                " of your own: pjax.register_primitive"
            )
        raise UnsupportedEquationError(
            f"no projection is known for the equation {name!r}"
            f"{_at(eqn)}: {', '.join(_describe(a) for a in args)} -> {_avals(eqn)}.\n"
            "Rewrite it with supported functions (see the list in pjax.numpy), compute it from constants"
            f" only, or add a rule: pjax.register_equation({name!r}, rule), where rule is a pjax.Primitive"
            " with `forward` and `project`"
        )

    def _after_loss(self, eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
        name = eqn.primitive.name
        mixed = any(a.depends and not a.after for a in args)
        if mixed or not (name in _LOSS_ARITHMETIC or name in layout.LAYOUTS):
            raise GraphError(
                f"a target must come last, but its loss is used by {name!r}{_at(eqn)}. Losses may only be"
                " summed, averaged, scaled by constants and returned"
            )
        return _call(eqn, args, None)

    def _inline(self, inner: Any, args: list[Expr]) -> list[Expr]:
        jaxpr, consts = (inner.jaxpr, inner.consts) if isinstance(inner, jex.ClosedJaxpr) else (inner, ())
        captured = self.captured.get(id(inner)) or list(map(layout.literal, consts))
        env = dict(zip(jaxpr.constvars, captured, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))
        return self.run(jaxpr, env)

    def _unroll(self, eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
        p = eqn.params
        consts, carry = _scan_counts(eqn, args)
        fixed, state, xs = args[:consts], args[consts : consts + carry], args[consts + carry :]
        steps = range(p["length"])
        ys: list[list[Expr]] = []
        for t in reversed(steps) if p["reverse"] else steps:
            outs = self._inline(p["jaxpr"], [*fixed, *state, *(layout.index(x, t) for x in xs)])
            state = outs[:carry]
            ys.append(outs[carry:])
        if p["reverse"]:
            ys.reverse()
        if not ys:  # no steps at all
            empty = [np.zeros(_aval(v).shape, _aval(v).dtype) for v in eqn.outvars[carry:]]
            return [*state, *map(layout.literal, empty)]
        return [*state, *(layout.stack(*y) for y in zip(*ys, strict=True))]

    def _loop(self, eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr] | None:
        """A scan as one node; None if it holds targets, or states that are not floating-point numbers."""
        inner = eqn.params["jaxpr"]
        body, captured = (inner.jaxpr, inner.consts) if isinstance(inner, jex.ClosedJaxpr) else (inner, ())
        consts, carry = _scan_counts(eqn, args)
        avals = [_aval(v) for v in (*eqn.outvars, *body.invars[consts : consts + carry])]
        if not eqn.params["length"] or not all(jnp.issubdtype(a.dtype, jnp.floating) for a in avals):
            return None
        is_leaf = tuple(a.depends or consts <= i < consts + carry for i, a in enumerate(args))
        builder, constants = _Builder(keep_loops=True), itertools.count()
        env = dict(zip(body.constvars, map(layout.literal, captured), strict=True))
        leaves = []
        for i, (var, leaf) in enumerate(zip(body.invars, is_leaf, strict=True)):
            shape, dtype = _aval(var).shape, _aval(var).dtype
            if leaf:
                leaves.append(builder.add(f"input_{i}", None, (), shape, dtype).index)
                env[var] = builder.nodes[-1].output
            else:
                env[var] = Expr(shape, dtype, constant=next(constants))
        outputs = builder.run(body, env)
        if any(node.is_target for node in builder.nodes):
            return None
        nodes = _fuse(builder.nodes, outputs)
        states = [((eqn.params["length"], *a.shape), a.dtype) for a in avals[len(eqn.outvars) :]]
        rule = Loop(
            _needed(nodes, leaves, outputs),
            consts,
            carry,
            eqn.params["length"],
            eqn.params["reverse"],
            is_leaf,
            (*((tuple(a.shape), a.dtype) for a in avals[: len(eqn.outvars)]), *states),
        )
        flat = self.operation(rule, *args, shape=(rule.size,), dtype=rule.dtype, line=_user_line(eqn))
        return [layout.apply("slice", rule.result(i), flat) for i in range(len(eqn.outvars))]

    def _layout(self, eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
        positions = layout.LAYOUTS[eqn.primitive.name]
        data = frozenset(range(len(args))) if positions is None else frozenset(positions)
        for i, arg in enumerate(args):
            if arg.depends and i not in data:
                raise UnsupportedEquationError(
                    f"{eqn.primitive.name!r}{_at(eqn)} moves numbers to places that depend on a parameter"
                    f" (operand {i}, {_describe(arg)}); indices and predicates must be constant"
                )
        for var in eqn.outvars:
            if not jnp.issubdtype(_aval(var).dtype, jnp.floating):
                raise UnsupportedEquationError(
                    f"{eqn.primitive.name!r}{_at(eqn)} turns a value that depends on a parameter into"
                    f" {_aval(var).dtype}; only floating-point values can be projected"
                )
        return _call(eqn, args, data)


def _scan_counts(eqn: jex.JaxprEqn, args: list[Expr]) -> tuple[int, int]:
    """How many of a scan's inputs are fixed, and how many are its initial state."""
    inner = eqn.params["jaxpr"]
    body = inner.jaxpr if isinstance(inner, jex.ClosedJaxpr) else inner
    # What is scanned over has one axis more outside than inside; how the counts are named varies.
    carry = sum(
        len(_aval(o).shape) == len(_aval(i).shape) for o, i in zip(eqn.outvars, body.outvars, strict=True)
    )
    scanned = sum(len(a.shape) != len(_aval(i).shape) for a, i in zip(args, body.invars, strict=True))
    return len(args) - scanned - carry, carry


def _call(eqn: jex.JaxprEqn, args: list[Expr], data: frozenset[int] | None) -> list[Expr]:
    """The equation applied to expressions, as expressions."""
    data = frozenset(range(len(args))) if data is None else data
    key = (eqn.primitive.name, _params_key(eqn))
    call = Call(eqn.primitive.name, functools.partial(_bind, eqn), tuple(args), data, key)
    depends, after, line = any(a.depends for a in args), any(a.after for a in args), _user_line(eqn)
    return [
        Expr(_aval(v).shape, _aval(v).dtype, line, depends, after, call, i) for i, v in enumerate(eqn.outvars)
    ]


def _bind(eqn: jex.JaxprEqn, *args: Any) -> Sequence[Any]:
    """Evaluate one equation."""
    if eqn.primitive.name in _WRAPPERS:
        inner = eqn.params[_WRAPPERS[eqn.primitive.name]]
        closed = inner if isinstance(inner, jex.ClosedJaxpr) else jex.ClosedJaxpr(inner, ())
        return jex.jaxpr_as_fun(closed)(*args)
    out = eqn.primitive.bind(*args, **eqn.params)
    return out if eqn.primitive.multiple_results else (out,)


def _aval(var: Any) -> Any:
    """The shape and type of a variable."""
    return var.aval


def _at(eqn: jex.JaxprEqn) -> str:
    line = _user_line(eqn)
    return f" at {line}" if line else ""


def _describe(expr: Expr) -> str:
    return f"{jnp.dtype(expr.dtype).name}[{','.join(map(str, expr.shape))}]"


def _avals(eqn: jex.JaxprEqn) -> str:
    return ", ".join(f"{_aval(v).dtype.name}[{','.join(map(str, _aval(v).shape))}]" for v in eqn.outvars)


# --- One function per equation --------------------------------------------------------------------------


def _vector(expr: Expr, axes: tuple[int, ...] = ()) -> Expr:
    """Move some axes to the end and merge them: the vector form of an input that is reduced over them."""
    keep = tuple(d for d in range(len(expr.shape)) if d not in axes)
    shape = tuple(expr.shape[d] for d in keep)

    def move(x: jax.Array) -> jax.Array:
        return x.transpose(keep + axes).reshape(*shape, -1 if x.size else 0)

    return layout.apply("vector", move, expr, key=("vector", axes))


def _broadcast(expr: Expr, shape: tuple[int, ...]) -> Expr:
    if expr.shape == shape:
        return expr
    return layout.apply(
        "broadcast_in_dim", lambda x: jnp.broadcast_to(x, shape), expr, key=("broadcast", shape)
    )


def _out(eqn: jex.JaxprEqn) -> dict[str, Any]:
    aval = _aval(eqn.outvars[0])
    return {"shape": tuple(aval.shape), "dtype": aval.dtype, "line": _user_line(eqn)}


def _sum_of(signs: tuple[int, ...]) -> Callable[[_Builder, jex.JaxprEqn, list[Expr]], Expr]:
    def rule(builder: _Builder, eqn: jex.JaxprEqn, args: list[Expr]) -> Expr:
        out = _out(eqn)
        inputs = [_vector(_broadcast(a, out["shape"])) for a in args]
        return builder.operation(Sum(signs), *inputs, **out)

    return rule


def _reduce_sum(builder: _Builder, eqn: jex.JaxprEqn, args: list[Expr]) -> Expr:
    return builder.operation(Sum((1,)), _vector(args[0], tuple(eqn.params["axes"])), **_out(eqn))


def _multiply(builder: _Builder, eqn: jex.JaxprEqn, args: list[Expr]) -> Expr:
    out = _out(eqn)
    return builder.operation(Dot(), *(_vector(_broadcast(a, out["shape"])) for a in args), **out)


def _divide(builder: _Builder, eqn: jex.JaxprEqn, args: list[Expr]) -> Expr:
    if args[1].depends:
        raise UnsupportedEquationError(
            f"'div'{_at(eqn)} divides by a value that depends on a parameter. Divide by constants, or state"
            " the quotient q as a parameter with the constraint q * denominator = numerator"
        )
    inverse = layout.apply("reciprocal", lambda x: 1 / x, args[1])
    return _multiply(builder, eqn, [args[0], inverse])


def _power(builder: _Builder, eqn: jex.JaxprEqn, args: list[Expr]) -> Expr:
    exponent = eqn.params.get("y", 2)
    if exponent < 1:
        raise UnsupportedEquationError(f"'integer_pow'{_at(eqn)}: the exponent {exponent} is not positive")
    product = args[0]
    for _ in range(exponent - 1):
        product = _multiply(builder, eqn, [product, args[0]])
    return product


def _dot_general(builder: _Builder, eqn: jex.JaxprEqn, args: list[Expr]) -> Expr:
    contract, batch = eqn.params["dimension_numbers"]
    rule = DotGeneral(
        shapes=(args[0].shape, args[1].shape),
        dtypes=(args[0].dtype, args[1].dtype),
        contract=(tuple(contract[0]), tuple(contract[1])),
        batch=(tuple(batch[0]), tuple(batch[1])),
        precision=eqn.params["precision"],
    )
    return builder.operation(rule, *args, **_out(eqn))


def _convolution(builder: _Builder, eqn: jex.JaxprEqn, args: list[Expr]) -> Expr:
    p = eqn.params
    if p["batch_group_count"] != 1:
        raise UnsupportedEquationError(f"'conv_general_dilated'{_at(eqn)}: batch groups are not supported")
    numbers = p["dimension_numbers"]
    rule = Convolution(
        shapes=(args[0].shape, args[1].shape),
        dtypes=(args[0].dtype, args[1].dtype),
        strides=tuple(p["window_strides"]),
        padding=tuple((int(lo), int(hi)) for lo, hi in p["padding"]),
        input_dilation=tuple(p["lhs_dilation"]),
        kernel_dilation=tuple(p["rhs_dilation"]),
        axes=(tuple(numbers.lhs_spec), tuple(numbers.rhs_spec), tuple(numbers.out_spec)),
        groups=p["feature_group_count"],
        precision=p["precision"],
    )
    return builder.operation(rule, *args, **_out(eqn))


def _is_zero(expr: Expr) -> bool:
    """Whether an expression is the number zero written in the program, perhaps broadcast."""
    while expr.call is not None and expr.call.name in ("broadcast_in_dim", "convert_element_type"):
        expr = expr.call.args[0]
    value = expr.literal
    return value is not None and np.ndim(value) == 0 and not isinstance(value, jax.core.Tracer) and value == 0


def _extremum(sign: int) -> Callable[[_Builder, jex.JaxprEqn, list[Expr]], Expr]:
    def rule(builder: _Builder, eqn: jex.JaxprEqn, args: list[Expr]) -> Expr:
        out = _out(eqn)
        if sign > 0 and any(map(_is_zero, args)):
            (arg,) = (a for a in args if not _is_zero(a))
            return builder.operation(SumRelu((1,)), _vector(_broadcast(arg, out["shape"])), **out)
        args = [_broadcast(a, out["shape"]) for a in args]
        both = layout.apply("concatenate", lambda *xs: jnp.stack(xs, -1), *args, key=("stack", -1))
        return builder.operation(Max(sign), both, **out)

    return rule


def _reduce_extremum(sign: int) -> Callable[[_Builder, jex.JaxprEqn, list[Expr]], Expr]:
    def rule(builder: _Builder, eqn: jex.JaxprEqn, args: list[Expr]) -> Expr:
        axes = tuple(eqn.params["axes"])
        behind = sum(d not in axes for d in range(max(axes, default=0), len(args[0].shape)))
        return builder.operation(Max(sign, behind), _vector(args[0], axes), **_out(eqn))

    return rule


def _clamp(builder: _Builder, eqn: jex.JaxprEqn, args: list[Expr]) -> Expr:
    low, x, high = args
    above = _extremum(1)(builder, eqn, [x, low])
    return _extremum(-1)(builder, eqn, [above, high])


def _reduce_window(builder: _Builder, eqn: jex.JaxprEqn, args: list[Expr]) -> Expr:
    p = eqn.params
    if any(d != 1 for d in p["base_dilation"]):
        raise UnsupportedEquationError(f"{eqn.primitive.name!r}{_at(eqn)}: base dilation is not supported")
    sign = {"reduce_window_max": 1, "reduce_window_min": -1}.get(eqn.primitive.name, 0)
    # A finite stand-in for infinity: it never wins, and arithmetic with it stays finite.
    fill = -sign * float(jnp.finfo(args[0].dtype).max) / 4

    def cut(x: jax.Array, fill: jax.Array) -> jax.Array:
        return windows(
            x,
            tuple(p["window_dimensions"]),
            tuple(p["window_strides"]),
            tuple((int(lo), int(hi)) for lo, hi in p["padding"]),
            tuple(p["window_dilation"]),
            fill,
        )

    patches = layout.apply("windows", cut, args[0], layout.literal(np.asarray(fill, args[0].dtype)))
    return builder.operation(Max(sign) if sign else Sum((1,)), patches, **_out(eqn))


def _apply(builder: _Builder, eqn: jex.JaxprEqn, args: list[Expr]) -> Expr:
    rule, out = eqn.params["rule"], _out(eqn)
    if isinstance(rule, Constrain) and any(a.depends for a in args[1:]):
        raise GraphError(
            f"the set of {rule.name!r}{_at(eqn)} depends on a parameter: its bounds, radii and known values"
            " must be constant. Constrain a difference or a product instead: x - bound to be non-negative"
        )
    if isinstance(rule, Primitive):
        return builder.operation(rule, *args, **out)
    predictions, labels = args
    if labels.depends:
        if not isinstance(rule, SquaredError):
            raise GraphError(
                f"the labels of {rule.name!r}{_at(eqn)} depend on a parameter; labels must be constant"
            )
        # |a - b|² is the squared error of a - b from zero.
        difference = {"shape": predictions.shape, "dtype": predictions.dtype, "line": out["line"]}
        predictions = builder.operation(Sum((1, -1)), _vector(predictions), _vector(labels), **difference)
        labels = layout.literal(np.zeros(predictions.shape, predictions.dtype))
    return builder.add(f"{rule.name}_{len(builder.nodes)}", rule, (predictions, labels), **out).output


_EQUATIONS: dict[str, Callable[[_Builder, jex.JaxprEqn, list[Expr]], Expr]] = {
    "add": _sum_of((1, 1)),
    "add_any": _sum_of((1, 1)),
    "sub": _sum_of((1, -1)),
    "neg": _sum_of((-1,)),
    "reduce_sum": _reduce_sum,
    "mul": _multiply,
    "div": _divide,
    "square": _power,
    "integer_pow": _power,
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "max": _extremum(1),
    "min": _extremum(-1),
    "clamp": _clamp,
    "reduce_max": _reduce_extremum(1),
    "reduce_min": _reduce_extremum(-1),
    "reduce_window_max": _reduce_window,
    "reduce_window_min": _reduce_window,
    "reduce_window_sum": _reduce_window,
    "pjax": _apply,
}


_registered = 0  # how often the table was changed: graphs that were traced before are out of date


def register_equation(name: str, rule: Primitive | Callable[..., Primitive]) -> None:
    """Teach `pjax.trace` an elementwise JAX equation, such as ``"tanh"``.

    Args:
        name: the name of the equation as it stands in a jaxpr.
        rule: a `Primitive` with ``core = 0``, or a function from the equation's parameters to one.
    """

    def node(builder: _Builder, eqn: jex.JaxprEqn, args: list[Expr]) -> Expr:
        made = rule if isinstance(rule, Primitive) else rule(**eqn.params)
        out = _out(eqn)
        return builder.operation(made, *(_broadcast(a, out["shape"]) for a in args), **out)

    global _registered
    _registered += 1
    _EQUATIONS[name] = node


# --- After the walk ---------------------------------------------------------------------------------------


def _finish(builder: _Builder, leaves: list[int], outputs: list[Expr]) -> Graph:
    """Fuse, drop what no target needs, and number the nodes again."""
    outputs = _with_members(builder, outputs)
    if not any(n.is_target for n in builder.nodes):
        raise GraphError(
            "the function has no target: nothing says what its output should be. End it with a loss, such as"
            " pjax.cross_entropy(logits, labels) or pjax.squared_error(output, values), or with a value in a"
            " set, pjax.constrain(output, set)"
        )
    for i, out in enumerate(outputs):
        if out.depends and not out.after:
            raise GraphError(
                f"output {i} of the function ({_describe(out)}{' at ' + out.line if out.line else ''}) does"
                " not come from a target. Return losses only, or end it with one"
            )
    return _needed(_fuse(builder.nodes, outputs), leaves, outputs)


def _with_members(builder: _Builder, outputs: list[Expr]) -> list[Expr]:
    """The outputs, with those that are values in sets as targets that ask for that."""
    asked: dict[int, Expr] = {}
    found: list[Expr] = []
    for out in outputs:
        sources = [] if out.after else [builder.nodes[s] for s in layout.nodes_of(out)]
        if not sources or not all(isinstance(node.rule, Constrain) for node in sources):
            found.append(out)
            continue
        for node in sources:
            if node.index not in asked:
                assert isinstance(node.rule, Constrain)
                rule, exprs = Member(node.rule), [wire.expr for wire in node.inputs]
                loss = jax.eval_shape(rule.forward, *(jax.ShapeDtypeStruct(e.shape, e.dtype) for e in exprs))
                name = f"{rule.name}_{len(builder.nodes)}"
                target = builder.add(name, rule, exprs, loss.shape, loss.dtype, node.line)
                asked[node.index] = target.output
            found.append(asked[node.index])
    return found


def _needed(nodes: Sequence[Node], leaves: Sequence[int], outputs: Sequence[Expr]) -> Graph:
    """The graph of the nodes that a target or an output needs."""
    needed = {s for out in outputs for s in layout.nodes_of(out)}
    for node in reversed(nodes):
        if node.is_target or node.index in needed:
            needed.add(node.index)
            needed.update(s for wire in node.wires for s in wire.sources)
    kept = [n for n in nodes if n.index in needed]
    return renumber(kept, [leaf if leaf in needed else None for leaf in leaves], outputs)


def renumber(nodes: Sequence[Node], leaves: Sequence[int | None], outputs: Sequence[Expr]) -> Graph:
    """A graph of the given nodes, numbered in their order."""
    new: dict[int, Expr] = {}
    done: list[Node] = []
    for i, node in enumerate(nodes):
        wires = tuple(Wire.of(layout.substitute(w.expr, new)) for w in node.inputs)
        done.append(dataclasses.replace(node, index=i, inputs=wires))
        new[node.index] = done[-1].output
    index = {old.index: i for i, old in enumerate(nodes)}
    return Graph(
        tuple(done),
        tuple(None if leaf is None else index[leaf] for leaf in leaves),
        tuple(layout.substitute(out, new) for out in outputs),
    )


def _fuse(nodes: list[Node], outputs: Sequence[Expr]) -> list[Node]:
    """Merge sums into the relu that alone reads them: fewer hops for information."""
    count = [0] * len(nodes)
    for source in (s for out in outputs for s in layout.nodes_of(out)):
        count[source] += 1
    for node in nodes:
        for wire in node.inputs:
            for source in wire.sources:
                count[source] += 1
    fused: dict[int, Node] = {}
    for node in nodes:
        if isinstance(node.rule, SumRelu):
            signs: list[int] = []
            inputs: list[Wire] = []
            stack = list(zip(node.rule.signs, node.inputs, strict=True))[::-1]
            while stack:
                sign, wire = stack.pop()
                inner = fused.get(_direct(wire))
                if inner is not None and isinstance(inner.rule, Sum) and count[inner.index] == 1:
                    del fused[inner.index]
                    stack.extend(
                        (sign * s, w)
                        for s, w in reversed(list(zip(inner.rule.signs, inner.inputs, strict=True)))
                    )
                else:
                    signs.append(sign)
                    inputs.append(wire)
            node = dataclasses.replace(node, rule=SumRelu(tuple(signs)), inputs=tuple(inputs))
        fused[node.index] = node
    return list(fused.values())


def _direct(wire: Wire) -> int:
    """The node that a wire in vector form reads scalar by scalar; -1 where it does more than that."""
    call = wire.expr.call
    if call is not None and call.name == "vector" and wire.expr.shape[-1:] == (1,):
        node = call.args[0].node
        if node is not None and call.args[0].shape == wire.expr.shape[:-1]:
            return node
    return -1


# --- Keys -------------------------------------------------------------------------------------------------


def _jaxpr_key(jaxpr: jex.Jaxpr) -> tuple[Any, ...]:
    number: dict[Any, int] = {}

    def var(v: Any) -> Any:
        if isinstance(v, jex.Literal):
            return ("literal", _freeze(v.val), str(v.aval))
        return number.setdefault(v, len(number))

    head = tuple((var(v), str(v.aval)) for v in (*jaxpr.constvars, *jaxpr.invars))
    eqns = tuple(
        (
            eqn.primitive.name,
            tuple(var(v) for v in eqn.invars),
            _params_key(eqn),
            tuple(var(v) for v in eqn.outvars),
        )
        for eqn in jaxpr.eqns
    )
    return (head, eqns, tuple(var(v) for v in jaxpr.outvars))


def _params_key(eqn: jex.JaxprEqn) -> Any:
    if eqn.primitive.name not in _WRAPPERS:
        return tuple(sorted((k, _freeze(v)) for k, v in eqn.params.items()))
    # Only what is inside matters; what it captured is passed as an argument.
    inner = eqn.params[_WRAPPERS[eqn.primitive.name]]
    return _jaxpr_key(inner.jaxpr if isinstance(inner, jex.ClosedJaxpr) else inner)


def _freeze(value: Any) -> Any:
    """A hashable stand-in for a static argument."""
    if isinstance(value, jex.ClosedJaxpr):
        return ("closed", _jaxpr_key(value.jaxpr), tuple(map(_freeze, value.consts)))
    if isinstance(value, jex.Jaxpr):
        return ("jaxpr", _jaxpr_key(value))
    if isinstance(value, (tuple, list)):
        return tuple(map(_freeze, value))
    if isinstance(value, dict):
        return tuple(sorted((str(k), _freeze(v)) for k, v in value.items()))
    if isinstance(value, (np.ndarray, jax.Array)) and not isinstance(value, jax.core.Tracer):
        array = np.asarray(value)
        return (array.shape, str(array.dtype), array.tobytes())
    if callable(value) or isinstance(value, (Primitive, Target, int, float, str, bool, type(None))):
        return value
    return repr(value)


# --- For people -------------------------------------------------------------------------------------------


def trace(fn: Callable[[Any], Any], params: Any) -> Any:
    """The computation graph of a function, as `Computation`s that can be inspected.

    Args:
        fn: an ordinary JAX function of the parameters that ends in a target.
        params: any pytree of floating-point arrays.

    Returns:
        The function's target as a `Computation`; a tuple of them where it has several. Follow `.inputs` to
        the operations, the `Array`s and the `Parameter`s behind it. Layouts are part of the wires and do not
        appear; sums and biases are merged into the relu that reads them.
    """
    from pjax.containers.computation import Array, Computation, Parameter

    traced = read(fn, params)
    graph = build(traced)
    leaves = jax.tree.leaves(params)
    values: dict[str, Any] = {}

    def forward() -> tuple[layout.Evaluator, dict[int, Any]]:
        if not values:
            values["all"] = graph.evaluator(traced.constants, leaves)
        return values["all"]

    shown: dict[int, Any] = {}
    for node in graph.nodes:
        if node.is_parameter:
            leaf = leaves[graph.leaves.index(node.index)]
            shown[node.index] = Parameter(leaf, name=node.name)
            continue
        inputs: list[Any] = []
        for wire in node.inputs:
            if wire.constant:
                expr = wire.expr
                while expr.call is not None and expr.call.name == "vector":
                    expr = expr.call.args[0]
                inputs.append(Array(forward()[0](expr)))
            else:
                inputs.extend(shown[s] for s in wire.sources)
        shown[node.index] = Computation(
            node.op,
            inputs,
            functools.partial(lambda v: forward()[1][v], node.index),
            name=node.name,
            kwargs={"line": node.line} if node.line else {},
            shape=node.shape,
            dtype=node.dtype,
        )
    targets = tuple(shown[t.index] for t in graph.targets)
    _ORIGINS.update(dict.fromkeys(targets, (fn, params)))
    return targets[0] if len(targets) == 1 else targets


# What was traced, by its targets.
_ORIGINS: "weakref.WeakKeyDictionary[Any, tuple[Callable[[Any], Any], Any]]" = weakref.WeakKeyDictionary()


def origin(targets: Sequence[Any]) -> tuple[Callable[[Any], Any], Any] | None:
    """The function and the parameters that `trace` has shown as these targets; None for others."""
    found = [_ORIGINS.get(target) for target in targets]
    return found[0] if all(one is found[0] for one in found) else None
