"""The paper's networks: multilayer perceptron, convolutional and recurrent network.

With ``skip`` the outputs of all hidden layers are concatenated before the last linear map, which keeps every
layer two steps from the loss.
"""

import abc
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pjax import nn
from pjax.checks import check_name
from pjax.containers import numpy as pnp
from pjax.devices import has_kernels, on_one_device
from pjax.errors import InputError
from pjax.nn import RNN as RNN
from pjax.rules.convolution import convolve_images
from pjax.rules.kernels import recurrence

SCALE = 1.5
"""Variance of initial weights times their fan-in, between LeCun's 1 and He's 2. The paper does not say what
it uses; with this all of its rows for MNIST come out."""


class _Layered(nn.Module, abc.ABC):
    """Hidden layers, each a linear map and a relu with the bias inside, and a linear readout.

    Args:
        inputs: features, or channels, of the input.
        widths: features of each hidden layer.
        classes: number of outputs.
        skip: whether the readout sees all hidden layers, instead of the last.
        scale: variance of initial weights times their fan-in.
    """

    def __init__(
        self, inputs: int, widths: Sequence[int], classes: int, *, skip: bool = False, scale: float = SCALE
    ) -> None:
        super().__init__()
        _check_widths(type(self).__name__, widths)
        initialiser = jax.nn.initializers.variance_scaling(scale, "fan_in", "normal")
        self.skip = skip
        shapes = zip([inputs, *widths], widths, strict=False)
        self.hidden = [self.layer(*shape, initialiser) for shape in shapes]
        self.relu = [nn.ReLU(width) for width in widths]
        self.out = nn.Linear(sum(widths) if skip else widths[-1], classes, initialiser=initialiser)

    @abc.abstractmethod
    def layer(self, inputs: int, outputs: int, initialiser: Callable[..., jax.Array]) -> nn.Module:
        """One linear map."""

    def features(self, x: jax.Array) -> jax.Array:
        """What the readout sees of the output of one layer."""
        return x

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits of shape ``(batch, classes)``."""
        outputs = []
        for hidden, relu in zip(self.hidden, self.relu, strict=True):
            x = relu(hidden(x))
            outputs.append(x)
        features = [self.features(x) for x in (outputs if self.skip else outputs[-1:])]
        return self.out(pnp.concatenate(features, axis=-1) if self.skip else features[0])


class MLP(_Layered):
    """A multilayer perceptron on inputs of shape ``(batch, inputs)``.

    >>> MLP(784, [128], 10)
    MLP: 101,760 parameters
      hidden.0: Linear(784 → 128): 100,352
        weight (784, 128) float32
      relu.0: ReLU(128): 128
        bias (128,) float32
      out: Linear(128 → 10): 1,280
        weight (128, 10) float32
    """

    def layer(self, inputs: int, outputs: int, initialiser: Callable[..., jax.Array]) -> nn.Module:
        return nn.Linear(inputs, outputs, initialiser=initialiser)


class Convolution(nn.Conv2D):
    """A layer of a `CNN` whose derivatives are wanted."""

    def _convolve(self, x: Any) -> jax.Array:
        return convolve(x, self.weight)  # type: ignore[arg-type]  # bound, it is an array


def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution of a layer of a `CNN`, to be differentiated."""
    return convolve_images(x, kernel, [(1, 1), (1, 1)])


class CNN(_Layered):
    """A convolutional network on images of shape ``(batch, height, width, channels)``.

    Convolutions are 3×3 with stride 1 and keep the size; the readout sees maxima over space. A network to be
    ``differentiated`` has the convolutions of projections: XLA's own are several times slower in a loop.
    """

    def __init__(self, *args: Any, differentiated: bool = False, **options: Any) -> None:
        self.convolution = Convolution if differentiated else nn.Conv2D
        super().__init__(*args, **options)
        self.pool = nn.GlobalMaxPool()

    def layer(self, inputs: int, outputs: int, initialiser: Callable[..., jax.Array]) -> nn.Module:
        return self.convolution(inputs, outputs, 3, initialiser=initialiser)

    def features(self, x: jax.Array) -> jax.Array:
        return self.pool(x)


class Recurrent(RNN):
    """An `RNN` whose derivatives are wanted: they have kernels of their own."""

    def _run(self, state: jax.Array, x: jax.Array) -> jax.Array:
        widths = (*(layer.out_features for layer in self.hidden), self.state.out_features)
        usual = jax.config.jax_default_matmul_precision in (None, "default")  # type: ignore[attr-defined]
        fits = usual and x.ndim == 2 and recurrence.fits(x.shape, widths, state.dtype)
        kernels = self._run_by_kernels if fits and has_kernels("recurrence") else None
        return jnp.asarray(on_one_device(state, x, default=super()._run, cuda=kernels))

    def _run_by_kernels(self, _: jax.Array, x: jax.Array) -> jax.Array:
        first, *others = (jnp.asarray(layer.weight) for layer in self.hidden)
        embed, width = self.embed.features, self.state.out_features
        # What the first layer reads of a character is the same in every step.
        table = jnp.asarray(self.embed.weight) @ first[:embed]
        parts = jnp.asarray(self.state.weight).reshape(-1, width, width)
        matrices = jnp.concatenate([jnp.stack([first[embed:], *others]), parts])
        biases = jnp.stack([jnp.asarray(relu.bias) for relu in self.relu])
        return _recurrence(self.skip, table, x, matrices, biases)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recurrence(
    skip: bool, table: jax.Array, x: jax.Array, matrices: jax.Array, biases: jax.Array
) -> jax.Array:
    """What the readout reads: all layers, beside each other, or the last one. See `recurrence.forwards`."""
    return _recurrence_forwards(skip, table, x, matrices, biases)[0]


