"""Losses of reinforcement learning, on made-up experience."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx

from examples.zoo import data
from examples.zoo.registry import model


def experience(key: jax.Array, *, size: int = 24, features: int = 6, actions: int = 3) -> list[Any]:
    """States, actions, rewards, next states, and whether a game ended."""
    weights = np.random.default_rng(0).normal(size=(features, actions))

    def make(rng: data.Generator) -> Any:
        state, following = rng.normal(size=(2, size, features))
        action = rng.integers(actions, size=size)
        reward = np.take_along_axis(state @ weights, action[:, None], axis=1)[:, 0]
        return state, action, reward, following, rng.uniform(size=size) < 0.1

    return data.batches(key, make)


@model("Dueling DQN", "Flax linen")
def dueling_dqn(key: jax.Array) -> Any:
    class Dueling(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = linen.relu(linen.Dense(24)(x))
            value = linen.Dense(1)(linen.relu(linen.Dense(16)(x)))
            advantage = linen.Dense(3)(linen.relu(linen.Dense(16)(x)))
            return value + advantage - advantage.mean(axis=-1, keepdims=True)

    module, found = Dueling(), experience(key)
    target = jax.jit(module.init)(jax.random.key(1), found[0][0])

    def loss(params: Any, batch: Any) -> jax.Array:
        state, action, reward, following, done = batch
        best = jnp.argmax(module.apply(params, following), axis=-1)
        ahead = jnp.take_along_axis(module.apply(target, following), best[:, None], axis=-1)[:, 0]
        goal = jax.lax.stop_gradient(reward + 0.9 * jnp.where(done, 0.0, ahead))
        values = jnp.take_along_axis(module.apply(params, state), action[:, None], axis=-1)[:, 0]
        return jnp.mean(optax.huber_loss(values, goal, delta=1.0))

    return jax.jit(module.init)(key, found[0][0]), loss, found


@model("Flax PPO actor-critic (Atari)", "Flax linen")
def ppo(key: jax.Array) -> Any:
    class ActorCritic(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = linen.relu(linen.Conv(4, (3, 3), strides=(2, 2))(x))
            x = linen.relu(linen.Conv(8, (3, 3), strides=(1, 1))(x))
            x = linen.relu(linen.Dense(24)(x.reshape(len(x), -1)))
            return linen.log_softmax(linen.Dense(4)(x)), linen.Dense(1)(x)

    module, found = ActorCritic(), []
    old = jax.jit(module.init)(jax.random.key(1), np.zeros((1, 8, 8, 1), np.float32))
    for x, y in data.pictures(key):
        action = (y + np.arange(len(y), dtype=np.int32) % 2) % 4
        log_probs, _ = jax.jit(module.apply)(old, x)
        taken = np.take_along_axis(np.asarray(log_probs), action[:, None], axis=1)[:, 0]
        reward = (action == y).astype(x.dtype)
        found.append((x, action, taken, reward, reward - 0.3))

    def loss(params: Any, batch: Any) -> jax.Array:
        states, actions, old_log_probs, returns, advantages = batch
        log_probs, values = module.apply(params, states)
        probs = jnp.exp(log_probs)
        value_loss = jnp.mean(jnp.square(returns - values[:, 0]), axis=0)
        entropy = jnp.sum(-probs * log_probs, axis=1).mean()
        taken = jax.vmap(lambda lp, a: lp[a])(log_probs, actions)
        ratios = jnp.exp(taken - old_log_probs)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = advantages * jnp.clip(ratios, 1.0 - 0.1, 1.0 + 0.1)
        policy_loss = -jnp.mean(jnp.minimum(ratios * advantages, clipped), axis=0)
        return policy_loss + 0.5 * value_loss - 0.01 * entropy

    return jax.jit(module.init)(key, found[0][0]), loss, found


@model("REINFORCE with a baseline", "Flax NNX")
def reinforce(key: jax.Array) -> Any:
    class Policy(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.hidden = nnx.Linear(6, 16, rngs=rngs)
            self.policy = nnx.Linear(16, 3, rngs=rngs)
            self.value = nnx.Linear(16, 1, rngs=rngs)

        def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = nnx.tanh(self.hidden(x))
            return self.policy(x), self.value(x)[:, 0]

    graph, params = nnx.split(Policy(nnx.Rngs(key)))

    def loss(params: Any, batch: Any) -> jax.Array:
        state, action, reward, _, _ = batch
        logits, value = nnx.merge(graph, params)(state)
        log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], axis=-1)[:, 0]
        advantage = jax.lax.stop_gradient(reward - value)
        return jnp.mean(-log_probs * advantage + 0.5 * (reward - value) ** 2)

    return params, loss, experience(key)


@model("Soft actor-critic (actor)", "Equinox")
def soft_actor(key: jax.Array) -> Any:
    actor_key, critic_key, data_key = jax.random.split(key, 3)
    critics = [eqx.nn.MLP(8, 1, 16, 1, key=k) for k in jax.random.split(critic_key)]
    params, static = eqx.partition(eqx.nn.MLP(6, 4, 16, 1, key=actor_key), eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        state, noise = batch
        mean, log_std = jnp.split(jax.vmap(eqx.combine(params, static))(state), 2, axis=-1)
        log_std = jnp.clip(log_std, -5.0, 2.0)
        before = mean + jnp.exp(log_std) * noise
        action = jnp.tanh(before)
        gaussian = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
        squash = 2.0 * (jnp.log(2.0) - before - jax.nn.softplus(-2.0 * before))
        log_prob = jnp.sum(gaussian - squash, axis=-1)
        inputs = jnp.concatenate([state, action], axis=-1)
        values = jnp.stack([jax.vmap(critic)(inputs)[:, 0] for critic in critics])
        return jnp.mean(0.1 * log_prob - jnp.min(values, axis=0))

    found = [(state, following[:, :2]) for state, _, _, following, _ in experience(data_key)]
    return params, loss, found


@model("Distributional DQN (quantile huber)", "JAX")
def quantile_dqn(key: jax.Array) -> Any:
    keys = jax.random.split(key, 3)
    params = {
        "w1": jax.random.normal(keys[0], (6, 24)) / 6**0.5,
        "w2": jax.random.normal(keys[1], (24, 15)) / 24**0.5,
    }
    levels = (jnp.arange(5) + 0.5) / 5

    def quantiles(params: Any, x: jax.Array) -> jax.Array:
        return (jax.nn.relu(x @ params["w1"]) @ params["w2"]).reshape(len(x), 3, 5)

    def loss(params: Any, batch: Any) -> jax.Array:
        state, action, reward, following, done = batch
        ahead = jax.lax.stop_gradient(quantiles(params, following))
        best = jnp.argmax(ahead.mean(axis=-1), axis=-1)
        goal = reward[:, None] + 0.9 * jnp.where(done[:, None], 0.0, ahead[jnp.arange(len(best)), best])
        found = quantiles(params, state)[jnp.arange(len(action)), action]
        errors = goal[:, None, :] - found[:, :, None]
        weights = jnp.abs(levels[:, None] - jax.lax.stop_gradient(errors < 0).astype(errors.dtype))
        return jnp.mean(jnp.sum(weights * optax.huber_loss(errors), axis=1))

    return params, loss, experience(keys[2])
