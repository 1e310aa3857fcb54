"""Programs for devices that are not here: they are lowered, with the variants of their device in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import optim
from pjax.engines.edges import space
from pjax.experiments import models
from pjax.optim import solver as _solver
from pjax.rules import max as max_rule


@pytest.mark.parametrize(
    "solver",
    # A warning from a program would be for one platform.
    [optim.AlternatingProjections(), optim.DouglasRachford(check=False), optim.ExtrapolatedProjections()],
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


@pytest.mark.parametrize(
    "solver",
    [optim.AlternatingProjections(steps_per_update=4), optim.DouglasRachford(steps_per_update=4)],
    ids=lambda solver: solver.name,
)
def test_maxima_over_space_lie_as_they_come_where_the_compiler_chooses(solver, monkeypatch):
    model = models.make("cnn", (5, 7, 1), (3, 3), 2)
    x, y = jax.random.normal(jax.random.key(1), (4, 5, 7, 1)), jnp.array([0, 1, 1, 0])
    params = model.init(jax.random.key(0))

    def update():
        monkeypatch.setattr(_solver, "_PROGRAMS", type(_solver._PROGRAMS)())

        def fresh(params):
            return solver.update(
                lambda p: pjax.cross_entropy(model.apply(p, x), y), params, solver.init(params)
            )[0]

        return jax.jit(fresh)(params), jax.jit(fresh).lower(params).as_text()

    wanted, _ = update()
    monkeypatch.setattr(space, "chooses_orders", lambda: True)
    monkeypatch.setattr(max_rule, "on_one_device", lambda *args, default, **_: default(*args))
    found, text = update()
    loops = [line for line in text.splitlines() if "stablehlo.while" in line]
    assert loops
    assert not any("4x3x35xf32" in line for line in loops)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, wanted)
