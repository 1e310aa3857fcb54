"""Checks for projections: what `jax.test_util.check_grads` is for derivatives."""

from pjax.testing.projections import check_projection as check_projection
from pjax.testing.projections import check_registered as check_registered
from pjax.testing.report import Report as Report
from pjax.testing.sets import check_set as check_set
