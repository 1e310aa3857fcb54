"""Sets with known projections, for `pjax.constrain`."""

from pjax.sets._constrain import Constrain as Constrain
from pjax.sets._constrain import Member as Member
from pjax.sets._constrain import constrain as constrain
from pjax.sets._set import Own as Own
from pjax.sets._set import Set as Set
from pjax.sets.numbers import Box as Box
from pjax.sets.numbers import Integers as Integers
from pjax.sets.numbers import Known as Known
from pjax.sets.numbers import NonNegative as NonNegative
from pjax.sets.vectors import Ball as Ball
from pjax.sets.vectors import OneHot as OneHot
from pjax.sets.vectors import Permutation as Permutation
from pjax.sets.vectors import Simplex as Simplex
from pjax.sets.vectors import Sparse as Sparse
from pjax.sets.vectors import Sphere as Sphere
