"""The tools of `pjax.debug`: what they find, what they show, and what they leave alone."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pjax
from pjax import debug, nn, optim
from pjax.debug._recompile import _compilations
from pjax.graph import read as _trace
from pjax.rules import Dot
from pjax.rules.contraction import Contraction
from tests import oracle
from tests.graphs import GRAPHS, make

pytestmark = pytest.mark.usefixtures("quick_compilation")


# --- Where the first value that is not finite comes from ---

AP = optim.AlternatingProjections(steps_per_update=3)
X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
Y = np.arange(4) % 2
PARAMS = {"w": jnp.ones((3, 5)), "v": jnp.ones((5, 2))}


def network(p, x=X):
    h = jax.nn.relu(x @ p["w"])
    return pjax.cross_entropy(h @ p["v"], Y)


def line_of(text):
    """Where a piece of this file stands."""
    with open(__file__) as file:
        (number,) = (i for i, line in enumerate(file, 1) if text in line and "line_of" not in line)
    return f"{__file__}:{number}"


SOLVERS = [AP, optim.DouglasRachford(steps_per_update=3), optim.ExtrapolatedProjections(steps_per_update=3)]


@pytest.mark.parametrize("solver", SOLVERS[::2], ids=lambda s: s.name)
def test_nothing_to_find(solver):
    found = debug.locate_nan(network, PARAMS, solver)
    assert not found.found
    assert found.step is None
    assert found.steps == 3
    assert str(found) == (f"no NaN and no infinity: neither in the function, nor in 3 steps of {solver.name}")


def test_a_parameter():
    bad = PARAMS["v"].at[1, 1].set(jnp.nan).at[0, 0].set(-jnp.inf)
    found = debug.locate_nan(network, PARAMS | {"v": bad}, AP)
    assert found.found
    assert found.step == 0
    assert found.node is None
    assert str(found.output) == "parameter 'v' [5, 2]: 1 NaN and 1 infinite of 10, between 1 and 1"
    assert "Restart from parameters that are finite" in str(found)


def test_a_captured_array_of_complex_numbers():
    x = jnp.array([1 + 1j, complex(2, jnp.nan)])

    def fn(p):
        return (jnp.abs(jnp.fft.fft(p) * x) ** 2).sum()

    with pytest.raises(pjax.InputError, match=r"captured array 0 .* has 1 of 2 values that are NaN"):
        AP.update(fn, jnp.ones(2))
    found = debug.locate_nan(fn, jnp.ones(2), AP)
    assert found.where.startswith("a captured array")
    assert (found.output.nan, found.output.low, found.output.high) == (1, 1.0, 1.0)


def test_a_captured_array():
    x = X.copy()
    x[2, 1] = np.nan

    def fn(p):
        return pjax.squared_error(x @ p["w"], jnp.zeros((4, 5)))  # reads a NaN

    found = debug.locate_nan(fn, PARAMS, AP)
    assert found.step == 0
    assert found.where == "a captured array, which dot(w) reads"
    assert found.output.nan == 1
    assert found.line == line_of("# reads a NaN")
    assert "Clean the batch" in str(found)


def test_an_equation_that_does_not_depend_on_parameters():
    x = X.copy()
    x[:, 1] = 2.0

    def fn(p):
        centred = x - jnp.mean(x, 0)
        scaled = centred / jnp.std(x, 0)  # by zero
        return network(p, scaled)

    found = debug.locate_nan(fn, PARAMS, AP)
    assert found.where == "the equation 'div', which dot(w) reads"
    assert found.line == line_of("# by zero")
    assert [part.finite for part in found.inputs] == [True, True]
    assert found.inputs[1].low == 0
    assert found.output.nan == 4
    assert np.isnan(fn(PARAMS)).all()


def test_a_node():
    def fn(p):
        h = (X * 1e30) @ (p["w"] * 1e30)  # too large
        return pjax.cross_entropy(h @ p["v"], Y)

    found = debug.locate_nan(fn, PARAMS, AP)
    assert found.step == 0
    assert found.node.op == "dot"
    assert found.line == line_of("# too large")
    assert found.inputs[1].high == pytest.approx(1e30)
    assert all(part.finite for part in found.inputs)
    assert found.output.infinite + found.output.nan > 0
    assert "too large" in str(found)


def test_what_is_done_to_the_losses():
    def fn(p):
        return network(p).sum() / jnp.zeros(())

    found = debug.locate_nan(fn, PARAMS, AP)
    assert "output 0 of the function, from losses that are finite" in str(found)


@pytest.mark.parametrize("solver", [s for s in SOLVERS if s.name != "EP"], ids=lambda s: s.name)
def test_a_projection(solver):
    """Values whose squares are too large: the function is finite, its projections are not."""
    x = X.copy()
    x[0, 0] = 1e25

    def fn(p):
        h = x @ p["w"]  # squares overflow
        return pjax.cross_entropy(h @ p["v"], Y)

    assert np.isfinite(fn(PARAMS)).all()
    found = debug.locate_nan(fn, PARAMS, solver)
    assert found.found
    assert found.step >= 1
    assert found.steps == found.step - 1
    assert found.node.op == "dot"
    assert max(part.high for part in found.inputs) > 1e24
    assert f"in step {found.step} of {solver.name}: the projection of dot" in str(found)
    assert "squared" in found.advice


def test_the_node_is_the_first_of_a_step():
    """Only one of two branches breaks: it is named, not what reads it."""
    big = jnp.full((4, 3), 1e25)

    def fn(p):
        good = X @ p["w"]
        bad = big @ p["w"]  # the branch that breaks
        return pjax.cross_entropy(good[:, :2], Y), pjax.cross_entropy(bad[:, :2], Y)

    found = debug.locate_nan(fn, {"w": PARAMS["w"]}, AP)
    assert found.line == line_of("# the branch that breaks")


def test_the_outer_optimiser():
    solver = optim.ExtrapolatedProjections(outer=optax.sgd(3e38), steps_per_update=2)
    found = debug.locate_nan(network, PARAMS | {"w": 100 * PARAMS["w"]}, solver, steps=4)
    assert found.step == 1
    assert found.where == "the outer optimiser, for the parameter 'v'"
    assert found.output.infinite == 10


def test_the_state_of_the_outer_optimiser_is_taken_up():
    solver = optim.ExtrapolatedProjections()
    state = solver.init(PARAMS)
    broken = state._replace(outer=jax.tree.map(lambda x: x * jnp.nan if x.ndim else x, state.outer))
    found = debug.locate_nan(network, PARAMS, solver, state=broken)
    assert found.step == 1
    assert found.where == "the outer optimiser, for the parameter 'v'"
    assert found.inputs[0].finite


def test_what_the_outer_optimiser_keeps():
    solver = optim.ExtrapolatedProjections(outer=optax.adam(0.1))
    found = debug.locate_nan(lambda p: (1e25 * p).sum(), jnp.ones(3), solver, steps=2)
    assert found.step == 1
    assert found.where == "the state of the outer optimiser, at [0].nu"
    assert found.output.infinite == 3
    assert found.inputs[0].finite
    plateau = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau())  # its state begins with infinity
    assert not debug.locate_nan(
        lambda p: (p**2).sum(), jnp.ones(3), optim.ExtrapolatedProjections(outer=plateau), steps=2
    ).found


def test_how_it_must_be_called():
    with pytest.raises(pjax.InputError, match="outside jit"):
        jax.jit(lambda p: debug.locate_nan(network, p, AP))(PARAMS)
    with pytest.raises(pjax.InputError, match="steps must be a whole number of at least 0, got -1"):
        debug.locate_nan(network, PARAMS, AP, steps=-1)


# --- Why identity nodes are inserted ---


def skip(p):
    h = jnp.ones((2, 3)) @ p["v"]
    h = h + jax.nn.relu(p["b"] - h)  # an odd cycle: h, the relu, the sum
    return pjax.squared_error(h, jnp.zeros((2, 3)))


PARTITION_PARAMS = {"v": jnp.ones((3, 3)), "b": jnp.ones(3)}


def test_the_cycle_is_named():
    found = debug.explain_partition(skip, PARTITION_PARAMS)
    (identity,) = found.identities
    assert len(identity.cycle) == 3
    assert {node.op for node in identity.cycle} == {"dot", "sum_relu", "sum"}
    assert identity.behind in identity.cycle
    assert any(reader in identity.cycle for reader in identity.readers)
    text = str(found)
    assert "an odd cycle of 3 nodes" in text
    assert f"and back to {identity.cycle[0].label}" in text
    assert text.count("test_debug.py:") >= 4
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
    found = debug.explain_partition(skip, PARTITION_PARAMS, solver)
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


# --- The progress meter: in Python, in compiled loops, in `solve`, and when it is off ---

A = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
PROGRESS_AP = optim.AlternatingProjections(constants="fixed", consensus="exact")


def equations(x):
    return pjax.squared_error(A @ x, jnp.ones(3))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def loop(meter, steps=20):
    def run(x):
        def step(k, x):
            x = 0.5 * x
            if meter is not None:
                meter(k + 1, x)
            return x

        return jax.lax.fori_loop(0, steps, step, x)

    return run


def test_in_a_compiled_loop():
    out = Terminal()
    with debug.progress(20, name="halve", stream=out) as meter:
        jax.jit(loop(meter))(1.0)
    assert meter.step == 20
    assert meter.value == pytest.approx(0.5**20)
    text = out.getvalue()
    assert text.endswith("\n")
    assert text.count("\n") == 1
    last = text.split("\r")[-1]
    assert last.startswith("halve  " + "█" * 24 + "  20/20  9.54e-07  ")
    assert "ms/step" in last


def test_in_a_scan_and_in_python():
    scanned, plain = (debug.progress(every=3, stream=io.StringIO()) for _ in range(2))
    jax.lax.scan(lambda x, k: (x, scanned(k, x)), 2.0, jnp.arange(1, 9))
    for k in range(1, 9):
        plain(k, 2.0)
    jax.effects_barrier()
    assert scanned.step == 6
    assert plain.step == 8  # in Python it costs nothing to be told
    assert scanned.value == plain.value == 2


@pytest.mark.parametrize(("every", "calls"), [(1, 20), (8, 4)])
def test_it_is_called_as_often_as_it_says(every, calls):
    """And after the first step, and the last, if the total is known."""
    meter = debug.progress(20, every=every, stream=io.StringIO())
    told, tell = [], meter._tell
    meter._tell = lambda step, value: (told.append(int(step)), tell(step, value))
    jax.jit(loop(meter))(1.0)
    jax.effects_barrier()
    assert len(told) == calls
    assert told[-1] == 20


def test_off_it_is_the_same_program():
    off = debug.progress(20, show=False)
    without, with_off = (jax.jit(loop(m)).lower(1.0).as_text() for m in (None, off))
    assert without == with_off
    with_on = jax.jit(loop(debug.progress(20))).lower(1.0).as_text()
    assert "callback" in with_on
    assert "callback" not in without
    with off:
        assert off.step == 0


def test_in_a_log_there_are_few_lines():
    out = io.StringIO()
    with debug.progress(1000, stream=out) as meter:
        for k in range(1, 1001):
            meter(k, 1.0)
    lines = out.getvalue().splitlines()
    assert 1 <= len(lines) <= 4
    assert "\r" not in out.getvalue()
    assert "1,000/1,000" in lines[-1]


def test_without_a_total():
    out = io.StringIO()
    with debug.progress(stream=out) as meter:
        meter(1, 0.25)
    assert out.getvalue().startswith("step 1  0.25  ")


def test_as_the_callback_of_solve():
    with debug.progress(30, stream=io.StringIO()) as meter:
        told, tell = [], meter._tell
        meter._tell = lambda step, value: (told.append(int(step)), tell(step, value))
        found = pjax.solve(equations, jnp.zeros(5), PROGRESS_AP, max_steps=35, tolerance=0.0, callback=meter)
    assert told == [10, 20, 30, 35]
    assert meter.step == 35
    assert meter.value == pytest.approx(float(found.violations[-1]))


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6, 7]), (10, [7])])
def test_solve_calls_every_few_steps_and_at_the_end(every, steps):
    seen = {}

    def callback(step, violation):
        seen[int(step)] = float(violation)

    found = pjax.solve(
        equations, jnp.zeros(5), PROGRESS_AP, max_steps=7, tolerance=0.0, callback=callback, every=every
    )
    jax.effects_barrier()
    assert sorted(seen) == steps
    for step, violation in seen.items():
        assert violation == pytest.approx(float(found.violations[step - 1]))


def test_another_callback_does_not_compile_again():
    seen = []
    with _compilations() as names:
        for number in range(3):
            found = pjax.solve(
                equations,
                jnp.zeros(5),
                PROGRESS_AP,
                max_steps=11,
                tolerance=0.0,
                callback=lambda step, _, number=number: seen.append((number, int(step))),
            )
            jax.block_until_ready(found)
            jax.effects_barrier()
    assert names.count("run") == 1
    assert sorted(seen) == [(number, step) for number in range(3) for step in range(1, 12)]


def test_a_solve_without_a_callback_has_none_in_its_program():
    def program(callback):
        run = lambda x: pjax.solve(equations, x, PROGRESS_AP, max_steps=7, callback=callback).params  # noqa: E731
        return jax.jit(run).lower(jnp.zeros(5)).as_text()

    assert "callback" not in program(None)
    assert "callback" in program(debug.progress())


def test_what_is_refused():
    with pytest.raises(pjax.InputError, match="total must be a whole number of at least 1, got 0"):
        debug.progress(0)
    with pytest.raises(pjax.InputError, match=r"every must be a whole number of at least 1, got 1\.5"):
        debug.progress(every=1.5)
    with pytest.raises(pjax.InputError, match="every must be a whole number of at least 1, got 0"):
        pjax.solve(equations, jnp.zeros(5), PROGRESS_AP, every=0)


# --- Why a function was compiled again ---


def explained(fn):
    texts = []
    return debug.explain_recompile(fn, report=texts.append), texts


def sums(*others):
    """A loss of any tree of parameters."""

    def fn(params):
        return pjax.squared_error(sum(map(jnp.sum, (*jax.tree.leaves(params), *others))), jnp.zeros(()))

    return fn


@pytest.mark.parametrize(
    ("second", "kind", "where"),
    [
        ({"w": jnp.ones(4)}, "shape", "params['w']"),
        ({"w": jnp.ones(3, jnp.float16)}, "type", "params['w']"),
        ({"w": 1.0 * jnp.ones(3), "b": jnp.ones(1)}, "structure", "params['b']"),
        ([jnp.ones(3)], "structure", "params['w']"),
    ],
)
def test_what_differs(second, kind, where):
    update, texts = explained(
        optim.AlternatingProjections(steps_per_update=6 + len(jax.tree.leaves(second))).update
    )
    for params in ({"w": jnp.ones(3)}, {"w": jnp.zeros(3)}, {"w": np.ones(3, np.float32)}, second):
        update(sums(), params)
    again = update.compilations[-1]
    assert (again.call, again.like) == (4, 1)
    assert (again.differences[0].where, again.differences[0].kind) == (where, kind)
    assert again.differences[0].advice in texts[-1]


def test_weak_types():
    update, texts = explained(optim.AlternatingProjections(steps_per_update=11).update)
    for rate in (jnp.asarray(0.3), jnp.asarray(0.2), jnp.float32(0.4), jnp.float32(0.5)):
        update(sums(rate), jnp.ones(2))
    assert len(texts) == 2
    (difference,) = update.compilations[1].differences
    assert str(difference) == "captured array 0: weak type float32 (weak) -> float32"
    assert "Python number" in difference.advice


def test_devices():
    update, texts = explained(optim.AlternatingProjections(steps_per_update=12).update)
    update(sums(), jnp.ones(2))
    update(sums(), jax.device_put(jnp.ones(2), jax.devices()[0]))
    assert len(texts) == 2
    assert update.compilations[1].differences[0].kind == "device"


RECOMPILE_X = np.ones((6, 3), np.float32)


def loss(x, scale=1.0, layers=1):
    def fn(params):
        h = x @ params
        for _ in range(layers):
            h = scale * h  # the number
        return pjax.squared_error(h, jnp.zeros_like(h))

    return fn


@pytest.mark.parametrize(
    ("steps", "second", "expected"),
    [
        (2, loss(RECOMPILE_X[:4]), "captured array 0: shape [6, 3] -> [4, 3]"),
        (3, loss(RECOMPILE_X, scale=2.0), f"'mul' at {line_of('# the number')}: number 1.0 -> 2.0"),
        (4, loss(RECOMPILE_X, layers=2), "the function: equation 'broadcast_in_dim' at "),
    ],
    ids=["shape", "number", "equation"],
)
def test_updates_without_jit(steps, second, expected):
    optimizer = optim.AlternatingProjections(steps_per_update=steps)
    update, texts = explained(optimizer.update)
    params = jnp.ones((3, 2))
    for fn in (loss(RECOMPILE_X), loss(RECOMPILE_X + 1), loss(2 * RECOMPILE_X), second, second):
        update(fn, params)
    assert len(texts) == 2
    assert update.compilations[1].call == 4
    assert expected in texts[1]
    assert "What to do:" in texts[1]


def test_a_first_call_that_was_compiled_before():
    optimizer = optim.AlternatingProjections(steps_per_update=5)
    optimizer.update(loss(RECOMPILE_X), jnp.ones((3, 2)))
    update, texts = explained(optimizer.update)
    update(loss(RECOMPILE_X), jnp.ones((3, 2)))
    assert texts == []
    update(loss(RECOMPILE_X), jnp.ones((3, 4)))
    assert "params: shape [3, 2] -> [3, 4]" in texts[0]


def test_an_array_instead_of_a_number_helps():
    """What the advice says is true."""
    update, texts = explained(optim.AlternatingProjections(steps_per_update=1).update)
    for scale in (0.5, 0.6, 0.7):
        update(loss(RECOMPILE_X, scale=jnp.asarray(scale)), jnp.ones((3, 2)))
    assert len(texts) == 1


def test_updates_with_a_batch_and_a_state():
    optimizer = optim.ExtrapolatedProjections()
    update, texts = explained(optimizer.update)
    params = jnp.ones((3, 2))
    state = optimizer.init(params)
    for size in (6, 6, 2):
        params, state, _ = update(lambda p, x: loss(x)(p), params, state, batch=RECOMPILE_X[:size])
    assert len(texts) == 2
    assert "batch: shape [6, 3] -> [2, 3]" in texts[1]


def test_what_is_printed(capsys):
    update = debug.explain_recompile(optim.AlternatingProjections(steps_per_update=13).update)
    update(sums(), jnp.ones(1))
    assert capsys.readouterr().out == "update: compiled in its first call\n"
    update(sums(), jnp.ones(2))
    assert "params: shape [1] -> [2]" in capsys.readouterr().out


@pytest.mark.parametrize("fn", [3, jax.jit(lambda x: x)])
def test_only_updates_can_be_wrapped(fn):
    with pytest.raises(pjax.InputError, match=r"such as optimizer\.update; got .*jax_explain_cache_misses"):
        debug.explain_recompile(fn)


# --- How much every constraint is violated: the numbers, what they show, and the picture ---


def expected(solver, fn, params, steps):
    """The definition, from the state of an engine that writes out every edge."""
    traced = _trace.read(fn, params)
    partition = solver.partition(_trace.build(traced))
    engine = oracle.Oracle(
        partition,
        traced.constants,
        jax.tree.leaves(params),
        consensus=solver.consensus,
        fixed_constants=solver.constants == "fixed",
        metric=solver.metric,
    )
    step, shadow = oracle.method(solver)
    z, found = engine.start(), []
    for _ in range(steps):
        z = step(engine, z)
        found.append([violation(engine, v, shadow(engine, z)) for v in range(len(partition.graph.nodes))])
    operations = [n.index for n in partition.graph.nodes if not n.is_parameter]
    return np.array(found)[:, operations]


def violation(engine, v, z):
    node = engine.graph.nodes[v]
    if node.is_parameter:
        return 0.0
    means = [engine.mean(u, z) for u in range(len(engine.graph.nodes))]
    agreed = engine.value.copy()
    for u, edges in enumerate(engine.leaving):
        agreed[edges] = means[u][engine.scalar[edges]]
    inputs = engine.inputs(v, agreed)
    if node.is_target:
        said, made = inputs[0].ravel(), np.ravel(node.rule.project(inputs[0], *engine.labels[v]))
    else:
        rule = Dot() if isinstance(node.rule, Contraction) else node.rule
        read = engine.count[v] > 0
        said, made = means[v][read], np.ravel(oracle._forward(rule, *inputs))[read]
    size = max(np.linalg.norm(said), np.linalg.norm(made))
    return np.linalg.norm(said - made) / size if size else 0.0


def mixed(p):
    """Products, a sum inside a relu, an odd cycle, and numbers that nobody reads."""
    x = jnp.asarray([[0.5, -1.0], [2.0, 0.3]])
    h = x @ p["w"]
    h = h + jax.nn.relu(p["b"] - h)
    return pjax.squared_error(h[:, :2] * p["s"][1:], jnp.ones((2, 2)), scale=1.0)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "solver",
    [
        optim.AlternatingProjections(consensus="exact"),
        optim.AlternatingProjections(metric="balanced", constants="fixed"),
        optim.CyclicProjections(),
        optim.DouglasRachford(),
    ],
    ids=lambda solver: solver.name,
)
def test_the_numbers_are_those_of_the_definition(solver):
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(2, 3)), "b": rng.normal(size=3), "s": rng.normal(size=3)}
    found = debug.violations(mixed, params, solver, steps=2)
    np.testing.assert_allclose(found.values, expected(solver, mixed, params, 2), rtol=1e-9, atol=1e-12)
    assert found.values.max() > 1e-3
    assert any(node.op == "identity" for node in found.nodes) == (solver.name != "CP")


def test_where_all_constraints_hold_in_the_end():
    solver = optim.AlternatingProjections(constants="fixed", consensus="exact")
    found = debug.violations(equations, jnp.zeros(5), solver, steps=400)
    assert found.values.shape == (400, 2)
    assert found.values[0].max() > 0.1
    assert found.values[-1].max() < 1e-4
    assert found.stuck == ()
    assert "none of 2 nodes is stuck" in str(found)


def test_where_they_cannot():
    def impossible(x):
        return pjax.squared_error(x * 1.0, jnp.zeros(2)), pjax.squared_error(x * 1.0, jnp.ones(2))

    found = debug.violations(impossible, jnp.zeros(2), optim.AlternatingProjections(), steps=60)
    assert len(found.stuck) == len(found.nodes) == 4
    assert "4 of 4 nodes stuck" in str(found)
    assert str(found).count("test_debug.py:") > 4


class Network(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.linear = [nn.Linear(6, 6) for _ in range(layers)]
        self.relu = [nn.ReLU(6) for _ in range(layers)]
        self.out = nn.Linear(6, 3)

    def __call__(self, x):
        for linear, relu in zip(self.linear, self.relu, strict=True):
            x = relu(linear(x))
        return self.out(x)


def test_a_dead_layer_is_seen():
    model = Network(2)
    params = model.init(jax.random.key(0))
    params["relu.0.bias"] = params["relu.0.bias"] - 100.0
    x = jax.random.normal(jax.random.key(1), (8, 6))

    def loss(p):
        return pjax.cross_entropy(model.apply(p, x), jnp.arange(8) % 3)

    found = debug.violations(loss, params, optim.AlternatingProjections(), steps=20)
    trend = {node.label: found.trend(i) for i, node in enumerate(found.nodes)}
    # Stacked or not, each layer is there under its own name.
    assert [label for label in trend if label.startswith("dot")] == [
        *(f"dot(linear.{i}.weight)" for i in range(2)),
        "dot(out.weight)",
    ]
    assert trend["dot(linear.0.weight)"] == "untouched"
    dead = next(i for i, node in enumerate(found.nodes) if node.label == "dot(linear.1.weight)")
    # What is asked for is all there is of it: the layer has nothing to make it from.
    assert found.values[:, dead].max() > 0.5
    assert all("test_debug.py" in node.line for node in found.nodes)


@pytest.mark.parametrize(
    ("column", "trend"),
    [
        ([0, 1e-7, 1e-8, 0], "untouched"),
        ([0.5, 0.1, 1e-5, 1e-7], "holds"),
        ([0.5, 0.4, 0.3, 0.2], "falls"),
        ([0.5, 0.4, 0.4, 0.41], "stays"),
        ([0.1, 0.1, 0.2, 0.3], "grows"),
        ([0.1, np.nan, np.nan, np.nan], "not finite"),
    ],
)
def test_trends(column, trend):
    node = debug.NodeInfo("dot_3", "dot", (), (2,), "")
    found = debug.Violations("AP", (node,), np.array(column)[:, None])
    assert found.trend(0) == trend
    assert bool(found.stuck) == (trend in ("stays", "grows", "not finite"))


def test_the_picture(tmp_path):
    found = debug.violations(equations, jnp.zeros(5), optim.DouglasRachford(), steps=5)
    figure = found.plot()
    (image,) = figure.axes[0].get_images()
    assert image.get_array().shape == (2, 5)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [n.label for n in found.nodes]
    for name in ("map.png", "map.svg"):
        assert found.save(tmp_path / name) == tmp_path / name
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert (
        b"dot(params)" in (tmp_path / "map.svg").read_bytes()
        or b"<svg" in (tmp_path / "map.svg").read_bytes()
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["map.png", "map.svg"]
    with pytest.raises(pjax.InputError, match=r"end in \.png or \.svg; got 'map.pdf'"):
        found.save(tmp_path / "map.pdf")


def test_many_nodes_and_values_that_are_not_finite_can_be_drawn(tmp_path):
    nodes = tuple(debug.NodeInfo(f"dot_{i}", "dot", (), (2,), "") for i in range(200))
    values = np.full((3, 200), 0.1)
    values[1:, 7] = np.nan
    found = debug.Violations("AP", nodes, values)
    image = found.plot().axes[0].get_images()[0]
    assert image.get_array().mask.sum() == 2
    assert found.stuck[0] is nodes[7]
    assert found.save(tmp_path / "many.png").stat().st_size > 1000


def test_what_cannot_be_measured():
    with pytest.raises(pjax.InputError, match="evaluates the network anew in every step"):
        debug.violations(equations, jnp.zeros(5), optim.ExtrapolatedProjections())
    with pytest.raises(pjax.InputError, match="steps must be a whole number of at least 1, got 0"):
        debug.violations(equations, jnp.zeros(5), optim.AlternatingProjections(), steps=0)
    with pytest.raises(pjax.InputError, match="NaN or infinite"):
        debug.violations(equations, jnp.full(5, jnp.nan), optim.AlternatingProjections())


LOOKS = [debug.violations, debug.locate_nan, debug.explain_partition]
TOOLS = [*LOOKS, pjax.draw, pjax.profile, pjax.summary]


@pytest.mark.parametrize("look", TOOLS, ids=lambda look: look.__name__)
def test_what_is_no_function_or_no_method_is_refused(look):
    with pytest.raises(pjax.InputError, match="expected a function"):
        look(3, jnp.zeros(5), optim.AlternatingProjections())
    with pytest.raises(pjax.InputError, match=r"such as DouglasRachford\(\); got"):
        look(equations, jnp.zeros(5), optim.DouglasRachford)


def test_only_functions_are_traced():
    with pytest.raises(pjax.InputError, match="expected a function of the parameters"):
        pjax.trace(3, jnp.zeros(5))
