"""Feedback Alignment: backpropagation in which fixed random matrices carry the errors down."""

import dataclasses

import jax

from pjax import nn
from pjax.errors import InputError
from pjax.experiments.methods import (
    Method,
    Params,
    State,
    check_name,
    descend,
    mean_cross_entropy,
    transformation,
)
from pjax.experiments.models import MLP


@dataclasses.dataclass(frozen=True)
class FeedbackAlignment(Method):
    r"""Feedback Alignment for a multilayer perceptron without skip.

    Backpropagation computes the error below a layer :math:`y = x W` from the error above it as
    :math:`\delta_x = \delta_y W^\top`. Here it is :math:`\delta_x = \delta_y B^\top` with a matrix :math:`B`
    that is drawn once, like the initial :math:`W` but independently of it, and never changes. All else is as
    in backpropagation: the loss is the mean cross-entropy, the weight's gradient is
    :math:`x^\top \delta_y`. The first layer passes no error on, and has no such matrix.

    Args:
        learning_rate: of the optimiser. The paper uses 1e-4.
        optimiser: ``"adam"`` or ``"sgd"``. The paper does not say which it uses; at its learning rate Adam
            comes to its accuracy in about its number of steps, while SGD has hardly begun to learn.

    Reference: T. P. Lillicrap, D. Cownden, D. B. Tweed, C. J. Akerman, "Random synaptic feedback weights
    support error backpropagation for deep learning", Nature Communications 7, 13276 (2016).

    >>> method, model = FeedbackAlignment(), MLP(784, [128, 64], 10)
    >>> state = method.init(model, jax.random.key(0))
    >>> {name: matrix.shape for name, matrix in state["feedback"].items()}
    {'hidden.1.weight': (128, 64), 'out.weight': (64, 10)}
    """

    learning_rate: float = 1e-4
    optimiser: str = "adam"

    def __post_init__(self) -> None:
        check_name("FeedbackAlignment: optimiser", self.optimiser, ("adam", "sgd"))

    def init(self, model: nn.Module, key: jax.Array) -> State:
        network = _checked(model)
        params = network.init(key)
        drawn = network.init(jax.random.fold_in(key, 0))
        above = [f"hidden.{i}.weight" for i in range(1, len(network.hidden))]
        return {
            "params": params,
            "feedback": {name: drawn[name] for name in [*above, "out.weight"]},
            "optimizer": transformation(self.optimiser, self.learning_rate).init(params),
        }

    def update(
        self,
        model: nn.Module,
        state: State,
        x: jax.Array,
        y: jax.Array,
        key: jax.Array,  # noqa: ARG002
    ) -> tuple[State, jax.Array]:
        network = _checked(model)

        def loss(params: Params) -> jax.Array:
            return mean_cross_entropy(_logits(network, params, state["feedback"], x), y)

        value, gradient = jax.value_and_grad(loss)(state["params"])
        return descend(transformation(self.optimiser, self.learning_rate), gradient, state), value


def _logits(model: MLP, params: Params, feedback: Params, x: jax.Array) -> jax.Array:
    """The network, with feedback matrices in its derivative."""
    bound = model.bind(params)
    for i, relu in enumerate(bound.relu):
        name = f"hidden.{i}.weight"
        x = relu(_linear(x, params[name], feedback[name]) if i else bound.hidden[0](x))
    return _linear(x, params["out.weight"], feedback["out.weight"])


@jax.custom_vjp
def _linear(x: jax.Array, weight: jax.Array, feedback: jax.Array) -> jax.Array:  # noqa: ARG001
    """``x @ weight``, whose derivative in `x` is taken as if it were ``x @ feedback``."""
    return x @ weight


def _forward(x: jax.Array, weight: jax.Array, feedback: jax.Array) -> tuple[jax.Array, State]:
    return x @ weight, (x, feedback)


def _backward(saved: State, error: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x, feedback = saved
    return error @ feedback.T, x.T @ error, None


_linear.defvjp(_forward, _backward)


def _checked(model: nn.Module) -> MLP:
    if not isinstance(model, MLP):
        raise InputError(
            "FeedbackAlignment: expected the network MLP of pjax.experiments.models, got "
            f"{type(model).__name__}. Use the method sgd or adam."
        )
    if model.skip:
        raise InputError(
            "FeedbackAlignment: not defined for skip connections, got MLP with skip=True. Use skip=False, or "
            "the method sgd or adam."
        )
    return model
