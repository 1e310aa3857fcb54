"""Tools for runs that do not do what they should."""

from pjax.debug._locate_nan import NotFinite as NotFinite
from pjax.debug._locate_nan import Range as Range
from pjax.debug._locate_nan import locate_nan as locate_nan
from pjax.debug._partition import InsertedIdentity as InsertedIdentity
from pjax.debug._partition import PartitionReport as PartitionReport
from pjax.debug._partition import explain_partition as explain_partition
from pjax.debug._progress import Progress as Progress
from pjax.debug._progress import progress as progress
from pjax.debug._recompile import Comparison as Comparison
from pjax.debug._recompile import Difference as Difference
from pjax.debug._recompile import Explained as Explained
from pjax.debug._recompile import explain_recompile as explain_recompile
from pjax.debug._violations import Violations as Violations
from pjax.debug._violations import violations as violations
from pjax.tools.drawing.names import NodeInfo as NodeInfo
