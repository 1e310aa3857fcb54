"""The values of stacked graphs are those of the graphs they were made of, by programs that do not grow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import optim
from pjax.experiments import models
from pjax.graph import read as tracing
from pjax.optim.solver import Program


def program(fn, params):
    return Program(optim.AlternatingProjections(), tracing.read(fn, params))


def values_agree(fn, params):
    """Compare all values, and return the stacked graph and the number of equations of its evaluation."""
    traced = tracing.read(fn, params)
    graph = Program(optim.AlternatingProjections(), traced).partition.graph
    leaves = jax.tree.leaves(params)
    _, found = graph.evaluator(traced.constants, leaves)
    _, right = graph.original.evaluator(traced.constants, leaves)
    for v, (unit, axis) in enumerate(zip(graph.members, graph.axes, strict=True)):
        wanted = right[unit[0]] if len(unit) == 1 else jnp.stack([right[m] for m in unit], axis)
        np.testing.assert_allclose(found[v], wanted, rtol=2e-5, atol=2e-5, err_msg=graph.nodes[v].name)
    jaxpr = jax.make_jaxpr(lambda xs: graph.evaluator(traced.constants, xs)[1])(leaves)
    return graph, [eqn.primitive.name for eqn in jaxpr.jaxpr.eqns]


def deep(depth, width=5, head=0, tail=0):
    keys = jax.random.split(jax.random.key(0), depth + 2)
    params = {
        "in": jax.random.normal(keys[0], (3, width)),
        "hidden": [0.5 * jax.random.normal(key, (width, width)) for key in keys[1:-1]],
        "out": jax.random.normal(keys[-1], (width, 2)),
    }
    x = jax.random.normal(jax.random.key(1), (4, 3))

    def fn(p):
        h = jax.nn.relu(x @ p["in"])
        for i, w in enumerate(p["hidden"]):
            z = h @ w
            h = jax.nn.relu(z) if head <= i < depth - tail else jnp.maximum(z, 0.5)
        return pjax.squared_error(h @ p["out"], jnp.zeros((4, 2)))

    return fn, params


def recurrent(steps, back=1):
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "in": jax.random.normal(keys[0], (2, 5)),
        "state": 0.5 * jax.random.normal(keys[1], (5, 5)),
        "out": jax.random.normal(keys[2], (5, 2)),
    }
    x = jax.random.normal(jax.random.key(1), (4, steps, 2))

    def fn(p):
        states, losses = [jnp.ones((4, 5))] * back, []
        for t in range(steps):
            states.append(jax.nn.relu(x[:, t] @ p["in"] + states[-back] @ p["state"]))
            losses.append(pjax.squared_error(states[-1] @ p["out"], x[:, t]))
        return jnp.stack(losses)

    return fn, params


@pytest.mark.parametrize("make", [deep, recurrent])
def test_the_program_does_not_grow(make):
    _, short = values_agree(*make(8))
    _, long = values_agree(*make(24))
    assert short.count("scan") == long.count("scan") == 1
    work = [
        [name for name in names if name in ("dot_general", "max", "custom_jvp_call")]
        for names in (short, long)
    ]
    assert len(work[0]) == len(work[1]) < 12


@pytest.mark.parametrize(("head", "tail"), [(2, 0), (0, 2), (2, 3)])
def test_steps_that_differ_are_evaluated_alone(head, tail):
    _, names = values_agree(*deep(12, head=head, tail=tail))
    assert names.count("scan") == 1


def test_what_reads_further_back_is_evaluated_step_by_step():
    _, names = values_agree(*recurrent(10, back=3))
    assert "scan" not in names


def test_the_tail_may_read_what_lies_far_back():
    _, params = deep(10)
    x = jax.random.normal(jax.random.key(1), (4, 3))

    def wired(p):
        hs = [jax.nn.relu(x @ p["in"])]
        for w in p["hidden"]:
            hs.append(jax.nn.relu(hs[-1] @ w))
        last = jax.nn.relu(hs[-1] @ p["hidden"][0] + hs[4])
        return pjax.squared_error(last @ p["out"], jnp.zeros((4, 2)))

    values_agree(wired, params)


def test_layers_that_read_the_same_constant_and_different_ones():
    keys = jax.random.split(jax.random.key(0), 9)
    params = [0.5 * jax.random.normal(key, (4, 4)) for key in keys]
    offsets = jax.random.normal(jax.random.key(2), (9, 4))
    x = jax.random.normal(jax.random.key(1), (3, 4))

    def fn(p):
        h = x
        for i, w in enumerate(p):
            h = jax.nn.relu(h @ w + offsets[i] + x)
        return pjax.squared_error(h, x)

    values_agree(fn, params)


@pytest.mark.parametrize("solver", [optim.AlternatingProjections, optim.DouglasRachford])
def test_updates_are_those_without_stacks(solver):
    fn, params = deep(8, head=1, tail=1)
    one, two = (solver(steps_per_update=5, stack=stack).update(fn, params)[0] for stack in (True, False))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_what_steps_take_from_constants_is_taken_at_once():
    def operations(length):
        model = models.make("rnn", (length,), (4,), 5)
        x = jnp.arange(2 * length).reshape(2, length) % 5
        params, solver = model.init(jax.random.key(0)), optim.AlternatingProjections(steps_per_update=2)

        def update(params, x):
            return solver.update(
                lambda p: pjax.cross_entropy(model.apply(p, x), (x + 1) % 5), params, solver.init(params)
            )

        return jax.jit(update).lower(params, x).as_text().count("stablehlo.slice")

    assert operations(6) == operations(12)
