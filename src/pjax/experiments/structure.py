"""The network of a run, and a batch of zeros: for what depends on shapes alone, and needs no data."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pjax import nn
from pjax.errors import InputError
from pjax.experiments import data, methods, models
from pjax.experiments.config import Config
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


def parameters(config: Config) -> int:
    """How many numbers a run trains."""
    model, _, _ = _network(config)
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


def _network(config: Config) -> tuple[nn.Module, jax.Array, jax.Array]:
    """The network of a method that projects or backpropagates, and a batch."""
    x, y, classes = data.made_up(config.data, config.batch_size, config.sequence_length or 1)
    shape = (math.prod(x.shape[1:]),) if config.model == "mlp" else x.shape[1:]
    model = models.make(config.model, shape, config.widths, classes, skip=config.skip, levels=config.levels)
    return model, jnp.asarray(x.reshape(len(x), *shape)), jnp.asarray(y)
