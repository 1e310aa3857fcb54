"""The name under which the gallery and the website import `pjax.tools.plotting`."""

from pjax.tools.plotting import FAINT as FAINT
from pjax.tools.plotting import INK as INK
from pjax.tools.plotting import STYLE as STYLE
from pjax.tools.plotting import Label as Label
from pjax.tools.plotting import accuracy_scale as accuracy_scale
from pjax.tools.plotting import decades as decades
from pjax.tools.plotting import end_labels as end_labels
from pjax.tools.plotting import linear_scale as linear_scale
from pjax.tools.plotting import note as note
from pjax.tools.plotting import panels as panels
from pjax.tools.plotting import save as save
from pjax.tools.plotting import styled as styled
