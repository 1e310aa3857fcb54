"""Where a run's arrays lie: every batch divided over devices, of one process or of several, all else on each.

The compiler does the rest: a program whose batch is divided ends with the sums over the whole batch on every
device. Parameters may be divided, too: then each device has its part of them, and gathers the others when it
needs them. All processes run the same program; what is decided is decided by the first one.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all, process_allgather
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pjax.errors import InputError
from pjax.experiments import endings
from pjax.experiments.processes import connect as connect


class Devices:
    """The devices of a run.

    Args:
        count: how many; by default one, and of several processes all.
        shard_parameters: whether parameters, and what an outer optimiser keeps for each of them, are divided
            over the devices; by default each device has all of them.

    >>> Devices().count
    1
    """

    def __init__(self, count: int | None = None, *, shard_parameters: bool = False) -> None:
        found = jax.devices()
        if count is not None and not 1 <= count <= len(found):
            raise InputError(
                f"devices must be from 1 to {len(found)}, the number of devices here; got {count}"
            )
        several = jax.process_count() > 1
        if several and count not in (None, len(found)):
            raise InputError(f"several processes use all of their {len(found)} devices, not {count} of them")
        self.count = count or (len(found) if several else 1)
        if shard_parameters and self.count == 1:
            raise InputError("parameters can be divided over several devices, got one: give --devices too")
        self.shard_parameters = shard_parameters
        self.first = jax.process_index() == 0
        """Whether this is the process that writes into the run's folder what is not divided."""
        mesh = jax.sharding.Mesh(np.array(found[: self.count]), ("batch",), axis_types=(AxisType.Auto,))
        self.everywhere = NamedSharding(mesh, PartitionSpec())

    def over(self, axis: int) -> NamedSharding:
        """That an axis is divided over the devices."""
        return NamedSharding(self.everywhere.mesh, PartitionSpec(*[None] * axis, "batch"))

    def parts(self, tree: Any, first: int) -> Any:
        """For each array of parameters, or its shape, where it lies.

        If parameters are divided it is along their largest axis whose length is a multiple of the number of
        devices, from axis ``first`` on.
        """

        def place(leaf: Any) -> NamedSharding:
            axes = [axis for axis in range(first, len(leaf.shape)) if leaf.shape[axis] % self.count == 0]
            if not (self.shard_parameters and axes):
                return self.everywhere
            return self.over(max(axes, key=lambda axis: leaf.shape[axis]))

        return jax.tree.map(place, tree)

    def placed(self, tree: Any, where: Any) -> Any:
        """Arrays that every process has, where they shall lie; those that lie there stay.

        Args:
            tree: of arrays.
            where: a sharding for each of them, or one for all.
        """

        def place(sharding: NamedSharding, leaf: Any) -> jax.Array:
            if isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
                return leaf
            if sharding.is_fully_addressable:
                return jax.device_put(leaf, sharding)
            values = np.asarray(leaf)
            return jax.make_array_from_callback(values.shape, sharding, lambda part: values[part])

        return jax.tree.map(lambda to, part: jax.tree.map(functools.partial(place, to), part), where, tree)

    def gathered(self, tree: Any) -> Any:
        """Arrays of any places, whole, as arrays of NumPy; all processes must ask for them."""

        def gather(leaf: jax.Array) -> Any:
            here = leaf.is_fully_addressable or leaf.is_fully_replicated
            return np.asarray(leaf) if here else process_allgather(leaf, tiled=True)

        return jax.tree.map(gather, tree)

    # --- Several processes ---

    def from_first(self, tree: Any) -> Any:
        """The first process's arrays, on all processes; the others give arrays of the same shapes."""
        if jax.process_count() == 1:
            return tree
        return jax.tree.map(np.asarray, broadcast_one_to_all(tree))

    def read(self, make: Callable[[], tuple[Any, Any]], like: Any) -> tuple[Any, Any]:
        """Arrays, where they shall lie, and what JSON knows, that only the first process reads, on all."""
        tree = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)

        def made() -> Any:
            nonlocal tree
            tree, note = make()
            return note

        note = self.decide(made)
        return self.placed(self.from_first(tree), jax.tree.map(lambda leaf: leaf.sharding, like)), note

    def decide(self, make: Callable[[], Any]) -> Any:
        """What a function that only the first process calls returns, as JSON, on all, or its error."""
        if jax.process_count() == 1:
            return make()
        told: dict[str, Any] = {}
        if self.first:
            try:
                told = {"value": make()}
            except Exception as error:
                if (words := endings.words(error)) is None:
                    raise
                told = {"error": words}
        text = np.frombuffer(json.dumps(told).encode(), np.uint8)
        length = int(self.from_first(np.int32(len(text))))
        text = self.from_first(np.resize(text, length))
        told = json.loads(text.tobytes())
        if "error" in told:
            raise InputError(told["error"])
        return told["value"]
