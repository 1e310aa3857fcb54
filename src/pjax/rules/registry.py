"""The one list of primitives and targets, with what is needed to check each."""

import dataclasses
import inspect
import itertools
from typing import Any

import jax
import jax.numpy as jnp

from pjax.checks import check_whole
from pjax.errors import InputError
from pjax.rules.base import Primitive, Target
from pjax.rules.divide import Divide
from pjax.rules.dot import Dot
from pjax.rules.linear import Joint, LinearMap
from pjax.rules.max import Max
from pjax.rules.quantize import Clip, Quantize
from pjax.rules.scalar import Function, elementary
from pjax.rules.sum import Identity, Sum, SumRelu

LENGTHS = (1, 2, 3, 8, 32, 128, 784)


@dataclasses.dataclass(frozen=True)
class Example:
    """A rule, and how `pjax.testing.check_projection` should be called for it."""

    rule: Primitive | Target
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    """Cases to check; each gives the shape of one copy of every input."""
    constant: tuple[int, ...] = ()
    """Inputs that the rule must not move."""
    labels: str = "classes"
    """For a target: ``"classes"``, ``"probabilities"`` or ``"numbers"``."""
    scale: float | None = None
    """For a target: the factor of its loss in its proximal operator; ``None`` for the minimisers."""
    sided: tuple[int, ...] = ()
    """Inputs that the rule keeps on their side of zero."""
    nearest: bool = True
    """Whether the rule promises the nearest point of all. `check_projection` does not suit one that does not:
    it needs tests of its own."""

    @property
    def name(self) -> str:
        fields = [f"{f.name}={_shown(getattr(self.rule, f.name))}" for f in dataclasses.fields(self.rule)]
        kind = "" if isinstance(self.rule, Primitive) else f" [{self.labels}]"
        return f"{self.rule.name}({', '.join(fields)}){kind}"


def _shown(setting: object) -> str:
    return setting.label if isinstance(setting, Function) else repr(setting)


_examples: list[Example] = []


def register(*examples: Example) -> None:
    """Add examples to those that `pjax.testing.check_registered` checks.

    The primitives of pjax are added so; from outside, `pjax.register_primitive` does it.
    """
    for example in examples:
        kind = type(example.rule)
        _examples[:] = [e for e in _examples if type(e.rule) is kind or not redefines(kind, type(e.rule))]
        if example not in _examples:
            _examples.append(example)


def redefines(new: type, old: type) -> bool:
    """Whether one class is written where another is, or was before it was written anew."""
    return (new.__module__, new.__qualname__) == (old.__module__, old.__qualname__)


def registered() -> tuple[Example, ...]:
    """All examples, in the order in which they were registered."""
    return tuple(_examples)


def check_form(example: Example) -> None:
    """Refuse a rule that the solvers could not use, whatever its formulas."""
    rule = example.rule
    check_kind(rule)
    _check_class(rule)
    _check_name(rule)
    if not example.shapes:
        raise InputError(
            f"{type(rule).__name__}: shapes must list at least one case to check, such as [[()]]; got none"
        )
    if example.labels not in ("classes", "probabilities", "numbers"):
        raise InputError(
            f"{type(rule).__name__}: labels must be 'classes', 'probabilities' or 'numbers', got"
            f" {example.labels!r}"
        )
    for case in example.shapes:
        check_case(rule, case, example.labels)


def check_kind(rule: Any) -> None:
    """Refuse what is neither a primitive nor a target."""
    if not isinstance(rule, Primitive | Target):
        raise InputError(f"expected an instance of pjax.Primitive or pjax.Target, got {rule!r:.120}")


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


def check_case(rule: Any, case: tuple[tuple[int, ...], ...], labels: str = "classes") -> None:
    """Refuse a rule whose methods do not take copies of inputs of these shapes, or return something else."""
    kind = type(rule).__name__
    for length in itertools.chain(*case):
        check_whole(f"{kind}: each length of a shape", length, 0)
    wrong = [shape for shape in case if len(shape) != rule.core]
    if wrong and not getattr(rule, "joint", False):
        raise InputError(
            f"{kind} has core = {rule.core}, so one copy of every input has {rule.core} axes;"
            f" got the shape {wrong[0]}"
        )
    if rule.is_target:
        _check_target(rule, case, labels)
    else:
        _check_primitive(rule, case)


