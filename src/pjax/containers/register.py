"""How a primitive or a target from outside becomes one of pjax's own, in one call."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from pjax.containers.numpy import apply
from pjax.errors import InputError
from pjax.graph.equations import register_equation
from pjax.rules import Example, Primitive, Target, register
from pjax.rules.registry import check_form


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
    >>> import jax.numpy as jnp
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
