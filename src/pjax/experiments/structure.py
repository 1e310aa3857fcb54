"""What depends on the shapes of a run's network alone, and needs no data.

Groups of samples send each other a sum over all of them, of every parameter, for each exchange. Sums go
around a ring, in which every device sends 2 (n - 1) / n times its message. A test holds this against compiled
programs.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp

from pjax import nn
from pjax.errors import InputError
from pjax.experiments import config as configuration
from pjax.experiments import data, methods, models, own_data, own_model
from pjax.experiments.config import Config
from pjax.experiments.results import Run
from pjax.optim import Solver


def example(config: Config) -> tuple[Callable[[Any], Any], dict[str, Any], Solver]:
    """The function that a run projects, the shapes of its parameters, and its method.

    >>> fn, params, solver = example(Config(data="digits", widths=(16,), method="ap"))
    >>> {name: leaf.shape for name, leaf in params.items()}
    {'hidden.0.weight': (64, 16), 'out.weight': (16, 10), 'relu.0.bias': (16,)}
    """
    method = config.made_method()
    if not isinstance(method, methods.Projections):
        raise InputError(f"only projection methods have a graph of constraints, got {config.method}")
    model, x, y = _network(config)
    return method.loss(model, x, y), jax.eval_shape(model.init, jax.random.key(0)), method.solver


def message(config: Config) -> int:
    """Bytes that a device gives to one exchange: four for each parameter.

    >>> message(Config(data="digits", widths=(16,), method="adam")) == 4 * (64 * 16 + 16 + 16 * 10)
    True
    """
    model, _, _ = _network(config)
    return 4 * sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def exchanges(config: Config) -> Fraction:
    """How often groups exchange their parameters, or what is to be done to them, on one batch.

    >>> exchanges(Config(method="ap:steps=10:groups=8:sync_every=5")), exchanges(Config(method="adam"))
    (Fraction(2, 1), Fraction(1, 1))
    >>> exchanges(Config(method="adam:groups=8:sync_every=100"))
    Fraction(1, 100)
    """
    return Fraction(config.steps_per_batch, methods.split(config.method)[1].get("sync_every", 1))


def sent(run: Run) -> tuple[Fraction, float]:
    """Exchanges of a run on one batch, and bytes that each device sends; every group has one of its own."""
    config = configuration.read(run.folder / "config.json", run.config)
    groups, often = methods.split(config.method)[1].get("groups", 1), exchanges(config)
    return often, 2 * (groups - 1) / groups * message(config) * float(often)


def _network(config: Config) -> tuple[nn.Module, jax.Array, jax.Array]:
    """The network of a method that projects or backpropagates, and a batch of zeros."""
    if own_data.is_own(config.data) or own_model.is_own(config.model):
        raise InputError(
            "this is for data and models that have a name; for your own: pjax.draw, pjax.summary"
        )
    x, y, classes = data.made_up(config.data, config.batch_size, config.sequence_length or 1)
    shape = (math.prod(x.shape[1:]),) if config.model == "mlp" else x.shape[1:]
    model = models.make(config.model, shape, config.widths, classes, skip=config.skip, levels=config.levels)
    return model, jnp.asarray(x.reshape(len(x), *shape)), jnp.asarray(y)
