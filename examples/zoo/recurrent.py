"""Recurrent networks, by `lax.scan` and by the layers of the libraries."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx

from examples.zoo import data
from examples.zoo.basics import cross_entropy, dense
from examples.zoo.registry import model


@model("IRNN (relu recurrence by scan)", "JAX")
def irnn(key: jax.Array) -> Any:
    in_key, out_key, data_key = jax.random.split(key, 3)
    params = {"in": dense(in_key, 3, 12), "recurrent": jnp.eye(12), "out": dense(out_key, 12, 3)}

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch

        def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            new = 0.3 * x @ params["in"]["w"] + state @ params["recurrent"] + params["in"]["b"]
            return jax.nn.relu(new), None

        state, _ = jax.lax.scan(step, jnp.zeros((len(x), 12)), x.swapaxes(0, 1))
        return cross_entropy(state @ params["out"]["w"] + params["out"]["b"], y)

    return params, loss, data.signals(data_key)


@model("Elman RNN (tanh, checkpointed scan)", "JAX")
def elman(key: jax.Array) -> Any:
    keys = jax.random.split(key, 4)
    params = {
        "in": dense(keys[0], 11, 16),
        "recurrent": 0.2 * jax.random.normal(keys[1], (16, 16)),
        "out": dense(keys[2], 16, 11),
    }

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        @jax.checkpoint
        def step(state: jax.Array, token: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = jax.nn.one_hot(token, 11) @ params["in"]["w"] + params["in"]["b"]
            state = jnp.tanh(x + state @ params["recurrent"])
            return state, state @ params["out"]["w"] + params["out"]["b"]

        start = jnp.zeros((len(tokens), 16))
        _, logits = jax.lax.scan(step, start, tokens[:, :-1].T)
        return cross_entropy(logits, tokens[:, 1:].T)

    return params, loss, data.sentences(keys[3])


@model("Echo state network (fixed tanh)", "JAX")
def echo_state(key: jax.Array) -> Any:
    in_key, recurrent_key, data_key = jax.random.split(key, 3)
    into = 0.5 * jax.random.normal(in_key, (3, 30))
    recurrent = 0.15 * jax.random.normal(recurrent_key, (30, 30))

    def states(x: jax.Array) -> jax.Array:
        def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            new = jnp.tanh(x @ into + state @ recurrent)
            return new, new

        return jax.lax.scan(step, jnp.zeros(30), x)[1]

    def loss(readout: jax.Array, batch: Any) -> jax.Array:
        x, _ = batch
        predicted = jax.vmap(states)(x)[:, :-1] @ readout
        return jnp.mean((predicted - x[:, 1:]) ** 2) + 1e-4 * jnp.sum(readout**2)

    return jnp.zeros((30, 3)), loss, data.signals(data_key)


@model("Equinox GRU classifier", "Equinox")
def gru(key: jax.Array) -> Any:
    class RNN(eqx.Module):
        cell: eqx.nn.GRUCell
        linear: eqx.nn.Linear
        bias: jax.Array

        def __init__(self, key: jax.Array) -> None:
            cell_key, linear_key = jax.random.split(key)
            self.cell = eqx.nn.GRUCell(3, 12, key=cell_key)
            self.linear = eqx.nn.Linear(12, 1, use_bias=False, key=linear_key)
            self.bias = jnp.zeros(1)

        def __call__(self, inputs: jax.Array) -> jax.Array:
            def step(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
                return self.cell(x, carry), None

            out, _ = jax.lax.scan(step, jnp.zeros(self.cell.hidden_size), inputs)
            return jax.nn.sigmoid(self.linear(out) + self.bias)

    params, static = eqx.partition(RNN(key), eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        p = jax.vmap(eqx.combine(params, static))(x)[:, 0]
        return -jnp.mean(y * jnp.log(p) + (1 - y) * jnp.log(1 - p))

    return params, loss, data.signals(key, classes=2)


@model("Flax seq2seq (LSTM)", "Flax linen")
def seq2seq(key: jax.Array) -> Any:
    class Seq2Seq(linen.Module):
        """Reads a sentence and writes another; the decoder is fed with its own last guess."""

        @linen.compact
        def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
            encoder = linen.RNN(linen.OptimizedLSTMCell(12), return_carry=True)
            carry, _ = encoder(jax.nn.one_hot(source, 11))
            cell, readout = linen.OptimizedLSTMCell(12), linen.Dense(11)
            guess, logits = jax.nn.one_hot(target[:, 0], 11), []
            for _ in range(target.shape[1] - 1):
                carry, y = cell(carry, guess)
                logits.append(readout(y))
                guess = jax.nn.one_hot(jnp.argmax(logits[-1], axis=-1), 11)
            return jnp.stack(logits, axis=1)

    module = Seq2Seq()
    found = [(tokens, tokens[:, ::-1][:, :5]) for tokens in data.sentences(key, length=6)]

    def loss(params: Any, batch: Any) -> jax.Array:
        source, target = batch
        logits = module.apply(params, source, target)
        labels = jax.nn.one_hot(target[:, 1:], 11)
        mask = (jnp.arange(4) < 3).astype(logits.dtype)
        entropy = -jnp.sum(labels * linen.log_softmax(logits), axis=-1) * mask
        return jnp.mean(jnp.sum(entropy, axis=-1) / jnp.sum(mask))

    return jax.jit(module.init)(key, *found[0]), loss, found


@model("NNX LSTM language model", "Flax NNX")
def nnx_lstm(key: jax.Array) -> Any:
    class Network(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.embed = nnx.Embed(11, 8, rngs=rngs)
            self.rnn = nnx.RNN(nnx.LSTMCell(8, 12, rngs=rngs))
            self.out = nnx.Linear(12, 11, rngs=rngs)

        def __call__(self, tokens: jax.Array) -> jax.Array:
            return self.out(self.rnn(self.embed(tokens)))

    graph, params, rest = nnx.split(Network(nnx.Rngs(key)), nnx.Param, ...)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        network = nnx.merge(graph, params, rest, copy=True)
        logits = network(tokens[:, :-1])
        return optax.softmax_cross_entropy(logits, jax.nn.one_hot(tokens[:, 1:], 11)).mean()

    return params, loss, data.sentences(key)


@model("Bidirectional LSTM tagger", "Flax linen")
def tagger(key: jax.Array) -> Any:
    class Tagger(linen.Module):
        @linen.compact
        def __call__(self, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
            x = linen.Embed(11, 8)(tokens)
            forward, backward = linen.RNN(linen.LSTMCell(8)), linen.RNN(linen.LSTMCell(8))
            x = linen.Bidirectional(forward, backward)(x, seq_lengths=lengths)
            return linen.Dense(3)(x)

    module = Tagger()

    def batch(tokens: np.ndarray) -> Any:
        sums = tokens + np.roll(tokens, -1, axis=1)
        return tokens, sums % 3, 4 + np.arange(len(tokens), dtype=np.int32) % 4

    found = [batch(tokens) for tokens in data.sentences(key)]

    def loss(params: Any, batch: Any) -> jax.Array:
        tokens, tags, lengths = batch
        losses = optax.softmax_cross_entropy_with_integer_labels(module.apply(params, tokens, lengths), tags)
        mask = jnp.arange(tokens.shape[1]) < lengths[:, None]
        return jnp.sum(losses * mask) / jnp.sum(mask)

    return jax.jit(module.init)(key, found[0][0], found[0][2]), loss, found


@model("Linear recurrence (associative scan)", "JAX", learning_rate=3e-2)
def linear_recurrence(key: jax.Array) -> Any:
    keys = jax.random.split(key, 4)
    params = {
        "decay": jnp.linspace(-1.0, 2.0, 12),
        "in": dense(keys[0], 3, 12),
        "gate": dense(keys[1], 12, 12),
        "out": dense(keys[2], 12, 3),
    }

    def combine(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        u = x @ params["in"]["w"] + params["in"]["b"]
        decay = jnp.broadcast_to(jax.nn.sigmoid(params["decay"]), u.shape)
        _, states = jax.lax.associative_scan(combine, (decay, (1 - decay) * u), axis=1)
        gated = states * jax.nn.silu(states @ params["gate"]["w"] + params["gate"]["b"])
        return cross_entropy(gated.mean(axis=1) @ params["out"]["w"] + params["out"]["b"], y)

    return params, loss, data.signals(keys[3])
