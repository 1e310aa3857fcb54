"""The page on adding a primitive: its code runs, and every line of its checklist is enforced."""

import contextlib
import dataclasses
import inspect
import io
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax.rules import registered
from pjax.rules.registry import check_form
from pjax.testing import check_registered, projections
from tests import pages

PAGE = pages.ROOT / "docs" / "extending.md"
CHECKLIST = re.findall(r"^- \[ \] .*\(`(\w+)`\)$", PAGE.read_text(), flags=re.MULTILINE)

pytestmark = pytest.mark.usefixtures("registries", "quick_compilation")


@pytest.fixture(scope="module")
def rule():
    """The class of the page, without what the page does with it."""
    names = {"__name__": "extending"}
    exec(pages.blocks(PAGE)[0], names)
    return names["HardThreshold"]


def test_shapes_that_are_none_are_refused():
    with pytest.raises(pjax.InputError, match=r"shapes must list cases.*got 3"):
        pjax.register_primitive(pjax.rules.Identity(), 3)


def test_the_code_of_the_page_runs():
    """It also checks the primitive, so that what is refused below is refused for what was broken."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        pages.run(PAGE)
    first, points, node, *_ = printed.getvalue().splitlines()
    assert first == "[-2.   0.   0.   0.7]"
    assert points.startswith("192 ")
    assert "hard_threshold" in node
    assert {"hard_threshold", "absolute"} <= {example.rule.name for example in registered()}


def register(rule, shapes=(((),),), **fields):
    return pjax.register_primitive(rule(**fields), shapes)


# Each breaks one line of the checklist; each gives what is refused, and a part of the message.


def not_frozen(rule):
    class NotFrozen(rule):
        name = "not_frozen"

    return NotFrozen, "frozen dataclass"


def array_field(rule):
    @dataclasses.dataclass(frozen=True)
    class ArrayField(rule):
        threshold: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(2))
        name = "array_field"

    return ArrayField, "must be hashable"


def name_taken(rule):
    @dataclasses.dataclass(frozen=True)
    class NameTaken(rule):
        name = "identity"

    return NameTaken, "'identity' is taken by pjax.rules.sum.Identity"


def no_projection(rule):
    @dataclasses.dataclass(frozen=True)
    class NoProjection(pjax.Primitive):
        name = "no_projection"
        forward = rule.forward

    return NoProjection, "neither project nor displace"


def wrong_core(rule):
    @dataclasses.dataclass(frozen=True)
    class WrongCore(rule):
        name = "wrong_core"
        core = 1

    return WrongCore, "core = 1"


def reduces_copies(rule):
    @dataclasses.dataclass(frozen=True)
    class ReducesCopies(rule):
        name = "reduces_copies"

        def forward(self, x):
            return super().forward(x).sum(-1)

    return ReducesCopies, "one number of the type of its inputs for each copy"


def forgets_output(rule):
    @dataclasses.dataclass(frozen=True)
    class ForgetsOutput(rule):
        name = "forgets_output"

        def project(self, inputs, output, weight=1.0):
            return super().project(inputs, output, weight)[0]

    return ForgetsOutput, "a tuple of the inputs and the output"


def off_the_graph(rule):
    @dataclasses.dataclass(frozen=True)
    class OffTheGraph(rule):
        name = "off_the_graph"

        def project(self, inputs, output, weight=1.0):
            (x,), z = super().project(inputs, output, weight)
            return (x,), z + 0.1 * (output - z)

    return OffTheGraph, "lies on the graph"


def misses_a_piece(rule):
    @dataclasses.dataclass(frozen=True)
    class MissesAPiece(rule):
        name = "misses_a_piece"

        def project(self, inputs, output, weight=1.0):
            (x,), t = inputs, self.threshold
            high = jnp.maximum((x + weight * output) / (1 + weight), t)
            flat = jnp.clip(x, -t, t)
            nearer = (high - x) ** 2 + weight * (high - output) ** 2 < (flat - x) ** 2 + weight * output**2
            return (jnp.where(nearer, high, flat),), jnp.where(nearer, high, 0)

    return MissesAPiece, "no better point exists"


def ignores_weight(rule):
    @dataclasses.dataclass(frozen=True)
    class IgnoresWeight(rule):
        name = "ignores_weight"

        def project(self, inputs, output, weight=1.0):
            del weight
            return super().project(inputs, output)

    return IgnoresWeight, "no better point exists"


def not_idempotent(rule):
    @dataclasses.dataclass(frozen=True)
    class NotIdempotent(rule):
        name = "not_idempotent"

        def project(self, inputs, output, weight=1.0):
            (x,), z = super().project(inputs, output, weight)
            further = jnp.where(z > 0, 1.1, 1.0).astype(x.dtype)
            return (x * further,), z * further

    return NotIdempotent, "projecting again changes nothing"


def mixes_copies(rule):
    @dataclasses.dataclass(frozen=True)
    class MixesCopies(rule):
        name = "mixes_copies"

        def project(self, inputs, output, weight=1.0):
            return super().project(inputs, jnp.full_like(output, output.mean()), weight)

    return MixesCopies, "vmap equals one call"


def float32_only(rule):
    @dataclasses.dataclass(frozen=True)
    class Float32Only(rule):
        name = "float32_only"

        def project(self, inputs, output, weight=1.0):
            projected = super().project(inputs, output, weight)
            return jax.tree.map(lambda v: v.astype(jnp.float32), projected)

    return Float32Only, "types and shapes are kept"


def overflows(rule):
    @dataclasses.dataclass(frozen=True)
    class Overflows(rule):
        name = "overflows"

        def project(self, inputs, output, weight=1.0):
            (x,), z = super().project(inputs, output, weight)
            big = jnp.abs(x) ** 5 + 1
            return (x * (big / big),), z

    return Overflows, "the result is finite"


BREAK = {name: value for name, value in globals().items() if name in CHECKLIST and inspect.isfunction(value)}


def test_every_line_of_the_checklist_is_enforced():
    lines = re.findall(r"^- \[ \] .*$", PAGE.read_text(), flags=re.MULTILINE)
    assert len(CHECKLIST) == len(lines) == len(set(CHECKLIST)) >= 10
    assert sorted(BREAK) == sorted(CHECKLIST)


@pytest.mark.parametrize("line", CHECKLIST)
def test_what_breaks_the_checklist_is_refused(rule, line):
    broken, message = BREAK[line](rule)

    def accept():
        register(broken)
        check_registered(broken.name, samples=96)

    with pytest.raises((pjax.InputError, AssertionError), match=message):
        accept()


def test_the_primitives_of_pjax_have_the_form_that_is_asked_of_others():
    for example in registered():
        check_form(example)


def test_registering_again_replaces(rule):
    register(rule, threshold=0.5)
    again = dataclasses.make_dataclass(
        "HardThreshold", [], bases=(rule,), frozen=True, namespace={"__module__": rule.__module__}
    )
    register(again)
    found = [example.rule for example in registered() if example.rule.name == "hard_threshold"]
    assert [type(r) for r in found] == [again]


def test_an_unknown_name_is_refused():
    with pytest.raises(pjax.InputError, match=r"no rule is called 'threshold'; there are .*identity"):
        check_registered("threshold")


SOLVERS = [pjax.optim.AlternatingProjections(), pjax.optim.DouglasRachford()]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_solvers_take_it(rule, solver):
    """With stored edges and without, the moves are the same; they change the loss."""
    threshold = register(rule)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)
    params = {"w": jnp.array([[1.0, 0.2], [-0.9, 0.6], [0.3, -1.2]]), "v": jnp.array([1.0, -1.0])}

    def fn(p):
        return pjax.squared_error(threshold(x @ threshold(p["w"])) @ p["v"], jnp.ones(4))

    solver = dataclasses.replace(solver, steps_per_update=4)
    found, loss = solver.update(fn, params)
    stored, _ = dataclasses.replace(solver, edges="explicit").update(fn, params)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(stored), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    assert not np.allclose(found["w"], params["w"])
    assert np.isfinite(loss)


def test_it_trains_by_extrapolated_projections(rule):
    threshold = register(rule, threshold=0.1)
    x = jax.random.normal(jax.random.key(0), (64, 2))
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    first, second = jax.random.split(jax.random.key(1))
    params = [jax.random.normal(first, (2, 32)), jax.random.normal(second, (32, 2)) / 6]
    solver = pjax.optim.ExtrapolatedProjections(learning_rate=0.05)
    state = solver.init(params)

    def fn(p):
        return pjax.cross_entropy(threshold(jax.nn.relu(x @ p[0])) @ p[1], y)

    for _ in range(60):
        params, state, _ = solver.update(fn, params, state)
    logits = threshold(jax.nn.relu(x @ params[0])) @ params[1]
    assert jnp.mean(logits.argmax(-1) == y) > 0.9


def test_the_function_takes_computations(rule):
    threshold = register(rule)
    y = threshold(pjax.parameter([0.2, 3.0], name="w"))
    assert (y.op, y.value.tolist()) == ("hard_threshold", [0.0, 3.0])
    fn, params = pjax.as_function(pjax.squared_error(y, jnp.zeros(2)))
    assert fn(params).tolist() == [0.0, 9.0]
    assert pjax.trace(fn, params).inputs[0].op == "hard_threshold"
    assert threshold.__name__ == "hard_threshold"
    assert "identity outside" in threshold.__doc__


@dataclasses.dataclass(frozen=True)
class Absolute(pjax.Target):
    """The absolute error."""

    scale: float = 5.0

    name = "absolute_error"
    core = 0

    def forward(self, predictions, labels):
        return jnp.abs(predictions - labels)

    def displace(self, predictions, labels):
        return jnp.clip(labels - predictions, -self.scale, self.scale)


def test_a_target_is_registered_by_the_same_call():
    error = pjax.register_primitive(Absolute(), [[()]], labels="numbers", scale=5.0)
    check_registered("absolute_error", samples=64)
    w, loss = pjax.optim.AlternatingProjections().update(lambda w: error(w, jnp.full(3, 2.0)), jnp.zeros(3))
    np.testing.assert_allclose(w, 2.0, rtol=1e-3)
    assert loss == 2.0


def changed(kind, **namespace):
    """A rule like another, with some methods in the place of its own."""
    namespace["name"] = "changed"
    return dataclasses.make_dataclass("Changed", [], bases=(kind,), frozen=True, namespace=namespace)()


def without_weight(_, inputs, output):
    return inputs, output


def other_weight(_, inputs, output, w=1.0):
    return inputs, output + 0 * w


def turned(_, x):
    return 2 * (jnp.eye(3) @ x)


def sum_of_all(_, predictions, labels):
    return jnp.sum(jnp.abs(predictions - labels))


@dataclasses.dataclass(frozen=True)
class Doubled(pjax.Primitive):
    """A whole array, twice."""

    name = "doubled"
    joint = True

    def forward(self, x):
        return 2 * x

    def project(self, inputs, output, weight=1.0):
        x = (inputs[0] + 2 * weight * output) / (1 + 4 * weight)
        return (x,), 2 * x


def test_a_joint_rule_that_takes_one_copy_alone_is_not_checked(monkeypatch):
    pjax.register_primitive(Doubled(), [[(3,)]])
    pjax.register_primitive(changed(Doubled, forward=turned), [[(3,)]])
    for name, rule in (("doubled", "Doubled"), ("changed", "Changed")):
        with pytest.raises(pjax.InputError, match=rf"{rule} is joint.*write a test of its own"):
            check_registered(name, samples=16)
    mine = [example for example in registered() if example.rule.name in ("doubled", "changed", "identity")]
    monkeypatch.setattr(projections, "registered", lambda: mine)
    assert check_registered(samples=16) == check_registered("identity", samples=16)


def test_a_projection_with_another_name_for_the_weight():
    pjax.register_primitive(changed(pjax.rules.Identity, project=other_weight), [[()]])
    with pytest.raises(AssertionError, match="the weight is 1 by default"):
        check_registered("changed", samples=16)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pjax.register_primitive(jnp.abs, [[()]]), "expected an instance of pjax.Primitive"),
        (lambda: pjax.register_primitive(pjax.rules.Identity(), []), "at least one case"),
        (lambda: pjax.register_primitive(Absolute(), [[()]], labels="words"), "'classes', 'probabilities'"),
        (
            lambda: pjax.register_primitive(pjax.rules.Max(), [[(3,)]], equation="cummax"),
            "core = 0 can stand for the equation",
        ),
        (lambda: pjax.register_primitive(Doubled(), [[(3,), (3,)]]), "forward must take the inputs"),
        (lambda: pjax.register_primitive(pjax.rules.Max(), [[(1.5,)]]), "each length of a shape"),
        (
            lambda: pjax.register_primitive(changed(pjax.rules.Identity, project=without_weight), [[()]]),
            r"project must take \(inputs, output, weight=1.0\)",
        ),
        (lambda: pjax.register_primitive(Absolute(), [[()]]), r"the axis of classes, such as \[\[\(3,\)\]\]"),
        (
            lambda: pjax.register_primitive(changed(Absolute, forward=sum_of_all), [[()]], labels="numbers"),
            r"one loss for each copy, of shape \(2, 3\)",
        ),
        (
            lambda: pjax.register_primitive(changed(Absolute, displace=sum_of_all), [[()]], labels="numbers"),
            "how the predictions move, of shape",
        ),
    ],
)
def test_bad_registrations(call, message):
    with pytest.raises(pjax.InputError, match=message):
        call()
