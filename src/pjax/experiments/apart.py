"""Groups that train apart for several batches: each on its part of every batch, with its own optimiser."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from pjax import nn
from pjax.experiments.methods import Method, State


@dataclasses.dataclass(frozen=True)
class Apart(Method):
    """A method that groups of samples follow apart. After some batches they average their parameters.

    The state's parameters are those of the last exchange. What else a group has, as Adam's moments, it keeps.

    Args:
        method: what each group does.
        groups: how many there are.
        batches: how many of them they see between two exchanges.
    """

    method: Method
    groups: int
    batches: int

    divided = ("groups",)

    @property
    def steps_per_batch(self) -> int:  # type: ignore[override]
        return self.method.steps_per_batch

    @property
    def differentiates(self) -> bool:  # type: ignore[override]
        return self.method.differentiates

    def init(self, model: nn.Module, key: jax.Array) -> State:
        one = self.method.init(model, key)
        return {"params": one["params"], "groups": self._each(one), "batches": jnp.zeros((), jnp.int32)}

    def with_params(self, state: State, params: Any) -> State:
        groups = {**state["groups"], "params": self._each(params)}
        return {**state, "params": params, "groups": groups}

    def update(
        self, model: nn.Module, state: State, x: jax.Array, y: jax.Array, key: jax.Array
    ) -> tuple[State, jax.Array]:
        x, y = (a.reshape(self.groups, -1, *a.shape[1:]) for a in (x, y))

        def one(group: State, x: jax.Array, y: jax.Array) -> tuple[State, jax.Array]:
            return self.method.update(model, group, x, y, key)

        groups, losses = jax.vmap(one)(state["groups"], x, y)
        batches = state["batches"] + 1

        def exchange(state: State) -> State:
            params = jax.tree.map(lambda leaf: jnp.mean(leaf, 0), state["groups"]["params"])
            return {**state, "params": params, "groups": {**state["groups"], "params": self._each(params)}}

        state = {"params": state["params"], "groups": groups, "batches": batches}
        return jax.lax.cond(batches % self.batches == 0, exchange, lambda s: s, state), jnp.mean(losses)

    def _each(self, tree: Any) -> Any:
        """For every group the same."""
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.groups, *jnp.shape(leaf))), tree)
