"""Networks of graphs: messages along edges are summed at nodes by `jax.ops.segment_sum`."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen

from examples.zoo import data
from examples.zoo.basics import cross_entropy
from examples.zoo.registry import model

NODES = 20


def graph() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Senders and receivers of edges, in both directions and to oneself, and the classes of nodes.

    Nodes of one class are linked more often.
    """
    rng = np.random.default_rng(0)
    classes = np.arange(NODES) % 3
    likely = np.where(classes[:, None] == classes[None, :], 0.4, 0.05)
    upper = np.triu(rng.uniform(size=(NODES, NODES)) < likely, 1)
    linked = upper | upper.T | np.eye(NODES, dtype=bool)
    senders, receivers = np.nonzero(linked)
    return senders, receivers, classes


def nodes(key: jax.Array, classes: np.ndarray) -> list[Any]:
    """Features of nodes, with a trace of their classes, the classes, and which of them are known."""

    def make(rng: data.Generator) -> Any:
        x = np.eye(3)[classes] + 0.8 * rng.normal(size=(NODES, 3))
        return x, classes, rng.uniform(size=NODES) < 0.6

    return data.batches(key, make)


def masked(logits: jax.Array, y: jax.Array, known: jax.Array) -> jax.Array:
    """The mean cross-entropy of nodes whose class is known."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    return jnp.sum(losses * known) / jnp.sum(known)


def node_classifier(module: linen.Module, key: jax.Array) -> Any:
    """A linen module of the features of all nodes."""
    found = nodes(key, graph()[2])

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y, known = batch
        return masked(module.apply(params, x), y, known)

    return jax.jit(module.init)(key, found[0][0]), loss, found


@model("GCN, dense adjacency", "Flax linen")
def dense_gcn(key: jax.Array) -> Any:
    senders, receivers, _ = graph()
    adjacency = np.zeros((NODES, NODES), np.float32)
    adjacency[receivers, senders] = 1.0
    degrees = adjacency.sum(axis=1)
    normal = adjacency / np.sqrt(degrees[:, None] * degrees[None, :])

    class GCN(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.relu(normal @ linen.Dense(12)(x))
            return normal @ linen.Dense(3)(x)

    return node_classifier(GCN(), key)


@model("GCN, segment_sum", "Flax linen")
def sparse_gcn(key: jax.Array) -> Any:
    senders, receivers, _ = graph()
    degrees = jax.ops.segment_sum(jnp.ones(len(senders)), receivers, NODES)

    def spread(x: jax.Array) -> jax.Array:
        scale = jax.lax.rsqrt(jnp.maximum(degrees, 1.0))[:, None]
        return scale * jax.ops.segment_sum((scale * x)[senders], receivers, NODES)

    class GCN(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return spread(linen.Dense(3)(linen.relu(spread(linen.Dense(12)(x)))))

    return node_classifier(GCN(), key)


@model("GAT (segment softmax)", "Flax linen")
def gat(key: jax.Array) -> Any:
    senders, receivers, _ = graph()

    def segment_softmax(logits: jax.Array) -> jax.Array:
        largest = jax.ops.segment_max(logits, receivers, NODES)
        weights = jnp.exp(logits - largest[receivers])
        return weights / jax.ops.segment_sum(weights, receivers, NODES)[receivers]

    class Layer(linen.Module):
        features: int

        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.Dense(2 * self.features)(x).reshape(NODES, 2, self.features)
            pairs = jnp.concatenate([x[senders], x[receivers]], axis=-1)
            weights = segment_softmax(linen.leaky_relu(linen.Dense(1)(pairs), 0.2))
            return jax.ops.segment_sum(weights * x[senders], receivers, NODES)

    class GAT(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.elu(Layer(6)(x).reshape(NODES, -1))
            return Layer(3)(x).mean(axis=1)

    return node_classifier(GAT(), key)


@model("GraphSAGE (max of neighbours)", "Flax linen")
def graph_sage(key: jax.Array) -> Any:
    senders, receivers, _ = graph()

    class Layer(linen.Module):
        features: int

        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            pooled = linen.relu(linen.Dense(8)(x))[senders]
            largest = jax.ops.segment_max(pooled, receivers, NODES)
            x = linen.Dense(self.features)(jnp.concatenate([x, largest], axis=-1))
            return x / jnp.sqrt(jnp.sum(x**2, axis=-1, keepdims=True) + 1e-6)

    class SAGE(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            return linen.Dense(3)(linen.relu(Layer(12)(x)))

    return node_classifier(SAGE(), key)


@model("Interaction network", "Equinox")
def interaction_network(key: jax.Array) -> Any:
    """Springs between five bodies: predicts their accelerations."""
    bodies = 5
    pairs = np.argwhere(~np.eye(bodies, dtype=bool))
    senders, receivers = pairs[:, 0], pairs[:, 1]
    relation_key, object_key, data_key = jax.random.split(key, 3)
    networks = eqx.nn.MLP(8, 6, 16, 1, key=relation_key), eqx.nn.MLP(10, 2, 16, 1, key=object_key)
    params, static = eqx.partition(networks, eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        relation, body = eqx.combine(params, static)

        def predict(x: jax.Array) -> jax.Array:
            effects = jax.vmap(relation)(jnp.concatenate([x[senders], x[receivers]], axis=-1))
            totals = jax.ops.segment_sum(effects, receivers, num_segments=bodies)
            return jax.vmap(body)(jnp.concatenate([x, totals], axis=-1))

        x, accelerations = batch
        return jnp.mean((jax.vmap(predict)(x) - accelerations) ** 2)

    def make(rng: data.Generator) -> Any:
        x = rng.normal(size=(12, bodies, 4))
        places = x[..., :2]
        return x, np.mean(places, axis=1, keepdims=True) - places

    return params, loss, data.batches(data_key, make)


@model("Message passing of molecules (GRU, readout)", "Flax linen")
def message_passing(key: jax.Array) -> Any:
    """Each sample is a padded graph with edges of its own; a gated sum over its nodes is classified."""
    size, atoms, bonds = 8, 6, 10

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array, ends: jax.Array, mask: jax.Array) -> jax.Array:
            h, cell = linen.Dense(8)(x), linen.GRUCell(8)
            message = linen.Dense(8)
            for _ in range(2):
                sent = jnp.take_along_axis(linen.relu(message(h)), ends[:, :, :1], axis=1)
                add = jax.vmap(lambda m, to: jnp.zeros((atoms, 8)).at[to].add(m))
                h, _ = cell(h, add(sent * mask[..., None], ends[:, :, 1]))
            gate = linen.sigmoid(linen.Dense(8)(jnp.concatenate([h, x], axis=-1)))
            return linen.Dense(2)(jnp.sum(gate * linen.tanh(linen.Dense(8)(h)), axis=1))

    module = Network()

    def make(rng: data.Generator) -> Any:
        x = np.eye(4)[rng.integers(4, size=(size, atoms))]
        ends = rng.integers(atoms, size=(size, bonds, 2))
        mask = (rng.uniform(size=(size, bonds)) < 0.7).astype(x.dtype)
        return x, ends, mask, (np.sum(x[..., 0], axis=1) > 1).astype(np.int32)

    found = data.batches(key, make)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, ends, mask, y = batch
        return cross_entropy(module.apply(params, x, ends, mask), y)

    return jax.jit(module.init)(key, *found[0][:3]), loss, found
