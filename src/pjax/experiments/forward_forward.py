"""Forward-Forward: every layer learns by itself to tell right labels from wrong ones."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from pjax import nn
from pjax.containers import numpy as pnp
from pjax.errors import InputError
from pjax.experiments.methods import Method, Params, State, check_name, descend, transformation
from pjax.experiments.models import CNN, MLP

_SPACE = (-3, -2, -1)
"""Positions and channels."""
_LEAST = 1e-8
"""Mean squares far below it, as of a layer with no active unit, are not scaled up to one."""


@dataclasses.dataclass(frozen=True)
class ForwardForward(Method):
    r"""Supervised Forward-Forward for a multilayer perceptron or a convolutional network without skip.

    The network sees an input together with a label: a one-hot vector after the features of a vector, or as
    many constant planes after the channels of an image. Each layer has a goodness :math:`g`: the mean of its
    squared activations or, where it has positions in space, their sum over channels averaged over positions.
    It is trained to have a goodness above the threshold :math:`\theta` for the right label, and below it for
    another label, drawn at random: its loss is the mean of :math:`\log(1 + e^{\theta - g^+})` and
    :math:`\log(1 + e^{g^- - \theta})`. A layer passes on its activations divided by their root mean square,
    so that the next one cannot read the goodness off them, and no gradient goes back through them. All
    layers are updated at the same time. Images are divided by their root mean square to begin with, for
    otherwise their brightness decides about the goodness of a convolution.

    The prediction is the label with the largest goodness, summed over all layers but the first, or over the
    only one. The network's readout ``out`` is not used: its weight stays as it was initialised.

    Args:
        optimiser: ``"adam"`` or ``"sgd"``.
        learning_rate: of the optimiser. The paper uses 1e-3.
        threshold: :math:`\theta > 0`; by default 2 for vectors, and 6 for images.

    The paper says neither which goodness nor which threshold it uses. With the sum of squares in place of the
    mean, SGD at its learning rate comes to more than 80 % on MNIST in 8,000 steps with one layer of an MLP,
    where it reports 12.7 %. With the mean in place of the sum over channels, a CNN learns much more slowly.

    Reference: G. Hinton, "The Forward-Forward Algorithm: Some Preliminary Investigations" (2022),
    arXiv:2212.13345.

    >>> method = ForwardForward()
    >>> method.inputs((784,), 10), method.inputs((28, 28, 1), 10)
    ((794,), (28, 28, 11))
    >>> model = MLP(794, [128], 10)
    >>> state = method.init(model, jax.random.key(0))
    >>> method.scores(model, method.params(state), jnp.ones((5, 784))).shape
    (5, 10)
    """

    optimiser: str = "adam"
    learning_rate: float = 1e-3
    threshold: float | None = None

    def __post_init__(self) -> None:
        check_name("ForwardForward: optimiser", self.optimiser, ("adam", "sgd"))
        if self.threshold is not None and not (math.isfinite(self.threshold) and self.threshold > 0):
            raise InputError(
                f"ForwardForward: threshold must be a positive finite number; got {self.threshold!r}."
            )

    def inputs(self, shape: tuple[int, ...], classes: int) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] + classes)

    def init(self, model: nn.Module, key: jax.Array) -> State:
        params = _checked(model).init(key)
        return {
            "params": params,
            "optimizer": transformation(self.optimiser, self.learning_rate).init(params),
        }

    def update(
        self, model: nn.Module, state: State, x: jax.Array, y: jax.Array, key: jax.Array
    ) -> tuple[State, jax.Array]:
        network = _checked(model)
        classes = network.out.out_features
        threshold = (2.0 if isinstance(network, MLP) else 6.0) if self.threshold is None else self.threshold
        wrong = (y + jax.random.randint(key, y.shape, 1, classes)) % classes
        labels = jax.nn.one_hot(jnp.stack([y, wrong]), classes, dtype=x.dtype)

        def loss(params: Params) -> tuple[jax.Array, jax.Array]:
            bound = network.bind(params)
            seen, added = _first(bound, params["hidden.0.weight"], x)
            # A product, not a gather, whose gradient would be a sum in no fixed order on a GPU.
            right, wrong = jnp.moveaxis(_goodness(bound, seen + jnp.tensordot(labels, added, 1)), 1, 0)
            losses = jax.nn.softplus(threshold - right) + jax.nn.softplus(wrong - threshold)
            layers = jnp.mean(losses, axis=-1) / 2
            # The gradient of the sum is each layer's own, because no parameter has a part in two losses.
            return jnp.sum(layers), jnp.mean(layers)

        gradient, value = jax.grad(loss, has_aux=True)(state["params"])
        return descend(transformation(self.optimiser, self.learning_rate), gradient, state), value

    def scores(self, model: nn.Module, params: Params, x: jax.Array) -> jax.Array:
        """The goodness of each label."""
        bound = _checked(model).bind(params)
        seen, added = _first(bound, params["hidden.0.weight"], x)

        def score(label: jax.Array) -> jax.Array:
            layers = _goodness(bound, seen + label)
            return jnp.sum(layers[1:] if len(layers) > 1 else layers, axis=0)

        # One label after another, since the activations for all of them can be too large for memory.
        return jax.lax.map(score, added).T


def _first(bound: MLP | CNN, weight: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The output of the first linear map in two parts, of which an input with a label gives the sum.

    Returns:
        What each input contributes, of shape ``(batch, …)``, and what each label does, ``(classes, …)``.
    """
    features, classes = x.shape[-1], bound.out.out_features
    if weight.shape[-2] != features + classes:
        raise InputError(
            f"ForwardForward: the network takes {weight.shape[-2]} features, expected {features + classes}: "
            f"the data's {features} and one for each of {classes} labels. Make it for the shape that "
            "ForwardForward.inputs gives."
        )
    layer, labels = bound.hidden[0], jnp.eye(classes, dtype=x.dtype)
    of_inputs, of_labels = weight[..., :features, :], weight[..., features:, :]
    if not isinstance(layer, nn.Conv2D):
        return x @ of_inputs, labels @ of_labels
    planes = jnp.broadcast_to(labels[:, None, None], (classes, *x.shape[-3:-1], classes))
    return (
        pnp.conv(_unit(x, _SPACE), of_inputs, layer.strides, layer.padding),
        pnp.conv(planes, of_labels, layer.strides, layer.padding),
    )


