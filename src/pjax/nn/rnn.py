"""The recurrent network for characters."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pjax.checks import check_whole
from pjax.containers import numpy as pnp
from pjax.containers.computation import Computation, Operand
from pjax.errors import InputError
from pjax.nn._module import Module
from pjax.nn.layers import Embedding, Linear, ReLU, check_shape

WRITTEN_OUT = 4
"""Steps in one pass of the loop over time."""


class RNN(Module):
    r"""A recurrent network whose cell is a multilayer perceptron.

    .. math:: (y_t, h'_t) = \operatorname{MLP}(e_{x_t}, h_{t-1}), \quad h_t = \max(h'_t, 0), \quad h_0 = 0

    The cell reads the embedding :math:`e` of a character beside the state before it. Its hidden layers are
    relus with biases, and its linear readout yields the logits :math:`y_t` for the next character and the raw
    state: the columns of one matrix, kept as two.

    Args:
        num: how many characters there are.
        widths: features of the hidden layers of the cell, at least one.
        classes: how many logits; by default `num`.
        embedding: features of a character; by default as many as the first hidden layer.
        skip: whether the readout reads all hidden layers, concatenated, and not the last alone.

    Parameters: ``embed.weight``, ``hidden.0.weight``, ``relu.0.bias`` and so on, ``state.weight``,
    ``out.weight``.

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
        skip: bool = False,
    ) -> None:
        if isinstance(widths, str) or not isinstance(widths, Sequence) or not widths:
            raise InputError(f"RNN: widths must be a list of at least one whole number, got {widths!r:.120}.")
        widths = [check_whole("RNN: widths", width) for width in widths]
        self.num = check_whole("RNN: num", num)
        self.classes = self.num if classes is None else check_whole("RNN: classes", classes)
        self.skip = bool(skip)
        self.embed = Embedding(self.num, widths[0] if embedding is None else embedding)
        inputs = [self.embed.features + widths[-1], *widths[:-1]]
        self.hidden = [Linear(*sizes) for sizes in zip(inputs, widths, strict=True)]
        self.relu = [ReLU(width) for width in widths]
        readable = sum(widths) if self.skip else widths[-1]
        self.state = Linear(readable, widths[-1])
        self.out = Linear(readable, self.classes)
        self.activation = ReLU()

    def __call__(self, x: Operand) -> Any:
        """The logits after each character, of shape ``(…, time, classes)``, for codes ``(…, time)``."""
        shape = check_shape(self._place(), x, "time", what="codes")
        self.embed.check(x)
        values = (x, self.embed.weight, self.state.weight)
        state = jnp.zeros((*shape[:-1], self.state.out_features), self.state.weight.dtype)
        if any(isinstance(value, Computation) for value in values):  # built by hand, step by step
            seen = []
            for t in range(shape[-1]):
                state, hidden = self._step(state, pnp.index(x, (..., t)))
                seen.append(hidden)
            return self.out(pnp.stack(seen, axis=-2))
        # Gradients and soft sweeps compile it in constant time; the paper's methods unroll it.
        # Each step looks up its own characters: of embeddings looked up before, each would write back to all.
        # The logits are one product at the end, so that only that one is next to the loss.
        return self.out(jnp.moveaxis(self._run(state, jnp.moveaxis(jnp.asarray(x), -1, 0)), 0, -2))

    def _run(self, state: jax.Array, x: jax.Array) -> jax.Array:
        """What the readout reads at all times, which are the first axis of the codes."""
        # A few steps are written out: on a GPU it takes time to go round the loop.
        return jax.lax.scan(self._step, state, x, unroll=WRITTEN_OUT)[1]

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
        check_shape(self._place() + ", state", state, self.state.out_features)
        state, hidden = self._step(state, x)
        return self.out(hidden), state

    def _step(self, state: Operand, x: Operand) -> tuple[Any, Any]:
        """The state after a character, and what the readout reads."""
        y = pnp.concatenate([self.embed(x), state], axis=-1)
        outputs = []
        for linear, relu in zip(self.hidden, self.relu, strict=True):
            y = relu(linear(y))
            outputs.append(y)
        hidden = pnp.concatenate(outputs, axis=-1) if self.skip else y
        return self.activation(self.state(hidden)), hidden

    def _label(self) -> str:
        return f"RNN({self.num} → {self.classes}, state {self.state.out_features}{', skip' * self.skip})"
