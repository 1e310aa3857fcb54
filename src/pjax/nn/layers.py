"""Layers: linear maps, embeddings, relus and rounding, sequences of layers; and what all layers check."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pjax.checks import check_whole
from pjax.containers import numpy as pnp
from pjax.containers.computation import Computation, Operand
from pjax.containers.lift import describe, lift
from pjax.errors import InputError
from pjax.nn._module import Initialiser, Module, Parameter, keeping_size, of_size_one
from pjax.rules import Quantize as _Quantize
from pjax.rules.windows import Padding, explicit_padding

# --- Settings and inputs ---


def pair(owner: str, name: str, value: int | Sequence[int]) -> tuple[int, int]:
    """A setting for the two axes of space, from one integer or two.

    >>> pair("Conv2D", "strides", 2), pair("Conv2D", "strides", (1, 2))
    ((2, 2), (1, 2))
    """
    given = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value] * 2
    if len(given) != 2:
        raise InputError(f"{owner}: {name} must be one whole number or a pair, got {value!r:.120}.")
    first, second = (check_whole(f"{owner}: {name}", x) for x in given)
    return first, second


def padding_setting(owner: str, padding: Any) -> Padding:
    """A padding; `InputError` unless it is one that `pjax.conv` takes for two axes.

    >>> padding_setting("Conv2D", "same")
    'SAME'
    """
    try:
        explicit_padding(padding, (1, 1), (1, 1), (1, 1))
    except InputError as error:
        raise InputError(f"{owner}: {error}") from None
    return padding.upper() if isinstance(padding, str) else padding


def check_shape(place: str, x: Any, *axes: int | str, what: str = "an input") -> tuple[int, ...]:
    """The shape of an input; `InputError` unless its last axes have these lengths, or any under a name."""
    expected = f"{what} of shape ({', '.join(['…', *map(str, axes)])})"
    try:
        shape = tuple(x.shape if hasattr(x, "shape") else np.shape(x))
    except ValueError as error:  # a list of lists of different lengths
        raise InputError(f"{place}: expected {expected}, got {type(x).__name__}.") from error
    pairs = zip(reversed(axes), reversed(shape), strict=False)
    if len(shape) < len(axes) or any(isinstance(a, int) and a != n for a, n in pairs):
        raise InputError(f"{place}: expected {expected}, got {shape}.")
    return shape


# --- Layers ---


class Linear(Module):
    r"""The product with a matrix, :math:`y = x W + b`, along the last axis.

    Args:
        in_features: length of the last axis of the input.
        out_features: length of the last axis of the output.
        bias: whether to add a bias, which starts at zero. A relu after the layer has its own.
        initialiser: for the weight of shape ``(in_features, out_features)``; by default normal with variance
            ``1 / in_features``.

    Parameters: ``weight``, and ``bias`` if asked for.

    >>> import jax
    >>> layer = Linear(3, 2)
    >>> params = layer.init(jax.random.key(0))
    >>> layer.apply(params, np.ones((5, 3), np.float32)).shape
    (5, 2)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        initialiser: Initialiser | None = None,
    ) -> None:
        self.in_features = check_whole("Linear: in_features", in_features)
        self.out_features = check_whole("Linear: out_features", out_features)
        shape = (self.in_features, self.out_features)
        self.weight = Parameter(shape, initialiser or keeping_size)
        self.bias = Parameter(self.out_features) if bias else None

    def __call__(self, x: Operand) -> Any:
        """The output of shape ``(…, out_features)``."""
        check_shape(self._place(), x, self.in_features)
        y = pnp.matmul(x, self.weight)
        return y if self.bias is None else pnp.add(y, self.bias)

    def _label(self) -> str:
        return f"Linear({self.in_features} → {self.out_features}{', bias' * (self.bias is not None)})"


class Embedding(Module):
    r"""A vector for each of a number of codes, :math:`y = W_x`.

    Args:
        num: how many codes there are: ``0, …, num - 1``.
        features: length of a vector.
        initialiser: for the weight of shape ``(num, features)``; by default normal with variance 1, because
            each output reads one entry.

    Parameters: ``weight``.

    >>> layer = Embedding(3, 2)
    >>> layer.apply({"weight": np.arange(6.0).reshape(3, 2)}, np.array([2, 0])).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """

    def __init__(self, num: int, features: int, *, initialiser: Initialiser | None = None) -> None:
        self.num = check_whole("Embedding: num", num)
        self.features = check_whole("Embedding: features", features)
        self.weight = Parameter((self.num, self.features), initialiser or of_size_one)

    def __call__(self, x: Operand) -> Any:
        """The vectors of the codes, of shape ``(*x.shape, features)``."""
        self.check(x)
        return _take(self.weight, x)

    def check(self, x: Operand) -> None:
        """Raise an `InputError` unless these are codes, as far as their values are known."""
        values = x.value if isinstance(x, Computation) else x
        known = None if isinstance(values, jax.core.Tracer) else np.asarray(values)
        expected = f"{self._place()}: expected whole numbers from 0 to {self.num - 1}"
        if not np.issubdtype(values.dtype if known is None else known.dtype, np.integer):
            raise InputError(f"{expected}, got {describe(values)}.")
        if known is not None and known.size and (known.min() < 0 or known.max() >= self.num):
            raise InputError(f"{expected}, got numbers from {known.min()} to {known.max()}.")

    def _label(self) -> str:
        return f"Embedding({self.num} x {self.features})"


