"""The paper's baselines without backpropagation: Feedback Alignment and Forward-Forward."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pjax import nn
from pjax.experiments.learners import Descent, Params, State, mean_cross_entropy
from pjax.experiments.models import CNN, MLP, convolve

# --- Feedback Alignment ---


@dataclasses.dataclass(frozen=True)
class FeedbackAlignment(Descent):
    r"""Feedback Alignment for a multilayer perceptron without skip.

    Backpropagation computes the error below a layer :math:`y = x W` from the error above it as
    :math:`\delta_x = \delta_y W^\top`. Here it is :math:`\delta_x = \delta_y B^\top` with a matrix :math:`B`
    that is drawn once, like the initial :math:`W` but independently of it, and never changes. All else is as
    in backpropagation: the loss is the mean cross-entropy, the weight's gradient is
    :math:`x^\top \delta_y`. The first layer passes no error on, and has no such matrix.

    The paper uses a learning rate of 1e-4, and does not say with which optimiser: Adam comes to its accuracy
    in about its number of steps, while SGD has hardly begun to learn.

    Reference: T. P. Lillicrap, D. Cownden, D. B. Tweed, C. J. Akerman, "Random synaptic feedback weights
    support error backpropagation for deep learning", Nature Communications 7, 13276 (2016).

    >>> import optax
    >>> method, model = FeedbackAlignment(optax.adam(1e-4)), MLP(784, [128, 64], 10)
    >>> state = method.init(model, jax.random.key(0))
    >>> {name: matrix.shape for name, matrix in state["feedback"].items()}
    {'hidden.1.weight': (128, 64), 'out.weight': (64, 10)}
    """

    def init(self, model: nn.Module, key: Array) -> State:
        drawn = model.init(jax.random.fold_in(key, 0))
        above = {k: v for k, v in drawn.items() if k.endswith("weight") and k != "hidden.0.weight"}
        return super().init(model, key) | {"feedback": above}

    def gradient(self, model: Any, state: State, x: Array, y: Array, key: Array) -> tuple[Array, Params]:
        del key

        def linear(name: str, params: Params, x: Array) -> Array:
            return _linear(x, params[name], state["feedback"][name])

        def loss(params: Params) -> Array:
            bound, seen = model.bind(params), x
            for i, relu in enumerate(bound.relu):
                seen = relu(linear(f"hidden.{i}.weight", params, seen) if i else bound.hidden[0](seen))
            return mean_cross_entropy(linear("out.weight", params, seen), y)

        return jax.value_and_grad(loss)(state["params"])


@jax.custom_vjp
def _linear(x: Array, weight: Array, feedback: Array) -> Array:  # noqa: ARG001
    """``x @ weight``, whose derivative in `x` is taken as if it were ``x @ feedback``."""
    return x @ weight


def _forward(x: Array, weight: Array, feedback: Array) -> tuple[Array, State]:
    return x @ weight, (x, feedback)


def _backward(saved: State, error: Array) -> tuple[Array, Array, None]:
    x, feedback = saved
    return error @ feedback.T, x.T @ error, None


_linear.defvjp(_forward, _backward)


# --- Forward-Forward ---

_SPACE = (-3, -2, -1)
"""Positions and channels."""
_LEAST = 1e-8
"""Mean squares far below it, as of a layer with no active unit, are not scaled up to one."""


@dataclasses.dataclass(frozen=True)
class ForwardForward(Descent):
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
        optimiser: of optax. The paper uses SGD and Adam, with a learning rate of 1e-3.
        threshold: :math:`\theta > 0`; by default 2 for vectors, and 6 for images.

    The paper says neither which goodness nor which threshold it uses. With the sum of squares in place of the
    mean, SGD at its learning rate comes to more than 80 % on MNIST in 8,000 steps with one layer of an MLP,
    where it reports 12.7 %. With the mean in place of the sum over channels, a CNN learns much more slowly.

    Reference: G. Hinton, "The Forward-Forward Algorithm: Some Preliminary Investigations" (2022),
    arXiv:2212.13345.

    >>> import optax
    >>> method = ForwardForward(optax.adam(1e-3))
    >>> method.inputs((784,), 10), method.inputs((28, 28, 1), 10)
    ((794,), (28, 28, 11))
    >>> model = MLP(794, [128], 10)
    >>> state = method.init(model, jax.random.key(0))
    >>> method.scores(model, state["params"], jnp.ones((5, 784))).shape
    (5, 10)
    """

    threshold: float | None = None

    def inputs(self, shape: tuple[int, ...], classes: int) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] + classes)

    def gradient(self, model: Any, state: State, x: Array, y: Array, key: Array) -> tuple[Array, Params]:
        classes = model.out.out_features
        threshold = (2.0 if isinstance(model, MLP) else 6.0) if self.threshold is None else self.threshold
        wrong = (y + jax.random.randint(key, y.shape, 1, classes)) % classes
        labels = jax.nn.one_hot(jnp.stack([y, wrong]), classes, dtype=x.dtype)

        def loss(params: Params) -> tuple[Array, Array]:
            bound = model.bind(params)
            seen, added = _first(bound, params["hidden.0.weight"], x)
            # A product, not a gather, whose gradient would be a sum in no fixed order on a GPU.
            right, wrong = jnp.moveaxis(_goodness(bound, seen + jnp.tensordot(labels, added, 1)), 1, 0)
            losses = jax.nn.softplus(threshold - right) + jax.nn.softplus(wrong - threshold)
            layers = jnp.mean(losses, axis=-1) / 2
            # The gradient of the sum is each layer's own, because no parameter has a part in two losses.
            return jnp.sum(layers), jnp.mean(layers)

        gradient, value = jax.grad(loss, has_aux=True)(state["params"])
        return value, gradient

    def scores(self, model: Any, params: Params, x: Array) -> Array:
        """The goodness of each label."""
        bound = model.bind(params)
        seen, added = _first(bound, params["hidden.0.weight"], x)

        def score(label: Array) -> Array:
            layers = _goodness(bound, seen + label)
            return jnp.sum(layers[1:] if len(layers) > 1 else layers, axis=0)

        # One label after another, since the activations for all of them can be too large for memory.
        return jax.lax.map(score, added).T


def _first(bound: MLP | CNN, weight: Array, x: Array) -> tuple[Array, Array]:
    """The output of the first linear map in two parts, of which an input with a label gives the sum.

    Returns:
        What each input contributes, of shape ``(batch, …)``, and what each label does, ``(classes, …)``.
    """
    features, classes = x.shape[-1], bound.out.out_features
    labels = jnp.eye(classes, dtype=x.dtype)
    of_inputs, of_labels = weight[..., :features, :], weight[..., features:, :]
    if not isinstance(bound, CNN):
        return x @ of_inputs, labels @ of_labels
    planes = jnp.broadcast_to(labels[:, None, None], (classes, *x.shape[-3:-1], classes))
    return convolve(_unit(x, _SPACE), of_inputs), convolve(planes, of_labels)


def _goodness(bound: MLP | CNN, sums: Array) -> Array:
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


def _unit(x: Array, axes: tuple[int, ...]) -> Array:
    """Divided by the root mean square."""
    return x * jax.lax.rsqrt(jnp.mean(x**2, axes, keepdims=True) + _LEAST)
