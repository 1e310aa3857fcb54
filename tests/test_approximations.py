"""What is kept of edges in few terms, or few digits: it is near enough, or not used in silence."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import optim
from pjax.errors import InputError, NeglectedWarning
from pjax.experiments import models
from pjax.graph import read as _trace
from pjax.optim import DifferenceMap, DouglasRachford, neglect
from pjax.optim.solver import compiled
from tests.graphs import Numbers, conv

# --- Histories of edges that neglect what is not small ---


def convolution(bits, size, channels):
    """A convolution next to a loss."""
    n = Numbers(size + channels, np.dtype(f"float{bits}"))
    x, target = n(3, 5, 5, channels), n(3, 5, 5, 2)
    params = {"k": n(size, size, channels, 2, scale=0.4), "b": n(2, scale=0.1)}
    return lambda p: pjax.squared_error(jax.nn.relu(conv(x, p["k"]) + p["b"]), target), params


def fades_slowly(n):
    """A layer whose multipliers are large, though another one lies between it and the loss."""
    x, target = n(40, 40, scale=0.1), n(40, 2)
    params = {"w": n(40, 40, scale=0.1), "v": n(40, 2, scale=0.3)}
    return lambda p: pjax.squared_error(jax.nn.relu(x @ p["w"]) @ p["v"], target), params


def apart(found, expected, start):
    """The largest difference, relative to the largest move."""
    triples = list(zip(*map(jax.tree.leaves, (found, expected, start)), strict=True))
    return max(float(jnp.abs(a - b).max()) for a, b, _ in triples) / max(
        float(jnp.abs(b - c).max()) for _, b, c in triples
    )


CASES = [
    (DouglasRachford, 64, 1, 1, 5),
    (DouglasRachford, 64, 3, 2, 50),
    (DouglasRachford, 32, 1, 1, 50),
    (DouglasRachford, 32, 3, 3, 5),
    (DifferenceMap, 32, 1, 3, 5),
    (DifferenceMap, 64, 3, 1, 50),
]


@pytest.mark.parametrize(("solver", "bits", "size", "channels", "steps"), CASES)
def test_convolutions_next_to_a_loss(solver, bits, size, channels, steps):
    with jax.enable_x64(bits == 64):
        fn, params = convolution(bits, size, channels)
        method = solver(steps_per_update=steps)
        found, state, _ = method.update(fn, params, method.init(params))
        expected, _ = solver(steps_per_update=steps, edges="explicit").update(fn, params)
        assert apart(found, expected, params) < (1e-9 if bits == 64 else 1e-3)
        assert state.neglected <= neglect.BOUND


@pytest.mark.usefixtures("x64")
def test_edges_are_stored_where_a_history_neglects_too_much():
    fn, params = fades_slowly(Numbers(0, np.float64))
    cut = DouglasRachford(steps_per_update=10, history=1)
    with pytest.warns(NeglectedWarning, match=r"'.*' \(dot\)"):
        rough, _ = cut.update(fn, params)
    method = DouglasRachford(steps_per_update=10)
    found, state, _ = method.update(fn, params, method.init(params))
    expected, _ = DouglasRachford(steps_per_update=10, edges="explicit").update(fn, params)
    assert apart(rough, expected, params) > 0.01
    assert apart(found, expected, params) < 1e-9
    assert state.neglected <= neglect.BOUND
    again, _ = method.update(fn, params)
    assert apart(again, expected, params) < 1e-9


@pytest.mark.usefixtures("x64")
def test_solve_stores_edges_too():
    fn, params = fades_slowly(Numbers(0, np.float64))
    found = pjax.solve(fn, params, DouglasRachford(), max_steps=10, tolerance=0.0)
    expected = pjax.solve(fn, params, DouglasRachford(edges="explicit"), max_steps=10, tolerance=0.0)
    assert found.neglected <= neglect.BOUND
    np.testing.assert_allclose(found.violations, expected.violations, rtol=1e-6)


def test_a_warning_where_there_is_no_room(monkeypatch):
    monkeypatch.setattr(neglect, "MOST_STORED", 10)
    fn, params = fades_slowly(Numbers(0, np.float32))
    method = DouglasRachford(steps_per_update=11)
    with pytest.warns(NeglectedWarning, match='edges="explicit"'):
        _, state, _ = method.update(fn, params, method.init(params))
    assert state.neglected > neglect.BOUND


def test_a_warning_inside_jit():
    fn, params = fades_slowly(Numbers(0, np.float32))
    method = DouglasRachford(steps_per_update=9)

    def update():
        jax.block_until_ready(jax.jit(lambda p: method.update(fn, p))(params))
        jax.effects_barrier()

    with pytest.warns(NeglectedWarning, match="DouglasRachford"):
        update()


def test_no_warning_inside_jit_where_nothing_is_neglected():
    fn, params = convolution(32, 3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.block_until_ready(jax.jit(lambda p: DouglasRachford(steps_per_update=3).update(fn, p))(params))
        jax.effects_barrier()


@pytest.mark.parametrize(("history", "warned"), [(1, 2), (6, 0)])
def test_warnings_under_vmap_are_of_those_that_neglect(history, warned):
    x, y = jax.random.normal(KEY, (2, 20, 10))
    params = 0.1 * jax.random.normal(KEY, (2, 3, 10, 10))
    method = DouglasRachford(steps_per_update=5, history=history)

    def fn(p):
        return pjax.squared_error(jax.nn.relu(jax.nn.relu(x @ p[0]) @ p[1]) @ p[2], y)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        jax.block_until_ready(jax.vmap(lambda p: method.update(fn, p))(params))
        jax.effects_barrier()
    assert len(said) == warned


def test_points_of_spheres_are_not_lost_in_silence():
    """The product of zeros has a sphere of nearest points; a history holds none of them."""
    params = {"a": jnp.zeros((2, 3)), "b": jnp.zeros((3, 2))}

    def fn(p):
        return pjax.squared_error(p["a"] @ p["b"], jnp.full((2, 2), 5.0))

    with pytest.warns(NeglectedWarning):
        DouglasRachford(steps_per_update=2, history=2).update(fn, params)


# --- Displacements that are kept in bfloat16 ---

KEY = jax.random.key(0)


def mlp(batch=12):
    model = models.MLP(9, [8, 8], 3)
    x, y = jax.random.normal(KEY, (batch, 9)), jnp.arange(batch) % 3
    return lambda p: pjax.cross_entropy(model.apply(p, x), y), model.init(KEY)


def cnn():
    model = models.make("cnn", (5, 6, 1), (4, 4), 3)
    x, y = jax.random.normal(KEY, (4, 5, 6, 1)), jnp.arange(4) % 3
    return lambda p: pjax.cross_entropy(model.apply(p, x), y), model.init(KEY)


def rnn():
    model = models.RNN(4, [5])
    x = jax.random.randint(KEY, (3, 6), 0, 4)
    return lambda p: pjax.cross_entropy(model.apply(p, x), (x + 1) % 4), model.init(KEY)


SOLVERS = {
    "AP": optim.AlternatingProjections(steps_per_update=8),
    "CP": optim.CyclicProjections(steps_per_update=8),
    "DR": optim.DouglasRachford(steps_per_update=8),
    "DR explicit": optim.DouglasRachford(steps_per_update=8, edges="explicit"),
    "DR history": optim.DouglasRachford(steps_per_update=8, history=1),
    "DM": optim.DifferenceMap(steps_per_update=8),
}


def narrow(solver):
    return dataclasses.replace(solver, state_dtype="bfloat16")


def moves(solver, fn, params, **settings):
    new = solver.update(fn, params, **settings)[0]
    return np.concatenate(
        [np.ravel(a - b) for a, b in zip(*map(jax.tree.leaves, (new, params)), strict=True)]
    )


def states(solver, fn, params):
    """What the state is before the first step and after it, and the problem."""
    traced = _trace.read(fn, params)
    program = compiled(solver, traced)
    problem = program.problem(jax.tree.leaves(params), traced.constants)
    iteration = solver.iteration(problem)
    start = jax.eval_shape(iteration.start)
    return start, jax.eval_shape(iteration.step, start), problem


@pytest.mark.filterwarnings("ignore::pjax.errors.NeglectedWarning")  # of a history of one term
@pytest.mark.parametrize(
    ("network", "name"),
    [(mlp, name) for name in SOLVERS] + [(cnn, "DR"), (rnn, "AP"), (rnn, "DR")],
)
def test_networks_move_nearly_the_same(network, name):
    fn, params = network()
    wanted, found = (moves(s, fn, params) for s in (SOLVERS[name], narrow(SOLVERS[name])))
    apart = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert 0 < apart < 0.02


@pytest.mark.parametrize("name", SOLVERS)
def test_states_are_kept_so(name):
    fn, params = mlp()
    before, after, problem = states(narrow(SOLVERS[name]), fn, params)
    assert jax.tree.structure(before) == jax.tree.structure(after)
    arrays = [x for x in jax.tree.leaves(after) if x.ndim]
    kinds = [x.dtype for x in arrays]
    assert kinds == [x.dtype for x in jax.tree.leaves(before) if x.ndim]
    if name in ("AP", "CP"):  # whose states have the parameters, which add up
        full = {v for d in after[:2] for v, x in d.items() if x.dtype == jnp.float32}
        assert full == {node.index for node in problem.graph.parameters}
        assert jnp.bfloat16 in kinds
    else:
        assert set(kinds) == {jnp.dtype("bfloat16")}


def test_parameters_add_up_in_float32():
    """Steps that bfloat16 would lose next to what was moved before."""
    params = jnp.zeros(3)
    fn = lambda p: pjax.squared_error(p[None], jnp.full((1, 3), 1.0))  # noqa: E731
    solver = optim.AlternatingProjections(steps_per_update=400)
    np.testing.assert_allclose(narrow(solver).update(fn, params)[0], solver.update(fn, params)[0], rtol=1e-5)


def test_a_batch_in_parts_and_in_groups():
    model = models.MLP(9, [8], 3)
    x, y = jax.random.normal(KEY, (12, 9)), jnp.arange(12) % 3
    params = model.init(KEY)

    def fn(p, batch):
        return pjax.cross_entropy(model.apply(p, batch[0]), batch[1])

    for around in (lambda s: optim.Accumulated(s, 3), lambda s: optim.Groups(s, 3, sync_every=4)):
        solvers = SOLVERS["AP"], narrow(SOLVERS["AP"])
        wanted, found = (moves(around(s), fn, params, batch=(x, y)) for s in solvers)
        assert np.linalg.norm(found - wanted) < 0.02 * np.linalg.norm(wanted)


@pytest.mark.usefixtures("x64")
def test_wider_parameters_stay_so():
    fn, params = mlp()
    params = jax.tree.map(lambda x: x.astype(jnp.float64), params)
    new = narrow(SOLVERS["DR"]).update(fn, params)[0]
    assert {x.dtype for x in jax.tree.leaves(new)} == {jnp.dtype("float64")}


def test_feasibility_to_a_few_digits():
    a, b = jax.random.normal(KEY, (3, 5)), jnp.arange(3.0)
    found = pjax.solve(
        lambda x: pjax.squared_error((a @ x)[None], b[None]),
        jnp.zeros(5),
        narrow(optim.DouglasRachford()),
        tolerance=1e-2,
        max_steps=500,
    )
    assert found.converged
    np.testing.assert_allclose(a @ found.params, b, atol=0.1)


def test_one_type_however_it_is_given():
    kinds = [optim.DouglasRachford(state_dtype=t) for t in ("bfloat16", jnp.bfloat16, jnp.dtype("bfloat16"))]
    assert len(set(kinds)) == 1


@pytest.mark.parametrize("given", ["float16", jnp.float32, int, "half", 7])
def test_other_types_are_refused(given):
    with pytest.raises(InputError, match="state_dtype must be one of None, 'bfloat16', got"):
        optim.DouglasRachford(state_dtype=given)


def test_what_keeps_nothing_has_no_type():
    with pytest.raises(TypeError, match="has no option 'state_dtype'"):
        optim.ExtrapolatedProjections(state_dtype="bfloat16")


@pytest.mark.parametrize(("length", "rows", "scale"), [(8, 12, 0.3), (32, 48, 1.0), (64, 80, 3.0)])
def test_what_is_rounding_of_a_difference_does_not_grow(length, rows, scale):
    """Both factors of the diagonal of a Gram matrix are the same, which no step may take apart."""
    params = jax.random.normal(KEY, (rows, length)) / 4
    goal = scale * jnp.eye(rows)

    def found(params, **options):
        method = DouglasRachford(steps_per_update=10, **options)
        return method.update(lambda p: pjax.squared_error(p @ p.T, goal), params)[0]

    moved = found(params)
    assert jnp.abs(moved - params).max() > 0.1
    np.testing.assert_allclose(moved, found(params, edges="explicit"), atol=1e-5)
    rounded = params * (1 + 4e-7 * jax.random.uniform(KEY, params.shape, minval=-1))
    for options in ({}, {"edges": "explicit"}):
        np.testing.assert_allclose(found(rounded, **options), found(params, **options), atol=2e-5)
