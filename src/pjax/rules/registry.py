"""The one list of primitives and targets, with what is needed to check each."""

import dataclasses

import jax.numpy as jnp

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
