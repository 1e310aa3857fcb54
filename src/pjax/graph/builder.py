"""From a jaxpr to nodes and wires.

Each equation is one of these:

- *constant*: it does not depend on a parameter, and is evaluated once;
- *held*: what is no real number (a comparison, an index, an order), and what the function says is to be taken
  as it is (`jax.lax.stop_gradient`): it is what the forward evaluation finds, and does not move;
- a *layout*: it only moves numbers, and becomes part of the wires;
- a *scalar function*: equations that follow number by number from one value are one node, however many;
- an *operation* with a rule of its own: see `pjax.graph.equations`;
- anything else with a derivative: one node, projected as a whole (`pjax.rules.Joint`).

A cross-entropy that is spelt with other functions is one (`pjax.graph.spelt`).

What is computed from losses stays outside: sums of losses, and products with constants, say by which factor
each loss counts. A loss that is used in another way is no target, but a function like any other.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Sequence, Set
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from pjax.errors import GraphError, InputError, UnsupportedEquationError
from pjax.graph import equations, jaxprs, lines, spelt
from pjax.graph import wires as layout
from pjax.graph.jaxprs import aval
from pjax.graph.nodes import Graph, Node
from pjax.graph.passes import simplified
from pjax.graph.wires import Call, Expr, Form, Wire
from pjax.losses.cross_entropy import CrossEntropy
from pjax.losses.minimise import Minimise
from pjax.rules.base import Rule
from pjax.rules.linear import Joint, LinearMap
from pjax.rules.scalar import TABLE, Function, Scalar
from pjax.rules.scan import Scan

# Equations that pass on what they get.
_SAME = frozenset({"name", "optimization_barrier", "copy", "device_put", "pvary", "pbroadcast"})

# What may be done to losses so that each still counts by a factor.
_LOSS_SUMS = frozenset({"add", "add_any", "sub", "neg", "reduce_sum", "concatenate", "stack", "pad", "psum"})
_LOSS_PRODUCTS = frozenset({"mul", "div", "dot_general"})

_LONGEST = 48
"""Equations in one scalar function: what is longer is divided."""


class NoTargetError(Exception):
    """Losses are used in a way in which they are no targets: their equations."""

    def __init__(self, equations: set[int]) -> None:
        super().__init__()
        self.equations = equations


class Builder:
    """Collects nodes while it walks through a jaxpr.

    Args:
        sweeps: whether the graph is for soft sweeps. Then a scan is one node, where that is possible, instead
            of one for each step, and so is a function whose derivative users state.
        plain: the identities of equations of losses that are to be read like any other function.
        targets: whether the function ends in losses, which may be spelt out with other functions; if not, in
            values of which something will be asked.
    """

    def __init__(self, sweeps: bool = False, plain: Set[int] = frozenset(), targets: bool = True) -> None:
        self.sweeps = sweeps
        self.targets = targets
        self.plain = plain
        self.nodes: list[Node] = []
        self.captured: dict[int, list[Expr]] = {}
        """What inner jaxprs captured, by their identity."""
        self.missing: dict[str, None] = {}
        """Equations for which there is no rule, in words."""
        self.empty = ""
        """The first equation without a single number."""
        self.still: list[Expr] = []
        """What is asked of values that do not move with any parameter."""
        self._origin: dict[int, int] = {}  # of targets: their equations
        self._made: dict[int, spelt.Made] = {}  # how values are made, by their identity

    def graph(self, jaxpr: jex.Jaxpr, names: Sequence[str], outputs: int, aux: bool) -> Graph:
        """The graph of a jaxpr whose inputs are parameters, of some names, and behind them constants.

        It is for the first ``outputs`` of its results. With ``aux`` the others are asked for, too; they move
        nothing.
        """
        wanted = [i < outputs for i in range(len(jaxpr.outvars))]
        leaves, every = self._outermost(jaxpr, names, wanted, [aux and not want for want in wanted])
        found = [out for out in every[:outputs] if out is not None]
        beside = [_aside(out) for out in every[outputs:] if out is not None]
        if self.missing:
            raise UnsupportedEquationError(
                "no projection is known for these equations, which JAX cannot differentiate either:\n"
                + "\n".join(self.missing)
                + "\nCompute it from constants, hold it with"
                " jax.lax.stop_gradient, or give it a rule: pjax.register_primitive"
            )
        if self.targets:
            found = self._as_losses(found)
            self._refuse_nothing(found)
        return simplified(self.nodes, leaves, found, beside, self.still)

    def _outermost(
        self, jaxpr: jex.Jaxpr, names: Sequence[str], wanted: Sequence[bool], beside: Sequence[bool] = ()
    ) -> tuple[list[int], list[Expr | None]]:
        """The parameters among the inputs of a jaxpr, and its outputs; see `run`.

        Its constants are its own, those that `jaxprs.capturing` finds, then the inputs behind the parameters.
        """
        numbers = itertools.count()

        def constants(variables: Iterable[Any]) -> list[Expr]:
            return [Expr(a.shape, a.dtype, constant=next(numbers)) for a in map(aval, variables)]

        env = dict(zip(jaxpr.constvars, constants(jaxpr.constvars), strict=True))
        for inner in jaxprs.capturing(*jaxpr.eqns):
            self.captured[id(inner)] = constants(inner.jaxpr.constvars)
        known = jaxpr.invars[len(names) :]
        env |= zip(known, constants(known), strict=True)
        leaves = []
        for name, var in zip(names, jaxpr.invars, strict=False):
            node = self.add(name, None, (), aval(var).shape, aval(var).dtype)
            env[var] = node.output
            leaves.append(node.index)
        return leaves, self.run(jaxpr, env, wanted, beside)

    def _refuse_nothing(self, losses: Sequence[Expr]) -> None:
        """Refuse a function without a loss that depends on parameters."""
        if any(out.from_loss for out in losses):
            return
        if self.empty:
            raise InputError(
                f"{self.empty} has no numbers: an empty batch has nothing to project. Skip it, or drop the"
                " incomplete batch in the data loader"
            )
        what = "does not depend on its parameters" if losses else "returns nothing"
        raise GraphError(
            f"the function {what}: there is nothing to solve for. It should end in"
            " a loss of them, such as pjax.cross_entropy(logits, labels), any scalar, or a value in a set,"
            " pjax.constrain(output, set)"
        )

    # --- Nodes ---

    def add(
        self,
        name: str,
        rule: Rule | None,
        inputs: Sequence[Expr],
        shape: tuple[int, ...],
        dtype: Any,
        line: str = "",
    ) -> Node:
        """A further node."""
        wires = tuple(map(Wire, inputs))
        node = Node(len(self.nodes), name, rule, wires, tuple(shape), dtype, line)
        self.nodes.append(node)
        return node

    def operation(self, rule: Rule, *inputs: Expr, shape: tuple[int, ...], dtype: Any, line: str) -> Expr:
        """The output of a further node."""
        return self.add(f"{rule.label}_{len(self.nodes)}", rule, inputs, shape, dtype, line).output

    def target(self, rule: Any, inputs: Sequence[Expr], eqn: jex.JaxprEqn | None, line: str) -> Expr:
        """The losses of a further target."""
        avals = [jax.ShapeDtypeStruct(e.shape, e.dtype) for e in inputs]
        loss = jax.eval_shape(rule.forward, *avals)
        node = self.add(f"{rule.name}_{len(self.nodes)}", rule, inputs, loss.shape, loss.dtype, line)
        if eqn is not None:
            self._origin[node.index] = id(eqn)
        return node.output

    # --- The walk ---

    def run(
        self, jaxpr: jex.Jaxpr, env: dict[Any, Expr], wanted: Sequence[bool], beside: Sequence[bool] = ()
    ) -> list[Expr | None]:
        """The outputs of a jaxpr as expressions; None for those that are not asked for.

        Args:
            jaxpr: the jaxpr.
            env: the expressions of its inputs, by variable.
            wanted: which outputs are losses, or lead to losses.
            beside: which outputs are only returned beside the losses. Equations that only these need become
                no nodes: they are evaluated on held values.
        """
        every = [a or b for a, b in zip(wanted, beside, strict=True)] if any(beside) else wanted
        live, _ = jaxprs.needed(jaxpr, every)
        moves, _ = jaxprs.needed(jaxpr, wanted) if any(beside) else (live, None)
        moving = {id(eqn): results for eqn, results in moves}

        def read(var: Any) -> Expr:
            return layout.literal(var.val) if isinstance(var, jex.Literal) else env[var]

        for eqn, results in live:
            # What is not there is an operand of which nothing that is wanted depends.
            args = [
                read(v) if isinstance(v, jex.Literal) or v in env else _nothing(aval(v)) for v in eqn.invars
            ]
            if id(eqn) in moving:
                outs = self.equation(eqn, args, moving[id(eqn)], results)
            else:
                outs = self.constant(eqn, list(map(_aside, args)))
            env.update((v, out) for v, out in zip(eqn.outvars, outs, strict=True) if out is not None)
        return [read(v) if want else None for v, want in zip(jaxpr.outvars, every, strict=True)]

    def equation(
        self, eqn: jex.JaxprEqn, args: list[Expr], wanted: Sequence[bool], every: Sequence[bool]
    ) -> Sequence[Expr | None]:
        """The results of an equation: those ``wanted`` for losses, and ``every`` one that anything needs."""
        name = eqn.primitive.name
        inner = jaxprs.seen(eqn, self.sweeps) if name in jaxprs.WRAPPERS else None
        if inner is not None:
            with lines.inside(eqn):
                beside = [b and not a for a, b in zip(wanted, every, strict=True)]
                return self.inline(inner, args, wanted, beside)
        outs = self._results(eqn, args, every)
        for i, made in enumerate(outs):
            if made is not None and not any(made is a for a in args):
                self._made[id(made)] = spelt.Made(made, eqn, i, tuple(args))
        return [self._recognised(eqn, out) for out in outs]

    def _results(self, eqn: jex.JaxprEqn, args: list[Expr], wanted: Sequence[bool]) -> Sequence[Expr | None]:
        """The results of an equation that wraps no other; `equation` notes how they were made."""
        name = eqn.primitive.name
        still = not any(a.depends for a in args)
        if still and not (name in ("scan", "cond") and not self.sweeps and jaxprs.holds(eqn, _asks)):
            outs = self.constant(eqn, args)
            if name == "pjax":
                self._ask_still(eqn.params["rule"], args, outs)
            return outs
        if name in _INNER:
            with lines.inside(eqn):
                return _INNER[name](self, eqn, args, wanted)
        if any(type(effect).__name__ == "NamedAxisEffect" for effect in eqn.effects):
            raise GraphError(
                f"{name!r}{lines.at(eqn)} exchanges values between devices; the function that is handed to an"
                " optimiser can sum over axes of arrays and of jax.vmap. Divide the batch among devices"
                " outside, by a sharding, or average the parameters behind the update"
            )
        if name == "stop_gradient":
            return [layout.held(args[0])]
        moving = [a for a in args if a.depends]
        if all(0 in a.shape for a in moving) or all(0 in aval(v).shape for v in eqn.outvars):
            label = eqn.params["rule"].name if name == "pjax" else name
            self.empty = self.empty or f"{label!r}{lines.at(eqn)}"  # nothing of anything
            return [_aside(out) if out.size else _nothing(out) for out in self.call(eqn, args)]
        if name in _SAME:
            return args
        if any(a.from_loss for a in args):
            return self._after_loss(eqn, args)
        return self._operation(eqn, args)

    def _operation(self, eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
        name = eqn.primitive.name
        if any(jnp.issubdtype(aval(v).dtype, jnp.complexfloating) for v in (*eqn.invars, *eqn.outvars)):
            return self.by_derivative(eqn, args)
        form = equations.scalar_form(eqn, args, _LONGEST)
        if not any(_is_real(aval(v).dtype) for v in eqn.outvars):
            return [dataclasses.replace(out, depends=False, form=form) for out in self.call(eqn, args)]
        if name in jaxprs.WRAPPERS:
            return self._by_stated_derivative(eqn, args)
        if name in equations.OWN:
            return equations.OWN[name](self, eqn, args)
        if form is not None and form.is_curved:
            return [self._scalar(eqn, form)]
        if name in layout.LAYOUTS:
            outs = self._layout(eqn, args)
        elif name in equations.EQUATIONS:
            outs = equations.EQUATIONS[name](self, eqn, args)
        else:
            outs = self.by_derivative(eqn, args)
        return [dataclasses.replace(out, form=form) for out in outs] if form is not None else outs

    def constant(self, eqn: jex.JaxprEqn, args: Sequence[Expr]) -> list[Expr]:
        """An equation that does not depend on a parameter. Arrays that it captured become arguments of it."""
        inner = [x for x in jaxprs.capturing(eqn) if id(x) in self.captured]
        more = [expr for x in inner for expr in self.captured[id(x)]]

        def bind(*values: Any) -> Sequence[Any]:
            rest = iter(values[len(args) :])
            captured = {id(x): list(itertools.islice(rest, len(x.consts))) for x in inner}
            return jaxprs.bind(eqn, *values[: len(args)], captured=captured)

        return self.call(eqn, [*args, *more], fn=bind)

    def call(
        self, eqn: jex.JaxprEqn, args: Sequence[Expr], data: Iterable[int] | None = None, fn: Any = None
    ) -> list[Expr]:
        """An equation applied to expressions; ``data`` are the places of those that carry values, if not all.

        ``fn`` is what computes it, if not the equation itself.
        """
        places = frozenset(range(len(args))).intersection(range(len(args)) if data is None else data)
        key = (eqn.primitive.name, jaxprs.params_key(eqn), jaxprs.calls(eqn))
        fn = functools.partial(jaxprs.bind, eqn) if fn is None else fn
        call = Call(eqn.primitive.name, fn, tuple(args), places, key)
        depends, from_loss = any(a.depends for a in args), any(a.from_loss for a in args)
        line = lines.user_line(eqn)
        return [
            Expr(aval(v).shape, aval(v).dtype, line, depends, from_loss, call, i)
            for i, v in enumerate(eqn.outvars)
        ]

    def inline(
        self, inner: Any, args: Sequence[Expr | None], wanted: Sequence[bool], beside: Sequence[bool] = ()
    ) -> list[Expr | None]:
        """The results of an inner jaxpr."""
        jaxpr = jaxprs.opened(inner)
        pairs = zip((*jaxpr.constvars, *jaxpr.invars), (*self._captured(inner), *args), strict=True)
        return self.run(jaxpr, {v: arg for v, arg in pairs if arg is not None}, wanted, beside)

    def _captured(self, inner: Any) -> list[Expr]:
        """What an inner jaxpr captured."""
        own = inner.consts if isinstance(inner, jex.ClosedJaxpr) else ()
        return self.captured.get(id(inner)) or list(map(layout.literal, own))

    def _layout(self, eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
        entries = _entries(eqn, args[0])
        if entries is not None:
            return [dataclasses.replace(entry, line=lines.user_line(eqn)) for entry in entries]
        return self.call(eqn, args, layout.LAYOUTS[eqn.primitive.name])

    # --- Functions of few values ---

    def _scalar(self, eqn: jex.JaxprEqn, form: Form) -> Expr:
        """One node for all equations between a value and what follows from it number by number."""
        out = equations.out(eqn)
        (base,) = form.bases
        label = lines.enclosing() or eqn.primitive.name
        label = eqn.primitive.name if len(form.steps) == 1 or label.startswith("_") else label
        fn = equations.form_function(form, cast=True)
        known = TABLE.get(eqn.primitive.name) if len(form.steps) == 1 else None
        traits = known or equations.traits_of(form)
        rule = Scalar(Function(("form", equations.form_key(form)), label, fn, traits))
        constants = [layout.broadcast(c, out["shape"]) for c in form.constants]
        return dataclasses.replace(self.operation(rule, base, *constants, **out), form=form)

    def by_derivative(self, eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
        """Equations without a rule of their own, by their derivative.

        Complex numbers stay inside of nodes: what follows from real ones and ends in real ones is one.
        """
        outs = []
        follow = self._following(args) if eqn.primitive.name == "custom_linear_solve" else {}
        for i, plain in enumerate(self.call(eqn, args)):
            form = equations.joint_form(eqn, args, i, follow)
            if _is_real(plain.dtype):
                outs.append(self._whole(form, eqn, i))
            elif jnp.issubdtype(plain.dtype, jnp.complexfloating):
                outs.append(dataclasses.replace(plain, form=form))
            else:
                outs.append(dataclasses.replace(plain, depends=False))
        return outs

    def _following(self, args: Sequence[Expr]) -> dict[int, Form]:
        """Operands that JAX holds, such as the factors of a matrix, as functions of operands that move."""
        known: dict[int, Form | None] = {id(a): None for a in args if a.depends}

        def form(a: Expr) -> Form | None:
            made = self._made.get(id(a))
            if id(a) in known or a.depends or made is None or not layout.needs_of(a):
                return known.get(id(a))
            forms = {id(b): found for b in made.operands if (found := form(b)) is not None}
            moves = forms or any(b.depends and id(b) in known for b in made.operands)
            found = equations.joined(made.eqn, made.operands, forms, made.result, True) if moves else None
            return known.setdefault(id(a), found)

        return {id(a): found for a in args if (found := form(a)) is not None}

    def _whole(self, form: Form, eqn: jex.JaxprEqn, i: int) -> Expr:
        """One result of an equation as a node that is projected as a whole."""
        out = aval(eqn.outvars[i])
        fn = equations.form_function(form)
        inputs = [*form.bases, *form.constants]
        avals = [jax.ShapeDtypeStruct(e.shape, e.dtype) for e in inputs]
        kind = _derivative_kind(fn, avals, len(form.bases))
        line = lines.user_line(eqn)
        if kind is None:
            ends = inputs, map(aval, eqn.outvars)
            types = " -> ".join(", ".join(map(lines.describe, values)) for values in ends)
            inside = f" (of {lines.enclosing()})" if lines.enclosing() else ""
            self.missing[f"  {eqn.primitive.name!r}{inside}{lines.at(eqn)}: {types}"] = None
            return self.add("missing", None, (), out.shape, out.dtype).output
        function = Function(("form", equations.form_key(form)), eqn.primitive.name, fn)
        rule = (LinearMap if kind == "linear" else Joint)(function, len(form.bases))
        return self.operation(rule, *inputs, shape=out.shape, dtype=out.dtype, line=line)

    def _by_stated_derivative(self, eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
        """A function whose derivative is stated: for soft sweeps that counts, whatever it computes."""
        order = sorted(range(len(args)), key=lambda i: not args[i].depends)
        inputs, moving = [args[i] for i in order], sum(a.depends for a in args)
        label, _ = jaxprs.source(eqn)
        key = (jaxprs.params_key(eqn), tuple(str(v.aval) for v in eqn.invars), tuple(order))
        line = lines.user_line(eqn)

        outs = self.call(eqn, args)
        real = [i for i, out in enumerate(outs) if _is_real(out.dtype)]
        dtype = jnp.result_type(*(outs[i].dtype for i in real))
        # What is asked of nodes leads downwards, and derivatives that are no products may care.
        turn = _turned if eqn.primitive.name == "custom_vjp_call" else lambda x: x

        def fn(*inputs: Any) -> jax.Array:
            # Projections compute in a wider type than what the function may be of.
            wide = jnp.result_type(dtype, *(x.dtype for x in inputs if _is_real(x.dtype)))
            given = {p: (x, aval(eqn.invars[p]).dtype) for p, x in zip(order, inputs, strict=True)}
            own = {p: turn(x.astype(kind)) if _is_real(kind) else x for p, (x, kind) in given.items()}
            found = jaxprs.bind(eqn, *(own[place] for place in range(len(order))))
            return jnp.concatenate([jnp.ravel(turn(found[i])).astype(wide) for i in real])

        rule = Joint(Function(("stated", key), label, fn), moving)
        size = sum(outs[i].size for i in real)
        flat = self.operation(rule, *inputs, shape=(size,), dtype=dtype, line=line)
        parts = dict(zip(real, _parts(flat, [outs[i] for i in real]), strict=True))
        return [parts.get(i, dataclasses.replace(out, depends=False)) for i, out in enumerate(outs)]

    # --- Losses ---

    def _after_loss(self, eqn: jex.JaxprEqn, args: list[Expr]) -> list[Expr]:
        """An equation of losses. If each loss still only counts by a factor it stays outside of the graph.

        Otherwise these losses are no targets: that is raised, and the function is read anew without them.
        """
        name = eqn.primitive.name
        losses = frozenset(i for i, a in enumerate(args) if a.from_loss)
        moving = [i for i, a in enumerate(args) if a.depends and not a.from_loss]
        types = [aval(v).dtype for v in eqn.outvars]
        if not any(jnp.issubdtype(dtype, jnp.inexact) for dtype in types):
            return [dataclasses.replace(out, depends=False, from_loss=False) for out in self.call(eqn, args)]
        if any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in types):
            pass  # by which factor a loss counts is a real number
        elif name in _LOSS_PRODUCTS:
            if not moving and len(losses) == 1 and not (name == "div" and 1 in losses):
                return self.call(eqn, args, losses)
        elif name in _LOSS_SUMS or name in layout.LAYOUTS:
            positions = layout.LAYOUTS.get(name)
            if positions is None or set(positions) >= {*losses, *moving}:
                lifted = [self._lifted(a) if i in moving else a for i, a in enumerate(args)]
                return self.call(eqn, lifted, positions)
        sources = {s for a in args if a.from_loss for s in layout.nodes_of(a)}
        raise NoTargetError({self._origin[s] for s in sources if s in self._origin})

    def _recognised(self, eqn: jex.JaxprEqn, out: Expr | None) -> Expr | None:
        """The value itself; or, if it is a cross-entropy that is spelt out, the loss of a `CrossEntropy`."""
        if out is None or not (self.targets and out.depends and id(out) in self._made):
            return out
        if out.from_loss or id(eqn) in self.plain or self._made[id(out)].eqn.primitive.name not in spelt.ENDS:
            return out
        found = spelt.cross_entropy(out, self._made)
        if found is None:
            return out
        spelling, logits, labels = found
        given = [logits, *self.traced(spelling.labels, [logits, labels])]
        loss = self.target(CrossEntropy(), given, eqn, lines.user_line(eqn))
        return self.traced(spelling.value, [loss, labels])[0]

    def traced(self, fn: Any, args: list[Expr]) -> list[Expr]:
        """A function of expressions: its equations in the place of another."""
        closed = jax.make_jaxpr(fn)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args))
        found = self.inline(closed, args, [True] * len(closed.jaxpr.outvars))
        return [out for out in found if out is not None]

    def _lifted(self, expr: Expr) -> Expr:
        """A value as a loss that is to be minimised."""
        return self.target(Minimise(), [expr], None, expr.line)

    def _ask_still(self, rule: Rule, args: Sequence[Expr], outs: Sequence[Expr]) -> None:
        """Keep what is asked of a value that no parameter moves: no step helps, but `pjax.solve` sees it."""
        if rule.is_target:
            self.still.extend(outs)  # themselves: what else becomes of them says by which factor they count
        elif (target := rule.as_target()) is not None:
            self.still.append(layout.apply("still", target.forward, *args, key=("still", target)))

    def _as_losses(self, outputs: list[Expr]) -> list[Expr]:
        """What a function returns, as losses: a value in a set asks to be there, any scalar is minimised."""
        asked: dict[int, Expr] = {}
        found: list[Expr] = []
        for i, out in enumerate(outputs):
            real = _is_real(out.dtype)
            asks = out.depends or (layout.needs_of(out) and not real)  # as x > 0 would
            if (out.from_loss and real) or not asks:
                found.append(out)
                continue
            sources = [self.nodes[s] for s in layout.nodes_of(out)]
            targets = [None if n.rule is None else n.rule.as_target() for n in sources]
            if sources and all(target is not None for target in targets):
                for node, rule in zip(sources, targets, strict=True):
                    if node.index not in asked:
                        exprs = [wire.expr for wire in node.inputs]
                        asked[node.index] = self.target(rule, exprs, None, node.line)
                    found.append(asked[node.index])
            elif out.size == 1 and real:
                found.append(self._lifted(out))
            else:
                where = f" at {out.line}" if out.line else ""
                raise GraphError(
                    f"output {i} of the function ({lines.describe(out)}{where}) is neither a loss nor a"
                    " real number. Return losses, a scalar, or a value in a set; what else it computes can be"
                    " returned beside the loss, with has_aux=True"
                )
        return found

    # --- Loops and branches ---

    def _scan(self, eqn: jex.JaxprEqn, args: list[Expr], wanted: Sequence[bool]) -> list[Expr | None]:
        live = jaxprs.live_in_scan(eqn, wanted)
        if self.sweeps:
            found = self._loop(eqn, args, live)
            if found is not None:
                return found
        p = eqn.params
        consts, carry = jaxprs.scan_counts(eqn)
        fixed, xs = args[:consts], args[consts + carry :]
        state: list[Expr | None] = list(args[consts : consts + carry])
        steps = range(p["length"])
        ys: list[list[Expr | None]] = []
        for t in reversed(steps) if p["reverse"] else steps:
            outs = self.inline(p["jaxpr"], [*fixed, *state, *(self._entry(x, t) for x in xs)], live)
            state = outs[:carry]
            ys.append(outs[carry:])
        if p["reverse"]:
            ys.reverse()
        if not ys:  # no steps at all
            return [*state, *(_nothing(aval(v)) for v in eqn.outvars[carry:])]
        stacks = [
            self._stacked([y for y in column if y is not None]) if column[0] is not None else None
            for column in zip(*ys, strict=True)
        ]
        return [*state, *stacks]

    def _entry(self, x: Expr, t: int) -> Expr:
        """What a scan sees of an array in a step. Complex numbers stay inside of nodes."""
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            return self.traced(lambda x: jax.lax.index_in_dim(x, t, keepdims=False), [x])[0]
        return layout.index(x, t)

    def _stacked(self, entries: list[Expr]) -> Expr:
        if jnp.issubdtype(entries[0].dtype, jnp.complexfloating):
            return self.traced(lambda *xs: jnp.stack(xs), entries)[0]
        return layout.stack(*entries)

    def _loop(self, eqn: jex.JaxprEqn, args: list[Expr], live: list[bool]) -> list[Expr | None] | None:
        """A scan as one node; None if it holds targets, complex numbers, or loops that only its steps count.

        What it returns that is no real number is held.
        """
        inner, length = eqn.params["jaxpr"], eqn.params["length"]
        body = jaxprs.opened(inner)
        consts, carry = jaxprs.scan_counts(eqn)
        avals = {i: aval(v) for i, (v, want) in enumerate(zip(eqn.outvars, live, strict=True)) if want}
        if not length or any(jnp.issubdtype(a.dtype, jnp.complexfloating) for a in avals.values()):
            return None
        real = {i: a for i, a in avals.items() if _is_real(a.dtype)}
        others = self.constant(eqn, args) if len(real) < len(avals) else []
        found = {i: _aside(out) for i, out in enumerate(others) if i in avals}
        if not real:
            return [found.get(i) for i in range(len(live))]
        _, needs = jaxprs.needed(body, live)
        states = range(consts, consts + carry)
        kept = [i for i, need in enumerate(needs) if need or (i in states and live[i - consts])]
        is_leaf = [args[i].depends or (i in states and _is_real(args[i].dtype)) for i in kept]
        leaf, known = (
            [i for i, is_one in zip(kept, is_leaf, strict=True) if is_one is k] for k in (True, False)
        )
        inputs = [body.invars[i] for i in (*leaf, *known)]
        only = jex.Jaxpr(body.constvars, inputs, body.outvars, body.eqns, debug_info=body.debug_info)
        builder = Builder(sweeps=True, targets=False)
        try:
            leaves, outs = builder._outermost(only, [f"input_{i}" for i in leaf], live)
        except UnsupportedEquationError:  # how long an inner loop is may follow from the number of the step
            return None
        if any(node.is_target for node in builder.nodes):
            return None
        self.missing.update(builder.missing)
        # What is captured, also further inside, is fixed.
        extra = [e for x in (inner, *jaxprs.capturing(*body.eqns)) for e in self._captured(x)]
        # The results in the types of the scan; what does not move with a parameter is a constant of the body.
        outputs = [out for out in outs if out is not None]
        rule = Scan(
            simplified(builder.nodes, leaves, outputs),
            len(extra) + sum(i < consts for i in kept),
            sum(live[:carry]),
            length,
            eqn.params["reverse"],
            eqn.params["unroll"],
            (*(False for _ in extra), *is_leaf),
            tuple((tuple(a.shape), a.dtype) for a in avals.values()),
        )
        given, line = [*extra, *(args[i] for i in kept)], lines.user_line(eqn)
        flat = self.operation(rule, *given, shape=(rule.size,), dtype=rule.dtype, line=line)
        found |= zip(real, _parts(flat, list(real.values())), strict=True)
        return [found.get(i) for i in range(len(live))]

    def _cond(self, eqn: jex.JaxprEqn, args: list[Expr], wanted: Sequence[bool]) -> list[Expr | None]:
        """All branches; what was not taken is not read."""
        index, *operands = args
        branches = eqn.params["branches"]
        known = _known(index)
        if known is not None:
            return self.inline(branches[int(np.clip(known, 0, len(branches) - 1))], operands, wanted)

        def place(which: jax.Array) -> jax.Array:
            return jnp.clip(which.astype(jnp.int32), 0, len(branches) - 1)

        def choose(which: jax.Array, *cases: jax.Array) -> jax.Array:
            return jax.lax.select_n(place(which), *cases)

        def heard(i: int, x: Expr) -> Expr:
            """An operand of a branch: a sweep hears nothing, and no NaN, from one that was not taken."""
            if not (self.sweeps and x.depends and _is_real(x.dtype)) or x.from_loss:
                return x

            def select(which: jax.Array, still: jax.Array, x: jax.Array) -> jax.Array:
                return jax.lax.select_n(place(which) == i, still, x)

            key = ("heard", i, len(branches))
            return layout.apply("select_n", select, index, layout.held(x), x, key=key, data=(1, 2))

        def taken(i: int, x: Expr) -> Expr:
            """What a branch asks, if it was taken; of losses their factors say so."""
            if x.call is None or x.call.name != "still":
                return x

            def select(which: jax.Array, x: jax.Array) -> jax.Array:
                return jnp.where(place(which) == i, x, 0)

            return layout.apply("still", select, index, x, key=("taken", i, len(branches)))

        results = []
        for i, branch in enumerate(branches):
            seen = len(self.still)
            results.append(self.inline(branch, [heard(i, x) for x in operands], wanted))
            self.still[seen:] = [taken(i, x) for x in self.still[seen:]]

        outs: list[Expr | None] = []
        for column in zip(*results, strict=True):
            cases = [case for case in column if case is not None]
            if not cases:
                outs.append(None)
                continue
            if any(case.from_loss for case in cases):
                cases = [self._lifted(c) if c.depends and not c.from_loss else c for c in cases]
            if jnp.issubdtype(cases[0].dtype, jnp.complexfloating):
                outs += self.traced(choose, [index, *cases])
                continue
            key, data = ("choose", len(cases)), range(1, len(cases) + 1)
            out = layout.apply("select_n", choose, index, *cases, key=key, data=data)
            outs.append(dataclasses.replace(out, depends=out.depends and _is_real(out.dtype)))
        return outs

    def _while(self, eqn: jex.JaxprEqn, args: list[Expr], wanted: Sequence[bool]) -> list[Expr | None]:
        """As many steps as can be counted now."""
        p = eqn.params
        first, second = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
        state = args[second:]
        everything = [True] * len(state)
        for _ in range(_MOST_STEPS):
            (going,) = self.inline(p["cond_jaxpr"], [*args[:first], *state], [True])
            known = None if going is None else _known(going)
            if known is None:
                raise UnsupportedEquationError(
                    f"'while'{lines.at(eqn)}: how often it runs depends on a parameter, or on an array that"
                    " is known only at run time, so that it cannot be written out; nor can jax.grad"
                    " differentiate it. Give it a fixed number of steps: jax.lax.scan, or jax.lax.fori_loop"
                    " with whole numbers"
                )
            if not known:
                return [out if want else None for out, want in zip(state, wanted, strict=True)]
            outs = self.inline(p["body_jaxpr"], [*args[first:second], *state], everything)
            state = [out for out in outs if out is not None]
        raise UnsupportedEquationError(
            f"'while'{lines.at(eqn)}: it takes more than {_MOST_STEPS} steps; use jax.lax.scan"
        )


_MOST_STEPS = 4096

_INNER = {"scan": Builder._scan, "cond": Builder._cond, "while": Builder._while}


def _parts(flat: Expr, avals: Iterable[Any]) -> list[Expr]:
    """The arrays that a flat one holds one after the other, each in its shape and type."""
    found, start = [], 0
    for a in avals:
        shape, dtype, end = tuple(a.shape), a.dtype, start + math.prod(a.shape)

        def cut(x: jax.Array, start: int = start, end: int = end, shape: Any = shape) -> jax.Array:
            return x[start:end].reshape(shape)

        part = layout.apply("slice", cut, flat, key=("part", start, shape), shape=shape)
        if dtype != flat.dtype:
            cast = functools.partial(jax.lax.convert_element_type, new_dtype=dtype)
            part = layout.apply("convert_element_type", cast, part, key=("cast", dtype))
        found.append(part)
        start = end
    return found


@jax.custom_vjp
def _turned(x: jax.Array) -> jax.Array:
    """The same number; what is asked of it is passed on with the opposite sign."""
    return x


_turned.defvjp(lambda x: (x, None), lambda _, goal: (-goal,))


def _aside(expr: Expr) -> Expr:
    """A value that is only returned: it is held, and counts as no loss."""
    return dataclasses.replace(layout.held(expr), from_loss=False) if expr.depends or expr.from_loss else expr


def _nothing(of: Any) -> Expr:
    """Zeros in the place of a value that nobody reads."""
    if not isinstance(of.dtype, np.dtype):  # a key
        return Expr(of.shape, of.dtype, literal=None)
    return layout.literal(np.zeros(of.shape, of.dtype))


def _entries(eqn: jex.JaxprEqn, array: Expr) -> list[Expr] | None:
    """Entries of an array along an axis, in one form however they are written; None for other equations."""
    name, shape = eqn.primitive.name, aval(eqn.outvars[0]).shape
    if name == "unstack":
        return [layout.index(array, i, eqn.params["axis"]) for i in range(len(eqn.outvars))]
    if name == "squeeze" and array.call is not None:
        return list(array.call.args) if array.call.key == ("entry", eqn.params["dimensions"]) else None
    cut = [d for d, (size, n) in enumerate(zip(array.shape, shape, strict=False)) if n != size]
    if name != "slice" or len(cut) != 1 or shape[cut[0]] != 1:
        return None
    (axis,) = cut
    entry = layout.index(array, eqn.params["start_indices"][axis], axis)
    fn = functools.partial(jnp.expand_dims, axis=axis)
    return [layout.apply("expand_dims", fn, entry, key=("entry", (axis,)), shape=shape)]


def _asks(eqn: jex.JaxprEqn) -> bool:
    """Whether something is asked of a value."""
    rule = eqn.params.get("rule") if eqn.primitive.name == "pjax" else None
    return rule is not None and (rule.is_target or rule.as_target() is not None)


def _is_real(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def _known(expr: Expr) -> Any:
    """A number that follows from the program alone; None for others."""
    if any(e.node is not None or e.constant is not None for e in layout.walk(expr)):
        return None
    with jax.ensure_compile_time_eval():
        return np.asarray(layout.Evaluator((), {})(expr))[()]


def _derivative_kind(fn: Any, avals: Sequence[Any], moving: int) -> str | None:
    """Whether a function is linear in its first arguments, or has a derivative in them; None: neither."""
    rest = avals[moving:]
    out = jax.eval_shape(fn, *avals)

    def transposed(ct: Any, *rest: Any) -> Any:
        return jax.linear_transpose(lambda *xs: fn(*xs, *rest), *avals[:moving])(ct)

    def pulled(ct: Any, *given: Any) -> Any:
        return jax.vjp(lambda *xs: fn(*xs, *given[moving:]), *given[:moving])[1](ct)

    for kind, look, given in (("linear", transposed, rest), ("smooth", pulled, avals)):
        try:
            jax.eval_shape(look, out, *given)
        except Exception:  # whatever JAX says of a function that is not
            continue
        return kind
    return None
