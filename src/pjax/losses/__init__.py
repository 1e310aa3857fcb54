"""Losses: the targets at the end of a traced function."""

from pjax.losses.cross_entropy import CrossEntropy as CrossEntropy
from pjax.losses.cross_entropy import cross_entropy as cross_entropy
from pjax.losses.margin_loss import MarginLoss as MarginLoss
from pjax.losses.margin_loss import margin_loss as margin_loss
from pjax.losses.squared_error import SquaredError as SquaredError
from pjax.losses.squared_error import squared_error as squared_error

__all__ = ["CrossEntropy", "MarginLoss", "SquaredError", "cross_entropy", "margin_loss", "squared_error"]