def _recurrence_forwards(
    skip: bool, table: jax.Array, x: jax.Array, matrices: jax.Array, biases: jax.Array
) -> tuple[jax.Array, Any]:
    values = recurrence.forwards(table[x], matrices, biases, skip)
    *layers, _ = values
    return (jnp.concatenate(layers, axis=-1) if skip else layers[-1]), (table, x, matrices, values)


def _recurrence_backwards(skip: bool, saved: Any, wish: jax.Array) -> tuple[Any, ...]:
    table, x, matrices, values = saved
    *layers, states = values
    wishes = jnp.split(wish, len(layers), axis=-1) if skip else [wish]
    *errors, last = recurrence.backwards(values, wishes, matrices)

    def pulled(inputs: jax.Array, errors: jax.Array) -> jax.Array:
        return jnp.einsum("tbi,tbo->io", inputs, errors)

    found = [pulled(states[:-1], errors[0][1:])]
    found += [pulled(value, error) for value, error in zip(layers, errors[1:], strict=False)]
    found += [pulled(value, last) for value in (layers if skip else layers[-1:])]
    codes = jax.nn.one_hot(x, len(table), dtype=table.dtype)  # a product: many add up to a few rows
    biases = jnp.stack([error.sum((0, 1)) for error in errors])
    return pulled(codes, errors[0]), None, jnp.stack(found), biases


_recurrence.defvjp(_recurrence_forwards, _recurrence_backwards)


class QuantisedMLP(nn.Module):
    """A multilayer perceptron whose weights and hidden activations take few values.

    Each weight is rounded to one of ``levels`` equidistant values, up to one standard deviation of the
    initial ones for two levels and up to two for more; each hidden activation, of a linear map and a bias, to
    as many up to one, or two. Inputs, biases and logits are not rounded.

    Args:
        inputs, widths, classes, scale: see `MLP`.
        levels: how many values, at least 2.
        straight_through: whether derivatives take the rounding for a clipped line.
    """

    def __init__(
        self,
        inputs: int,
        widths: Sequence[int],
        classes: int,
        *,
        levels: int,
        scale: float = SCALE,
        straight_through: bool = False,
    ) -> None:
        super().__init__()
        _check_widths("QuantisedMLP", widths)
        self.levels, self.straight_through = levels, straight_through
        sizes = list(zip([inputs, *widths], [*widths, classes], strict=True))
        initialiser = jax.nn.initializers.variance_scaling(scale, "fan_in", "normal")
        reach = 1.0 if levels == 2 else 2.0
        self.reach, self.scales = reach, [reach * math.sqrt(scale / fan_in) for fan_in, _ in sizes]
        self.weight = [nn.Parameter(size, initialiser) for size in sizes]
        self.bias = [nn.Parameter((size[1],)) for size in sizes]

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits of shape ``(batch, classes)``."""
        for i, (weight, bias, scale) in enumerate(zip(self.weight, self.bias, self.scales, strict=True)):
            x = pnp.add(pnp.matmul(x, self._round(weight, scale)), bias)
            if i < len(self.weight) - 1:
                x = self._round(x, self.reach)
        return x

    def _round(self, x: Any, scale: float) -> Any:
        rounded = pnp.quantize(x, self.levels, scale)
        if not self.straight_through:
            return rounded
        clipped = jnp.clip(x, -scale, scale)
        return clipped + jax.lax.stop_gradient(rounded - clipped)


def _check_widths(name: str, widths: Sequence[int]) -> None:
    if not widths:
        raise InputError(f"{name}: widths must name at least one hidden layer, as in [128]; got none.")


def make(
    model: str,
    inputs: tuple[int, ...],
    widths: Sequence[int],
    classes: int,
    *,
    skip: bool = False,
    levels: int = 0,
    scale: float = SCALE,
    differentiated: bool = False,
) -> nn.Module:
    """A network by name, for data of a shape.

    Args:
        model: ``"mlp"``, ``"cnn"`` or ``"rnn"``.
        inputs: shape of one input. Images are flattened for ``"mlp"``.
        widths, skip, scale: see `MLP`; ``"rnn"`` has a scale of 1.
        classes: number of classes, or of distinct characters.
        levels: 0, or see `QuantisedMLP`.
        differentiated: whether derivatives of it are wanted, of roundings too.
    """
    if levels and (model != "mlp" or skip):
        raise InputError(f"levels are for the model mlp without skip, got {model}{' with skip' * skip}")
    if levels:
        return QuantisedMLP(
            math.prod(inputs), widths, classes, levels=levels, scale=scale, straight_through=differentiated
        )
    check_name("model", model, ("mlp", "cnn", "rnn"))
    if model == "rnn":
        return (Recurrent if differentiated else RNN)(classes, widths, skip=skip)
    if model == "mlp":
        return MLP(math.prod(inputs), widths, classes, skip=skip, scale=scale)
    if len(inputs) != 3:
        raise InputError(
            f"a cnn needs images of shape (height, width, channels), the data have inputs of shape {inputs}; "
            "use the model mlp"
        )
    return CNN(inputs[-1], widths, classes, skip=skip, scale=scale, differentiated=differentiated)
