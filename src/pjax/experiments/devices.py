"""Where a run's arrays lie: every batch divided over devices, of one process or of several, all else on each.

The compiler does the rest: a program whose batch is divided ends with the sums over the whole batch on every
device. All processes run the same program; what is read from files or decided is the first one's.
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pjax.errors import InputError

START_SECONDS = 45
"""How long processes wait for each other to start."""
END_SECONDS = 30
"""How long processes wait for each other to end."""


class Devices:
    """The devices of a run.

    Args:
        count: how many; by default one, and of several processes all.

    >>> devices = Devices()
    >>> devices.count, devices.first, devices.padded(5)
    (1, True, 5)
    """

    def __init__(self, count: int | None = None) -> None:
        found = jax.devices()
        if count is not None and not 1 <= count <= len(found):
            raise InputError(
                f"devices must be from 1 to {len(found)}, the number of devices here; got {count}"
            )
        several = jax.process_count() > 1
        if several and count not in (None, len(found)):
            raise InputError(f"several processes use all of their {len(found)} devices, not {count} of them")
        self.count = count or (len(found) if several else 1)
        self.first = jax.process_index() == 0
        """Whether this is the process that reads and writes the run's folder."""
        mesh = jax.sharding.Mesh(np.array(found[: self.count]), ("batch",), axis_types=(AxisType.Auto,))
        self.everywhere = NamedSharding(mesh, PartitionSpec())

    def over(self, axis: int) -> NamedSharding:
        """That an axis is divided over the devices."""
        return NamedSharding(self.everywhere.mesh, PartitionSpec(*[None] * axis, "batch"))

    def copied(self, tree: Any) -> Any:
        """Arrays that every process has, on every device."""
        return jax.tree.map(lambda leaf: self._place(leaf, self.everywhere), tree)

    def divided(self, tree: Any, axis: int = 0) -> Any:
        """Arrays that every process has, of which every device gets its part along an axis."""
        return jax.tree.map(lambda leaf: self._place(leaf, self.over(axis)), tree)

    def _place(self, leaf: Any, sharding: NamedSharding) -> jax.Array:
        if sharding.is_fully_addressable:
            return jax.device_put(leaf, sharding)
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, sharding, lambda part: values[part])

    def padded(self, rows: int) -> int:
        """The number of rows, or the next one that can be divided."""
        return -(-rows // self.count) * self.count

    def check_batch(self, size: int, name: str = "batch_size") -> None:
        """Refuse a batch, or what else has a name, that cannot be divided."""
        if size % self.count:
            near = max(size // self.count, 1) * self.count
            raise InputError(
                f"{name} must be a multiple of {self.count}, the number of devices, got {size}: take "
                f"{near}, or other devices"
            )

    # --- Several processes ---

    def from_first(self, tree: Any) -> Any:
        """The first process's arrays, on all processes; the others give arrays of the same shapes."""
        if jax.process_count() == 1:
            return tree
        return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(tree))

    def decide(self, make: Callable[[], Any]) -> Any:
        """What a function returns that only the first process calls, on all processes, or its error.

        Args:
            make: returns anything that JSON knows.
        """
        if jax.process_count() == 1:
            return make()
        told: dict[str, Any] = {}
        if self.first:
            try:
                told = {"value": make()}
            except InputError as error:
                told = {"error": str(error)}
        text = np.frombuffer(json.dumps(told).encode(), np.uint8)
        length = int(self.from_first(np.int32(len(text))))
        text = self.from_first(np.resize(text, length))
        told = json.loads(text.tobytes())
        if "error" in told:
            raise InputError(told["error"])
        return told["value"]


def connect(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    timeout: int = 20,
) -> None:
    """Make this one of several processes; the others must do so within `START_SECONDS`.

    Args:
        coordinator: address and port of the first process; the others must reach it.
        processes: how many there are.
        process: which one this is, from 0.
        timeout: after how many seconds a process that is not heard of is taken for dead.

    Where the first three are not given, the cluster is asked, as `jax.distributed.initialize` does.
    """
    check(coordinator, processes, process)
    # Programs that run at the same time could exchange their messages in another order elsewhere.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            initialization_timeout=START_SECONDS,
            heartbeat_timeout_seconds=timeout,
            shutdown_timeout_seconds=END_SECONDS,
        )
    except ValueError as error:
        raise InputError(
            f"no cluster was found ({error}): give --coordinator HOST:PORT, --processes N and --process I"
        ) from error


def check(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Refuse settings of `connect` that do not go together."""
    given = {"coordinator": coordinator, "processes": processes, "process": process}
    if missing := [name for name, value in given.items() if value is None]:
        if len(missing) < len(given):
            raise InputError(
                f"give all of coordinator, processes and process, or none; {missing[0]} is missing"
            )
        return
    assert coordinator is not None
    assert processes is not None
    assert process is not None
    host, _, port = coordinator.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise InputError(f"coordinator must be HOST:PORT, as 10.0.0.1:1234, got {coordinator!r}")
    if processes < 1:
        raise InputError(f"processes must be at least 1, got {processes}")
    if not 0 <= process < processes:
        raise InputError(f"process must be from 0 to {processes - 1}, the last of {processes}; got {process}")