def _goodness(bound: MLP | CNN, sums: jax.Array) -> jax.Array:
    """The goodness of each layer, of shape ``(layers, …)``, given the output of the first linear map."""
    axes = (-1,) if isinstance(bound, MLP) else _SPACE
    found = []
    for i, relu in enumerate(bound.relu):
        active = relu(sums)
        goodness = jnp.mean(active**2, axes)
        found.append(goodness if isinstance(bound, MLP) else goodness * active.shape[-1])
        if i + 1 < len(bound.relu):
            sums = bound.hidden[i + 1](_unit(jax.lax.stop_gradient(active), axes))
    return jnp.stack(found)


def _unit(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Divided by the root mean square."""
    return x * jax.lax.rsqrt(jnp.mean(x**2, axes, keepdims=True) + _LEAST)


def _checked(model: nn.Module) -> MLP | CNN:
    if not isinstance(model, MLP | CNN):
        raise InputError(
            f"ForwardForward: expected a network MLP or CNN of pjax.experiments.models, got "
            f"{type(model).__name__}. Use the method sgd or adam."
        )
    if model.skip:
        raise InputError(
            f"ForwardForward: not defined for skip connections, got {type(model).__name__} with skip=True. "
            "Use skip=False, or the method sgd or adam."
        )
    if model.out.out_features < 2:
        raise InputError("ForwardForward: expected at least 2 classes, so that a label can be wrong, got 1.")
    return model
