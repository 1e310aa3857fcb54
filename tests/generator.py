"""Random functions that pjax can read, written as source from a seed.

`draw(seed)` writes a small program: parameters, constants ("the batch") and a function that ends in targets.
The same seed is the same program for ever; `Drawn.function(batch)` runs it with other constants. The text is
what a failure prints, so that it can be run and shortened by hand:

    python -m tests.generator 17

Each operation is a function of `OPERATIONS` that writes one statement or a few; those of `LATER` join in as
soon as pjax can read them. Every choice of shapes and settings comes from the writer's random numbers, so
that an operation can be written a second time with the same choices and other arrays: such twins are what
stacking and caching must tell apart.
"""

import copy
import dataclasses
import functools
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pjax


def custom(fn: Callable[..., Any]) -> Any:
    """A function with a derivative of its own, which is the usual one."""
    found = jax.custom_jvp(fn)
    found.defjvp(lambda given, moves: jax.jvp(fn, given, moves))
    return found


LIBRARY: dict[str, Any] = {
    "jax": jax,
    "jnp": jnp,
    "lax": lax,
    "np": np,
    "pjax": pjax,
    "sets": pjax.sets,
    "custom": custom,
}
LARGEST = 40
"""So many numbers has a value at most: edges are products of such sizes."""


# --- Numbers ---


class Numbers:
    """What the names of a drawn program's constants and parameters stand for."""

    def __init__(self, seed: int, batch: int, dtype: str) -> None:
        self._weights = np.random.default_rng([seed, 0])
        self._batch = np.random.default_rng([seed, 1 + batch])
        self._dtype = dtype

    def weights(self, *shape: int) -> jax.Array:
        return jnp.asarray(self._weights.normal(size=shape) * 0.6, self._dtype)

    def data(self, *shape: int) -> jax.Array:
        return jnp.asarray(self._batch.normal(size=shape), self._dtype)

    def number(self) -> float:
        return round(float(self._batch.uniform(0.5, 1.5)), 3)

    def labels(self, classes: int, *shape: int) -> np.ndarray:
        return self._batch.integers(0, classes, shape)

    def shares(self, *shape: int) -> jax.Array:
        return jnp.asarray(self._batch.dirichlet(np.ones(shape[-1]), shape[:-1]), self._dtype)

    def mask(self, *shape: int) -> np.ndarray:
        found = self._batch.random(shape) < 0.6
        return found | (np.arange(found.size).reshape(shape) == 0)

    def factors(self, *shape: int) -> jax.Array:
        return jnp.asarray(self._batch.uniform(0.3, 2.0, shape), self._dtype)

    def scope(self) -> dict[str, Any]:
        """The library, and the functions that make numbers."""
        made = ("weights", "data", "number", "labels", "shares", "mask", "factors")
        return {**LIBRARY, **{name: getattr(self, name) for name in made}}


