"""Modules: names, initial values, binding, messages."""

import collections
import copy
import dataclasses
import inspect
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax import nn

pytestmark = pytest.mark.usefixtures("quick_compilation")

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
    assert list(model.shapes()) == [
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
    model = module(a=nn.Linear(2, 2, dtype=jnp.bfloat16), b=nn.Linear(2, 2))
    assert {k: v.dtype for k, v in model.init(KEY).items()} == {
        "a.weight": jnp.bfloat16,
        "b.weight": jnp.float32,
    }
    assert {v.dtype for v in model.init(KEY, dtype=jnp.float16).values()} == {jnp.dtype(jnp.float16)}
    with pytest.raises(pjax.InputError, match="floating point, got int32"):
        model.init(KEY, dtype=jnp.int32)
    with pytest.raises(pjax.InputError, match="floating point, got int8"):
        nn.Parameter((2,), dtype=jnp.int8)


def test_shapes_need_no_values():
    shapes = MLP().shapes()
    assert shapes["hidden.weight"] == jax.ShapeDtypeStruct((8, 16), jnp.float32)
    assert shapes == {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in MLP().init(KEY).items()}


def test_a_model_is_made_and_shown_without_a_device():
    # A platform that does not exist is noticed by the first call that needs a device.
    code = "from pjax import nn; model = nn.RNN(5, [3]); print(repr(model)[:3], len(model.shapes()))"
    environment = {**os.environ, "JAX_PLATFORMS": "none_such"}
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert shown.stdout.split() == ["RNN", "5"]


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
        module(layers=layers).shapes()


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
        "MLP: the parameters are not those of the model: 1 missing, 1 unknown.\n"
        "Expected:\n"
        "  ✗ hidden.weight  (8, 16)  ← missing\n"
        "    relu.bias      (16,)\n"
        "    out.weight     (16, 3)\n"
        "Given:\n"
        "    relu.bias      (16,)\n"
        "    out.weight     (16, 3)\n"
        "  ✗ hidden.wieght  (8, 16)  ← unknown; did you mean 'hidden.weight'?\n"
        "Pass what model.init(key) returned for this model, or an update of it."
    )


def test_parameters_of_another_shape_or_kind():
    params = MLP().init(KEY) | {"out.weight": jnp.ones((16, 4)), "relu.bias": 3.0}
    text = complaint(params)
    assert "2 of another shape" in text
    assert "✗ out.weight     (16, 3)  ← given (16, 4)" in text
    assert "✗ out.weight     (16, 4)  ← expected (16, 3)" in text
    assert "✗ relu.bias      float, not an array  ← expected (16,)" in text


def test_other_ways_to_get_parameters_wrong():
    params = MLP().init(KEY)
    assert "✗ zzz" in complaint(params | {"zzz": jnp.ones(2)})
    assert "did you mean" not in complaint(params | {"zzz": jnp.ones(2)})
    assert "flat dictionary" in complaint({"hidden": {"weight": params["hidden.weight"]}})
    assert "Given:\n    nothing" in complaint({})
    assert "order apply(params, x)" in complaint(jnp.ones(3))


def test_long_lists_show_only_what_is_wrong():
    model = module(layers=[nn.Linear(1, 1) for _ in range(100)])
    params = model.init(KEY)
    del params["layers.7.weight"]
    text = complaint(params, model)
    assert "✗ layers.7.weight  (1, 1)  ← missing\n    … and 99 that fit" in text
    assert len(text.splitlines()) < 10


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
    values = {name: np.zeros(p.shape) for name, p in model.shapes().items()}
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


def test_traced_parameters_are_called_by_their_names():
    model = MLP()
    target = pjax.trace(
        lambda p: nn.cross_entropy(model.apply(p, jnp.ones((4, 8))), jnp.array([0, 1, 2, 0])), model.init(KEY)
    )
    seen, stack = set(), [target]
    while stack:
        node = stack.pop()
        stack.extend(node.inputs)
        if isinstance(node, pjax.Parameter):
            seen.add(node.name)
    assert seen == {"hidden.weight", "relu.bias", "out.weight"}
