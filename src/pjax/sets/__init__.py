"""Sets with known projections, for `pjax.constrain`."""

from pjax.sets._constrain import Constrain as Constrain
from pjax.sets._constrain import Member as Member
from pjax.sets._constrain import constrain as constrain
from pjax.sets._set import Set as Set
from pjax.sets.ball import Ball as Ball
from pjax.sets.ball import Sphere as Sphere
from pjax.sets.box import Box as Box
from pjax.sets.box import NonNegative as NonNegative
from pjax.sets.integers import Integers as Integers
from pjax.sets.known import Known as Known
from pjax.sets.own import Own as Own
from pjax.sets.permutation import Permutation as Permutation
from pjax.sets.simplex import OneHot as OneHot
from pjax.sets.simplex import Simplex as Simplex
from pjax.sets.sparse import Sparse as Sparse