# --- Programs ---


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A program: its text, and how to run it."""

    seed: int
    dtype: str
    params_text: str
    constants_text: str
    body: str
    returned: str
    """What the function returns."""
    counted: str
    """The losses that this stands for: sets at the end are squared distances."""
    raw: str
    """The losses that depend on a parameter, before any factor, mask or sum."""
    smooth: bool
    """Whether it is differentiable, so that directions can be compared with gradients."""
    operations: tuple[str, ...]

    @property
    def source(self) -> str:
        return f"{self.params_text}\n{self.constants_text}\n\n{self._function(self.returned)}"

    def _function(self, returned: str) -> str:
        return f"def fn(p):\n{textwrap.indent(self.body, '    ')}    return {returned}\n"

    def params(self) -> dict[str, jax.Array]:
        scope = Numbers(self.seed, 0, self.dtype).scope()
        exec(self.params_text, scope)
        return scope["params"]

    def function(self, batch: int = 0, returned: str | None = None) -> Callable[[Any], Any]:
        """The function on a batch: a new one in every call, as is all that it defines."""
        scope = Numbers(self.seed, batch, self.dtype).scope()
        exec(f"{self.constants_text}\n{self._function(returned or self.returned)}", scope)
        return scope["fn"]


class Unfit(Exception):  # noqa: N818 - not an error
    """An operation that cannot be written here; another one is tried."""


class Writer:
    """Writes a program statement by statement, and knows the shape of every value."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.rng = np.random.default_rng([seed, 2])
        self.numbers = Numbers(seed, 0, dtype)
        self.scope = self.numbers.scope()
        self.params: dict[str, tuple[int, ...]] = {}
        self.constants: list[str] = []
        self.functions: list[str] = []
        self.body: list[str] = []
        self.values: dict[str, Any] = {}
        self.losses: list[tuple[str, str, str]] = []
        self.smooth = True
        self.depending: set[str] = set()
        """The values that depend on a parameter."""
        self._count = 0
        self._dtype = dtype

    # --- Choices ---

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def whole(self, low: int, high: int) -> int:
        """Between both, inclusive."""
        return int(self.rng.integers(low, high + 1))

    def one(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def size(self) -> int:
        """Of an axis: often one."""
        return self.one((1, 2, 2, 3, 3, 4))

    # --- Names ---

    def name(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def shape(self, name: str) -> tuple[int, ...]:
        known = self.values.get(name)
        return tuple((self.scope[name] if known is None else known).shape)

    def param(self, *shape: int) -> str:
        """A parameter; sometimes one that is used elsewhere too."""
        same = [name for name, other in self.params.items() if other == shape]
        share, which = self.rng.random(2)  # always as many: twins make the same choices
        if same and share < 0.3:
            return f'p["{same[int(which * len(same))]}"]'
        name = self.name("w")
        self.params[name] = shape
        return f'p["{name}"]'

    def constant(self, maker: str, *args: Any) -> str:
        """Part of the batch."""
        name = self.name("c")
        text = f"{name} = {maker}({', '.join(map(str, args))})"
        exec(text, self.scope)
        self.constants.append(text)
        return name

    def function(self, text: str) -> str:
        """A function beside the one that is drawn, which uses it."""
        name = self.name("f")
        exec(f"{name} = {text}", self.scope)
        self.functions.append(f"{name} = {text}")
        return name

    def array(self, *shape: int) -> str:
        """A parameter, a constant, or a value that has this shape."""
        same = [v for v in self.values if self.shape(v) == shape]
        share, which, kind = self.rng.random(3)
        if same and share < 0.5:
            return same[int(which * len(same))]
        return self.param(*shape) if kind < 0.7 else self.constant("data", *shape)

    # --- Statements ---

    def let(self, expression: str) -> str:
        """A value from one expression."""
        name = self.name("v")
        return self.block(name, f"{name} = {expression}")

    def block(self, name: str, text: str) -> str:
        """A value from some lines that define it."""
        text = textwrap.dedent(text).strip("\n")
        params = {n: jax.ShapeDtypeStruct(s, self._dtype) for n, s in self.params.items()}

        def run(params: Any, values: Any) -> Any:
            scope = {**self.scope, **values, "p": params}
            exec(text, scope)
            return scope[name]

        found = jax.eval_shape(run, params, self.values)
        if not 0 < found.size <= 4 * LARGEST:
            raise Unfit
        self.values[name] = found
        self.body.append(text)
        if {"p", *self.depending} & set(re.findall(r"\w+", text)):
            self.depending.add(name)
        return name

    def resized(self, x: str, *shape: int) -> str:
        """The same numbers in another shape, again from the start where it is larger."""
        return x if self.shape(x) == shape else f"jnp.resize({x}, {shape})"

    def axis(self, x: str) -> int:
        if not self.shape(x):
            raise Unfit
        return self.whole(0, len(self.shape(x)) - 1)

    def matrix(self, x: str) -> str:
        """A value of two axes, from any."""
        shape = self.shape(x)
        if len(shape) == 2:
            return x
        return self.let(f"{x}.reshape({shape[0] if len(shape) > 1 else 1}, -1)")


Operation = Callable[[Writer, str], str]
OPERATIONS: dict[str, tuple[Operation, bool, float]] = {}
"""What writes an operation, whether it is smooth, and how often it is chosen."""
LATER: dict[str, tuple[Operation, bool, float]] = {}
"""Those that pjax may not be able to read yet."""


def operation(
    smooth: bool = True, often: float = 1.0, table: dict[str, Any] = OPERATIONS
) -> Callable[[Operation], Operation]:
    def add(write: Operation) -> Operation:
        table[write.__name__] = (write, smooth, often)
        return write

    return add


def expressions(table: dict[str, Any], smooth: bool, entries: dict[str, str], often: float = 0.4) -> None:
    """Operations that are one expression of a value `x`, of any shape."""
    for name, text in entries.items():

        def write(w: Writer, x: str, text: str = text) -> str:
            return w.let(text.replace("{x}", x))

        table[name] = (write, smooth, often)


# --- Products ---


@operation(often=3.0)
def matmul(w: Writer, x: str) -> str:
    shape = w.shape(x)
    if not shape:
        raise Unfit
    if len(shape) > 1 and w.chance(0.25):
        return w.let(f"{w.array(w.size(), shape[-2])} @ {x}")
    found = f"{x} @ {w.array(shape[-1], w.size())}"
    return w.let(f"{found} + {w.param()}" if w.chance(0.3) else found)


EINSUMS = {
    1: ("i,ij->j", "i,j->ij", "i,i->i", "i,i->", "i,ji->j"),
    2: ("bi,ij->bj", "bi,bij->bj", "bi,bi->b", "bi,bj->bij", "bi,bi->bi", "ab,cb->ca", "bi,j->bij"),
    3: ("bij,bjk->bik", "bij,bkj->bik", "bij,j->bi", "bij,bij->bi", "bij,bi->bj", "bij,ki->kbj"),
}


@operation(often=2.0)
def einsum(w: Writer, x: str) -> str:
    shape = w.shape(x)
    if len(shape) not in EINSUMS:
        raise Unfit
    letters = w.one(EINSUMS[len(shape)])
    left, right = letters.split("->")[0].split(",")
    sizes = dict(zip(left, shape, strict=True))
    other = w.array(*(sizes.setdefault(letter, w.size()) for letter in right))
    return w.let(f'jnp.einsum("{letters}", {x}, {other})')


@operation(often=1.5)
def multiply(w: Writer, x: str) -> str:
    shape = w.shape(x)
    kind = w.whole(0, 5)
    if kind == 0:
        return w.let(f"{x} * {x}")
    if kind == 1:
        return w.let(f"{x} ** {w.whole(2, 3)}")
    if kind == 2:
        return w.let(f"{x} * {w.constant('number')}")
    if kind == 3:
        return w.let(f"{x} / {w.constant('factors', *shape[-1:])}")
    return w.let(f"{x} * {w.array(*(n if w.chance(0.7) else 1 for n in shape))}")


@operation(often=3.0)
def convolution(w: Writer, x: str) -> str:
    spatial = w.one((1, 2, 2))
    groups, channels = w.one(((1, 1), (1, 2), (1, 3), (2, 2)))
    features = groups * w.one((1, 2))
    shape = w.shape(x)
    image = (w.one((1, 2)), *(w.one((3, 4, 5)) if spatial == 1 else w.one((2, 3)) for _ in range(spatial)))
    image = shape if len(shape) == spatial + 2 and shape[-1] == channels else (*image, channels)
    kernel = [w.whole(1, 3 if spatial == 1 else 2) for _ in range(spatial)]
    strides = tuple(w.one((1, 1, 2)) for _ in range(spatial))
    padding = w.one(("SAME", "VALID", tuple((w.whole(0, 1), w.whole(0, 2)) for _ in range(spatial))))
    settings = ""
    if groups > 1:
        settings += f", feature_group_count={groups}"
    if w.chance(0.2):
        settings += f", rhs_dilation={tuple(w.whole(1, 2) for _ in range(spatial))}"
    if w.chance(0.1) and padding not in ("SAME", "VALID"):
        settings += f", lhs_dilation={tuple(w.whole(1, 2) for _ in range(spatial))}"
    axes = "HW"[:spatial]
    numbers = (f"N{axes}C", f"{axes}IO", f"N{axes}C")
    given = w.array(*kernel, channels // groups, features)
    found = (
        f"lax.conv_general_dilated({w.resized(x, *image)}, {given}, {strides}, {padding!r}, "
        f"dimension_numbers={numbers}{settings})"
    )
    return w.let(f"{found} + {w.param(features)}" if w.chance(0.5) else found)


@operation(often=1.0)
def attention(w: Writer, x: str) -> str:
    """Without a softmax: with relu, or linear."""
    x = w.matrix(x)
    width = w.shape(x)[1]
    x = w.let(f"{x}[:3, :3]")
    width = min(width, 3)
    inner = w.size()
    queries, keys = (w.let(f"{x} @ {w.param(width, inner)}") for _ in range(2))
    scores = f'jnp.einsum("id,jd->ij", {queries}, {keys})'
    if w.chance(0.5):
        w.smooth = False
        scores = f"jax.nn.relu({scores})"
    return w.let(f"{scores} @ {x}")


@operation(often=1.0)
def embedding(w: Writer, x: str) -> str:  # noqa: ARG001 - starts anew
    rows, width = w.whole(1, 4), w.size()
    ids = w.constant("labels", rows, *((w.size(),) if w.chance(0.7) else (2, 2)))
    return w.let(f"{w.param(rows, width)}[{ids}]")


# --- Sums ---


@operation(often=2.0)
def add(w: Writer, x: str) -> str:
    other = w.array(*(n if w.chance(0.8) else 1 for n in w.shape(x)))
    return w.let(w.one((f"{x} + {other}", f"{x} - {other}", f"{other} - {x}", f"{x} + {other} + 1.0")))


@operation(often=0.7)
def reduce_sum(w: Writer, x: str) -> str:
    axis = w.axis(x)
    return w.let(f"{x}.{w.one(('sum', 'mean'))}({axis}, keepdims={w.chance(0.5)})")


@operation(often=1.0)
def residual(w: Writer, x: str) -> str:
    width = (w.shape(x) or (0,))[-1]
    if not width:
        raise Unfit
    w.smooth = False
    inner = f"{x} @ {w.param(width, width)} + {w.param(width)}"
    return w.let(f"{x} + jax.nn.relu({inner})" if w.chance(0.7) else f"jax.nn.relu({inner}) - {x}")


# --- Windows ---


@operation(smooth=False, often=1.5)
def pool(w: Writer, x: str) -> str:
    shape = w.shape(x)
    if len(shape) < 3:
        shape = (w.one((1, 2)), *(w.whole(2, 4) for _ in range(w.whole(1, 2))), w.one((1, 2)))
    spatial = len(shape) - 2
    window = (1, *(w.whole(1, min(n, 3)) for n in shape[1:-1]), 1)
    strides = (1, *(w.whole(1, 2) for _ in range(spatial)), 1)
    padding = w.one(("SAME", "VALID"))
    init, op = w.one((("-jnp.inf", "max"), ("-jnp.inf", "max"), ("jnp.inf", "min")))
    dilation = f", window_dilation={tuple(min(n, 2) for n in strides)}" if w.chance(0.15) else ""
    return w.let(
        f"lax.reduce_window({w.resized(x, *shape)}, {init}, lax.{op}, {window}, {strides}, "
        f"{padding!r}{dilation})"
    )


@operation(often=0.7)
def window_sum(w: Writer, x: str) -> str:
    shape = w.shape(x)
    if not shape:
        raise Unfit
    window = tuple(w.whole(1, min(n, 3)) for n in shape)
    strides = tuple(w.whole(1, 2) for _ in shape)
    return w.let(f"lax.reduce_window({x}, 0.0, lax.add, {window}, {strides}, {w.one(('SAME', 'VALID'))!r})")


# --- Kinks ---


@operation(smooth=False, often=2.0)
def relu(w: Writer, x: str) -> str:
    return w.let(w.one((f"jax.nn.relu({x})", f"jax.nn.relu({x} + {w.array(*w.shape(x)[-1:])})")))


@operation(smooth=False, often=1.5)
def extremum(w: Writer, x: str) -> str:
    other = w.one((repr(round(w.rng.normal(), 2)), w.array(*w.shape(x)), w.array(*w.shape(x)[-1:])))
    return w.let(f"jnp.{w.one(('maximum', 'minimum'))}({x}, {other})")


@operation(smooth=False, often=0.7)
def reduce_extremum(w: Writer, x: str) -> str:
    return w.let(f"{x}.{w.one(('max', 'min'))}({w.axis(x)})")


@operation(smooth=False, often=0.7)
def clip(w: Writer, x: str) -> str:
    return w.let(f"jnp.clip({x}, {-w.whole(1, 8) / 8}, {w.whole(1, 8) / 8})")


@operation(smooth=False, often=0.5)
def quantize(w: Writer, x: str) -> str:
    return w.let(f"pjax.quantize({x}, levels={w.whole(2, 5)})")


@operation(smooth=False, often=1.0)
def constrain(w: Writer, x: str) -> str:
    return w.let(f"pjax.constrain({x}, {_set(w, x)})")


def _set(w: Writer, x: str) -> str:
    shape = w.shape(x)
    kinds = [
        "sets.Box(-0.5, 0.8)",
        "sets.NonNegative()",
        "sets.Integers(-2, 2)",
        f"sets.Box({w.constant('data', *shape)} - 1.0, None)",
        f"sets.Known({w.constant('mask', *shape)}, {w.constant('data', *shape)})",
    ]
    if shape:
        kinds += [
            "sets.Ball(1.2)",
            f"sets.Ball({w.constant('number')})",
            "sets.Sphere(1.1)",
            "sets.Simplex()",
        ]
        kinds += ["sets.Sparse(1)", "sets.OneHot()"]
    return w.one(kinds)


# --- Wires ---


@operation(often=3.0)
def wires(w: Writer, x: str) -> str:
    shape = w.shape(x)
    if not shape:
        return w.let(w.one((f"{x}[None]", f"jnp.broadcast_to({x}, ({w.size()}, 2))")))
    axis, n = w.axis(x), w.size()
    length = shape[axis]
    start, stop = sorted((w.whole(0, length), w.whole(0, length)))
    index = f"{':, ' * axis}{start}:{stop}:{w.whole(1, 2)}"
    order = tuple(int(i) for i in w.rng.permutation(len(shape)))
    pads = tuple((w.whole(0, 1), w.whole(0, 2)) for _ in shape)
    like = list(shape)
    like[axis] = n
    other = w.array(*like)
    choices = [
        f"{x}.transpose({order})",
        f"{x}.reshape(-1)",
        f"{x}.reshape(-1, {length})",
        f"{x}[{index}]",
        f"jnp.flip({x}, {axis})",
        f"jnp.roll({x}, 1, {axis})",
        f"jnp.pad({x}, {pads}, constant_values={w.one((0.0, 0.4))})",
        f"jnp.concatenate([{x}, {other}], {axis})",
        f"jnp.concatenate([{other}, {x}, {x}], {axis})",
        f"jnp.stack([{x}, {w.array(*shape)}], {axis})",
        f"jnp.repeat({x}, 2, {axis})",
        f"jnp.tile({x}, 2)",
        f"jnp.take({x}, {w.constant('labels', length, n)}, {axis})",
        f"jnp.where({w.constant('mask', *shape)}, {x}, {w.array(*shape)})",
        f"jnp.where({w.constant('mask', *shape)}, {x}, 0.3)",
        f"lax.dynamic_update_slice({x}, {w.constant('data', *(1 for _ in shape))}, {(0,) * len(shape)})",
        f"jnp.broadcast_to({x}, (2, {', '.join(map(str, shape))}))",
        f"jnp.expand_dims({x}, {axis})",
        f"jnp.moveaxis({x}, {axis}, 0)",
    ]
    return w.let(w.one(choices))


# --- Functions in functions ---


def _inner(w: Writer, x: str, width: int) -> str:
    """An expression of rows of a width, with a captured constant."""
    constant, weight = w.constant("data", width, width), w.param(width, width)
    kind = w.whole(0, 3)
    if kind == 0:
        return f"{x} @ {constant} + {w.param(width)}"
    if kind == 1:
        return f"({x} + {w.constant('data', width)}) @ {weight}"
    if kind == 2:
        return f"{x} @ {weight} + {constant}[0] @ {w.param(width, width)}"
    w.smooth = False
    return f"jax.nn.relu({x} @ {weight} + {constant}[0])"


WRAPPERS = ("jax.jit", "jax.jit", "jax.checkpoint", "custom", "jit of checkpoint", "checkpoint of jit")


def _call(w: Writer, wrapper: str, x: str, width: int) -> str:
    """A wrapped function of rows, called. It captures constants; parameters too, or has them as an argument.

    Where it captures what is traced, JAX makes arguments of constants too; where not, they are its own.
    """
    inner, parts = _inner(w, "x", width), wrapper.split(" of ")
    takes = wrapper == "custom" or w.chance(0.7)
    text = f"lambda {'x, p' if takes else 'x'}: {inner}"
    if wrapper == "custom":  # may not capture what is traced
        text = f"custom({text})"
    else:
        for part in reversed(parts):
            text = f"jax.{part.removeprefix('jax.')}({text})"
    if takes and w.chance(0.5):
        text = w.function(text)
    return f"{text}({x}, p)" if takes else f"{text}({x})"


@operation(often=2.0)
def wrapped(w: Writer, x: str) -> str:
    x = w.matrix(x)
    return w.let(_call(w, w.one(WRAPPERS), x, w.shape(x)[-1]))


@operation(often=0.7)
def vmapped(w: Writer, x: str) -> str:
    x = w.matrix(x)
    return w.let(f"jax.vmap(lambda x: {_inner(w, 'x', w.shape(x)[-1])})({x})")


def _body(w: Writer, x: str, width: int) -> str:
    """What a loop does with a row: as it is, or in a function of its own."""
    return _inner(w, x, width) if w.chance(0.25) else _call(w, w.one(WRAPPERS), x, width)


@operation(often=3.0)
def scan(w: Writer, x: str) -> str:
    """A recurrence over the rows of a value, or of constants; its last state, or all; with losses inside."""
    x = w.matrix(x)
    rows, width = w.shape(x)
    if rows > 3:
        x, rows = w.let(f"{x}[:3]"), 3
    steps = w.one((x, x, w.constant("data", rows, width)))
    start = w.one((f"jnp.zeros({width}, {x}.dtype)", w.param(width), f"{x}[0]"))
    body, name, loss = _body(w, "h", width), w.name("v"), w.name("l")
    losing = w.chance(0.3)
    target = f"pjax.squared_error(h, {w.constant('data', width)}, scale=1.0)" if losing else "h"
    reverse = ", reverse=True" if w.chance(0.3) else ""
    pair = f"{name}, {loss}" if losing else f"_, {name}" if w.chance(0.4) else f"{name}, _"
    text = f"""
    def step(h, x):
        h = {body} + x
        return h, {target}
    {pair} = lax.scan(step, {start}, {steps}{reverse})
    """
    if losing:
        w.losses.append((loss, loss, loss))  # the state has a parameter: every body does
    return w.block(name, text)


@operation(often=1.5)
def mapped(w: Writer, x: str) -> str:
    x = w.matrix(x)
    if w.shape(x)[0] > 3:
        x = w.let(f"{x}[:3]")
    return w.let(f"lax.map(lambda x: {_body(w, 'x', w.shape(x)[-1])}, {x})")


@operation(often=1.0)
def repeated(w: Writer, x: str) -> str:
    x = w.matrix(x)
    body = _body(w, "h", w.shape(x)[-1])
    return w.let(f"lax.fori_loop(0, {w.whole(1, 3)}, lambda i, h: {body}, {x})")


# --- What pjax may learn ---


expressions(
    LATER,
    True,
    {
        "tanh": "jnp.tanh({x})",
        "exp": "jnp.exp(0.3 * {x})",
        "sigmoid": "jax.nn.sigmoid({x})",
        "gelu": "jax.nn.gelu({x})",
        "softplus": "jax.nn.softplus({x})",
        "sine": "jnp.sin({x})",
        "log": "jnp.log(1.5 + {x} * {x})",
        "root": "jnp.sqrt(1.0 + {x} ** 2)",
        "softmax": "jax.nn.softmax(jnp.atleast_1d({x}), -1)",
        "log_softmax": "jax.nn.log_softmax(jnp.atleast_1d({x}), -1)",
        "division": "{x} / (1.0 + {x} ** 2)",
        "layer_norm": "({x} - {x}.mean()) * lax.rsqrt(0.1 + ({x} ** 2).mean())",
        "cumsum": "jnp.cumsum({x})",
        "segment_sum": "jax.ops.segment_sum({x}.reshape(-1), np.arange({x}.size) % 2, 2)",
        "stop_gradient": "{x} * lax.stop_gradient({x})",
        "logsumexp": "jax.nn.logsumexp({x})",
    },
)
expressions(
    LATER,
    False,
    {
        "absolute": "jnp.abs({x})",
        "leaky_relu": "jax.nn.leaky_relu({x})",
        "elu": "jax.nn.elu({x})",
        "where": "jnp.where({x} > 0.1, {x}, 0.2 * {x} * {x})",
        "sort": "jnp.sort({x}.reshape(-1))",
        "top_k": "lax.top_k({x}.reshape(-1), 1)[0]",
        "cond": "lax.cond({x}.sum() > 0, lambda x: x * x, lambda x: 2.0 * x, {x})",
        "gather_best": "{x}.reshape(-1)[jnp.argmax({x})] * {x}",
    },
)


@functools.cache
def operations() -> dict[str, tuple[Operation, bool, float]]:
    """All operations that pjax can read."""
    known, solver = dict(OPERATIONS), pjax.optim.AlternatingProjections(steps_per_update=1, check=False)
    for name, entry in LATER.items():
        w = Writer(0, "float32")
        w.params["x"] = (2, 2)
        w.block("x", 'x = p["x"] + 1.0')
        value = entry[0](w, "x")
        text = textwrap.indent("\n".join(w.body), "    ")
        scope = dict(w.scope)
        exec(f"def fn(p):\n{text}\n    return pjax.squared_error({value}, np.ones({w.shape(value)}))", scope)
        try:
            jax.eval_shape(lambda x: solver.update(scope["fn"], {"x": x}), jnp.ones((2, 2)))  # noqa: B023
        except (pjax.PjaxError, NotImplementedError):
            continue
        known[name] = entry
    return known


# --- Targets ---


def _target(w: Writer, x: str) -> None:
    """A target on a value, and what is done to its losses."""
    shape = w.shape(x)
    name = w.name("l")
    kind = w.rng.random()
    if kind < 0.1 and x in w.depending:
        w.smooth = False
        into = _set(w, x)
        alone = into.startswith(("sets.Box", "sets.NonNegative", "sets.Integers", "sets.Known"))
        gap = f"({x} - pjax.constrain({x}, {into})) ** 2"
        w.losses.append((f"pjax.constrain({x}, {into})", gap if alone else f"jnp.sum({gap})", ""))
        return
    if kind < 0.45 and shape and shape[-1] > 1:
        labels = w.one(
            (w.constant("labels", shape[-1], *shape[:-1]), w.constant("shares", *shape))
            if shape[:-1]
            else (w.constant("shares", *shape),)
        )
        if w.chance(0.25) and "shares" not in w.constants[-1]:
            w.smooth = False
            text = f"pjax.margin_loss({x}, {labels})"
        else:
            text = f"pjax.cross_entropy({x}, {labels}{w.one(('', ', scale=1.0'))})"
    else:
        scale = w.one(("", ", scale=1.0", ", scale=0.3"))
        text = f"pjax.squared_error({x}, {w.constant('data', *shape)}{scale})"
    w.block(name, f"{name} = {text}")
    w.losses.append((_finished(w, name), "", name if x in w.depending else ""))


def _finished(w: Writer, loss: str) -> str:
    """The losses as they are, or summed, weighted or masked."""
    shape = w.shape(loss)
    del w.values[loss]  # nothing else may read it
    choices = [loss, loss, f"{loss}.mean()", f"{loss}.sum()", f"{w.one((0.1, 0.5, 3.0))} * {loss}"]
    choices.append(f"({loss} * {w.constant('mask', *shape)}).sum()")
    choices.append(f"({loss} * {w.constant('factors', *shape)}).mean()")
    return w.one(choices)


# --- All of it ---


def draw(seed: int, dtype: str | None = None, only: Sequence[str] = ()) -> Drawn:
    """The program of a seed.

    Args:
        seed: a whole number.
        dtype: ``"float32"`` or ``"float64"``, if it is not to be chosen.
        only: the operations to choose from, if not all.
    """
    dtype = dtype or ("float64", "float32")[seed % 3 == 0]
    with jax.enable_x64(dtype == "float64"):
        return _draw(seed, dtype, only)


def _draw(seed: int, dtype: str, only: Sequence[str]) -> Drawn:
    w = Writer(seed, dtype)
    names, later = (
        {name: entry[2] for name, entry in table.items() if not only or name in only}
        for table in (OPERATIONS, LATER)
    )
    for _ in range(w.whole(1, 2)):
        _source(w)
    number, used = w.whole(1, 4), []
    while len(used) < number:
        values = list(w.values)
        x = values[-1] if w.chance(0.6) else w.one(values)
        # In this order, so that what is learned leaves alone the seeds that have none of it.
        often = later if later and w.chance(0.25 if names else 1.0) else names
        name = str(w.rng.choice(list(often), p=np.array(list(often.values())) / sum(often.values())))
        if name not in operations():
            continue
        write, smooth, _ = operations()[name]
        try:
            _written(w, write, x)
        except Unfit:
            continue
        w.smooth = w.smooth and smooth
        used.append(name)
    _targets(w)
    return _program(w, seed, dtype, used)


def _source(w: Writer) -> None:
    """A value to begin with: a parameter, or a layer on constants."""
    shapes = ((w.size(),), (w.size(), w.size()), (w.whole(1, 2), w.whole(2, 4), w.whole(2, 3), w.whole(1, 2)))
    shape = w.one(shapes)
    if w.chance(0.2):
        w.let(f"{w.param(*shape)} + 0.0" if w.chance(0.2) else w.param(*shape))
    else:
        w.let(w.constant("data", *shape))


def _written(w: Writer, write: Operation, x: str) -> None:
    """An operation, and sometimes its twin: the same choices with other arrays, beside it or after it."""
    seed, outside = int(w.rng.integers(2**31)), w.rng
    before = {name: copy.copy(value) for name, value in vars(w).items() if name not in ("rng", "_count")}
    shared = w.chance(0.3)
    try:
        w.rng = np.random.default_rng(seed)
        y = write(w, x)
        if shared:
            fits = w.shape(y) == w.shape(x)
            w.rng = np.random.default_rng(seed)
            twin = write(w, y if fits and outside.random() < 0.5 else x)
            if w.shape(twin) == w.shape(y) and outside.random() < 0.7:
                w.let(f"{y} + {twin}")
    except Unfit:
        vars(w).update(before)
        raise
    finally:
        w.rng = outside
    last = next(reversed(w.values))
    if w.values[last].size > LARGEST:
        w.let(f"{last}.reshape(-1)[:{LARGEST // 2}]")


def _targets(w: Writer) -> None:
    """On the values that nothing reads, on some other, and on a product if none of these has a parameter."""
    read = "\n".join(w.body)
    values = list(w.values)
    ends = [v for v in values if read.count(v) == 1][-2:] or values[-1:]
    if w.chance(0.2):
        ends.append(w.one(values))
    for end in dict.fromkeys(ends):
        _target(w, end)
    if not w.depending.intersection(ends):
        shape = w.shape(ends[-1])
        _target(w, w.let(f"{ends[-1]} * {w.param(*shape)}"))


def _program(w: Writer, seed: int, dtype: str, used: Sequence[str]) -> Drawn:
    params = "".join(f'    "{name}": weights({", ".join(map(str, s))}),\n' for name, s in w.params.items())

    def together(which: int) -> str:
        parts = [loss[which] or loss[0] for loss in w.losses if which < 2 or loss[which]]
        return f"({''.join(f'{part}, ' for part in parts)})"

    words = set(re.findall(r"\w+", "\n".join([*w.functions, *w.body, together(0), together(1)])))
    return Drawn(
        seed=seed,
        dtype=dtype,
        params_text=f"params = {{\n{params}}}",
        constants_text="\n".join([*(c for c in w.constants if c.split()[0] in words), *w.functions]),
        body="".join(f"{text}\n" for text in w.body),
        returned=together(0),
        counted=together(1),
        raw=together(2),
        smooth=w.smooth,
        operations=tuple(used),
    )


if __name__ == "__main__":
    print(draw(int(sys.argv[1])).source)
