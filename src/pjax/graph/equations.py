"""Equations, one function each: which node, or which wires, an equation becomes.

An equation that is linear, or smooth, needs no entry here to be projected: see `pjax.graph.builder`. Those
that are here have a rule of their own, or are written by others that have.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax

from pjax.errors import GraphError
from pjax.graph import jaxprs
from pjax.graph import wires as layout
from pjax.graph.jaxprs import aval
from pjax.graph.lines import at, user_line
from pjax.graph.wires import Expr, Form, Step, broadcast
from pjax.rules.base import Primitive
from pjax.rules.convolution import Convolution
from pjax.rules.divide import Divide
from pjax.rules.dot import Dot
from pjax.rules.dot_general import DotGeneral
from pjax.rules.max import Max
from pjax.rules.scalar import TABLE, Traits
from pjax.rules.sum import Sum, SumRelu
from pjax.rules.windows import windows

if TYPE_CHECKING:
    from pjax.graph.builder import Builder


Reading: TypeAlias = "Callable[[Builder, jex.JaxprEqn, list[Expr]], list[Expr]]"

# --- Functions of one value, number by number ---------------------------------------------------------------

_ARITHMETIC = frozenset(
    {"add", "add_any", "sub", "neg", "mul", "div", "max", "min", "clamp", "convert_element_type"}
)
_CURVED = frozenset({"pow", "rem", "atan2", "select_n"})
_KINKS = frozenset({"abs", "max", "min", "clamp", "select_n", "sign"})
_LOGIC = frozenset({"eq", "ge", "gt", "le", "lt", "ne", "and", "or", "not", "xor", "is_finite"})


def scalar_form(eqn: jex.JaxprEqn, args: Sequence[Expr], longest: int) -> Form | None:
    """How an equation's result follows from one value number by number, by at most so many equations.

    None where it does not.
    """
    name = eqn.primitive.name
    known = name in _ARITHMETIC | _CURVED | _LOGIC or name in TABLE
    if not known or len(eqn.outvars) != 1:
        return None
    moving = [a for a in args if a.depends]
    bases = {id(b): b for a in moving for b in (a.form.bases if a.form else (a,))}
    if len(bases) != 1:
        return None
    (base,) = bases.values()
    shape = aval(eqn.outvars[0]).shape
    if any(a.shape != shape for a in (base, *moving)):
        return None
    forms = [(id(a), a.form) for a in args if a.form is not None and a.form.bases[0] is base]
    if any(len(f.bases) != 1 for _, f in forms) or sum(len(f.steps) for _, f in forms) >= longest:
        return joined(eqn, args, {}, 0, _is_curved(name, args)) if len(moving) == 1 else None
    curved = any(f.is_curved for _, f in forms) or _is_curved(name, args)
    return joined(eqn, args, dict(forms), 0, curved)


def _is_curved(name: str, args: Sequence[Expr]) -> bool:
    """Whether an equation of one value is more than sums, products with constants, and bounds."""
    several = sum(a.depends for a in args) > 1
    if name in ("mul", "max", "min"):
        return several
    if name == "div":
        return args[1].depends
    if name == "select_n":  # with a condition of the same value
        return args[0].form is not None
    return name not in _ARITHMETIC and name not in _LOGIC


def joint_form(eqn: jex.JaxprEqn, args: Sequence[Expr], result: int, follow: dict[int, Form]) -> Form:
    """A result of an equation as a function of what its operands, complex or said to follow, follow from."""
    complexes = {
        id(a): a.form for a in args if a.form is not None and jnp.issubdtype(a.dtype, jnp.complexfloating)
    }
    return joined(eqn, args, complexes | follow, result, True)


def joined(
    eqn: jex.JaxprEqn, args: Sequence[Expr], forms: dict[int, Form], result: int, is_curved: bool
) -> Form:
    """The form of a result, given those of some operands; the others are what it starts from."""
    steps = dict.fromkeys(step for a in args if id(a) in forms for step in forms[id(a)].steps)
    before = {i: (form.steps[-1], form.result) for i, form in forms.items()}
    last = Step(eqn, tuple(before.get(id(a), a) for a in args))
    return Form((*steps, last), result, is_curved)


def form_key(form: Form) -> Any:
    """A key that is the same for forms that are the same function."""
    numbers = {id(x): i for i, x in enumerate((*form.bases, *form.constants, *form.steps))}

    def name(operand: Any) -> Any:
        if not isinstance(operand, Expr):
            return numbers[id(operand[0])], operand[1]
        known = numbers.get(id(operand))
        return jaxprs.freeze(np.asarray(operand.literal)) if known is None else known

    steps = tuple(
        (
            step.eqn.primitive.name,
            jaxprs.params_key(step.eqn),
            tuple(map(name, step.operands)),
            tuple(str(v.aval) for v in step.eqn.outvars),
        )
        for step in form.steps
    )
    return len(form.bases), len(form.constants), steps, form.result


def traits_of(form: Form) -> Traits:
    """What is known of a function that is put together of several equations."""

    def fixed(operand: Any) -> bool:
        return isinstance(operand, Expr) and not operand.depends

    def chooses(step: Step) -> bool:
        return step.eqn.primitive.name == "select_n" and fixed(step.operands[0])  # so it has no kinks

    def is_tame(step: Step) -> bool:
        name = step.eqn.primitive.name
        if name == "div":
            return fixed(step.operands[1])
        if name == "integer_pow":
            return step.eqn.params["y"] >= 0
        return TABLE.get(name, Traits()).tame or (name in _ARITHMETIC and name not in _KINKS) or chooses(step)

    kinks = any(step.eqn.primitive.name in _KINKS and not chooses(step) for step in form.steps)
    return Traits(pieces=len(form.steps) > 1 and kinks, tame=all(map(is_tame, form.steps)))


def form_function(form: Form, *, cast: bool = False) -> Callable[..., jax.Array]:
    """A form as a function of its bases and constants.

    With ``cast``, real numbers are all of the type of the first base, whatever the equations say: for
    functions that are searched in a wider type than they are written in.
    """

    def bound(eqn: jex.JaxprEqn, operands: list[Any], dtype: Any) -> Sequence[Any]:
        if not cast:
            return jaxprs.bind(eqn, *operands)
        operands = [x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in operands]
        operands = list(jnp.broadcast_arrays(*operands))
        if eqn.primitive.name == "convert_element_type" and jnp.issubdtype(
            eqn.params["new_dtype"], jnp.floating
        ):
            return [operands[0].astype(dtype)]
        return jaxprs.bind(eqn, *operands)

    def fn(*inputs: Any) -> Any:
        given = dict(zip(map(id, (*form.bases, *form.constants)), inputs, strict=True))
        found: dict[Step, Sequence[Any]] = {}

        def read(operand: Any) -> Any:
            if not isinstance(operand, Expr):
                return found[operand[0]][operand[1]]
            value = given.get(id(operand))
            return jnp.asarray(operand.literal, operand.dtype) if value is None else value

        for step in form.steps:
            found[step] = bound(step.eqn, [jnp.asarray(read(o)) for o in step.operands], inputs[0].dtype)
        return found[form.steps[-1]][form.result]

    return fn


# --- Arithmetic ---------------------------------------------------------------------------------------------


def vector(expr: Expr, axes: tuple[int, ...] = ()) -> Expr:
    """Move some axes to the end and merge them: the vector form of an input that is reduced over them."""
    keep = tuple(d for d in range(len(expr.shape)) if d not in axes)
    shape = tuple(expr.shape[d] for d in keep)

    def move(x: jax.Array) -> jax.Array:
        return x.transpose(keep + axes).reshape(*shape, -1 if x.size else 0)

    return layout.apply("vector", move, expr, key=("vector", axes))


def out(eqn: jex.JaxprEqn, i: int = 0) -> dict[str, Any]:
    """What a node is to know of the equation whose result it stands for."""
    made = aval(eqn.outvars[i])
    return {"shape": tuple(made.shape), "dtype": made.dtype, "line": user_line(eqn)}


def _sum(signs: tuple[int, ...], builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
    made = out(eqn)
    inputs = [vector(broadcast(a, made["shape"])) for a in args]
    return [builder.operation(Sum(signs), *inputs, **made)]


def _reduce_sum(builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
    axes = tuple(map(int, eqn.params["axes"]))  # jax.vmap makes integers of NumPy of them
    return [builder.operation(Sum((1,)), vector(arg, axes), **out(eqn, i)) for i, arg in enumerate(args)]


def _multiply(builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
    return _products(builder, eqn, [vector(broadcast(a, out(eqn)["shape"])) for a in args])


def _products(builder: "Builder", eqn: jex.JaxprEqn, factors: Sequence[Expr]) -> list[Expr]:
    """Products number by number. A factor that is known is no node: they are linear, for every method."""
    known = [i for i, factor in enumerate(factors) if not factor.depends]
    return [builder.operation(Dot(known[0] if known else None), *factors, **out(eqn))]


def _divide(builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
    if not args[1].depends:
        inverse = layout.apply("reciprocal", lambda x: 1 / x, args[1], key=("reciprocal",))
        return _multiply(builder, eqn, [args[0], inverse])
    made = out(eqn)
    return [builder.operation(Divide(), *(broadcast(a, made["shape"]) for a in args), **made)]


def _dot_general(builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
    contract, batch = eqn.params["dimension_numbers"]
    rule = DotGeneral(
        shapes=(args[0].shape, args[1].shape),
        dtypes=(args[0].dtype, args[1].dtype),
        result=eqn.params["preferred_element_type"],
        contract=(tuple(contract[0]), tuple(contract[1])),
        batch=(tuple(batch[0]), tuple(batch[1])),
        precision=eqn.params["precision"],
    )
    if contract[0]:
        return [builder.operation(rule, *args, **out(eqn))]
    # Nothing is summed: products one by one.
    written = [
        layout.apply("expand", partial(rule.expand, i), arg, key=("expand", rule, i))
        for i, arg in enumerate(args)
    ]
    return _products(builder, eqn, written)


def _convolution(builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
    p = eqn.params
    if p["batch_group_count"] != 1:
        return builder.by_derivative(eqn, args)
    numbers = p["dimension_numbers"]
    rule = Convolution(
        shapes=(args[0].shape, args[1].shape),
        dtypes=(args[0].dtype, args[1].dtype),
        result=p["preferred_element_type"],
        strides=tuple(p["window_strides"]),
        padding=tuple((int(lo), int(hi)) for lo, hi in p["padding"]),
        input_dilation=tuple(p["lhs_dilation"]),
        kernel_dilation=tuple(p["rhs_dilation"]),
        axes=(tuple(numbers.lhs_spec), tuple(numbers.rhs_spec), tuple(numbers.out_spec)),
        groups=p["feature_group_count"],
        precision=p["precision"],
    )
    return [builder.operation(rule, *args, **out(eqn))]


# --- Maxima -------------------------------------------------------------------------------------------------


def _number(expr: Expr) -> float | None:
    """The number of an expression that is written in the program, perhaps broadcast."""
    while expr.call is not None and expr.call.name in ("broadcast_in_dim", "convert_element_type"):
        expr = expr.call.args[0]
    value = expr.literal
    return None if value is None or np.ndim(value) or isinstance(value, jax.core.Tracer) else float(value)


def _extremum(sign: int, builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
    made = out(eqn)
    args = [broadcast(a, made["shape"]) for a in args]
    numbers = [_number(a) for a in args]
    for arg, other in ((args[0], numbers[1]), (args[1], numbers[0])):
        if other == -sign * math.inf:
            return [arg]
        if other == 0 and sign > 0:
            return [builder.operation(SumRelu((1,)), vector(arg), **made)]
    both = layout.apply("concatenate", lambda *xs: jnp.stack(xs, -1), *args, key=("stack", -1))
    return [builder.operation(Max(sign), both, **made)]


def _reduce_extremum(sign: int, builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
    axes = tuple(map(int, eqn.params["axes"]))
    behind = sum(d not in axes for d in range(max(axes, default=0), len(args[0].shape)))
    return [builder.operation(Max(sign, behind), vector(args[0], axes), **out(eqn))]


def _clamp(builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
    low, x, high = args
    return _extremum(-1, builder, eqn, [*_extremum(1, builder, eqn, [x, low]), high])


def _reduce_window(sign: int, builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
    """The largest of each window, the smallest, or without a sign the sum."""
    p = eqn.params
    if any(d != 1 for d in p["base_dilation"]):
        return builder.by_derivative(eqn, args)
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

    key = ("windows", eqn.primitive.name, jaxprs.params_key(eqn))
    border = layout.literal(np.asarray(fill, args[0].dtype))
    patches = layout.apply("windows", cut, args[0], border, key=key)
    return [builder.operation(Max(sign) if sign else Sum((1,)), patches, **out(eqn))]


# --- What moves numbers to places that are found ----------------------------------------------------------


def _written(fn: Callable[..., Any], builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
    """As a function of the equation's operands that is written with others; it also gets the parameters."""
    outs, line = builder.traced(partial(fn, **eqn.params), args), user_line(eqn)
    return [dataclasses.replace(out, line=line) for out in outs]


