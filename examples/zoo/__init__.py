"""Well-known models, small, as people write them in Flax, Equinox and JAX: nothing in them knows of pjax.

`MODELS` has all of them, by name. `python -m benchmarks zoo` trains each by projections and by gradients.
"""

from examples.zoo import (
    basics,
    convolutional,
    fields,
    generative,
    graphs,
    implicit,
    recurrent,
    reinforcement,
    residual,
    transformers,
)
from examples.zoo.registry import MODELS, Model

__all__ = [
    "MODELS",
    "Model",
    "basics",
    "convolutional",
    "fields",
    "generative",
    "graphs",
    "implicit",
    "recurrent",
    "reinforcement",
    "residual",
    "transformers",
]