def _check_target(rule: Any, case: tuple[tuple[int, ...], ...], labels: str) -> None:
    if len(case) != 1 or (labels == "classes" and not rule.core):
        raise InputError(
            f"{type(rule).__name__}: each case for a target is the shape of one copy of the predictions,"
            " which for labels='classes' ends in the axis of classes, such as [[(3,)]]; got"
            f" {case} with labels={labels!r}"
        )
    predictions = jax.ShapeDtypeStruct((2, 3, *case[0]), jnp.float32)
    classes = jax.ShapeDtypeStruct(predictions.shape[:-1], jnp.int32)
    marks = classes if labels == "classes" else predictions
    whats = "one loss for each copy", "how the predictions move"
    for method, what, wanted in zip(("forward", "displace"), whats, ((2, 3), predictions.shape), strict=True):
        found = _found(rule, method, predictions, marks)
        if getattr(found, "shape", None) != wanted:
            raise InputError(
                f"{type(rule).__name__}: {method} must return {what}, of shape {wanted} for predictions of"
                f" shape {predictions.shape}; got {found}"
            )


def _check_primitive(rule: Any, case: tuple[tuple[int, ...], ...]) -> None:
    leading = () if rule.joint else (2, 3)
    inputs = [jax.ShapeDtypeStruct((*leading, *shape), jnp.float32) for shape in case]
    found = _found(rule, "forward", *inputs)
    shape, dtype = (getattr(found, name, None) for name in ("shape", "dtype"))
    if shape is None or (shape != leading and not rule.joint) or dtype != jnp.float32:
        raise InputError(
            f"{type(rule).__name__}: forward must return one number of the type of its inputs for each copy:"
            f" float32[2,3] for inputs of shapes {', '.join(str(x.shape) for x in inputs)}; got {found}"
        )
    output = jax.ShapeDtypeStruct(shape, jnp.float32)
    projected = _found(rule, "project", tuple(inputs), output, output)  # a weight for each copy
    kinds = [jax.tree.map(lambda x: (x.shape, x.dtype), p) for p in (projected, (tuple(inputs), output))]
    if kinds[0] != kinds[1]:
        raise InputError(
            f"{type(rule).__name__}: project must return a tuple of the inputs and the output, with their"
            f" shapes and types; got {projected}"
        )


def _found(rule: Any, method: str, *arguments: Any) -> Any:
    """What a method returns for arrays of these shapes; refused where it does not take so many arguments."""
    function = getattr(rule, method)
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        takes = {"forward": "the inputs, whose shapes each case lists", "displace": "predictions and labels"}
        raise InputError(
            f"{type(rule).__name__}: {method} must take {takes.get(method, '(inputs, output, weight=1.0)')};"
            f" of {len(arguments)} arguments: {error}"
        ) from None
    return jax.eval_shape(function, *arguments)


def _same(inputs: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return tuple(((n,),) * inputs for n in LENGTHS)


register(
    Example(Identity(), (((),),)),
    Example(Sum((1, -1, 1)), tuple(((n,), (1,), (2,)) for n in LENGTHS)),
    Example(SumRelu((1,)), _same(1)),
    Example(SumRelu((1, -1)), tuple(((n,), (1,)) for n in LENGTHS)),
    Example(Dot(), _same(2)),
    Example(Dot(fixed=0), _same(2), constant=(0,)),
    Example(Max(), _same(1)),
    Example(Max(sign=-1), _same(1)),
    Example(Clip(), (((),),)),
    Example(Clip(scale=0.5), (((),),)),
    Example(Quantize(), (((),),)),
    Example(Quantize(levels=16, scale=0.5), (((),),)),
    Example(Quantize(levels=257, scale=30.0), (((),),)),
    Example(elementary("tanh"), (((),),)),
    Example(Divide(), (((), ()),), sided=(1,)),
    Example(LinearMap(Function("sum", "sum", lambda x: jnp.sum(x, axis=-1))), _same(1)),
    Example(Joint(Function("norm", "norm", jnp.linalg.norm)), (((3,),),), nearest=False),
)