def _sort(*xs: jax.Array, dimension: int, num_keys: int, **_: Any) -> list[jax.Array]:
    """The order is held: a sort moves numbers."""
    places = lax.broadcasted_iota(jnp.int32, xs[0].shape, dimension)
    order = lax.sort((*map(lax.stop_gradient, xs), places), dimension=dimension, num_keys=num_keys)[-1]
    return [jnp.take_along_axis(x, order, dimension, mode="clip") for x in xs]


def _top_k(x: jax.Array, *, k: int, axis: int = -1, **_: Any) -> list[jax.Array]:
    """Which are the largest is held."""
    places = lax.top_k(lax.stop_gradient(x), k, axis=axis)[1]
    return [jnp.take_along_axis(x, places, axis, mode="clip"), places]


def _cumulative_extremum(sign: int, x: jax.Array, *, axis: int, reverse: bool) -> jax.Array:
    """Which of the numbers so far is the largest is held."""

    def larger(a: Any, b: Any) -> Any:
        keep = sign * a[0] >= sign * b[0]
        return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])

    at = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    _, places = lax.associative_scan(larger, (lax.stop_gradient(x), at), reverse=reverse, axis=axis)
    return jnp.take_along_axis(x, places, axis, mode="clip")


def _scatter(kind: Any, x: jax.Array, at: jax.Array, updates: jax.Array, **params: Any) -> jax.Array:
    """Which update a number gets is held: the last one, or the largest. Others stay what they are."""
    settings = {k: params[k] for k in ("dimension_numbers", "indices_are_sorted", "mode")}

    def scatter(which: Callable[..., jax.Array], x: jax.Array, u: jax.Array) -> jax.Array:
        return which(x, at, u, **settings)

    # For each number of the result, which update it is; -1 where it stays.
    names = jnp.arange(updates.size, dtype=jnp.int32).reshape(updates.shape)
    none = jnp.full(x.shape, -1, jnp.int32)
    if kind is lax.scatter:
        names = scatter(kind, none, names)
    else:
        old, new = lax.stop_gradient(x), lax.stop_gradient(updates)
        best = scatter(kind, old, new)
        # What the place of each update ends with: the winners are equal to it.
        there = jax.linear_transpose(lambda u: scatter(lax.scatter_add, jnp.zeros_like(x), u), updates)
        wins = there(best)[0] == new
        names = scatter(lax.scatter_max, none, jnp.where(wins, names, -1))
        names = jnp.where(best == old, -1, names)
    picked = jnp.take(updates.reshape(-1), jnp.maximum(names, 0).reshape(-1)).reshape(names.shape)
    return jnp.where(names >= 0, picked, x)


