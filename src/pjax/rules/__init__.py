"""Primitives: functions with a projection onto their graph."""

from pjax.rules.base import Arrays as Arrays
from pjax.rules.base import Primitive as Primitive
from pjax.rules.base import Target as Target
from pjax.rules.base import apply as apply
from pjax.rules.divide import Divide as Divide
from pjax.rules.dot import Dot as Dot
from pjax.rules.dot import Multiplier as Multiplier
from pjax.rules.dot import multiplier as multiplier
from pjax.rules.linear import Joint as Joint
from pjax.rules.linear import LinearMap as LinearMap
from pjax.rules.max import Max as Max
from pjax.rules.quantize import Clip as Clip
from pjax.rules.quantize import Quantize as Quantize
from pjax.rules.quantize import quantize as quantize
from pjax.rules.registry import Example as Example
from pjax.rules.registry import register as register
from pjax.rules.registry import registered as registered
from pjax.rules.scalar import Function as Function
from pjax.rules.scalar import Scalar as Scalar
from pjax.rules.scalar import Traits as Traits
from pjax.rules.scalar import elementary as elementary
from pjax.rules.sum import Identity as Identity
from pjax.rules.sum import Sum as Sum
from pjax.rules.sum import SumRelu as SumRelu
from pjax.rules.sum import identity as identity
