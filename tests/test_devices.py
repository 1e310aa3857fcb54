"""A batch in parts, one after the other or over devices; layers and time over devices; other devices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import pjax
from pjax import devices as _devices
from pjax import optim
from pjax.engines.edges import space
from pjax.errors import InputError
from pjax.experiments import models
from pjax.optim import solver as _solver
from pjax.rules import max as max_rule

# --- A batch in parts: the same result ---

KEY = jax.random.key(0)
X, Y = jax.random.normal(KEY, (12, 6)), jnp.arange(12) % 3
MODEL = models.MLP(6, [5, 5], 3)
PARAMS = MODEL.init(KEY)


def loss(params, batch):
    x, y = batch
    return pjax.cross_entropy(MODEL.apply(params, x), y)


def after(solver, params=PARAMS, batch=(X, Y), fn=loss):
    state = solver.init(params)
    for _ in range(2):
        params, state, value = solver.update(fn, params, state, batch=batch)
    return params, value


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "method",
    [
        optim.AlternatingProjections(steps_per_update=7),
        optim.Outer(optim.AlternatingProjections(steps_per_update=7, consensus="exact"), optax.sgd(0.5)),
    ],
)
def test_parts_are_exact_for_alternating_projections(method):
    params = jax.tree.map(lambda x: x.astype(jnp.float64), PARAMS)
    batch = X.astype(jnp.float64), Y
    whole, value = after(method, params, batch)
    found, mean = after(optim.Accumulated(method, 3), params, batch)
    np.testing.assert_allclose(mean, value, rtol=1e-12)
    for key in params:
        assert float(jnp.abs(whole[key] - params[key]).max()) > 1e-4
        np.testing.assert_allclose(found[key], whole[key], atol=1e-12, err_msg=key)


def test_parts_of_extrapolated_projections():
    method = optim.ExtrapolatedProjections(outer=optax.sgd(1.0))
    whole, _ = after(method)
    found, _ = after(optim.Accumulated(method, 3))
    for key in PARAMS:  # each part has its own typical lengths, and the damping depends on them
        np.testing.assert_allclose(found[key], whole[key], atol=0.02 * float(jnp.abs(whole[key]).max()))


@pytest.mark.parametrize(
    "method",
    [
        optim.DouglasRachford(steps_per_update=4),
        optim.AlternatingProjections(steps_per_update=3, extrapolate="tensor"),
    ],
)
def test_parts_of_other_methods_average_what_each_does_alone(method):
    solver = optim.Accumulated(optim.Outer(method, optax.sgd(1.0)), 2)
    found, state, loss_ = solver.update(loss, PARAMS, solver.init(PARAMS), batch=(X, Y))
    alone = optim.Outer(method, optax.sgd(1.0))
    parts = [
        alone.update(loss, PARAMS, alone.init(PARAMS), batch=(X[k : k + 6], Y[k : k + 6])) for k in (0, 6)
    ]
    assert loss_ == pytest.approx(np.mean([part[2] for part in parts]), rel=1e-6)
    assert state.neglected == max(part[1].neglected for part in parts)
    for key in PARAMS:
        np.testing.assert_allclose(found[key], (parts[0][0][key] + parts[1][0][key]) / 2, atol=1e-6)


def test_a_batch_as_an_argument_is_the_same_as_in_a_closure():
    solver = optim.DouglasRachford(steps_per_update=5)
    given, value = solver.update(loss, PARAMS, batch=(X, Y))
    closed, same = solver.update(lambda p: loss(p, (X, Y)), PARAMS)
    assert value == same
    jax.tree.map(np.testing.assert_array_equal, given, closed)


def test_less_memory():
    model = models.MLP(64, [256, 256], 10)
    params = model.init(KEY)
    batch = jnp.ones((2048, 64)), jnp.zeros(2048, int)

    def bytes_of(parts):
        solver = optim.Accumulated(optim.AlternatingProjections(steps_per_update=3), parts)
        update = jax.jit(
            lambda p, b: solver.update(
                lambda p, b: pjax.cross_entropy(model.apply(p, b[0]), b[1]), p, batch=b
            )
        )
        return update.lower(params, batch).compile().memory_analysis().temp_size_in_bytes

    assert bytes_of(8) < 0.7 * bytes_of(1)


def test_errors():
    method = optim.AlternatingProjections()
    solver = optim.Accumulated(method, 5)
    with pytest.raises(pjax.PjaxError, match="12 samples cannot be divided into 5 equal parts"):
        solver.update(loss, PARAMS, batch=(X, Y))
    with pytest.raises(pjax.PjaxError, match="Accumulated and Groups need it as an argument"):
        solver.update(lambda p: loss(p, (X, Y)), PARAMS)
    with pytest.raises(pjax.PjaxError, match="agree in the length of their first axis"):
        solver.update(loss, PARAMS, batch=(X, Y[:3]))
    for empty in ((), (X[:0], Y[:0])):
        with pytest.raises(pjax.PjaxError, match="the batch is empty"):
            solver.update(loss, PARAMS, batch=empty)
    with pytest.raises(pjax.PjaxError, match="parts must be a whole number"):
        optim.Accumulated(method, 0)

    def shared(params, batch):
        return pjax.squared_error(batch[0] @ pjax.quantize(params, 4), jnp.ones((len(batch[0]), 2)))

    with pytest.raises(pjax.PjaxError, match=r"'quantize_.*does not depend on the batch"):
        optim.Accumulated(method, 3).update(shared, jnp.ones((6, 2)), batch=(X, Y))
    optimizer = optim.Accumulated(optim.ExtrapolatedProjections(), 3)  # adds up what is asked, so it may
    optimizer.update(shared, jnp.ones((6, 2)), optimizer.init(jnp.ones((6, 2))), batch=(X, Y))


def test_a_batch_that_is_not_divided_may_hold_anything():
    """A key for dropout, or the edges of a graph, have no axis of samples."""

    def noisy(params, batch):
        x, y, key = batch
        return loss(params, (x + jax.random.normal(key, x.shape), y))

    batch = (X, Y, jax.random.key(0))
    together, _ = optim.AlternatingProjections().update(noisy, PARAMS, batch=batch)
    captured, _ = optim.AlternatingProjections().update(lambda p: noisy(p, batch), PARAMS)
    jax.tree.map(np.testing.assert_array_equal, together, captured)


# --- Over several devices ---

# --- A batch, layers or time over several devices, and groups of samples that work apart ---

ONE = jax.make_mesh((1,), ("layers",), axis_types=(AxisType.Auto,))


@pytest.fixture(scope="module")
def report(said_by):
    """What `sharded.py` says in a process with four CPU devices."""
    return said_by("tests.sharded", 4)


def test_several_devices_do_what_one_does(report):
    for name, found in report["cases"].items():
        assert found["off"] < 2e-6 * max(found["moved"], 1), name
        assert found["moved"] > 1e-2, name


def test_nothing_but_messages_to_parameters_crosses(report):
    # For every parameter one sum of messages, three numbers for each of its columns, and the loss; in bytes.
    for name, found in report["cases"].items():
        assert set(found["sent"]) == {"all-reduce"}, name
        assert found["sent"]["all-reduce"] <= 4 * (2 * found["parameters"] + 64), name


def test_layers_and_time_steps_live_on_different_devices(report):
    for name, found in report["layers"].items():
        assert found["off"] < 2e-6 * max(found["moved"], 1), name
        assert set(found["sent"]) == {"all-reduce", "collective-permute"}, name


def test_what_neighbours_exchange_does_not_grow_with_depth(report):
    # A border is 16 samples of 8 units; several wires cross it.
    sent = [report["layers"][name]["sent"] for name in ("layers", "deeper")]
    assert sent[0]["collective-permute"] == sent[1]["collective-permute"] <= 4 * 20 * (16 * 8)  # bytes


def test_a_group_on_a_device_sends_its_parameters_when_groups_exchange_and_else_only_the_loss(report):
    for name, found in report["trained"].items():
        assert found.get("off", 0) < 2e-6, name
        assert found.get("moved", 1) > 1e-2, name
        losses = 4 * found["batches"]
        if found["per batch"] < 1:  # not on every batch: a branch
            assert found["always"] == losses, name
            assert found["sometimes"] == found["message"] * found["batches"], name
        else:
            assert found["always"] == found["message"] * found["per batch"] * found["batches"] + losses, name


def test_explicit_axes_are_refused_with_advice(report):
    assert "AxisType.Auto" in report["explicit"]


@pytest.mark.parametrize("method", [optim.AlternatingProjections(), optim.ExtrapolatedProjections()])
def test_inside_shard_map(method):
    fn, params, batch = problem()
    state, (here, there) = method.init(params), (PartitionSpec(), PartitionSpec("batch"))

    def found(fn, check_vma=False):
        def update(params, batch):
            return method.update(fn, params, state, batch=batch)[0]

        mesh = jax.make_mesh((1,), ("batch",), axis_types=(AxisType.Auto,))
        specs = {"in_specs": (here, there), "out_specs": there if check_vma else here}
        return jax.shard_map(update, mesh=mesh, check_vma=check_vma, **specs)(params, batch)

    for mine, other in zip(
        *map(jax.tree.leaves, (found(fn), method.update(fn, params, state, batch=batch)[0])), strict=True
    ):
        np.testing.assert_allclose(mine, other, rtol=1e-6)
    with pytest.raises(InputError, match="check_vma=False"):
        found(fn, check_vma=True)
    with pytest.raises(pjax.GraphError, match="exchanges values between devices"):
        found(lambda p, batch: jax.lax.pmean(fn(p, batch).mean(), "batch"))


def problem():
    params = {"w": 0.5 * jax.random.normal(jax.random.key(0), (3, 4)), "v": jnp.ones((4, 2))}
    x = jax.random.normal(jax.random.key(1), (8, 3))
    y = jax.random.normal(jax.random.key(2), (8, 2))

    def fn(p, batch):
        return pjax.squared_error(jax.nn.relu(batch[0] @ p["w"]) @ p["v"], batch[1])

    return fn, params, (x, y)


@pytest.mark.parametrize("solver", [optim.AlternatingProjections, optim.DouglasRachford])
def test_groups_average_what_each_does_alone(solver):
    fn, params, (x, y) = problem()
    alone = solver(steps_per_update=6)
    found, loss = optim.Groups(alone, 2, sync_every=6).update(fn, params, batch=(x, y))
    parts = [alone.update(fn, params, batch=(x[k : k + 4], y[k : k + 4])) for k in (0, 4)]
    assert loss == pytest.approx(np.mean([part[1] for part in parts]), rel=1e-6)
    close(found, jax.tree.map(lambda a, b: (a + b) / 2, parts[0][0], parts[1][0]))


def test_groups_that_exchange_in_every_step_are_the_whole_batch():
    fn, params, batch = problem()
    method = optim.AlternatingProjections(steps_per_update=6)
    whole, _ = method.update(fn, params, batch=batch)
    found = {n: optim.Groups(method, 4, sync_every=n).update(fn, params, batch=batch)[0] for n in (1, 3)}
    close(found[1], whole)
    with pytest.raises(AssertionError):
        close(found[3], whole)


@pytest.mark.parametrize("solver", [optim.AlternatingProjections, optim.DouglasRachford])
def test_groups_go_on_from_their_exchanges_whatever_edges_are_kept_as(solver):
    fn, params, batch = problem()
    found = [
        optim.Groups(solver(steps_per_update=6, edges=edges), 2, sync_every=2).update(
            fn, params, batch=batch
        )[0]
        for edges in ("implicit", "explicit")
    ]
    close(*found)


def close(found, right):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_groups_that_exchange_with_an_outer_optimiser_hand_it_the_whole_move():
    optax = pytest.importorskip("optax")
    fn, params, batch = problem()
    groups = optim.Groups(optim.AlternatingProjections(steps_per_update=4), 2, sync_every=2)
    plain, _ = groups.update(fn, params, batch=batch)
    solver = optim.Outer(groups, optax.sgd(0.5))
    halfway, _, _ = solver.update(fn, params, solver.init(params), batch=batch)
    for a, b, start in zip(*map(jax.tree.leaves, (halfway, plain, params)), strict=True):
        np.testing.assert_allclose(a - start, (b - start) / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stack": "layers"}, "stack must be True, False or"),
        ({"stack": NamedSharding(ONE, PartitionSpec(None))}, "along one axis"),
        ({"stack": NamedSharding(ONE, PartitionSpec(None, "layers"))}, "along one axis"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(InputError, match=words):
        optim.AlternatingProjections(**options)


def test_bad_groups():
    method = optim.AlternatingProjections(steps_per_update=4)
    with pytest.raises(InputError, match="groups must be a whole number"):
        optim.Groups(method, 0)
    with pytest.raises(InputError, match="sync_every must divide steps_per_update=4, got 3"):
        optim.Groups(method, 2, sync_every=3)
    with pytest.raises(InputError, match="take one of Groups and Accumulated"):
        optim.Accumulated(optim.Groups(method, 2), 2)
    with pytest.raises(InputError, match="sync_every must be 1, got 2"):
        optim.Groups(optim.ExtrapolatedProjections(steps_per_update=4), 2, sync_every=2)


def test_groups_need_the_batch_as_an_argument_and_jax_numpy():
    fn, params, batch = problem()
    solver = optim.Groups(optim.AlternatingProjections(), 2)
    with pytest.raises(InputError, match="batch="):
        solver.update(lambda p: fn(p, batch), params)
    with pytest.raises(InputError, match="cannot be divided into 3"):
        optim.Groups(optim.AlternatingProjections(), 3).update(fn, params, batch=batch)
    with pytest.raises(InputError, match=r"jax\.numpy"):
        solver.update(lambda p, b: fn(p, (np.asarray(b[0]) * 2, b[1])), params, batch=batch)


# --- Programs for devices that are not here: they are lowered, with the variants of their device in them ---


@pytest.mark.parametrize(
    "solver",
    # A warning from a program would be for one platform.
    [optim.AlternatingProjections(), optim.DouglasRachford(check=False), optim.ExtrapolatedProjections()],
    ids=lambda solver: solver.name,
)
@pytest.mark.usefixtures("kernels")
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


def test_programs_are_traced_for_one_platform_where_all_devices_are_cpus(monkeypatch):
    def found():
        return str(jax.make_jaxpr(lambda x: _devices.end_kernel(x.sum(-1)))(jnp.ones((3, 4))))

    assert "platform_index" not in found()
    monkeypatch.setattr(_devices, "ANYWHERE", True)
    assert "platform_index" in found()


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
