"""Losses: the targets at the end of a traced function."""

from pjax.losses.cross_entropy import CrossEntropy as CrossEntropy
from pjax.losses.cross_entropy import cross_entropy as cross_entropy
from pjax.losses.margin_loss import MarginLoss as MarginLoss
from pjax.losses.margin_loss import margin_loss as margin_loss
from pjax.losses.minimise import Minimise as Minimise
from pjax.losses.minimise import minimise as minimise
from pjax.losses.squared_error import SquaredError as SquaredError
from pjax.losses.squared_error import squared_error as squared_error
from pjax.rules.registry import Example, register

_CLASSES = tuple(((c,),) for c in (1, 2, 10, 100))

register(
    Example(CrossEntropy(), _CLASSES, scale=5.0),
    Example(CrossEntropy(scale=30.0), _CLASSES, labels="probabilities", scale=30.0),
    Example(MarginLoss(), _CLASSES),
    Example(MarginLoss(margin=3.0), _CLASSES, labels="numbers"),
    Example(Minimise(), (((),),), labels="numbers", scale=1.0),
    Example(SquaredError(), (((),),), labels="numbers"),
    Example(SquaredError(scale=2.0), (((),),), labels="numbers", scale=1.0),  # half of 2: see its loss
)
