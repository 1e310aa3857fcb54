"""How a primitive or a target from outside becomes one of pjax's own, in one call."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp

from pjax.containers.numpy import apply
from pjax.errors import InputError
from pjax.graph.equations import register_equation
from pjax.rules import Example, Primitive, Target, register, registered
from pjax.rules.registry import redefines


def register_primitive(
    rule: Primitive | Target,
    shapes: Sequence[Sequence[Sequence[int]]],
    *,
    constant: Sequence[int] = (),
    labels: str = "classes",
    scale: float | None = None,
    equation: str | None = None,
) -> Callable[..., Any]:
    """Make a function with a projection known to pjax.

    Its form is checked here; whether it projects is for `pjax.testing.check_registered`, which checks all
    that are registered. Registering a rule again, such as after a change in a notebook, replaces it.

    Args:
        rule: a frozen dataclass, of `Primitive` or `Target`.
        shapes: cases to check; each lists the shape of one copy of every input (for a target: of the
            predictions). ``[[()]]`` for a function of one number, ``[[(3,), (3,)]]`` for one of two vectors.
        constant: inputs that the rule must not move.
        labels: for a target: ``"classes"``, ``"probabilities"`` or ``"numbers"``.
        scale: for a target: the factor of its loss in its proximal operator; ``None`` for the minimisers.
        equation: the name of an elementwise JAX equation that `pjax.trace` is to read as this primitive.

    Returns:
        The function, of arrays or of computations, which the tracer sees as one node.

    >>> import dataclasses
    >>> @dataclasses.dataclass(frozen=True)
    ... class Half(Primitive):
    ...     name = "half"
    ...
    ...     def forward(self, x):
    ...         return x / 2
    ...
    ...     def project(self, inputs, output, weight=1.0):
    ...         x = (4 * inputs[0] + 2 * weight * output) / (4 + weight)
    ...         return (x,), x / 2
    >>> half = register_primitive(Half(), [[()]])
    >>> half(jnp.array([2.0, 6.0]))
    Array([1., 3.], dtype=float32)
    >>> from pjax.testing import check_registered
    >>> check_registered("half", samples=16).points
    16
    """
    try:
        cases = tuple(tuple(tuple(shape) for shape in case) for case in shapes)
    except TypeError:
        raise InputError(
            "shapes must list cases, each with the shape of every input, such as [[()]] or [[(3,), (3,)]];"
            f" got {shapes!r:.120}"
        ) from None
    example = Example(rule, cases, tuple(constant), labels, scale)
    check_form(example)
    if equation is not None:
        if rule.is_target or rule.core:
            raise InputError(
                f"{type(rule).__name__}: only a Primitive with core = 0 can stand for the equation"
                f" {equation!r}; apply it as a function instead"
            )
        register_equation(equation, cast(Primitive, rule))
    register(example)

    def function(*inputs: Any) -> Any:
        return apply(rule, *inputs)

    function.__name__ = function.__qualname__ = rule.name
    function.__doc__ = type(rule).__doc__
    return function


def check_form(example: Example) -> None:
    """Refuse a rule that the solvers could not use, whatever its formulas."""
    rule = example.rule
    if not isinstance(rule, Primitive | Target):
        raise InputError(f"expected an instance of pjax.Primitive or pjax.Target, got {rule!r:.120}")
    _check_class(rule)
    _check_name(rule)
    if not example.shapes:
        raise InputError(
            f"{type(rule).__name__}: shapes must list at least one case to check, such as [[()]]; got none"
        )
    if not rule.is_target:
        for case in example.shapes:
            _check_primitive(rule, case)
    elif example.labels not in ("classes", "probabilities", "numbers"):
        raise InputError(
            f"{type(rule).__name__}: labels must be 'classes', 'probabilities' or 'numbers', got"
            f" {example.labels!r}"
        )


def _check_class(rule: Primitive | Target) -> None:
    kind = type(rule)
    # Its own: what a class inherits would leave out its own fields, and make different settings equal.
    settings = vars(kind).get("__dataclass_params__")
    if settings is None or not settings.frozen:
        raise InputError(
            f"{kind.__name__} must be a frozen dataclass, so that equal settings are equal rules: write"
            " @dataclasses.dataclass(frozen=True) above the class"
        )
    try:
        hash(rule)
    except TypeError as error:
        raise InputError(
            f"{kind.__name__}: its fields are static settings and must be hashable ({error}): use numbers,"
            " strings and tuples, and pass arrays as inputs"
        ) from None
    if kind.displace is Primitive.displace and kind.project is Primitive.project:
        raise InputError(
            f"{kind.__name__} has a forward, but neither project nor displace: write one of them"
        )


def _check_name(rule: Primitive | Target) -> None:
    kind, name = type(rule), getattr(rule, "name", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(
            f"{kind.__name__}: set name to a word for drawings and messages, as in name = 'threshold';"
            f" got {name!r}"
        )
    for other in {type(example.rule) for example in registered() if example.rule.name == name}:
        if not redefines(kind, other):
            raise InputError(
                f"{kind.__name__}: the name {name!r} is taken by {other.__module__}.{other.__qualname__};"
                " choose another"
            )


def _check_primitive(rule: Any, case: tuple[tuple[int, ...], ...]) -> None:
    wrong = [shape for shape in case if len(shape) != rule.core]
    if wrong and not rule.joint:
        raise InputError(
            f"{type(rule).__name__} has core = {rule.core}, so one copy of every input has {rule.core} axes;"
            f" got the shape {wrong[0]}"
        )
    leading = () if rule.joint else (2, 3)
    inputs = [jax.ShapeDtypeStruct((*leading, *shape), jnp.float32) for shape in case]
    found = jax.eval_shape(rule.forward, *inputs)
    shape, dtype = (getattr(found, name, None) for name in ("shape", "dtype"))
    if shape is None or (shape != leading and not rule.joint) or dtype != jnp.float32:
        raise InputError(
            f"{type(rule).__name__}: forward must return one number of the type of its inputs for each copy:"
            f" float32[2,3] for inputs of shapes {', '.join(str(x.shape) for x in inputs)}; got {found}"
        )
    output = jax.ShapeDtypeStruct(shape, jnp.float32)
    projected = jax.eval_shape(rule.project, tuple(inputs), output)
    expected = (tuple(inputs), output)
    if jax.tree.map(_kind, projected) != jax.tree.map(_kind, expected):
        raise InputError(
            f"{type(rule).__name__}: project must return a tuple of the inputs and the output, with their"
            f" shapes and types; got {projected}"
        )


def _kind(x: Any) -> tuple[Any, Any]:
    return (tuple(x.shape), jnp.dtype(x.dtype))
