"""The functions of pjax.numpy, and the check of those that only move numbers."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import pjax
from pjax.containers import numpy as pnp
from pjax.containers.computation import Array, Computation, array, as_function, parameter
from pjax.errors import InputError
from pjax.graph import jaxprs
from pjax.sets import Box, Sphere
from tests.layouts import check_layout

# --- The check of layouts, and functions that are none ---

CHECKED_LAYOUTS = {
    "reshape": (lambda x: pjax.reshape(x, (3, 2)), (2, 3)),
    "transpose": (lambda x: pjax.transpose(x, (-1, 0, 1)), (2, 3, 4)),
    "swapaxes": (lambda x: pjax.swapaxes(x, 0, -1), (2, 3)),
    "moveaxis": (lambda x: pjax.moveaxis(x, 0, -1), (2, 3, 1)),
    "expand_dims": (lambda x: pjax.expand_dims(x, (0, -1)), (2, 3)),
    "squeeze": (lambda x: pjax.squeeze(x), (2, 1, 3)),
    "repeat": (lambda x: pjax.repeat(x, 3, axis=0), (2, 3)),
    "repeat-unequal": (lambda x: pjax.repeat(x, (1, 0, 2), axis=1), (2, 3)),
    "broadcast_to": (lambda x: pjax.broadcast_to(x, (4, 2, 3)), (1, 3)),
    "concatenate": (lambda x, y: pjax.concatenate([x, y, x], axis=1), (2, 3), (2, 1)),
    "stack": (lambda x, y: pjax.stack([x, y], axis=-1), (2, 3), (2, 3)),
    "pad": (lambda x: pjax.pad(x, ((1, 0), (0, 2)), 0.5), (2, 3)),
    "pad-with-one": (lambda x: pjax.pad(x, 1, 1.0), (2, 3)),
    "conv_patch-same": (lambda x: pjax.conv_patch(x, 3, 2), (1, 5, 5, 2)),
    "conv_patch-sparse": (lambda x: pjax.conv_patch(x, 2, 3, "VALID"), (1, 7, 7, 1)),
    "index-slices": (lambda x: pjax.index(x, (slice(None, None, 2), -1)), (5, 3)),
    "index-repeated": (lambda x: pjax.index(x, np.array([0, 2, 2])), (4, 2)),
    "index-mask": (lambda x: pjax.index(x, MASK), (2, 3)),
    "where": (lambda x, y: jnp.where(MASK, x, y), (2, 3), (2, 3)),
    "roll-flip-tile": (lambda x: jnp.tile(jnp.flip(jnp.roll(x, 1)), 2), (5,)),
    "update": (lambda x, y: lax.dynamic_update_slice(x, y, (1,)), (5,), (2,)),
    "identity": (lambda x: x, (4,)),
    "bfloat16": (lambda x: x.astype(jnp.bfloat16), (3,)),
    "constant": (lambda x: jnp.ones((2,)) + 0 * x[:0].sum(), (3,)),
    "scalar": (lambda x: x[None], ()),
}


@pytest.mark.parametrize("case", CHECKED_LAYOUTS.values(), ids=CHECKED_LAYOUTS)
def test_layouts(case):
    fn, *shapes = case
    check_layout(fn, *shapes)


NOT_LAYOUTS = {
    "scaled": (lambda x: x * 2, (3,)),
    "shifted": (lambda x: x + 1, (3,)),
    "sum": (lambda x: x.sum(keepdims=True), (3,)),
    "square": (lambda x: x * x, (3,)),  # the same on zeros and ones
    "maximum": (lambda x: jnp.maximum(x[0], x[1])[None], (2,)),
    "product": (lambda x, y: x * y, (3,), (3,)),
    "relu": (jax.nn.relu, (3,)),
    "sort": (jnp.sort, (5,)),
    "step": (lambda x: jnp.where(x > 2, 1.0, 0.0), (3,)),
    "negated": (lambda x: -x, (3,)),
    "one-bad-slot": (lambda x: jnp.concatenate([x[:2], x[2:] / 2]), (3,)),
}


@pytest.mark.parametrize("case", NOT_LAYOUTS.values(), ids=NOT_LAYOUTS)
def test_other_functions_are_refused(case):
    fn, *shapes = case
    with pytest.raises(AssertionError, match=r"not a layout: slot \("):
        check_layout(fn, *shapes)


def test_a_wrong_transpose_is_found():
    @jax.custom_jvp
    def first_two(x):
        return x[:2]

    @first_two.defjvp
    def _(primals, tangents):
        return first_two(*primals), tangents[0][1:3]

    with pytest.raises(AssertionError, match="the transpose of scalar 0"):
        check_layout(first_two, (3,))


# --- Functions ---

NUMPY_MARK = pytest.mark.usefixtures("quick_compilation")


PUBLIC = {
    name for name, value in vars(pnp).items() if inspect.isfunction(value) and vars(pjax).get(name) is value
}
RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def case(name, arrays, reference=None, id=None, **static):
    """One call of a function: its arrays, its static arguments, and what NumPy says."""
    label = name if id is None else f"{name}-{id}"
    if static:
        label += "-" + "-".join(f"{k}={v}" for k, v in static.items()).replace(" ", "")
    return pytest.param(name, arrays, static, reference or getattr(np, name), id=label)


def relu(x):
    return np.maximum(x, 0)


def np_conv(x, kernel, strides=1, padding="SAME"):
    """The convolution of one input, summed position by position of the kernel."""
    n = kernel.ndim - 2
    strides = (strides,) * n if isinstance(strides, int) else strides
    lead = x.ndim - n - 1
    sizes = x.shape[lead:-1]
    if padding == "SAME":
        out = [-(-size // s) for size, s in zip(sizes, strides, strict=True)]
        total = [
            max((o - 1) * s + k - size, 0)
            for o, s, k, size in zip(out, strides, kernel.shape, sizes, strict=False)
        ]
        padding = [(t // 2, t - t // 2) for t in total]
    elif padding == "VALID":
        padding = [(0, 0)] * n
    x = np.pad(x, [(0, 0)] * lead + list(padding) + [(0, 0)])
    out = [(size - k) // s + 1 for size, k, s in zip(x.shape[lead:-1], kernel.shape, strides, strict=False)]
    total = 0
    for at in np.ndindex(*kernel.shape[:n]):
        cut = tuple(slice(a, a + (o - 1) * s + 1, s) for a, o, s in zip(at, out, strides, strict=True))
        total = total + x[(slice(None),) * lead + cut] @ kernel[at]
    return total


def np_patch(x, kernel_size, strides=1, padding="SAME"):
    """Patches as the convolution with one kernel for each scalar of the patch."""
    kernel_size = (kernel_size,) * 2 if isinstance(kernel_size, int) else kernel_size
    size = int(np.prod(kernel_size)) * x.shape[-1]
    return np_conv(x, np.eye(size, dtype=x.dtype).reshape(*kernel_size, x.shape[-1], size), strides, padding)


def np_pool(x, window, strides=None, padding="VALID"):
    window = (window,) * 2 if isinstance(window, int) else window
    patches = np_patch(x - 100, window, window if strides is None else strides, padding)
    patches = patches.reshape(*patches.shape[:-1], -1, x.shape[-1])
    return patches.max(-2, where=patches < 0, initial=-np.inf) + 100


X, Y = floats(2, 3, 4), floats(3, 1)
MASK = np.array([[True, False, True], [False, False, True]])

CASES = [
    case("identity", [X], lambda x: x),
    case("add", [X, Y]),
    case("add", [X, np.float32(2)], id="number"),
    case("subtract", [X, Y]),
    case("negative", [X]),
    case("multiply", [X, Y]),
    case("square", [X]),
    *(
        case(name, [X], axis=axis, keepdims=keepdims)
        for name in ("sum", "mean", "max", "min")
        for axis, keepdims in [(None, False), (None, True), (-1, False), (0, True), ((0, -1), False)]
    ),
    case("sum", [X], lambda x, axis: np.sum(x, tuple(axis)), axis=[-1, 0]),
    case("sum", [X], axis=()),
    case("maximum", [X, Y]),
    case("minimise", [X], np.asarray),
    case("minimum", [X, Y]),
    case("relu", [X], relu),
    case("sum_relu", [X, Y, floats(4)], lambda x, y, z: relu(x + y + z)),
    case("sum_relu", [X, X * 2], lambda x, y, axis: relu(x.sum(axis) + y.sum(axis)), axis=-1),
    case("quantize", [X], lambda x: np.where(x > 0, 1.0, -1.0)),
    case(
        "quantize",
        [X],
        lambda x, scale, **_: np.clip(np.round(x / scale), -1, 1) * scale,
        levels=3,
        scale=2.0,
    ),
    case("constrain", [X], lambda x, **_: np.clip(x, -0.5, 1.0), into=Box(-0.5, 1.0)),
    case(
        "constrain",
        [X],
        lambda x, axis, **_: x / np.linalg.norm(x, axis=axis, keepdims=True),
        into=Sphere(1.0),
        axis=1,
    ),
    *(
        case(name, [floats(*a), floats(*b)], id=f"{a}{b}")
        for name in ("dot", "matmul")
        for a, b in [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4))]
    ),
    case("dot", [floats(), X], id="scalar"),
    case("matmul", [floats(2, 1, 2, 3), floats(5, 3, 4)], id="batches"),
    *(
        case(
            "einsum",
            [floats(*s) for s in shapes],
            lambda *a, subscripts: np.einsum(subscripts, *a),
            subscripts=sub,
        )
        for sub, shapes in [
            ("bi,ij->bj", [(2, 3), (3, 4)]),
            ("...i,ij", [(5, 2, 3), (3, 4)]),
            ("bi,ij,jk->bk", [(2, 3), (3, 4), (4, 5)]),
            ("bij->ji", [(2, 3, 4)]),
            ("i,j", [(2,), (3,)]),
            ("bqd,bkd->bqk", [(2, 3, 4), (2, 5, 4)]),
        ]
    ),
    *(
        case("index", [X], lambda x, idx: x[idx], idx=idx)
        for idx in [
            0,
            -1,
            np.int64(1),
            slice(None, None, -1),
            (slice(None), slice(2, 0, -1), None),
            (Ellipsis, -1),
            (None, 1, Ellipsis, slice(0, 3, 2)),
            (),
            [1, 0, -1],
            np.array([[0, 1], [1, -2]]),
            (slice(None), np.array([2, 0, 2, -1], np.int8)),
            (np.array([0, 1]), slice(None), np.array([3, -1])),
            (1, slice(None), np.array([0, 0, 1])),
            (Ellipsis, np.array([0, 2])),
            (None, np.array([1]), Ellipsis, -2),
            (0, np.array([True, False, True])),
            np.array([False, True]),
            MASK,
            (MASK, 1),
            (Ellipsis, np.array([True, False, True, True])),
        ]
    ),
    *(case("reshape", [X], shape=shape) for shape in [-1, (6, 4), (4, -1, 2), [24]]),
    *(case("transpose", [X], axes=axes) for axes in [None, (0, 2, 1), (-1, 0, 1), (-1, -3, -2)]),
    *(case("swapaxes", [X], axis1=a, axis2=b) for a, b in [(0, 1), (-1, 0), (-2, -1)]),
    *(case("moveaxis", [X], source=a, destination=b) for a, b in [(0, -1), (-1, 0), ((0, 1), (-1, -2))]),
    *(case("expand_dims", [X], axis=axis) for axis in [0, -1, 2, (0, -1), (1, 2)]),
    *(case("squeeze", [floats(1, 3, 1)], axis=axis) for axis in [None, 0, -1, (0, -1)]),
    *(
        case("repeat", [X], repeats=repeats, axis=axis)
        for repeats, axis in [(2, None), (3, 0), (2, 1), (2, -1), (0, 1), ((2,), 0)]
    ),
    *(
        case("repeat", [X], repeats=repeats, axis=axis)
        for repeats, axis in [((1, 0, 3), 1), ((1, 2, 0, 1), -1), ((2, 3), 0)]
    ),
    *(case("broadcast_to", [Y], shape=shape) for shape in [(3, 4), (2, 3, 4), (3, 1)]),
    *(
        case("concatenate", [floats(2, 3), floats(2, 3)], lambda *a, axis: np.concatenate(a, axis), axis=axis)
        for axis in [0, 1, -1, None]
    ),
    case("concatenate", [floats(2, 3), floats(4, 3)], lambda *a: np.concatenate(a), id="lengths"),
    *(
        case("stack", [floats(2, 3), floats(2, 3)], lambda *a, axis: np.stack(a, axis), axis=axis)
        for axis in [0, 1, -1, -3]
    ),
    *(
        case("pad", [floats(2, 3)], pad_width=w)
        for w in [1, (1,), (1, 2), ((1, 2),), ((1, 2), (0, 3)), ((1,), (2,))]
    ),
    case("pad", [floats(2, 3)], pad_width=1, constant_values=-2.5),
    case("conv", [floats(2, 7, 6, 3), floats(3, 3, 3, 4)], np_conv),
    case("conv", [floats(2, 7, 6, 3), floats(3, 3, 3, 4)], np_conv, strides=2),
    case("conv", [floats(2, 6, 7, 3), floats(3, 2, 3, 4)], np_conv, strides=(2, 1), padding="VALID"),
    case("conv", [floats(6, 7, 3), floats(3, 2, 3, 4)], np_conv, padding=[(1, 0), (2, 2)], id="one"),
    case("conv", [floats(2, 3, 7, 2), floats(3, 2, 4)], np_conv, strides=2, id="1d"),
    case("conv", [floats(1, 4, 5, 3, 2), floats(2, 3, 2, 2, 4)], np_conv, strides=2, id="3d"),
    case("conv_patch", [floats(2, 7, 6, 3)], np_patch, kernel_size=3),
    case("conv_patch", [floats(2, 7, 6, 3)], np_patch, kernel_size=3, strides=2),
    case("conv_patch", [floats(6, 5, 2)], np_patch, kernel_size=(2, 3), strides=(2, 1), padding="VALID"),
    case("conv_patch", [floats(2, 3, 6, 2)], np_patch, kernel_size=(3,), strides=2),
    case(
        "conv_patch", [floats(4, 5, 3, 2)], np_patch, kernel_size=(2, 3, 2), padding=[(1, 1), (0, 0), (1, 0)]
    ),
    case("max_pool", [floats(2, 6, 5, 3)], np_pool, window=2),
    case("max_pool", [floats(2, 7, 5, 3)], np_pool, window=(3, 2), strides=2, padding="SAME"),
    case("max_pool", [floats(7, 5, 3)], np_pool, window=3, strides=(1, 2)),
    case("max_pool", [floats(2, 7, 3)], np_pool, window=(3,), strides=2, padding="SAME"),
]

LISTS = {"concatenate": "arrays", "stack": "arrays"}


def call(name, arrays, static):
    function = getattr(pnp, name)
    if name in LISTS:
        return function(list(arrays), **static)
    if name == "einsum":
        return function(static["subscripts"], *arrays)
    return function(*arrays, **static)


@NUMPY_MARK
@pytest.mark.parametrize(("name", "arrays", "static", "reference"), CASES)
def test_function_on_plain_arrays_computations_and_under_jit(name, arrays, static, reference):
    expected = reference(*arrays, **static)
    plain = call(name, arrays, static)
    assert isinstance(plain, jax.Array)
    np.testing.assert_allclose(plain, expected, rtol=1e-5, atol=1e-5)
    assert plain.shape == expected.shape
    assert plain.dtype == jnp.float32

    first, *rest = arrays
    leaf = parameter(first, name="first")
    made = call(name, [leaf, *rest], static)
    assert type(made) is Computation
    assert made.op == name
    assert made.shape == expected.shape
    np.testing.assert_array_equal(made.value, plain)
    assert made.inputs[0] is leaf
    assert all(type(x) is Array for x in made.inputs[1:])
    assert len(made.inputs) == len(arrays)
    for x, given_array in zip(made.inputs, arrays, strict=True):
        np.testing.assert_array_equal(x.value, given_array)
    assert {key: made.kwargs[key] for key in static} == static or name == "index"
    parameters = inspect.signature(getattr(pnp, name)).parameters
    assert set(made.kwargs) == {
        k for k in parameters if k not in ("x", "y", "kernel", "inputs", "arrays", "operands")
    }

    fn, params = as_function(made)
    changed = np.asarray(params["first"])[...] * 0.5 + 0.1
    replayed = jax.jit(fn)({"first": changed})
    np.testing.assert_allclose(replayed, reference(changed, *rest, **static), rtol=1e-5, atol=1e-5)


MOVES = {
    "broadcast_in_dim", "concatenate", "gather", "pad", "reshape", "rev", "slice", "squeeze", "transpose",
}  # fmt: skip
WORK = {
    "add", "conv_general_dilated", "div", "dot_general", "max", "min", "mul", "neg", "pjax", "reduce_max",
    "reduce_min", "reduce_sum", "reduce_window_max", "sub",
}  # fmt: skip
LAYOUTS = {
    "broadcast_to", "concatenate", "conv_patch", "expand_dims", "index", "moveaxis", "pad", "repeat",
    "reshape", "squeeze", "stack", "swapaxes", "transpose",
}  # fmt: skip


@NUMPY_MARK
@pytest.mark.parametrize(("name", "arrays", "static", "reference"), CASES)
def test_equations_are_simple(name, arrays, static, reference):
    del reference
    jaxpr = jax.make_jaxpr(lambda x: call(name, [x, *arrays[1:]], static))(arrays[0])
    depends = {jaxpr.jaxpr.invars[0]}
    for eqn in jaxpr.eqns:
        if any(not hasattr(v, "val") and v in depends for v in eqn.invars):
            depends.update(eqn.outvars)
            found = {inside.primitive.name for inside in unwrapped(eqn)}
            assert found <= (MOVES if name in LAYOUTS else MOVES | WORK)


def unwrapped(eqn):
    if eqn.primitive.name not in jaxprs.WRAPPERS:
        return [eqn]
    return [inside for part in jaxprs.opened(jaxprs.wrapped(eqn)).eqns for inside in unwrapped(part)]


@NUMPY_MARK
def test_every_public_name_is_tested():
    tested = {param.values[0] for param in CASES}
    assert tested | {"apply", "vmap", "cross_entropy", "margin_loss", "squared_error"} == PUBLIC


@NUMPY_MARK
@pytest.mark.parametrize("wrap", [list, tuple, np.asarray, jnp.asarray])
def test_lists_numbers_and_arrays_are_plain(wrap):
    assert isinstance(pnp.add(wrap([1.0, 2.0]), 1), jax.Array)
    np.testing.assert_array_equal(pnp.sum(wrap([1.0, 2.0])), 3.0)


@NUMPY_MARK
def test_numbers_do_not_widen_arrays():
    x = jnp.ones(3, jnp.bfloat16)
    assert pnp.add(x, 2.0).dtype == jnp.bfloat16
    assert pnp.add(array(x), 2.0).dtype == jnp.bfloat16
    fn, params = as_function(parameter(x, name="x") * 2.0)
    assert fn(params).dtype == jnp.bfloat16


@NUMPY_MARK
def test_integers_stay_integers():
    x = np.array([[1, -2], [3, 4]])
    for name in ("sum", "max", "min", "relu", "negative", "square"):
        assert getattr(pnp, name)(x).dtype == jnp.int32
    np.testing.assert_array_equal(pnp.min(x, axis=0), [1, -2])
    assert pnp.max_pool(x[..., None], 2).item() == 4


@NUMPY_MARK
def test_sequences_may_mix_plain_and_computed():
    made = pnp.stack([np.ones(2), parameter([1.0, 2.0]), [3.0, 4.0]])
    assert [x.op for x in made.inputs] == ["array", "parameter", "array"]
    assert made.kwargs == {"axis": 0}
    np.testing.assert_array_equal(made.value, [[1, 1], [1, 2], [3, 4]])
    np.testing.assert_array_equal(pnp.concatenate(np.ones((2, 3))), np.ones(6))


@NUMPY_MARK
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_index_is_that_of_numpy(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    parts = []
    for n in shape[: data.draw(st.integers(0, len(shape)))]:
        bound = st.none() | st.integers(-n - 1, n + 1)
        part = data.draw(
            st.integers(-n, n - 1)
            | st.builds(slice, bound, bound, st.none() | st.sampled_from([-2, -1, 1, 2]))
            | st.lists(st.integers(-n, n - 1), min_size=2, max_size=2).map(np.array)
            | st.lists(st.booleans(), min_size=n, max_size=n)
            .filter(lambda m: m.count(True) == 2)
            .map(np.array)
            if n > 1
            else st.integers(-n, n - 1)
        )
        parts.append(part)
    for extra in data.draw(st.sampled_from([[], [None], [Ellipsis]])):
        parts.insert(data.draw(st.integers(0, len(parts))), extra)
    idx = tuple(parts)
    try:
        expected = x[idx]
    except IndexError:
        with pytest.raises(InputError, match=r"pjax\.index"):
            pnp.index(x, idx)
    else:
        np.testing.assert_array_equal(pnp.index(x, idx), expected)
        np.testing.assert_array_equal(array(x)[idx].value, expected)


@NUMPY_MARK
def test_index_takes_tokens_that_are_known_only_under_jit():
    table, tokens = floats(5, 3), np.array([[0, 4], [4, -1]])
    np.testing.assert_array_equal(jax.jit(pnp.index)(table, tokens), table[tokens])

    @jax.jit
    def lookup(table, tokens):
        made = pnp.index(parameter(table, name="t"), tokens)
        assert [x.op for x in made.inputs] == ["parameter", "array"]
        fn, params = as_function(made)
        return fn(params)

    np.testing.assert_array_equal(lookup(table, tokens), table[tokens])
    made = parameter(table)[array(tokens)]
    np.testing.assert_array_equal(made.value, table[tokens])


@NUMPY_MARK
def test_patches_times_kernel_are_the_convolution():
    x, kernel = floats(2, 3, 9, 8, 3), floats(3, 2, 3, 5)
    for padding in ("SAME", "VALID", ((2, 1), (0, 1))):
        patches = pnp.conv_patch(x, (3, 2), 2, padding)
        expected = pnp.conv(x, kernel, 2, padding)
        np.testing.assert_allclose(patches @ kernel.reshape(-1, 5), expected, rtol=1e-4, atol=1e-5)
    assert pnp.conv(np.zeros((2, 8, 8, 1)), np.zeros((3, 3, 1, 1)), 2).shape == (2, 4, 4, 1)


@NUMPY_MARK
def test_conv_promotes_types():
    assert pnp.conv(jnp.ones((4, 4, 1), jnp.int8), floats(3, 3, 1, 2)).dtype == jnp.float32


@NUMPY_MARK
def test_einsum_contracts_in_pairs():
    shapes = [(2, 3), (3, 4), (4, 5), (5, 6)]
    jaxpr = jax.make_jaxpr(lambda *a: pnp.einsum("ab,bc,cd,de->ae", *a))(*[floats(*s) for s in shapes])
    assert [eqn.primitive.name for eqn in jaxpr.eqns].count("dot_general") == 3


# Losses.


@NUMPY_MARK
def test_losses_take_computations():
    logits, labels = floats(4, 3), np.array([0, 2, 1, 1])
    for name in ("cross_entropy", "margin_loss"):
        loss = getattr(pnp, name)
        made = loss(parameter(logits, name="z"), labels)
        assert made.op == name
        assert [x.op for x in made.inputs] == ["parameter", "array"]
        np.testing.assert_array_equal(made.value, loss(logits, labels))
    made = pnp.cross_entropy(parameter(logits), labels, scale=2.0)
    assert made.kwargs == {"scale": 2.0, "solver": "newton"}
    made = pnp.squared_error(parameter(logits), logits * 0)
    assert made.kwargs == {"scale": None}
    np.testing.assert_array_equal(made.value, pnp.squared_error(logits, logits * 0))


# Vectorisation.


@NUMPY_MARK
def test_vmap_of_plain_arrays_is_that_of_jax():
    x, w = floats(5, 3), floats(3, 2)
    np.testing.assert_array_equal(pnp.vmap(pnp.dot, (0, None))(x, w), jax.vmap(jnp.dot, (0, None))(x, w))
    assert isinstance(pnp.vmap(pnp.relu)(x), jax.Array)
    np.testing.assert_array_equal(pnp.vmap(lambda x, y: x + y)(x, y=x), x + x)
    np.testing.assert_array_equal(pnp.vmap(lambda: jnp.ones(2), axis_size=3)(), np.ones((3, 2)))


def check_vmap(fn, args, in_axes=0, out_axes=0):
    """On parameters: the value is that of jax.vmap, and replay with other values is too."""
    expected = jax.vmap(fn, in_axes, out_axes)
    leaves, tree = jax.tree.flatten(args)
    made = pnp.vmap(fn, in_axes, out_axes)(
        *jax.tree.unflatten(tree, [parameter(x, name=str(i)) for i, x in enumerate(leaves)])
    )
    for x in jax.tree.leaves(made):
        assert type(x) is Computation
        assert x.op == "vmap"
    replay, params = as_function(made)
    for scale in (1.0, 0.5):
        changed = {key: value * scale for key, value in params.items()}
        got = jax.tree.leaves(replay(changed))
        want = jax.tree.leaves(expected(*jax.tree.map(lambda x, s=scale: x * s, args)))
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)
    return made


@NUMPY_MARK
def test_vmap_of_computations():
    x, w = floats(5, 3), floats(3, 2)
    made = check_vmap(lambda a, b: pnp.relu(pnp.dot(a, b)), (x, w), (0, None))
    assert made.shape == (5, 2)
    assert made.kwargs["in_axes"] == (0, None)
    check_vmap(lambda a: a * a, (x,), -1, -1)
    check_vmap(lambda a: a.sum(), (x,), 1)
    check_vmap(lambda a: a[0], (x,), [0])
    check_vmap(lambda a, b: {"sum": a + b, "both": [a, b]}, (x, x * 2), (0, 0), {"sum": 0, "both": -1})


@NUMPY_MARK
def test_vmap_of_pytrees():
    x, w, b = floats(5, 3), floats(3, 2), floats(5, 2)
    in_axes = ({"w": None, "b": 0}, 0)
    check_vmap(lambda p, a: pnp.dot(a, p["w"]) + p["b"], ({"w": w, "b": b}, x), in_axes)
    check_vmap(lambda p, a: pnp.dot(a, p["w"]) + p["b"], ({"w": w, "b": b.T}, x), ({"w": None, "b": 1}, 0))


@NUMPY_MARK
def test_vmap_nests():
    x, y = floats(4, 3), floats(5, 3)

    def table(a, b):
        return pnp.vmap(lambda u: pnp.vmap(lambda v: pnp.dot(u, v))(b))(a)

    made = table(parameter(x, name="x"), parameter(y, name="y"))
    np.testing.assert_allclose(made.value, x @ y.T, rtol=1e-5)
    fn, params = as_function(made)
    np.testing.assert_allclose(fn({"x": params["x"] * 2, "y": params["y"]}), 2 * x @ y.T, rtol=1e-5)
    check_vmap(pnp.vmap(pnp.dot, (None, 0)), (x, y), (0, None))
    check_vmap(pnp.vmap(pnp.dot, (0, None)), (x, y), (None, 0), 1)


@NUMPY_MARK
@pytest.mark.parametrize("data", [array, jnp.asarray])
@pytest.mark.parametrize("under", [lambda f: f, jax.jit])
def test_vmap_shares_what_the_function_captures(data, under):
    x, w, b = floats(5, 3), floats(3, 2), floats(2)

    @under
    def run(x, w, b):
        weight, bias = parameter(w, name="w"), parameter(b, name="b")
        outside = weight * 2.0
        made = pnp.vmap(lambda a: pnp.dot(a, outside) + pnp.relu(bias) + jnp.ones(2))(data(x))
        fn, params = as_function(made)
        assert sorted(params) == ["b", "w"]
        return made.value, fn({"w": w + 1, "b": b - 1})

    now, then = run(x, w, b)
    np.testing.assert_allclose(now, x @ w * 2 + relu(b) + 1, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(then, x @ (w + 1) * 2 + relu(b - 1) + 1, rtol=1e-5, atol=1e-5)


@NUMPY_MARK
def test_vmap_over_labels_and_indices():
    x, at = floats(5, 3), np.array([0, 2, 1, -1, 0])
    expected = x[np.arange(5), at]
    for wrap in (array, jnp.asarray):
        made = pnp.vmap(pnp.index)(parameter(x, name="x"), wrap(at))
        np.testing.assert_array_equal(made.value, expected)
        fn, params = as_function(made)
        np.testing.assert_array_equal(fn({"x": params["x"] * 2}), expected * 2)


@NUMPY_MARK
def test_vmap_calls_the_function_once_for_all_of_its_results():
    calls = []

    def both(a):
        calls.append(a)
        return a + 1.0, a * 2.0

    made = pnp.vmap(both)(parameter(floats(3), name="a"))
    fn, params = as_function([*made, made[0]])
    assert len(calls) == 1
    jaxpr = jax.make_jaxpr(fn)(params)
    assert len(calls) == 2
    used = [eqn.primitive.name for eqn in jaxpr.eqns]
    assert (used.count("add"), used.count("mul")) == (1, 1)


@NUMPY_MARK
def test_vmap_of_a_result_that_depends_on_no_argument():
    w = parameter([1.0, 2.0], name="w")
    made = pnp.vmap(lambda x: (w, 3.0, x))(array(floats(4)))
    assert [x.shape for x in made] == [(4, 2), (4,), (4,)]
    fn, params = as_function(made)
    np.testing.assert_array_equal(fn({"w": params["w"] + 1})[0], np.tile([2.0, 3.0], (4, 1)))


@NUMPY_MARK
def test_vmap_leaks_nothing():
    with jax.checking_leaks():
        made = pnp.vmap(lambda a: pnp.relu(a + 1.0))(parameter(floats(3), name="a"))
    np.testing.assert_array_equal(made.value, relu(made.inputs[0].value + 1))


@NUMPY_MARK
def test_vmap_errors():
    with pytest.raises(InputError, match=r"pjax\.vmap"):
        pnp.vmap(pnp.dot, (0, 0))(array(floats(3, 2)), floats(4, 2))
    with pytest.raises(InputError, match=r"pjax\.vmap"):
        pnp.vmap(pnp.relu, 2)(floats(3, 2))

    def fail(_):
        raise TypeError("mine")

    for x in (floats(3), array(floats(3))):
        with pytest.raises(TypeError, match="mine") as caught:
            pnp.vmap(fail)(x)
        assert not isinstance(caught.value, InputError)


# Errors.


@NUMPY_MARK
@pytest.mark.parametrize("wrap", [jnp.asarray, array])
@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("sum", (floats(2, 3), 2), ["axis 2", "(2, 3)", "Expected axes"]),
        ("sum", (floats(2, 3), (0, 0)), ["axis"]),
        ("max", (floats(2, 0), 1), ["(2, 0)"]),
        ("add", (floats(2, 3), floats(4)), ["(2, 3)", "(4,)", "broadcast"]),
        ("dot", (floats(2, 3), floats(4, 5)), ["(2, 3)", "(4, 5)"]),
        ("matmul", (floats(2, 3), floats(2, 3)), ["(2, 3)"]),
        ("reshape", (floats(2, 3), (4, 2)), ["(2, 3)", "shape=(4, 2)"]),
        ("transpose", (floats(2, 3), (0, 0)), ["axes=(0, 0)"]),
        ("swapaxes", (floats(2, 3), 0, 2), ["axis2=2"]),
        ("squeeze", (floats(2, 1), 0), ["length 1"]),
        ("expand_dims", (floats(2), 5), ["axis=5"]),
        ("repeat", (floats(2), -1), ["0 or more"]),
        ("repeat", (floats(2), (1, 2, 3)), ["3 repeats", "length 2"]),
        ("repeat", (floats(2), 1.5), ["integers"]),
        ("repeat", (floats(2), 2, 3), ["axis 3"]),
        ("broadcast_to", (floats(3), (2,)), ["(3,)", "shape=(2,)"]),
        ("pad", (floats(2, 3), -1), ["0 or more"]),
        ("pad", (floats(2, 3), ((1, 2), (3, 4), (5, 6))), ["pad_width"]),
        ("pad", (floats(2, 3), 1, (1.0, 2.0)), ["one number"]),
        ("index", (floats(2, 3), 2), ["out of bounds", "(2, 3)"]),
        ("index", (floats(2, 3), (0, 0, 0)), ["too many indices"]),
        ("index", (floats(2, 3), np.array([0, 5])), ["out of bounds"]),
        ("index", (floats(2, 3), np.array([True])), ["boolean"]),
        ("index", (floats(2, 3), 1.0), ["integers or booleans"]),
        ("index", (floats(2, 3), True), ["boolean"]),
        ("conv", (floats(4, 4, 3), floats(3, 3, 2, 5)), ["channels"]),
        ("conv", (floats(4, 3), floats(3, 3, 3, 5)), ["spatial"]),
        ("conv", (floats(4, 4, 3), floats(3, 3, 3, 5), (1, 2, 3)), ["strides"]),
        ("conv", (floats(4, 4, 3), floats(3, 3, 3, 5), 1, "FULL"), ["'FULL'", "'SAME'"]),
        ("conv_patch", (floats(4, 4, 3), (3, 3), 1, "FULL"), ["'FULL'"]),
        ("conv_patch", (floats(4, 4, 3), ()), ["kernel_size"]),
        ("max_pool", (floats(4, 4, 3), (2, 2, 2)), ["spatial"]),
        ("max_pool", (floats(4, 4, 3), 0), ["positive"]),
    ],
)
def test_wrong_arguments_are_explained(wrap, name, args, words):
    with pytest.raises(InputError) as caught:
        getattr(pnp, name)(wrap(args[0]), *args[1:])
    for word in [f"pjax.{name}", *words]:
        assert word in str(caught.value)


@NUMPY_MARK
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: pnp.concatenate([x, floats(2, 2)]), ["pjax.concatenate", "(3,)", "(2, 2)"]),
        (lambda x: pnp.concatenate(x[0]), ["pjax.concatenate"]),
        (lambda _: pnp.concatenate([]), ["pjax.concatenate"]),
        (lambda x: pnp.stack([x, floats(2)]), ["pjax.stack", "(3,)", "(2,)"]),
        (lambda x: pnp.einsum("ij,j", x, x), ["pjax.einsum", "(3,)"]),
        (lambda x: pnp.einsum(x, "i"), ["pjax.einsum"]),
        (lambda _: pnp.sum_relu(), ["pjax.sum_relu", "at least one"]),
        (lambda x: pnp.add(x, "word"), ["word"]),
        (lambda x: pnp.add([x, x], 1.0), ["pjax.stack first"]),
        (lambda x: pnp.index(x, x + 1), ["pjax.index", "static", ".value"]),
        (lambda x: pnp.pad(x, 1, x), ["pjax.pad", "constant_values", "static"]),
        (lambda x: x + None, ["NoneType"]),
    ],
)
def test_wrong_computations_are_explained(make, words):
    with pytest.raises(InputError) as caught:
        make(parameter(floats(3), name="w"))
    for word in words:
        assert word in str(caught.value)


@NUMPY_MARK
def test_a_mask_must_be_known():
    with pytest.raises(InputError, match=r"pjax\.index"):
        jax.jit(pnp.index)(floats(3), np.array([True, False, True]))


@NUMPY_MARK
def test_errors_keep_their_cause():
    with pytest.raises(InputError) as caught:
        pnp.sum(floats(2), 3)
    assert isinstance(caught.value.__cause__, ValueError)


@NUMPY_MARK
def test_an_unknown_argument_is_an_error_of_python():
    with pytest.raises(TypeError, match="axes"):
        pnp.sum(floats(2), axes=0)


@NUMPY_MARK
def test_lifted_functions_keep_name_and_docs():
    for name in PUBLIC:
        function = getattr(pnp, name)
        assert function.__name__ == name
        assert function.__doc__
