"""What a model of the zoo is, and the list of all."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

Loss = Callable[[Any, Any], Any]
Make = Callable[[jax.Array], tuple[Any, Loss, list[Any]]]


@dataclasses.dataclass(frozen=True)
class Model:
    """A model, how to make it, and what to expect of it."""

    name: str
    library: str
    make: Make
    """From a key to parameters, a scalar function of parameters and a batch, and a few batches."""
    has_aux: bool = False
    """Whether the function returns (loss, auxiliary values), as with `jax.value_and_grad(has_aux=True)`."""
    learning_rate: float = 1e-2
    cosine: float = 0.999
    """At least so large is the cosine between the first move and the downhill direction."""
    reason: str = ""
    """Why that cosine is lower than of a smooth model."""


MODELS: dict[str, Model] = {}
"""All models, by name."""


def model(name: str, library: str, **options: Any) -> Callable[[Make], Make]:
    """Enter what the decorated function makes into the list of models."""

    def enter(make: Make) -> Make:
        if name in MODELS:
            raise ValueError(f"there are two models named {name!r}")
        MODELS[name] = Model(name, library, make, **options)
        return make

    return enter
