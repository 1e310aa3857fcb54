"""Your own network: of Flax, Equinox or `pjax.nn`, or a pair of functions ``(init, apply)``.

The page "Your own data and model" says how it is named, made and called.
"""

import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from pjax import nn
from pjax.checks import some
from pjax.errors import InputError, PjaxError
from pjax.experiments.own_data import GIVEN

_ARGUMENTS = ("inputs", "outputs", "key")


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


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """A block that runs code of a model that has a name, which is told with the line where it fails."""
    try:
        yield
    except PjaxError:
        raise
    except Exception as error:
        where = ""
        for frame in traceback.extract_tb(error.__traceback__):
            if (file := Path(frame.filename)).is_relative_to(Path.cwd()):
                file = file.relative_to(Path.cwd())
                if not {"site-packages", "pjax"} & {*file.parts}:
                    where = f" in {file}, line {frame.lineno}"
        raise InputError(f"model {name} fails{where}: {type(error).__name__}: {error}") from error


def find(name: str) -> Any:
    """What a name ``package.module:make`` stands for; modules of the current folder are found, too.

    >>> find("math:hypot")(3, 4)
    5.0
    """
    module, _, attribute = name.removesuffix("()").partition(":")
    module = module.removesuffix(".py").replace("/", ".")
    if not all(part.isidentifier() for part in [*module.split("."), attribute]):
        raise InputError(f"a model of your own is written as package.module:make, got {name!r}")
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
        raise InputError(f"model {name}: {module} has no {attribute!r}, it has {some(there, 20)}")
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
    if not callable(source) or isinstance(source, nn.Module) or _framework(source):
        return lambda _: source, False
    wanted = inspect.signature(source).parameters
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [one.name for one in wanted.values() if one.default is one.empty and one.kind not in rest]
    if stray := [one for one in required if one not in _ARGUMENTS]:
        raise InputError(
            f"model {name}: can be called with {', '.join(_ARGUMENTS)}, of which it may name some; it wants "
            f"{', '.join(stray)} too"
        )

    def build(key: jax.Array) -> Any:
        known = dict(zip(_ARGUMENTS, (tuple(x.shape[1:]), outputs[-1], key), strict=True))
        return source(**{one: value for one, value in known.items() if one in wanted})

    return build, "key" in wanted


def _framework(model: Any) -> Any:
    """The package whose module something is; if nobody has imported one, nobody has made anything of it."""
    known = map(sys.modules.get, ("flax.linen", "flax.nnx", "equinox"))
    return next((package for package in known if package and isinstance(model, package.Module)), None)


def _adapted(
    first: Any, build: Callable[[jax.Array], Any], keyed: bool, x: jax.ShapeDtypeStruct, name: str
) -> Model:
    """The two functions of what was made."""
    if isinstance(first, nn.Module):
        return Model(first.init, first.apply)
    if isinstance(first, tuple) and len(first) == 2 and all(map(callable, first)):
        return Model(*first)
    if (package := _framework(first)) is None:
        raise InputError(
            f"model {name}: expected a module of Flax, Equinox or pjax.nn, or two functions (init, apply); "
            f"got {type(first).__name__}"
        )
    if package.__name__ == "flax.linen":

        def init(key: jax.Array) -> Any:
            variables = first.init(key, jnp.zeros(x.shape, x.dtype))
            _refuse_state(set(variables) - {"params"}, name)
            return variables.get("params", {})

        return Model(init, lambda params, x: first.apply({"params": params}, x))
    if not keyed:
        raise InputError(
            f"model {name}: holds its initial values, which a seed must decide: give a function that makes "
            "it from a key, def make(inputs, outputs, key)"
        )
    if package.__name__ == "equinox":
        static = package.partition(first, package.is_inexact_array)[1]
        return Model(
            lambda key: package.filter(build(key), package.is_inexact_array),
            lambda params, x: jax.vmap(package.combine(params, static))(x),
        )
    graph, _, rest = package.split(first, package.Param, ...)
    found = jax.tree.leaves(rest, is_leaf=lambda leaf: hasattr(leaf, "get_value") or hasattr(leaf, "value"))
    _refuse_state({type(leaf).__name__ for leaf in found}, name)
    return Model(
        lambda key: package.split(build(key), package.Param, ...)[1],
        lambda params, x: package.merge(graph, params, rest)(x),
    )


def _refuse_state(kinds: set[str], name: str) -> None:
    if kinds:
        raise InputError(
            f"model {name}: has a state beside its parameters ({', '.join(sorted(kinds))}), as of batch norm "
            "or dropout, which a loop of your own must hand on: see docs/from-gradients.md"
        )