def _scatter_add(builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
    """What is added is linear in the updates; where it is added to is another term."""
    x, indices, updates = args
    if _number(x) == 0:
        return builder.by_derivative(eqn, args)
    read = builder.by_derivative if updates.depends else builder.call
    added = read(eqn, [layout.literal(np.zeros(x.shape, x.dtype)), indices, updates])
    return [builder.operation(Sum((1, 1)), vector(x), vector(added[0]), **out(eqn))]


# --- Functions of several values ----------------------------------------------------------------------------


def _power(builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
    """A power: of which both values move, or one that is repeated. Powers of zero are held."""

    def both(x: jax.Array, y: jax.Array) -> jax.Array:
        held = lax.pow(*map(lax.stop_gradient, (x, y)))
        return jnp.where(x == 0, held, jnp.exp(y * jnp.log(jnp.where(x == 0, 1, x))))

    def one(x: jax.Array, y: jax.Array) -> jax.Array:
        return lax.pow(*jnp.broadcast_arrays(x, y))

    return _written(both if all(a.depends for a in args) else one, builder, eqn, args)


def _product(x: jax.Array, *, axes: tuple[int, ...], **_: Any) -> jax.Array:
    """Halves by halves."""
    rest = [size for d, size in enumerate(x.shape) if d not in axes]
    x = jnp.moveaxis(x, axes, range(len(axes))).reshape(-1, *rest)
    while len(x) > 1:
        half = len(x) // 2
        both = x[:half] * x[half : 2 * half]
        x = jnp.concatenate([both, x[2 * half :]]) if len(x) % 2 else both
    return x[0] if len(x) else jnp.ones(x.shape[1:], x.dtype)


# --- Rules of pjax ------------------------------------------------------------------------------------------


def _apply(builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
    rule, line = eqn.params["rule"], user_line(eqn)
    if not rule.is_target and rule.moving is not None and any(a.depends for a in args[rule.moving :]):
        raise GraphError(
            f"the set of {rule.name!r}{at(eqn)} depends on a parameter: its bounds, radii and known values"
            " must be constant. Constrain a difference or a product instead: x - bound to be non-negative"
        )
    if not rule.is_target:
        return [builder.operation(rule, *args, **out(eqn))]
    if id(eqn) in builder.plain:
        return builder.traced(rule.forward, args)
    predictions, *labels = args
    if any(label.depends for label in labels):
        if not rule.of_difference:
            return builder.traced(rule.forward, args)
        # |a - b|² is the squared error of a - b from zero.
        difference = {"shape": predictions.shape, "dtype": predictions.dtype, "line": line}
        predictions = builder.operation(Sum((1, -1)), vector(predictions), vector(labels[0]), **difference)
        labels = [layout.literal(np.zeros(predictions.shape, predictions.dtype))]
    return [builder.target(rule, [predictions, *labels], eqn, line)]


EQUATIONS: dict[str, Reading] = {
    "add": partial(_sum, (1, 1)),
    "add_any": partial(_sum, (1, 1)),
    "sub": partial(_sum, (1, -1)),
    "neg": partial(_sum, (-1,)),
    "reduce_sum": _reduce_sum,
    "psum": _reduce_sum,
    "psum_invariant": _reduce_sum,
    "mul": _multiply,
    "div": _divide,
    "pow": _power,
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "max": partial(_extremum, 1),
    "min": partial(_extremum, -1),
    "clamp": _clamp,
    "reduce_max": partial(_reduce_extremum, 1),
    "reduce_min": partial(_reduce_extremum, -1),
    "reduce_window_max": partial(_reduce_window, 1),
    "reduce_window_min": partial(_reduce_window, -1),
    "reduce_window_sum": partial(_reduce_window, 0),
    "sort": partial(_written, _sort),
    "top_k": partial(_written, _top_k),
    "cummax": partial(_written, partial(_cumulative_extremum, 1)),
    "cummin": partial(_written, partial(_cumulative_extremum, -1)),
    "cumprod": partial(_written, partial(lax.associative_scan, jnp.multiply)),
    "reduce_prod": partial(_written, _product),
    "scatter": partial(_written, partial(_scatter, lax.scatter)),
    "scatter-add": _scatter_add,
    "scatter-max": partial(_written, partial(_scatter, lax.scatter_max)),
    "scatter-min": partial(_written, partial(_scatter, lax.scatter_min)),
    "pjax": _apply,
}


registered = 0  # how often the table was changed: graphs that were traced before are out of date


def register_equation(name: str, rule: Primitive | Callable[..., Primitive]) -> None:
    """Teach `pjax.trace` an elementwise JAX equation, in place of what it does by itself.

    Args:
        name: the name of the equation as it stands in a jaxpr.
        rule: a `Primitive` with ``core = 0``, or a function from the equation's parameters to one.
    """

    def reading(builder: "Builder", eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
        rule_of_it = rule(**eqn.params) if callable(rule) else rule
        made = out(eqn)
        return [builder.operation(rule_of_it, *(broadcast(a, made["shape"]) for a in args), **made)]

    global registered
    registered += 1
    OWN[name] = reading


OWN: dict[str, Reading] = {}
"""Readings of equations that users have registered."""
