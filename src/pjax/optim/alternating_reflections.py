"""Alternating reflections."""

import dataclasses
from typing import ClassVar

from pjax.errors import InputError
from pjax.optim.douglas_rachford import DouglasRachford


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlternatingReflections(DouglasRachford):
    """Reflects in one set after the other: z ← R₂(R₁(z)), with R = 2P − 1 (Peaceman, Rachford, 1955).

    Faster than Douglas-Rachford where it converges, which convexity alone does not ensure. Nothing in its
    state fades, so it stores the edges.
    """

    name: ClassVar[str] = "AR"

    relaxation: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relaxation != 1:
            raise InputError("alternating reflections are not relaxed; use DouglasRachford(relaxation=…)")
