"""The projection of written-out edges in one kernel does what it does in several passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import optim
from pjax.engines.edges.stored import Split
from pjax.experiments import models
from pjax.optim import solver as _solver
from pjax.rules.dot import Dot
from pjax.rules.dot_general import DotGeneral
from pjax.rules.kernels import edges as split_kernel
from pjax.rules.kernels.edges import Blocks

pytestmark = pytest.mark.usefixtures("kernels")

RNG = np.random.default_rng(0)

NO_BATCH = ((), ())
SHAPES = {
    "matrices": ((5, 7), (7, 3), ((1,), (0,)), NO_BATCH),
    "a power of two": ((4, 8), (8, 4), ((1,), (0,)), NO_BATCH),
    "long": ((3, 300), (300, 2), ((1,), (0,)), NO_BATCH),
    "one slot": ((3, 1), (1, 4), ((1,), (0,)), NO_BATCH),
    "one of each": ((1, 5), (5, 1), ((1,), (0,)), NO_BATCH),
    "transposed": ((6, 4), (9, 6), ((0,), (1,)), NO_BATCH),
    "more axes": ((2, 3, 6), (2, 5, 6), ((2,), (2,)), NO_BATCH),
    "two contracted": ((4, 2, 3), (3, 2, 5), ((1, 2), (1, 0)), NO_BATCH),
    "batch": ((6, 2, 4), (2, 4, 3), ((2,), (1,)), ((1,), (0,))),
}


def numbers(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def contraction(x, y, contract, batch):
    return DotGeneral((x, y), (jnp.dtype("float32"),) * 2, contract, batch)


def kernel(rule, inputs, rest, residual, factor=1.0, **settings):
    def project(inputs, rest, residual):
        terms = tuple(((factor, r),) for r in rest)
        return split_kernel.project(rule, inputs, terms, residual, interpret=True, **settings)

    return jax.jit(project)(inputs, rest, residual)


def edge_by_edge(rule, inputs, rest, residual, weight=1.0):
    """The same by the rule for one dot product, from all edges written out."""
    base = [rule.expand(i, at) for i, at in enumerate(inputs)]
    x, y = (b + r for b, r in zip(base, rest, strict=True))
    here = (x * y).sum(-1)
    goal = residual + (base[0] * base[1]).sum(-1) - here
    moves, move = Dot().displace((x, y), (jnp.zeros_like(x), jnp.zeros_like(y)), here, goal, weight)
    return moves, -move * weight


def check(rule, inputs, rest, residual, weight=1.0, **settings):
    found = kernel(rule, inputs, rest, residual, weight=weight, **settings)
    moves, lam = jax.jit(edge_by_edge, static_argnums=0)(rule, inputs, rest, residual, weight)
    np.testing.assert_allclose(found.lam, lam, atol=1e-5)
    squared = sum((m * m).sum(-1) for m in moves)
    np.testing.assert_allclose(found.squared, squared, rtol=1e-4, atol=1e-5)
    for i in (0, 1):
        size = float(jnp.abs(moves[i]).max())
        np.testing.assert_allclose(found.moves[i], moves[i], rtol=1e-4, atol=1e-5 * size)
        total = rule.gather(i, found.moves[i])
        np.testing.assert_allclose(found.totals[i], total, rtol=1e-4, atol=1e-5 * size)
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_every_contraction(name):
    rule = contraction(*SHAPES[name])
    edges = (*rule.out, rule.length)
    check(
        rule, [numbers(*s) for s in rule.shapes], (numbers(*edges), numbers(*edges)), 3 * numbers(*rule.out)
    )


@pytest.mark.parametrize("blocks", [Blocks(1, 1, 1), Blocks(2, 3, 1), Blocks(4, 2, 1), Blocks(8, 5, 2)])
def test_every_division_of_the_work(blocks):
    rule = contraction(*SHAPES["matrices"])
    edges = (*rule.out, rule.length)
    check(
        rule,
        [numbers(*s) for s in rule.shapes],
        (numbers(*edges), numbers(*edges)),
        numbers(*rule.out),
        blocks=blocks,
    )


def test_a_term_with_a_factor():
    rule = contraction(*SHAPES["matrices"])
    inputs, rest = [numbers(*s) for s in rule.shapes], [numbers(5, 3, 7) for _ in range(2)]
    residual = numbers(5, 3)
    found = kernel(rule, inputs, rest, residual, factor=-2.0)
    same = kernel(rule, inputs, [-2 * r for r in rest], residual)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, same)


def test_narrow_edges():
    """They are read as they are, and moves are written in their type; sums are of moves before that."""
    rule = contraction(*SHAPES["matrices"])
    inputs, rest = [numbers(*s) for s in rule.shapes], (numbers(5, 3, 7), numbers(5, 3, 7))
    rest, residual = [r.astype(jnp.bfloat16) for r in rest], 9 * numbers(5, 3)
    found = kernel(rule, inputs, rest, residual)
    wanted = kernel(rule, inputs, [r.astype(jnp.float32) for r in rest], residual)
    for got, want in zip(found.moves, wanted.moves, strict=True):
        np.testing.assert_array_equal(got, got.astype(jnp.bfloat16).astype(jnp.float32))
        np.testing.assert_allclose(got, want, rtol=2**-8, atol=1e-6)
    for got, want in ((found.totals, wanted.totals), (found.lam, wanted.lam)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, want)


def test_weights_and_outputs_that_nobody_reads():
    rule = contraction(*SHAPES["matrices"])
    inputs, rest = [numbers(*s) for s in rule.shapes], (numbers(5, 3, 7), numbers(5, 3, 7))
    residual, weight = 9 * numbers(5, 3), 1 + jnp.arange(15.0).reshape(5, 3)
    check(rule, inputs, rest, residual, weight=weight)
    check(rule, inputs, rest, residual, weight=7.0)
    read = jnp.arange(3) != 1
    found = kernel(rule, inputs, rest, residual, read=read)
    wanted = kernel(rule, inputs, rest, residual)
    assert (found.lam[:, 1] == 0).all()
    assert (found.moves[0][:, 1] == 0).all()
    np.testing.assert_allclose(found.moves[1][:, ::2], wanted.moves[1][:, ::2], rtol=1e-6)


def test_spheres():
    rule = contraction((4, 6), (6, 3), ((1,), (0,)), NO_BATCH)
    x = numbers(4, 6).at[3].set(0)
    rest = (jnp.zeros((4, 3, 6)), rule.expand(0, x) * jnp.array([1.0, -1.0, 0.0])[:, None])
    residual = jnp.array([-99.0, 99.0, 1.0]) * jnp.ones((4, 1))
    found = check(rule, (x, jnp.zeros((6, 3))), rest, residual)  # y is x, -x, and 0
    assert (jnp.abs(found.lam[:, :2]) == 1).all()
    assert (jnp.abs(found.lam[:3, 2]) < 1).all()
    assert (jnp.abs(found.moves[0][3, :2]) > 1).all()  # from zero


def test_nan_stays():
    rule = contraction(*SHAPES["matrices"])
    x, y = (numbers(*s) for s in rule.shapes)
    rest, residual = (numbers(5, 3, 7), numbers(5, 3, 7)), numbers(5, 3)
    found = kernel(rule, (x.at[1, 2].set(jnp.nan), y), rest, residual.at[3, 2].set(jnp.nan))
    bad = np.zeros((5, 3), bool)
    bad[1], bad[3, 2] = True, True
    for array in (found.lam, found.squared, found.moves[0][..., 0], found.moves[1][..., 0]):
        np.testing.assert_array_equal(np.isnan(array), bad)


def test_what_does_not_fit_is_left_to_the_compiler(monkeypatch):
    rule = contraction(*SHAPES["matrices"])
    term = ((1.0, numbers(5, 3, 7)),)
    assert not split_kernel.fits(rule, (term, term))
    monkeypatch.setattr(split_kernel, "FEWEST", rule.edges)
    assert split_kernel.fits(rule, (term, term))
    assert not split_kernel.fits(rule, (term, ()))
    assert not split_kernel.fits(rule, (term, (*term, (1.0, numbers(5, 3, 7)))))
    assert not split_kernel.fits(rule, (term, term), jnp.ones((5, 3), jnp.bfloat16))
    long = split_kernel.LONGEST + 1
    rule = contraction((1, long), (long, 1), ((1,), (0,)), NO_BATCH)
    assert not split_kernel.fits(rule, (((1.0, jnp.ones((1, 1, long))),),) * 2)


def mlp():
    model = models.make("mlp", (4,), (6, 5), 3)
    x, y = numbers(7, 4), jnp.arange(7) % 3
    return model.init(jax.random.key(0)), lambda p: pjax.cross_entropy(model.apply(p, x), y)


def rnn():
    model = models.make("rnn", (5,), (6,), 4)
    x = jnp.arange(15).reshape(3, 5) % 4
    return model.init(jax.random.key(0)), lambda p: pjax.cross_entropy(model.apply(p, x), (x + 1) % 4)


def update(solver, loss, params):
    return solver.update(loss, params, solver.init(params))


@pytest.mark.parametrize(("make", "consensus"), [(mlp, "paper"), (rnn, "exact")])
def test_a_solver_does_the_same(make, consensus, monkeypatch):
    params, loss = make()
    solver = optim.DouglasRachford(steps_per_update=2, consensus=consensus)
    wanted = update(solver, loss, params)
    used = []

    def one_pass(self, rule, at, inputs, drift, goal):
        used.append(rule)
        return split_kernel.project(
            rule,
            inputs,
            (self.rest[0].terms, self.rest[1].terms),
            goal - drift,
            at.weight,
            at.read,
            interpret=True,
        )

    monkeypatch.setattr(Split, "_in_passes", one_pass)
    monkeypatch.setattr(_solver, "_PROGRAMS", type(_solver._PROGRAMS)())
    found = update(solver, loss, params)
    assert used
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, wanted)


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("make", [mlp, rnn])
def test_programs_for_a_gpu_have_the_kernel(make, monkeypatch):
    monkeypatch.setattr(split_kernel, "FEWEST", 0)
    params, loss = make()
    solver = optim.DouglasRachford(steps_per_update=2)
    traced = jax.jit(lambda p: update(solver, loss, p)).trace(params)
    text = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", "cuda")}
    assert "xla.gpu.triton" in text["cuda"]
    assert "triton" not in text["cpu"]