@lift("weight", "codes", expects="a weight (num, features), and codes that are whole numbers")
def _take(weight: Operand, codes: Operand) -> jax.Array:
    # Codes that are known only later may be out of range: they give NaN.
    rows = jnp.asarray(weight).at[jnp.asarray(codes)]
    return rows.get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


class ReLU(Module):
    r"""The positive part, :math:`y = \max(x + b, 0)`, elementwise.

    The bias belongs to the relu because the two make one constraint. The derivative at zero is zero.

    Args:
        features: length of the bias, and of the last axis of the input; without it there is no bias.

    Parameters: ``bias`` if `features` is given.

    >>> ReLU(2).apply({"bias": np.array([1.0, -3.0])}, np.array([[2.0, 2.0]])).tolist()
    [[3.0, 0.0]]
    >>> ReLU().apply({}, np.array([2.0, -2.0])).tolist()
    [2.0, 0.0]
    """

    def __init__(self, features: int | None = None) -> None:
        self.features = None if features is None else check_whole("ReLU: features", features)
        self.bias = None if self.features is None else Parameter(self.features)

    def __call__(self, x: Operand) -> Any:
        """An array of the shape of the input."""
        if self.features is None:
            return pnp.relu(x)
        check_shape(self._place(), x, self.features)
        return pnp.sum_relu(x, self.bias)

    def _label(self) -> str:
        return f"ReLU({'' if self.features is None else self.features})"


class Quantize(Module):
    r"""The nearest of ``levels`` equidistant points in ``[-scale, scale]``, elementwise.

    .. math:: y = \operatorname{argmin}_{z_i} |x - z_i|, \quad z_i = \frac{2 i - (n - 1)}{n - 1} s

    Its derivative is zero wherever it has one, so that gradients teach layers before it nothing. These learn
    by `ExtrapolatedProjections`, which projects onto a smoothed staircase, and by `DouglasRachford`, which
    adds up moves until they reach another level. Alternating projections undo each move.

    Args:
        levels: how many points, at least 2.
        scale: the largest of them.

    >>> Quantize(levels=3).apply({}, np.array([-3.0, 0.1, 0.9])).tolist()
    [-1.0, 0.0, 1.0]
    """

    def __init__(self, levels: int = 2, scale: float = 1.0) -> None:
        rule = _Quantize(levels, scale)  # checks both
        self.levels, self.scale = rule.levels, rule.scale

    def __call__(self, x: Operand) -> Any:
        """An array of the shape of the input."""
        return pnp.quantize(x, self.levels, self.scale)

    def _label(self) -> str:
        return f"Quantize({self.levels} levels, scale {self.scale:g})"


class Sequential(Module):
    r"""One module after the other, :math:`y = f_n(\dots f_1(x))`.

    Args:
        layers: modules, or functions without parameters.

    Parameters: those of the modules, as ``layers.0.…`` and so on.

    >>> import jax, numpy as np
    >>> from pjax import nn
    >>> model = Sequential(nn.Linear(4, 3), nn.ReLU(3), nn.Linear(3, 2))
    >>> params = model.init(jax.random.key(0))
    >>> list(params)
    ['layers.0.weight', 'layers.1.bias', 'layers.2.weight']
    >>> model.apply(params, np.ones((5, 4), np.float32)).shape
    (5, 2)
    """

    def __init__(self, *layers: Callable[..., Any]) -> None:
        for place, layer in enumerate(layers):
            if not callable(layer):
                name = type(self).__name__
                hint = f"; write {name}(*layers)" if isinstance(layer, list | tuple) else ""
                raise InputError(
                    f"{name}: expected modules or functions, got {type(layer).__name__} as layer "
                    f"{place}{hint}."
                )
        self.layers = layers

    def __call__(self, x: Operand) -> Any:
        """The output of the last module."""
        for layer in self.layers:
            x = layer(x)
        return x

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, place: int) -> Any:
        return self.layers[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)


class Concat(Sequential):
    r"""One module after the other, and all their outputs side by side along the last axis.

    .. math:: y = (h_1, \dots, h_n), \quad h_i = f_i(h_{i-1}), \quad h_0 = x

    What comes next reads every module directly. This is the skip connection for projections: it shortens the
    path from early modules to the output, and adds no constraint.

    Args:
        layers: modules, or functions without parameters.

    Parameters: those of the modules, as ``layers.0.…`` and so on.

    >>> import jax, numpy as np
    >>> from pjax import nn
    >>> first = nn.Sequential(nn.Linear(4, 3), nn.ReLU(3))
    >>> second = nn.Sequential(nn.Linear(3, 2), nn.ReLU(2))
    >>> model = Concat(first, second)
    >>> model.apply(model.init(jax.random.key(0)), np.ones((7, 4), np.float32)).shape
    (7, 5)
    """

    def __call__(self, x: Operand) -> Any:
        """The outputs of all modules, concatenated."""
        outputs = []
        for layer in self.layers:
            x = layer(x)
            outputs.append(x)
        shapes = [check_shape(self._place(), y, what="outputs of all layers, each an array") for y in outputs]
        if not shapes or not all(shape and shape[:-1] == shapes[0][:-1] for shape in shapes):
            raise InputError(
                f"{self._place()}: expected at least one layer, and outputs that differ in their last axis "
                f"only, got the shapes {', '.join(map(str, shapes)) or 'of no layers'}."
            )
        return pnp.concatenate(outputs, axis=-1)
