"""Networks: modules, layers, and that each of them trains."""

import collections
import copy
import dataclasses
import inspect
import math
import os
import pickle
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import nn
from pjax.containers.computation import ancestors

pytestmark = pytest.mark.usefixtures("quick_compilation")


# --- Modules: names, initial values, binding, messages ---

KEY = jax.random.key(0)


class MLP(nn.Module):
    def __init__(self, inputs=8, hidden=16, classes=3):
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.relu = nn.ReLU(hidden)
        self.out = nn.Linear(hidden, classes)

    def __call__(self, x):
        return self.out(self.relu(self.hidden(x)))


def module(call=None, **attributes):
    """A module with the given attributes."""
    new = type("Model", (nn.Module,), {"__call__": call} if call else {})()
    for name, value in attributes.items():
        setattr(new, name, value)
    return new


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], strict=True)


# Names and values.


def test_names_are_paths():
    model = module(
        weight=nn.Parameter((2,)),
        inner=MLP(),
        layers=[nn.Linear(2, 3), nn.ReLU(3)],
        pair=(nn.ReLU(), nn.ReLU(4)),
        heads={"left": nn.Linear(2, 1), "right": [nn.Linear(1, 1), {"deep": (nn.Linear(1, 2, bias=True),)}]},
        settings={"rate": 0.1, "names": ["a", "b"]},
    )
    assert list(model.init(KEY)) == [
        "weight",
        "inner.hidden.weight",
        "inner.relu.bias",
        "inner.out.weight",
        "layers.0.weight",
        "layers.1.bias",
        "pair.1.bias",
        "heads.left.weight",
        "heads.right.0.weight",
        "heads.right.1.deep.0.weight",
        "heads.right.1.deep.0.bias",
    ]


def test_initial_values_depend_on_key_and_name_alone():
    first = module(a=nn.Linear(3, 2), b=nn.Linear(3, 2))
    second = module(extra=nn.Linear(5, 5), b=nn.Linear(3, 2), more=[1], a=nn.Linear(3, 2))
    values, others = first.init(KEY), second.init(KEY)
    same(values, {name: others[name] for name in values})
    same(values, first.init(KEY))
    assert not np.array_equal(values["a.weight"], values["b.weight"])
    assert not np.array_equal(values["a.weight"], first.init(jax.random.key(1))["a.weight"])


def test_initial_values_are_the_same_in_every_process():
    # A constant of this file: it fails if names are hashed with a seed, or if the scheme changes.
    value = nn.Linear(2, 1, initialiser=jax.nn.initializers.uniform(1.0)).init(KEY)["weight"]
    key = jax.random.fold_in(KEY, int.from_bytes(bytes.fromhex("0844df8f"), "little"))
    np.testing.assert_array_equal(value, jax.random.uniform(key, (2, 1)))


def test_a_lone_layer_is_a_model():
    layer = nn.Linear(3, 2)
    params = layer.init(KEY)
    assert params.keys() == {"weight"}
    np.testing.assert_allclose(layer.apply(params, jnp.ones(3)), params["weight"].sum(0), rtol=1e-6)


