"""Your own network: of Flax, Equinox or `pjax.nn`, or a pair of functions ``(init, apply)``.

On the command line it is named as ``package.module:make``, a function that makes one. It is called with those
of these arguments that it names:

- ``inputs``, the shape of one input; ``outputs``, the number of classes, or of numbers to predict;
- ``key``, of `jax.random`, for models that hold their initial values: those of Equinox and Flax NNX.

A network is given a batch, of shape ``(samples, *inputs)``, and gives ``(samples, outputs)``; one of Equinox
is given one input after the other, as is usual there.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pjax import nn
from pjax.errors import InputError
from pjax.experiments.own_data import GIVEN

_ARGUMENTS = ("inputs", "outputs", "key")
_FRAMEWORKS = ("flax.linen", "flax.nnx", "equinox")
"""Packages of models: if nobody has imported one, nobody has made anything of it."""


def is_own(name: str) -> bool:
    """Whether the name of a model is that of a function, or of what Python has handed over.

    >>> is_own("networks:make"), is_own("mlp")
    (True, False)
    """
    return name == GIVEN or ":" in name


@dataclass(frozen=True)
class Model:
    """A network as two functions."""

    init: Callable[[jax.Array], Any]
    """Initial parameters, from a key."""
    apply: Callable[[Any, jax.Array], jax.Array]
    """Outputs, from parameters and a batch of inputs."""


def find(name: str) -> Any:
    """What a name ``package.module:make`` stands for; modules of the current folder are found, too.

    >>> find("math:hypot")(3, 4)
    5.0
    """
    module, _, attribute = name.removesuffix("()").partition(":")
    module = module.removesuffix(".py").replace("/", ".")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise InputError(
            f"model {name}: there is no module {module}: expected the file {module.replace('.', '/')}.py in "
            f"{os.getcwd()}, or an installed package"
        ) from None
    if not hasattr(found, attribute):
        there = [one for one in vars(found) if not one.startswith("_")]
        raise InputError(
            f"model {name}: {module} has no {attribute!r}, it has {', '.join(there) or 'nothing'}"
        )
    return getattr(found, attribute)


def made(source: Any, x: jax.ShapeDtypeStruct, outputs: tuple[int, ...], name: str) -> Model:
    """A network as two functions.

    Args:
        source: a function that makes it, or what that returns.
        x: a batch of inputs, or its shape and type.
        outputs: the shape that a network must give for that batch.
        name: for errors.

    >>> import jax.numpy as jnp
    >>> pair = (lambda key: jnp.zeros((3, 2)), lambda params, x: x @ params)
    >>> model = made(pair, jax.ShapeDtypeStruct((4, 3), jnp.float32), (4, 2), "mine")
    >>> model.apply(model.init(jax.random.key(0)), jnp.ones((4, 3))).shape
    (4, 2)
    """
    build, keyed = _builder(source, x, outputs, name)
    model = _adapted(build(jax.random.key(0)), build, keyed, x, name)
    params = jax.eval_shape(model.init, jax.random.key(0))
    if not jax.tree.leaves(params):
        raise InputError(f"model {name}: has no parameters, so that nothing can be learnt")
    for leaf in jax.tree.leaves(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise InputError(f"model {name}: parameters must be floating-point numbers, got {leaf.dtype}")
    found = jax.eval_shape(model.apply, params, x)
    shape = getattr(found, "shape", None)
    if shape == outputs:
        return model
    if shape == outputs[:-1] and outputs[-1] == 1:
        return Model(model.init, lambda params, x: model.apply(params, x)[..., None])
    raise InputError(
        f"model {name}: for inputs of shape {x.shape} it must give outputs of shape {outputs}, a batch with "
        f"a number for each class, or each number to predict; got {shape or type(found).__name__}"
    )


def _builder(
    source: Any, x: jax.ShapeDtypeStruct, outputs: tuple[int, ...], name: str
) -> tuple[Callable[[jax.Array], Any], bool]:
    """A function of a key, and whether it looks at it."""
    found = [package.Module for package in map(sys.modules.get, _FRAMEWORKS) if package is not None]
    if not callable(source) or isinstance(source, (nn.Module, *found)):
        return lambda _: source, False
    wanted = inspect.signature(source).parameters
    known: dict[str, Any] = {"inputs": tuple(x.shape[1:]), "outputs": outputs[-1]}
    required = [one.name for one in wanted.values() if one.default is one.empty and one.kind not in _REST]
    if stray := [one for one in required if one not in _ARGUMENTS]:
        raise InputError(
            f"model {name}: can be called with {', '.join(_ARGUMENTS)}, of which it may name some; it wants "
            f"{', '.join(stray)} too"
        )
    given = {one: value for one, value in known.items() if one in wanted}
    keyed = "key" in wanted
    return (lambda key: source(**given, **({"key": key} if keyed else {}))), keyed


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _adapted(
    first: Any, build: Callable[[jax.Array], Any], keyed: bool, x: jax.ShapeDtypeStruct, name: str
) -> Model:
    """The two functions of what was made."""
    if isinstance(first, nn.Module):
        return Model(first.init, first.apply)
    if isinstance(first, tuple) and len(first) == 2 and all(map(callable, first)):
        return Model(*first)
    linen, *others = map(sys.modules.get, _FRAMEWORKS)
    if linen is not None and isinstance(first, linen.Module):
        return _of_linen(first, x, name)
    for package, adapt in zip(others, (_of_nnx, _of_equinox), strict=True):
        if package is not None and isinstance(first, package.Module):
            if not keyed:
                raise InputError(
                    f"model {name}: holds its initial values, which a seed must decide: give a function "
                    "that makes it from a key, def make(inputs, outputs, key)"
                )
            return adapt(package, first, build, name)
    raise InputError(
        f"model {name}: expected a module of Flax, Equinox or pjax.nn, or two functions (init, apply); got "
        f"{type(first).__name__}"
    )


def _of_linen(module: Any, x: jax.ShapeDtypeStruct, name: str) -> Model:
    def init(key: jax.Array) -> Any:
        variables = module.init(key, jnp.zeros(x.shape, x.dtype))
        _refuse_state(set(variables) - {"params"}, name)
        return variables["params"] if isinstance(variables, Mapping) and "params" in variables else {}

    return Model(init, lambda params, x: module.apply({"params": params}, x))


def _of_nnx(nnx: Any, first: Any, build: Callable[[jax.Array], Any], name: str) -> Model:
    graph, _, rest = nnx.split(first, nnx.Param, ...)
    _refuse_state({type(leaf).__name__ for leaf in jax.tree.leaves(rest, is_leaf=_is_variable)}, name)
    return Model(
        lambda key: nnx.split(build(key), nnx.Param, ...)[1],
        lambda params, x: nnx.merge(graph, params, rest)(x),
    )


def _is_variable(leaf: Any) -> bool:
    return hasattr(leaf, "get_value") or hasattr(leaf, "value")


def _of_equinox(equinox: Any, first: Any, build: Callable[[jax.Array], Any], _: str) -> Model:
    static = equinox.partition(first, equinox.is_inexact_array)[1]
    return Model(
        lambda key: equinox.filter(build(key), equinox.is_inexact_array),
        lambda params, x: jax.vmap(equinox.combine(params, static))(x),
    )


def _refuse_state(kinds: set[str], name: str) -> None:
    if kinds:
        raise InputError(
            f"model {name}: has a state beside its parameters ({', '.join(sorted(kinds))}), as of batch norm "
            "or dropout, which a loop of your own must hand on: see docs/from-gradients.md"
        )
