"""Where the time of a step goes."""

import jax
import jax.numpy as jnp
import pytest

import pjax
from pjax import optim
from pjax.experiments import models

pytestmark = pytest.mark.usefixtures("quick_compilation")

MODEL = models.MLP(12, [8], 3)
PARAMS = MODEL.init(jax.random.key(0))


def loss(params):
    x = jax.random.normal(jax.random.key(1), (16, 12))
    return pjax.cross_entropy(MODEL.apply(params, x), jnp.arange(16) % 3)


@pytest.mark.parametrize(
    "solver",
    [
        optim.DouglasRachford(),
        optim.ExtrapolatedProjections(),
    ],
    ids=["DR", "EP"],
)
def test_every_node_is_measured(solver):
    found = pjax.profile(loss, PARAMS, solver, repeats=1)
    assert sum(node.share for node in found.nodes) == pytest.approx(1)
    assert [n.milliseconds for n in found.nodes] == sorted(
        (n.milliseconds for n in found.nodes), reverse=True
    )
    assert {"dot", "sum_relu", "cross_entropy"} == {node.op for node in found.nodes}
    assert all("test_profile.py" in node.line for node in found.nodes if node.op == "cross_entropy")
    dots = sum(node.operations for node in found.nodes if node.op == "dot")
    # Each layer needs a product back to its weights at least, and the last one another to what it reads.
    assert dots >= 2 * 16 * (12 * 8 + 2 * 8 * 3)
    assert found.milliseconds > 0
    assert found.roofline > 0
    lines = str(found).splitlines()
    assert len(lines) == 2 + len(found.nodes)
    assert lines[-1].startswith(f"{solver.name} on cpu:")


def test_larger_products_cost_more():
    def costs(width):
        w = jnp.ones((width, width))
        x, y = jnp.ones((8, width)), jnp.ones((8, width))
        found = pjax.profile(lambda p: pjax.squared_error(x @ p, y), w, repeats=1)
        return next(node.operations for node in found.nodes if node.op == "dot")

    assert 8 < costs(256) / costs(64) < 17


def test_repeats_are_checked():
    with pytest.raises(pjax.PjaxError, match="repeats must be a whole number"):
        pjax.profile(loss, PARAMS, repeats=0)