def test_a_forgotten_super_call_does_no_harm():
    class Plain(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(2, 2)

        def __call__(self, x):
            return self.layer(x)

    @dataclasses.dataclass
    class Data(nn.Module):
        layer: nn.Linear

        def __call__(self, x):
            return self.layer(x)

    for model in (Plain(), Data(nn.Linear(2, 2))):
        params = model.init(KEY)
        assert params.keys() == {"layer.weight"}
        assert model.apply(params, jnp.ones(2)).shape == (2,)


@pytest.mark.parametrize("key", [jax.random.PRNGKey(3), np.asarray(jax.random.PRNGKey(3))])
def test_keys_of_the_old_style(key):
    same(MLP().init(key), MLP().init(jax.random.key(3)))


@pytest.mark.parametrize("key", [0, None, jnp.zeros(2), np.zeros(3, np.uint32), "seed"])
def test_what_is_no_key(key):
    with pytest.raises(pjax.InputError, match=r"MLP.init: expected a key, such as jax.random.key\(0\), got"):
        MLP().init(key)


def test_several_keys():
    keys = jax.random.split(KEY, 3)
    with pytest.raises(pjax.InputError, match=r"jax.vmap\(model.init\)"):
        MLP().init(keys)
    assert jax.vmap(MLP().init)(keys)["out.weight"].shape == (3, 16, 3)


def test_init_under_jit():
    values, jitted = MLP().init(KEY), jax.jit(MLP().init)(KEY)
    assert values.keys() == jitted.keys()
    for name in values:
        np.testing.assert_allclose(values[name], jitted[name], rtol=1e-6)


def test_types():
    model = module(a=nn.Parameter((2, 2), dtype=jnp.bfloat16), b=nn.Linear(2, 2))
    assert {k: v.dtype for k, v in model.init(KEY).items()} == {
        "a": jnp.bfloat16,
        "b.weight": jnp.float32,
    }
    assert {v.dtype for v in model.init(KEY, dtype=jnp.float16).values()} == {jnp.dtype(jnp.float16)}
    with pytest.raises(pjax.InputError, match="floating point, got int32"):
        model.init(KEY, dtype=jnp.int32)
    with pytest.raises(pjax.InputError, match="floating point, got int8"):
        nn.Parameter((2,), dtype=jnp.int8)


def test_shapes_need_no_values():
    shapes = jax.eval_shape(MLP().init, KEY)
    assert shapes["hidden.weight"] == jax.ShapeDtypeStruct((8, 16), jnp.float32)
    assert shapes == {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in MLP().init(KEY).items()}


def test_a_model_is_made_and_shown_without_a_device():
    # A platform that does not exist is noticed by the first call that needs a device.
    code = "from pjax import nn; model = nn.RNN(5, [3]); print(repr(model)[:3])"
    environment = {**os.environ, "JAX_PLATFORMS": "none_such"}
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert shown.stdout.split() == ["RNN"]


def test_a_wrong_initialiser():
    model = module(a=nn.Parameter((2, 3), lambda _, shape, dtype: jnp.zeros(shape[::-1], dtype)))
    with pytest.raises(
        pjax.InputError, match=r"initialiser of 'a' returned the shape \(3, 2\); expected \(2, 3\)"
    ):
        model.init(KEY)
    with pytest.raises(pjax.InputError, match="must be a function of a key"):
        nn.Parameter((2,), 0.0)


# Sharing.


def test_shared_modules_have_one_set_of_values():
    shared = nn.Linear(2, 2)
    model = module(lambda self, x: self.b(self.a(x)), a=shared, b=shared, c=[shared])
    params = model.init(KEY)
    assert params.keys() == {"a.weight"}
    bound = model.bind(params)
    assert bound.a is bound.b is bound.c[0]
    np.testing.assert_allclose(bound(jnp.eye(2)), params["a.weight"] @ params["a.weight"], rtol=1e-6)


def test_tied_parameters_are_one_entry():
    model = module(
        lambda self, x: self.embed(x) @ self.out.weight.T, embed=nn.Embedding(5, 3), out=nn.Linear(3, 5)
    )
    model.out.weight = model.embed.weight
    params = model.init(KEY)
    assert params.keys() == {"embed.weight"}
    assert model.apply(params, jnp.arange(4)).shape == (4, 5)
    assert "weight (5, 3) float32, the same as embed.weight" in repr(model)


def test_cycles():
    model = MLP()
    model.hidden.parent = [model]
    with pytest.raises(pjax.InputError, match=r"'hidden.parent.0' is a MLP that contains itself"):
        model.init(KEY)
    layers = [nn.Linear(2, 2)]
    layers.append(layers)
    with pytest.raises(pjax.InputError, match=r"'layers.1' is a list that contains itself"):
        module(layers=layers).init(KEY)


def test_names_that_look_alike():
    model = module(layers={"a.b": nn.Linear(1, 1), "a": {"b": nn.Linear(1, 1)}})
    with pytest.raises(pjax.InputError, match=r"two parameters are called 'layers.a.b.weight'"):
        model.init(KEY)


def test_sets_are_refused():
    with pytest.raises(pjax.InputError, match="'layers' is a set"):
        module(layers={nn.Linear(1, 1)}).init(KEY)


# Binding.


def test_binding_changes_nothing_in_the_module():
    model = module(lambda self, x: self.layers[0](x), layers=[nn.Linear(2, 2)], table={"a": [1, 2]})
    before = copy.copy(vars(model)), list(model.layers), dict(vars(model.layers[0]))
    bound = model.bind(model.init(KEY))
    bound.layers.append(None)
    bound.more = 1
    assert (vars(model), model.layers, vars(model.layers[0])) == before
    assert bound.table is model.table
    assert isinstance(model.layers[0].weight, nn.Parameter)
    assert isinstance(bound.layers[0].weight, jax.Array)


def test_containers_keep_their_type():
    Pair = collections.namedtuple("Pair", "first second")
    ordered = collections.OrderedDict(x=nn.Linear(1, 1))
    model = module(
        pair=Pair(nn.Linear(1, 1), 3), ordered=ordered, many=collections.defaultdict(list, {1: nn.ReLU(1)})
    )
    params = model.init(KEY)
    assert params.keys() == {"pair.0.weight", "ordered.x.weight", "many.1.bias"}
    bound = model.bind(params)
    assert isinstance(bound.pair, Pair)
    assert bound.pair.second == 3
    assert isinstance(bound.ordered, collections.OrderedDict)
    assert bound.many["missing"] == []
    assert bound.many[1].bias is params["many.1.bias"]


def test_attributes_may_be_set_later():
    model = MLP()
    model.out = nn.Linear(16, 5, bias=True)
    params = model.init(KEY)
    assert list(params) == ["hidden.weight", "relu.bias", "out.weight", "out.bias"]
    assert model.apply(params, jnp.ones((2, 8))).shape == (2, 5)


def test_a_bound_module_can_be_bound_again():
    model = MLP()
    first, second = model.init(KEY), model.init(jax.random.key(1))
    x = jnp.ones((2, 8))
    np.testing.assert_array_equal(model.bind(first).apply(second, x), model.apply(second, x))
    same(model.bind(first).init(KEY), first)


def test_a_bound_module_inside_another_is_constant():
    features = nn.Linear(3, 2)
    model = module(lambda self, x: self.out(self.features(x)), out=nn.Linear(2, 2))
    model.features = features.bind(features.init(KEY))
    assert model.init(KEY).keys() == {"out.weight"}
    assert model.apply(model.init(KEY), jnp.ones(3)).shape == (2,)


@pytest.mark.parametrize(
    "use",
    [
        lambda w: jnp.ones(3) @ w,
        lambda w: np.ones(3) @ w,
        lambda w: w + 1,
        lambda w: 2.0 * w,
        lambda w: jnp.dot(jnp.ones(3), w),
        lambda w: pjax.dot(jnp.ones(3), w),
        lambda w: np.asarray(w),
        lambda w: w[0],
    ],
)
def test_an_unbound_parameter_says_how_to_get_its_value(use):
    with pytest.raises(pjax.InputError, match=r"model.apply\(params, …\)"):
        use(nn.Linear(3, 2).weight)


def test_an_unbound_model_says_how_to_call_it():
    with pytest.raises(pjax.InputError, match=r"model.apply\(params, …\)"):
        MLP()(jnp.ones((2, 8)))
    with pytest.raises(AttributeError, match=r"no attribute 'T'.*model.apply"):
        _ = MLP().out.weight.T


def test_reserved_names():
    with pytest.raises(pjax.InputError, match="attribute 'init' would hide"):
        module(init=nn.Linear(1, 1))


def test_a_module_without_a_call():
    with pytest.raises(pjax.InputError, match="Model defines no __call__"):
        module(a=nn.Linear(1, 1)).apply({"a.weight": jnp.ones((1, 1))}, 1)


# Parameters that do not fit.


def complaint(params, model=None):
    with pytest.raises(pjax.InputError) as error:
        (model or MLP()).apply(params, jnp.ones((2, 8)))
    return str(error.value)


def test_a_misspelt_parameter_shows_both_trees():
    params = MLP().init(KEY)
    params["hidden.wieght"] = params.pop("hidden.weight")
    assert complaint(params) == (
        "MLP: the parameters are not those of the model:\n"
        "  hidden.weight: missing, of shape (8, 16)\n"
        "  hidden.wieght: unknown; did you mean 'hidden.weight'?\n"
        "Pass what model.init(key) returned for this model, or an update of it."
    )


def test_parameters_of_another_shape_or_kind():
    params = MLP().init(KEY) | {"out.weight": jnp.ones((16, 4)), "relu.bias": 3.0}
    text = complaint(params)
    assert "\n  out.weight: expected (16, 3), got (16, 4)\n" in text
    assert "\n  relu.bias: expected (16,), got float, not an array\n" in text


def test_other_ways_to_get_parameters_wrong():
    params = MLP().init(KEY)
    assert "zzz: unknown\n" in complaint(params | {"zzz": jnp.ones(2)})
    assert "did you mean" not in complaint(params | {"zzz": jnp.ones(2)})
    assert "flat dictionary" in complaint({"hidden": {"weight": params["hidden.weight"]}})
    assert complaint({}).count(": missing, of shape") == len(params)
    assert "order apply(params, x)" in complaint(jnp.ones(3))


def test_long_lists_show_only_what_is_wrong():
    model = module(layers=[nn.Linear(1, 1) for _ in range(100)])
    params = model.init(KEY)
    del params["layers.7.weight"]
    text = complaint(params, model)
    assert "\n  layers.7.weight: missing, of shape (1, 1)\n" in text
    assert len(text.splitlines()) < 10
    assert len(complaint({}, model).splitlines()) < 50


# What is shown.


def test_public_names_are_our_own_and_documented():
    names = {k: v for k, v in vars(nn).items() if not k.startswith("_") and not inspect.ismodule(v)}
    assert [k for k, v in names.items() if not v.__doc__ or not v.__module__.startswith("pjax")] == []
    layers = {k: v for k, v in names.items() if isinstance(v, type) and issubclass(v, nn.Module)}
    assert len(layers) >= 12
    assert [k for k, v in layers.items() if ">>>" not in v.__doc__] == []


def test_models_can_be_copied():
    shared = nn.Linear(2, 2)
    model = copy.deepcopy(module(lambda self, x: self.b(self.a(x)), a=shared, b=shared))
    assert model.a is model.b
    assert model.init(KEY).keys() == {"a.weight"}


def test_repr_shows_the_tree():
    shared = nn.Conv2D(1, 4, 3, strides=2, padding="VALID", bias=True)
    model = module(
        first=shared, layers=[MLP(), (nn.ReLU(), nn.MaxPool(2))], again=shared, scale=nn.Parameter(())
    )
    assert repr(model) == "\n".join(
        [
            "Model: 233 parameters",
            "  first: Conv2D(1 → 4, 3x3, strides (2, 2), VALID, bias): 40",
            "    weight (3, 3, 1, 4) float32",
            "    bias (4,) float32",
            "  layers.0: MLP: 192",
            "    hidden: Linear(8 → 16): 128",
            "      weight (8, 16) float32",
            "    relu: ReLU(16): 16",
            "      bias (16,) float32",
            "    out: Linear(16 → 3): 48",
            "      weight (16, 3) float32",
            "  layers.1.0: ReLU(): 0",
            "  layers.1.1: MaxPool(2x2): 0",
            "  again: Conv2D(1 → 4, 3x3, strides (2, 2), VALID, bias), the same as first",
            "  scale () float32",
        ]
    )
    values = {name: np.zeros(p.shape) for name, p in model.init(KEY).items()}
    assert repr(model.bind(values)) == repr(model) + "\nbound"


def test_errors_of_layers_name_their_path():
    model = module(lambda self, x: self.layers[1](x), layers=[nn.ReLU(), nn.Linear(784, 256)])
    text = re.escape("`layers.1`, Linear(784 → 256): expected an input of shape (…, 784), got (2, 28, 28).")
    with pytest.raises(pjax.InputError, match=text):
        model.apply(model.init(KEY), jnp.ones((2, 28, 28)))


def test_parameters_may_be_computations():
    model = MLP()
    values = model.init(KEY)
    x, y = jnp.ones((4, 8)), jnp.array([0, 1, 2, 0])
    logits = model.apply({k: pjax.parameter(v, name=k) for k, v in values.items()}, x)
    assert isinstance(logits, pjax.Computation)
    fn, params = pjax.as_function(nn.cross_entropy(logits, y))
    same(params, values)
    np.testing.assert_allclose(fn(params), nn.cross_entropy(model.apply(values, x), y), rtol=1e-6)
    new, loss = pjax.optim.AlternatingProjections(steps_per_update=5).update(fn, params)
    assert nn.cross_entropy(model.apply(new, x), y).mean() < loss


def parameters_of(target):
    """The names of the parameters behind a target."""
    return {node.name for node in ancestors([target]) if isinstance(node, pjax.Parameter)}


def test_traced_parameters_are_called_by_their_names():
    model = MLP()
    target = pjax.trace(
        lambda p: nn.cross_entropy(model.apply(p, jnp.ones((4, 8))), jnp.array([0, 1, 2, 0])), model.init(KEY)
    )
    assert parameters_of(target) == {"hidden.weight", "relu.bias", "out.weight"}


# --- Layers: what they compute, against NumPy, and what they refuse ---


def random(*shape):
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def start(layer):
    """Parameters that are not zero."""
    return {name: random(*p.shape) for name, p in jax.eval_shape(layer.init, KEY).items()}


def relu(x):
    return np.maximum(x, 0)


# References, one for each layer, written with NumPy and loops.


def conv(x, weight, strides, pads):
    x = np.pad(x, ((0, 0), *pads, (0, 0)))
    (height, width), (down, right) = weight.shape[:2], strides
    rows = range(0, x.shape[1] - height + 1, down)
    columns = range(0, x.shape[2] - width + 1, right)
    cut = [[np.tensordot(x[:, i : i + height, j : j + width], weight, 3) for j in columns] for i in rows]
    return np.stack([np.stack(row, 1) for row in cut], 1)


def pool(x, window, strides, pads):
    x = np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-np.inf)
    (height, width), (down, right) = window, strides
    rows = range(0, x.shape[1] - height + 1, down)
    columns = range(0, x.shape[2] - width + 1, right)
    cut = [[x[:, i : i + height, j : j + width].max((1, 2)) for j in columns] for i in rows]
    return np.stack([np.stack(row, 1) for row in cut], 1)


