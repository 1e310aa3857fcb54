"""The recurrent network for characters."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pjax import numpy as pnp
from pjax.computation import Computation, Operand
from pjax.errors import InputError
from pjax.nn._check import check_last_axis, shape_of, whole
from pjax.nn._module import Module
from pjax.nn.embedding import Embedding
from pjax.nn.linear import Linear
from pjax.nn.relu import ReLU


class RNN(Module):
    r"""A recurrent network whose cell is a multilayer perceptron.

    .. math:: (y_t, h'_t) = \operatorname{MLP}(e_{x_t}, h_{t-1}), \quad h_t = \max(h'_t, 0), \quad h_0 = 0

    The cell reads the embedding :math:`e` of a character beside the state before it, and its linear readout
    yields the logits :math:`y_t` for the next character beside the raw state. Every hidden layer is a relu
    with a bias.

    Args:
        num: how many characters there are.
        widths: features of the hidden layers of the cell, at least one.
        classes: how many logits; by default `num`.
        embedding: features of a character; by default as many as the first hidden layer.
        state: features of the state; by default as many as the last hidden layer.
        skip: whether the readout reads all hidden layers, concatenated, and not the last alone.

    Parameters: ``embed.weight``, ``hidden.0.weight``, ``relu.0.bias`` and so on, ``out.weight``.

    >>> model = RNN(65, [32, 32], skip=True)
    >>> params = model.init(jax.random.key(0))
    >>> model.apply(params, jnp.zeros((4, 10), int)).shape
    (4, 10, 65)
    """

    def __init__(
        self,
        num: int,
        widths: Sequence[int],
        classes: int | None = None,
        *,
        embedding: int | None = None,
        state: int | None = None,
        skip: bool = False,
    ) -> None:
        if isinstance(widths, str) or not isinstance(widths, Sequence) or not widths:
            raise InputError(f"RNN: widths must be a list of at least one whole number, got {widths!r:.120}.")
        widths = [whole("RNN", "widths", width) for width in widths]
        self.num = whole("RNN", "num", num)
        self.classes = self.num if classes is None else whole("RNN", "classes", classes)
        self.state = widths[-1] if state is None else whole("RNN", "state", state)
        self.skip = bool(skip)
        self.embed = Embedding(self.num, widths[0] if embedding is None else embedding)
        inputs = [self.embed.features + self.state, *widths[:-1]]
        self.hidden = [Linear(*sizes) for sizes in zip(inputs, widths, strict=True)]
        self.relu = [ReLU(width) for width in widths]
        self.out = Linear(sum(widths) if self.skip else widths[-1], self.classes + self.state)
        self.activation = ReLU()

    def __call__(self, x: Operand) -> Any:
        """The logits after each character, of shape ``(…, time, classes)``, for codes ``(…, time)``."""
        shape = shape_of(self._place(), x, "codes of shape (…, time)")
        if not shape:
            raise InputError(
                f"{self._place()}: expected codes of shape (…, time), got one code without axes."
            )
        inputs = self.embed(x)
        state = jnp.zeros((*shape[:-1], self.state), inputs.dtype)
        if isinstance(inputs, Computation):  # built by hand, step by step
            logits = []
            for t in range(shape[-1]):
                one, state = self._cell(inputs[..., t, :], state)
                logits.append(one)
            return pnp.stack(logits, axis=-2)

        def step(state: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
            one, after = self._cell(now, state)
            return after, one

        # Compiles in constant time for gradients; projections unroll it, and take as long as for a loop.
        _, stacked = jax.lax.scan(step, state, jnp.moveaxis(inputs, -2, 0))
        return jnp.moveaxis(stacked, 0, -2)

    def step(self, x: Operand, state: Operand) -> tuple[Any, Any]:
        """One character: the logits for the next, and the state after it.

        For writing text with a bound model, one character at a time.

        Args:
            x: codes of shape ``(…)``.
            state: of shape ``(…, state)``; zeros at the start.

        >>> model = RNN(65, [32])
        >>> bound = model.bind(model.init(jax.random.key(0)))
        >>> logits, state = bound.step(jnp.array(3), jnp.zeros(32))
        >>> logits.shape, state.shape
        ((65,), (32,))
        """
        check_last_axis(self._place() + ", state", state, self.state)
        return self._cell(self.embed(x), state)

    def _cell(self, x: Any, state: Any) -> tuple[Any, Any]:
        y = pnp.concatenate([x, state], axis=-1)
        outputs = []
        for hidden, relu in zip(self.hidden, self.relu, strict=True):
            y = relu(hidden(y))
            outputs.append(y)
        y = self.out(pnp.concatenate(outputs, axis=-1) if self.skip else y)
        return y[..., : self.classes], self.activation(y[..., self.classes :])

    def _label(self) -> str:
        return f"RNN({self.num} → {self.classes}, state {self.state}{', skip' * self.skip})"
