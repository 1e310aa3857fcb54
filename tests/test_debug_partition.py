"""Why identity nodes are inserted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import debug, optim
from pjax.graph import read as _trace
from tests.graphs import GRAPHS, make

pytestmark = pytest.mark.usefixtures("quick_compilation")


def skip(p):
    h = jnp.ones((2, 3)) @ p["v"]
    h = h + jax.nn.relu(p["b"] - h)  # an odd cycle: h, the relu, the sum
    return pjax.squared_error(h, jnp.zeros((2, 3)))


PARAMS = {"v": jnp.ones((3, 3)), "b": jnp.ones(3)}


def test_the_cycle_is_named():
    found = debug.explain_partition(skip, PARAMS)
    (identity,) = found.identities
    assert len(identity.cycle) == 3
    assert {node.op for node in identity.cycle} == {"dot", "sum_relu", "sum"}
    assert identity.behind in identity.cycle
    assert any(reader in identity.cycle for reader in identity.readers)
    text = str(found)
    assert "an odd cycle of 3 nodes" in text
    assert f"and back to {identity.cycle[0].label}" in text
    assert text.count("test_debug_partition.py:") >= 4
    assert "pjax.identity" in text
    assert [len(nodes) for nodes in found.sets] == [sum(1 for _ in nodes) for nodes in found.sets]
    assert sum(node.op == "identity" for nodes in found.sets for node in nodes) == 1


def test_none_are_needed():
    fn, params = make("mlp", np.float32)
    found = debug.explain_partition(fn, params)
    assert found.identities == ()
    assert str(found).startswith("AP: 2 sets of ")
    assert str(found).endswith("No identity node was needed.")


@pytest.mark.parametrize("solver", [optim.CyclicProjections(), optim.ExtrapolatedProjections()])
def test_methods_with_more_sets_need_none(solver):
    found = debug.explain_partition(skip, PARAMS, solver)
    assert found.identities == ()
    assert len(found.sets) > 2


@pytest.mark.parametrize("name", GRAPHS)
def test_every_identity_breaks_a_real_odd_cycle(name):
    fn, params = make(name, np.float32)
    graph = _trace.build(_trace.read(fn, params))
    number = {node.name: node.index for node in graph.nodes}
    found = debug.explain_partition(fn, params)
    for identity in found.identities:
        nodes = [number[node.name] for node in identity.cycle]
        assert len(nodes) % 2 == 1
        assert len(set(nodes)) == len(nodes) >= 3
        for v, u in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
            assert u in graph.neighbours[v]
        assert identity.behind in identity.cycle
        assert set(identity.readers) & set(identity.cycle)
    inserted = sum(node.name.endswith(".identity") for nodes in found.sets for node in nodes)
    assert len(found.identities) == inserted


def test_identities_of_the_user_are_not_explained():
    def fn(p):
        return pjax.squared_error(pjax.identity(p), jnp.zeros(2))

    assert debug.explain_partition(fn, jnp.ones(2)).identities == ()
