"""`pjax.draw`: the computation graph of a function as a picture, in SVG and Mermaid.

- `diagram`: what is shown, boxes and arrows, in what colours. `names`: in what words.
- `text`: written for Mermaid, which finds places itself.
- `place`, `svg`: with places, as a picture.

Pictures need the extra ``draw``: ``pip install "pjax-learn[draw]"``.
"""

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

from pjax.errors import InputError
from pjax.graph import read as tracing
from pjax.optim.alternating_projections import AlternatingProjections
from pjax.optim.solver import Solver, check_solver
from pjax.tools.drawing.diagram import Diagram, DiagramMaker
from pjax.tools.drawing.svg import svg_text
from pjax.tools.drawing.text import mermaid_text
from pjax.tools.files import write_atomically
from pjax.tools.given import constant_names, given

SUFFIXES = {".svg": "svg", ".mmd": "mermaid"}
"""The kinds of files, by how their names end."""


@dataclasses.dataclass(frozen=True, eq=False)
class Drawing:
    """A computation graph as a picture. A notebook shows it; `save` writes it."""

    diagram: Diagram
    """What is shown: `boxes` and `arrows`."""

    @functools.cached_property
    def svg(self) -> str:
        """As SVG."""
        return svg_text(self.diagram)

    @property
    def mermaid(self) -> str:
        """In the language of Mermaid, which GitHub shows as a picture."""
        return mermaid_text(self.diagram)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a file, of the kind that its name ends with: .svg or .mmd.

        The file is there whole, or not at all.
        """
        suffix = Path(path).suffix.lower()
        if suffix not in SUFFIXES:
            raise InputError(f"drawings are saved as {' or '.join(SUFFIXES)}; got {os.fspath(path)!r}")
        return write_atomically(Path(path), getattr(self, SUFFIXES[suffix]).encode())

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Drawing({len(self.diagram.boxes)} boxes, {len(self.diagram.arrows)} arrows)"


def draw(fn: Any, params: Any = None, solver: Solver | None = None, *, fold: bool = True) -> Drawing:
    """Draw the computation graph of a function.

    Colours are the sets that are projected onto in turns. A wire says what moves numbers on the way, and how
    many edges leave each number of its source. Point at a box or a wire of the SVG for its line, its full
    name, the number of its edges. See the page "Drawings" of the documentation.

    Args:
        fn: an ordinary JAX function of the parameters that ends in a target; or, without `params`, what
            `pjax.trace` returns, or a `Computation` built by hand.
        params: any pytree of floating-point arrays; shapes are enough.
        solver: the method whose sets are shown; by default the two of `AlternatingProjections`.
        fold: whether equal nodes that project together, such as layers or time steps, are one box.

    >>> import jax.numpy as jnp
    >>> import pjax
    >>> x, y = jnp.ones((4, 3)), jnp.zeros((4, 2))
    >>> drawing = draw(lambda p: pjax.squared_error(x @ p["w"], y), {"w": jnp.ones((3, 2))})
    >>> [(box.kind, box.title, box.shape) for box in drawing.diagram.boxes]  # doctest: +NORMALIZE_WHITESPACE
    [('constant', 'x', (4, 3)), ('constant', 'y', (4, 2)), ('parameter', 'w', (3, 2)),
     ('operation', 'dot', (4, 2)), ('target', 'squared_error', (4, 2))]
    >>> print(drawing.mermaid.splitlines()[0])
    flowchart LR
    """
    solver = AlternatingProjections() if solver is None else solver
    check_solver(solver)
    function, _, traced = given(fn, params)
    graph = tracing.build(traced, sweeps=solver.sweeps)
    titles = constant_names(fn, function, traced.constants)
    return Drawing(DiagramMaker(traced, solver.partition(graph), titles, fold).made())
