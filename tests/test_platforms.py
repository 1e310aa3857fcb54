"""Programs for devices that are not here: they are lowered, with the variants of their device in them."""

import jax
import jax.numpy as jnp
import pytest

import pjax
from pjax import optim
from pjax.experiments import models


@pytest.mark.parametrize(
    "solver",
    [optim.AlternatingProjections(), optim.DouglasRachford(), optim.ExtrapolatedProjections()],
    ids=lambda solver: solver.name,
)
def test_programs_are_lowered_for_every_platform(solver):
    model = models.make("cnn", (6, 6, 1), (2, 2), 3)
    x, y = jnp.ones((2, 6, 6, 1)), jnp.array([0, 2])

    @jax.jit
    def update(params):
        return solver.update(lambda p: pjax.cross_entropy(model.apply(p, x), y), params, solver.init(params))

    traced = update.trace(model.init(jax.random.key(0)))
    text = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "cuda", "tpu")}
    if solver.name != "EP":  # whose targets only ask
        assert "LayoutConstraint" in text["cuda"]
    barriers = {name: program.count("optimization_barrier") for name, program in text.items()}
    assert barriers["cuda"] > barriers["tpu"]  # where kernels end
    assert barriers["cpu"] <= barriers["tpu"]
