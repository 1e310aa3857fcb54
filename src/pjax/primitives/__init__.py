"""Primitives: functions with a projection onto their graph."""

from pjax.primitives._primitive import Arrays as Arrays
from pjax.primitives._primitive import Primitive as Primitive
from pjax.primitives._primitive import Target as Target
from pjax.primitives._primitive import apply as apply
from pjax.primitives._registry import Example as Example
from pjax.primitives._registry import register as register
from pjax.primitives._registry import registered as registered
from pjax.primitives.clip import Clip as Clip
from pjax.primitives.dot import Dot as Dot
from pjax.primitives.dot import Multiplier as Multiplier
from pjax.primitives.dot import multiplier as multiplier
from pjax.primitives.identity import Identity as Identity
from pjax.primitives.identity import identity as identity
from pjax.primitives.max import Max as Max
from pjax.primitives.quantize import Quantize as Quantize
from pjax.primitives.quantize import quantize as quantize
from pjax.primitives.sum import Sum as Sum
from pjax.primitives.sum_relu import SumRelu as SumRelu