def recurrent(p, x, layers, state, skip):
    h, logits = np.zeros((len(x), state)), []
    for t in range(x.shape[1]):
        y = np.concatenate([p["embed.weight"][x[:, t]], h], -1)
        seen = []
        for i in range(layers):
            y = relu(y @ p[f"hidden.{i}.weight"] + p[f"relu.{i}.bias"])
            seen.append(y)
        y = np.concatenate(seen, -1) if skip else y
        logits.append(y @ p["out.weight"])
        h = relu(y @ p["state.weight"])
    return np.stack(logits, 1)


def attention(p, x, heads, size, causal):
    q, k, v = (x @ p[f"{name}.weight"] for name in ("query", "key", "value"))
    y = np.zeros((*x.shape[:2], heads * size))
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for i in range(x.shape[1]):
            read = range(i + 1 if causal else x.shape[1])
            scores = [relu((q[:, i, part] * k[:, j, part]).sum(-1) / math.sqrt(size)) for j in read]
            y[:, i, part] = np.mean(
                [s[:, None] * v[:, j, part] for s, j in zip(scores, read, strict=True)], 0
            )
    return y @ p["out.weight"]


IMAGES = random(2, 5, 6, 3)
CODES = np.random.default_rng(1).integers(7, size=(3, 5))
CASES = {
    "linear": (nn.Linear(3, 4), random(2, 5, 3), lambda p, x: x @ p["weight"]),
    "linear bias": (nn.Linear(3, 4, bias=True), random(2, 3), lambda p, x: x @ p["weight"] + p["bias"]),
    "linear vector": (nn.Linear(3, 4), random(3), lambda p, x: x @ p["weight"]),
    "relu": (nn.ReLU(), random(2, 3), lambda _, x: relu(x)),
    "relu bias": (nn.ReLU(3), random(2, 5, 3), lambda p, x: relu(x + p["bias"])),
    "conv": (nn.Conv2D(3, 4, 3), IMAGES, lambda p, x: conv(x, p["weight"], (1, 1), ((1, 1), (1, 1)))),
    "conv valid": (
        nn.Conv2D(3, 4, (2, 3), strides=(1, 2), padding="VALID", bias=True),
        IMAGES,
        lambda p, x: conv(x, p["weight"], (1, 2), ((0, 0), (0, 0))) + p["bias"],
    ),
    "conv strides": (
        nn.Conv2D(3, 4, 3, strides=2),
        IMAGES,
        lambda p, x: conv(x, p["weight"], (2, 2), ((1, 1), (0, 1))),
    ),
    "conv pairs": (
        nn.Conv2D(3, 2, 2, padding=[(1, 0), (0, 2)]),
        IMAGES,
        lambda p, x: conv(x, p["weight"], (1, 1), ((1, 0), (0, 2))),
    ),
    "max pool": (nn.MaxPool(2), IMAGES, lambda _, x: pool(x, (2, 2), (2, 2), ((0, 0), (0, 0)))),
    "max pool same": (
        nn.MaxPool((3, 2), strides=(2, 1), padding="SAME"),
        IMAGES,
        lambda _, x: pool(x, (3, 2), (2, 1), ((1, 1), (0, 1))),
    ),
    "global max pool": (nn.GlobalMaxPool(), IMAGES, lambda _, x: x.max((1, 2))),
    "embedding": (nn.Embedding(7, 4), CODES, lambda p, x: p["weight"][x]),
    "quantize": (nn.Quantize(5, 2.0), random(2, 3), lambda _, x: np.clip(np.round(x), -2, 2)),
    "sequential": (
        nn.Sequential(nn.Linear(3, 4), np.tanh, nn.ReLU(4)),
        random(2, 3),
        lambda p, x: relu(np.tanh(x @ p["layers.0.weight"]) + p["layers.2.bias"]),
    ),
    "concat": (
        nn.Concat(nn.Linear(3, 4), nn.ReLU(4), nn.Linear(4, 2)),
        random(2, 3),
        lambda p, x: np.concatenate(
            [
                a := x @ p["layers.0.weight"],
                b := relu(a + p["layers.1.bias"]),
                b @ p["layers.2.weight"],
            ],
            -1,
        ),
    ),
    "rnn": (nn.RNN(7, [6]), CODES, lambda p, x: recurrent(p, x, 1, 6, False)),
    "rnn deep": (
        nn.RNN(7, [6, 4], classes=3, embedding=2),
        CODES,
        lambda p, x: recurrent(p, x, 2, 4, False),
    ),
    "rnn skip": (nn.RNN(7, [6, 4], skip=True), CODES, lambda p, x: recurrent(p, x, 2, 4, True)),
    "attention": (nn.MultiHeadAttention(6, 2), random(2, 5, 6), lambda p, x: attention(p, x, 2, 3, False)),
    "attention causal": (
        nn.MultiHeadAttention(6, 3, causal=True),
        random(2, 5, 6),
        lambda p, x: attention(p, x, 3, 2, True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_layers_equal_their_reference(name):
    layer, x, reference = CASES[name]
    params = start(layer)
    np.testing.assert_allclose(layer.apply(params, x), reference(params, x), rtol=1e-4, atol=1e-4)


BY_HAND = [name for name in CASES if name != "sequential"]  # np.tanh takes no computation


@pytest.mark.parametrize("name", BY_HAND)
def test_layers_take_computations(name):
    layer, x, _ = CASES[name]
    params = start(layer)
    wrapped = {key: pjax.parameter(value, name=key) for key, value in params.items()}
    for given in (pjax.array(x), x) if params else (pjax.array(x),):
        y = layer.apply(wrapped, given)
        assert isinstance(y, pjax.Computation)
        np.testing.assert_allclose(y.value, layer.apply(params, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_layers_have_labels_and_initial_values(name):
    layer, _, _ = CASES[name]
    assert repr(layer).startswith(type(layer).__name__)
    assert all(value.dtype == jnp.float32 for value in jax.eval_shape(layer.init, KEY).values())


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [(nn.Linear(300, 200), 300), (nn.Conv2D(40, 50, 3), 360), (nn.Embedding(300, 200), 1)],
)
def test_initial_weights_keep_the_size_of_signals(layer, fan_in):
    weight = layer.init(KEY)["weight"]
    assert float(weight.std() * math.sqrt(fan_in)) == pytest.approx(1, rel=0.02)
    assert float(weight.mean() * math.sqrt(fan_in)) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(
    ("initialiser", "deviation"),
    [
        (jax.nn.initializers.constant(3.0), 0),
        (jax.nn.initializers.zeros, 0),
        (jax.nn.initializers.he_normal(), math.sqrt(2 / 100)),
        (jax.nn.initializers.normal(0.3), 0.3),
    ],
)
def test_initialisers(initialiser, deviation):
    weight = nn.Linear(100, 200, initialiser=initialiser).init(KEY)["weight"]
    assert float(weight.std()) == pytest.approx(deviation, rel=0.03, abs=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_does_not_grow_with_the_length(causal):
    layer = nn.MultiHeadAttention(64, 4, causal=causal)
    params = layer.init(KEY)
    sizes = []
    for length in (4, 64, 256):
        # The same positions over and over, so that the values do not average out.
        x = np.tile(random(2, 4, 64), (1, length // 4, 1))
        sizes.append(float(jnp.std(layer.apply(params, x)[:, -1])))
    np.testing.assert_allclose(sizes, sizes[0], rtol=1e-3)


def test_causal_attention_reads_no_later_position():
    layer = nn.MultiHeadAttention(6, 2, causal=True)
    params, x = start(layer), random(2, 5, 6)
    changed = x.copy()
    changed[:, 3:] += 1
    before, after = layer.apply(params, x), layer.apply(params, changed)
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).any()


def test_the_steps_of_an_rnn_make_its_sequence():
    layer = nn.RNN(7, [6, 4], skip=True)
    params = start(layer)
    bound, state = layer.bind(params), jnp.zeros((3, 4))
    steps = []
    for t in range(CODES.shape[1]):
        logits, state = bound.step(CODES[:, t], state)
        steps.append(logits)
    np.testing.assert_allclose(jnp.stack(steps, 1), layer.apply(params, CODES), rtol=1e-5, atol=1e-5)


def test_low_precision_stays_low():
    for layer, x in (
        (nn.Linear(3, 4, bias=True), jnp.ones((2, 3), jnp.bfloat16)),
        (nn.RNN(7, [6]), CODES),
        (nn.MultiHeadAttention(6, 2, causal=True), jnp.ones((2, 5, 6), jnp.bfloat16)),
    ):
        params = jax.eval_shape(lambda layer=layer: layer.init(KEY, dtype=jnp.bfloat16))
        assert jax.eval_shape(layer.apply, params, x).dtype == jnp.bfloat16


def test_the_derivative_of_a_relu_at_zero_is_zero():
    assert float(jax.grad(lambda x: nn.ReLU().apply({}, x))(0.0)) == 0
    grad = jax.grad(lambda b: nn.ReLU(2).apply({"bias": b}, jnp.zeros(2)).sum())(jnp.zeros(2))
    np.testing.assert_array_equal(grad, 0)


# What is refused.

REFUSED = [
    (nn.Linear(3, 4), random(3, 2), "Linear(3 → 4): expected an input of shape (…, 3), got (3, 2)."),
    (nn.Linear(3, 4), 1.0, "Linear(3 → 4): expected an input of shape (…, 3), got ()."),
    (nn.Linear(2, 4), [[1.0], [1.0, 2.0]], "Linear(2 → 4): expected an input of shape (…, 2), got list."),
    (nn.ReLU(3), random(2, 1), "ReLU(3): expected an input of shape (…, 3), got (2, 1)."),
    (
        nn.Conv2D(3, 4, 3),
        random(2, 5, 5, 1),
        "Conv2D(3 → 4, 3x3): expected an input of shape (…, height, width, 3), got (2, 5, 5, 1).",
    ),
    (
        nn.MaxPool(2),
        random(5, 5),
        "MaxPool(2x2): expected an input of shape (…, height, width, channels), got",
    ),
    (nn.GlobalMaxPool(), random(5, 5), "GlobalMaxPool(): expected an input of shape"),
    (
        nn.Embedding(7, 4),
        np.array([0, 7]),
        "Embedding(7 x 4): expected whole numbers from 0 to 6, got numbers from 0 to 7.",
    ),
    (nn.Embedding(7, 4), np.array([0, -1]), "got numbers from -1 to 0."),
    (
        nn.Embedding(7, 4),
        random(2),
        "expected whole numbers from 0 to 6, got an array of shape (2,), float32.",
    ),
    (nn.Embedding(7, 4), "text", "expected whole numbers from 0 to 6, got str 'text'."),
    (nn.RNN(7, [6]), random(2, 3), "`embed`, Embedding(7 x 6): expected whole numbers from 0 to 6, got"),
    (nn.RNN(7, [6]), np.int32(3), "RNN(7 → 7, state 6): expected codes of shape (…, time)"),
    (
        nn.MultiHeadAttention(6, 2),
        random(6),
        "MultiHeadAttention(6, 2 heads of 3): expected an input of shape (…, time, 6), got (6,).",
    ),
    (
        nn.MultiHeadAttention(6, 2),
        random(2, 4),
        "MultiHeadAttention(6, 2 heads of 3): expected an input of shape (…, time, 6), got (2, 4).",
    ),
    (
        nn.Concat(nn.Conv2D(1, 1, 1), nn.MaxPool(2)),
        random(1, 4, 4, 1),
        "Concat: expected at least one layer, and outputs that differ in their last axis only, got the "
        "shapes (1, 4, 4, 1), (1, 2, 2, 1).",
    ),
]


@pytest.mark.parametrize(("layer", "x", "message"), REFUSED)
def test_inputs_that_do_not_fit(layer, x, message):
    with pytest.raises(pjax.InputError, match=re.escape(message)):
        layer.apply(start(layer), x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(0, 3), "Linear: in_features must be a whole number of at least 1, got 0"),
        (lambda: nn.Linear(3, 2.0), "Linear: out_features must be a whole number of at least 1, got 2.0"),
        (lambda: nn.Linear(True, 2), "in_features must be a whole number of at least 1, got True"),
        (lambda: nn.ReLU(-1), "ReLU: features must be a whole number of at least 1, got -1"),
        (
            lambda: nn.Conv2D(1, 1, (3, 3, 3)),
            "kernel_size must be one whole number or a pair, got (3, 3, 3).",
        ),
        (lambda: nn.Conv2D(1, 1, 3, strides=0), "strides must be a whole number of at least 1, got 0"),
        (lambda: nn.Conv2D(1, 1, 3, padding="SOME"), "Conv2D: Unknown padding 'SOME': use 'SAME'"),
        (
            lambda: nn.Conv2D(1, 1, 3, padding=[(1, 2)]),
            "Conv2D: padding needs one entry for each of the 2 axes, got 1",
        ),
        (lambda: nn.MaxPool("2"), "window must be a whole number of at least 1, got '2'"),
        (lambda: nn.Embedding(3, 0), "Embedding: features must be a whole number of at least 1, got 0"),
        (lambda: nn.Quantize(1), "levels must be a whole number of at least 2, got 1"),
        (lambda: nn.Sequential([nn.ReLU()]), "got list as layer 0; write Sequential(*layers)."),
        (lambda: nn.Concat(nn.ReLU(), 3), "Concat: expected modules or functions, got int as layer 1."),
        (lambda: nn.RNN(7, []), "RNN: widths must be a list of at least one whole number, got []."),
        (lambda: nn.RNN(7, 128), "RNN: widths must be a list of at least one whole number, got 128."),
        (lambda: nn.MultiHeadAttention(6, 4), "6 features cannot be divided among 4 heads"),
        (
            lambda: nn.Parameter(2.5),
            "each length of the shape 2.5 must be a whole number of at least 0",
        ),
        (lambda: nn.Parameter((2, -1)), "each length of the shape (2, -1) must be a whole number"),
        (lambda: nn.Parameter((2,), dtype="colour"), "'colour' is no dtype"),
    ],
)
def test_settings_that_make_no_sense(make, message):
    with pytest.raises(pjax.InputError, match=re.escape(message)):
        make()


def test_containers_can_be_looked_into():
    layers = nn.ReLU(), nn.Linear(1, 1)
    model = nn.Sequential(*layers)
    assert len(model) == 2
    assert model[1] is layers[1]
    assert tuple(model) == layers


def test_codes_that_turn_out_to_be_out_of_range_give_nan():
    layer = nn.Embedding(3, 2)
    found = jax.jit(lambda codes: layer.apply({"weight": jnp.ones((3, 2))}, codes))(jnp.array([0, -1, 3]))
    assert np.isnan(found).all(-1).tolist() == [False, True, True]


# --- Every layer in a small network: it trains by projections and by gradients, under jit and vmap ---

RNG = np.random.default_rng(0)

VECTORS = RNG.normal(size=(12, 6)).astype(np.float32)
TRAIN_IMAGES = RNG.normal(size=(6, 6, 6, 2)).astype(np.float32)
TRAIN_CODES = RNG.integers(5, size=(4, 4)).astype(np.int32)


class Reader(nn.Module):
    """Reads characters with attention, and guesses the next one."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.place = nn.Parameter((4, 8), jax.nn.initializers.normal(1.0))
        self.attention = nn.MultiHeadAttention(8, 2, causal=True)
        self.out = nn.Linear(16, 5)

    def __call__(self, x):
        x = self.embed(x) + self.place
        return self.out(jnp.concatenate([x, self.attention(x)], axis=-1))


def block(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(outputs))


MODELS = {
    "mlp": (nn.Sequential(block(6, 8), block(8, 8), nn.Linear(8, 3)), VECTORS),
    "biases": (nn.Sequential(nn.Linear(6, 8, bias=True), nn.ReLU(), nn.Linear(8, 3, bias=True)), VECTORS),
    "skip": (nn.Sequential(nn.Concat(block(6, 8), block(8, 7)), nn.Linear(15, 3)), VECTORS),
    "quantised": (nn.Sequential(nn.Linear(6, 12), nn.Quantize(9, 2.0), nn.Linear(12, 3)), VECTORS),
    "cnn": (
        nn.Sequential(
            nn.Conv2D(2, 4, 3, bias=True),
            nn.ReLU(4),
            nn.MaxPool(2, padding="SAME"),
            nn.Conv2D(4, 4, 2, strides=2, padding="VALID"),
            nn.ReLU(4),
            nn.GlobalMaxPool(),
            nn.Linear(4, 3),
        ),
        TRAIN_IMAGES,
    ),
    "rnn": (nn.RNN(5, [5, 4], skip=True), TRAIN_CODES),
    "attention": (Reader(), TRAIN_CODES),
}
AP = pjax.optim.AlternatingProjections(steps_per_update=20)
DR = pjax.optim.DouglasRachford(steps_per_update=20)


def problem(name):
    """A loss, and where it starts."""
    model, x = MODELS[name]
    params = model.init(KEY)
    classes = jax.eval_shape(model.apply, params, x).shape
    y = np.random.default_rng(1).integers(classes[-1], size=classes[:-1])
    return jax.jit(lambda p: nn.cross_entropy(model.apply(p, x), y).mean()), params


@pytest.mark.parametrize(
    ("name", "solver"),
    [
        ("mlp", DR),
        ("skip", AP),
        ("quantised", DR),  # alternating projections undo a move that is too short to reach another level
        ("cnn", AP),
        ("rnn", AP),
        ("attention", DR),
    ],
)
def test_projections_lower_the_loss(name, solver):
    loss_fn, params = problem(name)
    new, loss = solver.update(loss_fn, params)
    assert new.keys() == params.keys()
    for key in params:
        assert np.isfinite(new[key]).all()
        assert (new[key] != params[key]).any(), key
    np.testing.assert_allclose(loss, loss_fn(params), rtol=1e-5)
    assert loss_fn(new) < 0.97 * loss


@pytest.mark.parametrize("name", MODELS)
def test_gradients_lower_the_loss(name):
    loss_fn, params = problem(name)
    step = jax.jit(lambda p: jax.tree.map(lambda w, g: w - 0.05 * g, p, jax.grad(loss_fn)(p)))
    new = params
    for _ in range(10):
        new = step(new)
    for key in params:
        assert np.isfinite(new[key]).all()
        # Nothing comes through the quantisation: its derivative is zero.
        assert (new[key] != params[key]).any() != (name == "quantised" and key == "layers.0.weight"), key
    assert loss_fn(new) < loss_fn(params)


@pytest.mark.parametrize("name", ["rnn", "attention"])
def test_gradients_are_those_of_differences(name, x64):  # noqa: ARG001
    model, x = MODELS[name]
    params = model.init(KEY, dtype=jnp.float64)
    x = x if x.dtype == np.int32 else x.astype(np.float64)
    direction = jax.tree.map(lambda w: jnp.asarray(np.random.default_rng(2).normal(size=w.shape)), params)

    def along(t):
        moved = jax.tree.map(lambda w, d: w + t * d, params, direction)
        return jnp.sin(model.apply(moved, x)).sum()

    h = 1e-6
    np.testing.assert_allclose(jax.jit(jax.grad(along))(0.0), (along(h) - along(-h)) / (2 * h), rtol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "rnn"])
def test_several_models_at_once(name):
    model, x = MODELS[name]
    params = jax.vmap(model.init)(jax.random.split(KEY, 3))
    together = jax.jit(jax.vmap(lambda p: model.apply(p, x)))(params)
    alone = jax.jit(lambda p: model.apply(p, x))
    for i, logits in enumerate(together):
        one = alone({key: value[i] for key, value in params.items()})
        np.testing.assert_allclose(logits, one, rtol=1e-4, atol=1e-5)


# Freezing.


def test_modules_can_be_pickled():
    image = nn.Sequential(nn.Conv2D(1, 2, 3), nn.MaxPool(2), nn.Concat(nn.Linear(2, 3), nn.ReLU(3)))
    for model in (image, nn.RNN(5, [3]), nn.MultiHeadAttention(4, heads=2)):
        again = pickle.loads(pickle.dumps(model))
        assert repr(again) == repr(model)
        same(again.init(KEY), model.init(KEY))


def test_freezing_divides_by_name():
    params = nn.Sequential(nn.Linear(2, 2, bias=True), nn.ReLU(2), nn.Linear(2, 1)).init(KEY)
    trainable, frozen = nn.freeze(params, "layers.0.*", "*.bias")
    assert list(trainable) == ["layers.2.weight"]
    assert list(frozen) == ["layers.0.weight", "layers.0.bias", "layers.1.bias"]
    assert nn.freeze(params) == (params, {})
    assert (trainable | frozen).keys() == params.keys()


def test_a_pattern_that_matches_nothing():
    params = nn.RNN(5, [4]).init(KEY)
    with pytest.raises(
        pjax.InputError, match=r"'embed.wieght' matches no parameter. Did you mean 'embed.weight'\?"
    ):
        nn.freeze(params, "out.*", "embed.wieght")
    with pytest.raises(
        pjax.InputError, match=r"The parameters are embed.weight, hidden.0.weight, relu.0.bias, state"
    ):
        nn.freeze(params, "zzz.*")


@pytest.mark.parametrize("solver", [AP, DR], ids=lambda s: s.name)
def test_frozen_parameters_stay(solver):
    model, x = MODELS["mlp"]
    y = np.arange(len(x)) % 3
    trainable, frozen = nn.freeze(model.init(KEY), "layers.0.*", "*.bias")
    before = {name: np.array(value) for name, value in frozen.items()}

    def loss_fn(params):
        return nn.cross_entropy(model.apply(params | frozen, x), y)

    new, loss = solver.update(loss_fn, trainable)
    assert new.keys() == trainable.keys() == {"layers.1.layers.0.weight", "layers.2.weight"}
    assert loss_fn(new).mean() < loss
    grads = jax.grad(lambda p: loss_fn(p).mean())(trainable)
    assert grads.keys() == trainable.keys()
    stepped = jax.tree.map(lambda w, g: w - 0.1 * g, trainable, grads)
    assert loss_fn(stepped).mean() < loss
    for name, value in before.items():
        np.testing.assert_array_equal(frozen[name], value)


def test_frozen_parameters_are_constants_of_the_graph():
    model, x = MODELS["mlp"]
    trainable, frozen = nn.freeze(model.init(KEY), "layers.2.*")
    target = pjax.trace(
        lambda p: nn.cross_entropy(model.apply(p | frozen, x), np.zeros(len(x), int)), trainable
    )
    assert parameters_of(target) == trainable.keys()
