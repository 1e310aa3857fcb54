"""How a step grows with the number of devices: operations and bytes of each, and what they send each other.

Measured by the compiler's own account on 1, 2, 4 and 8 virtual CPU devices, where times would mean nothing:
for strong scaling (the same batch on more devices) and weak scaling (a batch that grows with them), and for
layers and time steps over devices. Beside it stands a model of the time of a step on many accelerators, of
projections and of backpropagation with the batch divided in the same way. Its assumptions:

- a device computes at half of its peak, or reads and writes at 70 % of its bandwidth, whichever takes longer,
  and needs a few microseconds for every kernel, whatever its size;
- sums over all devices go around a ring: each sends 2 (n - 1) / n of the message through its slowest link,
  which is the fast one within a node and the slow one beyond; and one latency for each doubling of devices;
- nothing is overlapped.
"""

import argparse
import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DEVICES = (1, 2, 4, 8)
MANY = (8, 64, 1024)


@dataclasses.dataclass(frozen=True)
class Machine:
    """An accelerator and its links."""

    operations: float = 0.5 * 495e12
    """Operations a second: half of the peak of an H200 for TF32 products (NVIDIA's data sheet)."""
    bytes: float = 0.7 * 4.8e12
    kernel: float = 2.5e-6
    fast: float = 450e9
    """Bytes a second to devices of the same node, each way."""
    slow: float = 50e9
    node: int = 8
    latency: float = 5e-6

    def compute(self, operations: float, moved: float, kernels: int) -> float:
        """Seconds for so many operations, bytes and kernels."""
        return max(operations / self.operations, moved / self.bytes) + kernels * self.kernel

    def sum_over(self, devices: int, message: float, count: int = 1) -> float:
        """Seconds for sums of messages over all devices."""
        if devices == 1:
            return 0.0
        link = self.fast if devices <= self.node else self.slow
        return 2 * (devices - 1) / devices * message / link + count * self.latency * math.log2(devices)


def collectives(text: str) -> dict[str, float]:
    """Bytes that a device gives to exchanges with others, by their kind."""
    found: dict[str, float] = {}
    kinds = "all-reduce|all-gather|collective-permute|all-to-all|reduce-scatter"
    for shapes, kind in re.findall(rf"= (\([^)]*\)|\S+) ({kinds})(?:-start)?\(", text):
        for bits, shape in re.findall(r"[a-z]+(\d*)\[([\d,]*)\]", shapes):
            size = math.prod(int(n) for n in shape.split(",") if n) * int(bits or 8) / 8
            found[kind] = found.get(kind, 0) + size
    return found


def loops(text: str) -> str:
    """The bodies of the loops of a program."""
    names = set(re.findall(r"while\(.*?body=%?([\w.\-]+)", text))
    parts = re.split(r"\n(?=%|ENTRY)", text)
    return "\n".join(part for part in parts if part.lstrip("%").split(" ", 1)[0] in names)


def exchanged(text: str, taken: float = 1.0) -> float:
    """Bytes that a device gives to exchanges while a program runs; loops count as often as they run.

    Args:
        text: the compiled program, whose loops must say how often they run.
        taken: in what part of all cases a branch is taken.
    """
    parts = re.split(r"\n(?=%|ENTRY)", text)
    bodies = {part.removeprefix("ENTRY ").lstrip("%").split(" ", 1)[0]: part for part in parts}

    def one(body: str) -> float:
        total = sum(collectives(body).values())
        for called in body.splitlines():
            times = re.search(r'known_trip_count":\{"n":"(\d+)"', called)
            for kind, names in re.findall(r"(body|calls|to_apply|\w*computations?)=(\{[^}]*\}|\S+)", called):
                factor = taken if "computation" in kind else int(times[1]) if times and kind == "body" else 1
                total += factor * sum(one(bodies[n]) for n in re.findall(r"[\w.\-]+", names) if n in bodies)
        return total

    return one(next(part for part in parts if part.startswith("ENTRY")))


def networks() -> dict[str, tuple[Any, Callable[[int], tuple[Any, Any]]]]:
    """A model and a batch of a given size, by name."""
    import jax.numpy as jnp

    from pjax.experiments import models

    def pictures(batch: int) -> tuple[Any, Any]:
        return jnp.zeros((batch, 14, 14, 1)), jnp.zeros(batch, jnp.int32)

    def vectors(batch: int) -> tuple[Any, Any]:
        return jnp.zeros((batch, 784)), jnp.zeros(batch, jnp.int32)

    def text(batch: int) -> tuple[Any, Any]:
        x = jnp.zeros((batch, 16), jnp.int32)
        return x, x

    return {
        "MLP 4x128": (models.MLP(784, (128,) * 4, 10), vectors),
        "CNN 2x16": (models.make("cnn", (14, 14, 1), (16, 16), 10), pictures),
        "RNN 1x128": (models.make("rnn", (16,), (128,), 65), text),
    }


def account(
    model: Any,
    batch: tuple[Any, Any],
    devices: int,
    layers: bool = False,
    steps: int = 2,
    kind: Any = None,
    whole: bool = False,
) -> dict[str, Any]:
    """What a device does and sends in one update of alternating projections, by the compiler.

    Args:
        model: the network.
        batch: its samples, which are divided over the devices.
        devices: how many.
        layers: whether layers are divided instead.
        steps: of the update.
        kind: the class of the solver.
        whole: whether to count what is sent in the whole update; by default in its loop.
    """
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    import pjax
    from pjax import optim

    mesh = jax.make_mesh((devices,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    along, copied = NamedSharding(mesh, PartitionSpec("d")), NamedSharding(mesh, PartitionSpec())
    kind = kind or optim.AlternatingProjections
    solver = kind(steps_per_update=steps, stack=along if layers else True)

    def update(params: Any, batch: tuple[Any, Any]) -> Any:
        def fn(p: Any, batch: tuple[Any, Any]) -> Any:
            return pjax.cross_entropy(model.apply(p, batch[0]), batch[1])

        return solver.update(fn, params, batch=batch)

    params = model.init(jax.random.key(0))
    given = jax.device_put(params, copied), jax.device_put(batch, copied if layers else along)
    compiled = jax.jit(update).lower(*given).compile()
    text, cost = compiled.as_text(), compiled.cost_analysis()
    return {
        "operations": cost["flops"],
        "bytes": cost["bytes accessed"],
        "sent": collectives(text if whole else loops(text)),
        "parameters": 4 * sum(leaf.size for leaf in jax.tree.leaves(params)),
    }


def measure() -> list[dict[str, Any]]:
    """The accounts of all networks, ways of dividing them, and numbers of devices."""
    rows = []
    for name, (model, make) in networks().items():
        for devices in DEVICES:
            for how, size in (("strong", 256), ("weak", 32 * devices)):
                rows.append(
                    {"network": name, "how": how, "devices": devices, **account(model, make(size), devices)}
                )
                print(line(rows[-1]), flush=True)
    from pjax.experiments import models

    _, vectors = networks()["MLP 4x128"]
    _, text = networks()["RNN 1x128"]
    deep = (
        ("MLP 32x64", models.MLP(784, (64,) * 32, 10), vectors(64)),
        ("RNN 1x128", networks()["RNN 1x128"][0], text(64)),
    )
    for name, model, batch in deep:
        for devices in DEVICES:
            how = "time" if name.startswith("RNN") else "layers"
            found = account(model, batch, devices, layers=True)
            rows.append({"network": name, "how": how, "devices": devices, **found})
            print(line(rows[-1]), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['network']:<10} {row['how']:<7} {row['devices']:>2} devices  {row['operations'] / 1e6:>9.2f} M"
        f" operations  {row['bytes'] / 1e6:>9.2f} MB  a step sends {in_words(row['sent'])}"
    )


def in_words(sent: dict[str, int]) -> str:
    """What `collectives` counted."""
    return ", ".join(f"{kind} {n / 1e3:,.1f} kB" for kind, n in sorted(sent.items()) if n) or "nothing"


@dataclasses.dataclass(frozen=True)
class Work:
    """Of one sample in one step: multiplications and additions of products; and what there is of values."""

    name: str
    parameters: float
    values: float
    """Numbers in the activations of a sample."""
    products: float
    """Operations of one pass through all products, of a sample."""
    layers: int
    """Products, one after the other."""
    chain: int
    """How many of them cannot run at once in backpropagation."""


def mlp(width: int, layers: int, inputs: int = 784, outputs: int = 10) -> Work:
    """A multilayer perceptron."""
    parameters = inputs * width + (layers - 1) * width**2 + width * outputs
    return Work(
        f"MLP {layers}x{width}", parameters, (layers + 1) * width, 2 * parameters, layers + 1, layers + 1
    )


def cnn(channels: int, layers: int, side: int = 32) -> Work:
    """Convolutions of 3x3 over pictures."""
    parameters = layers * 9 * channels**2
    return Work(
        f"CNN {layers}x{channels}",
        parameters,
        layers * side**2 * channels,
        2 * parameters * side**2,
        layers,
        layers,
    )


def rnn(width: int, steps: int) -> Work:
    """A recurrent network: its steps share their weights."""
    parameters = 2 * width**2
    return Work(
        f"RNN 1x{width}, T={steps}", parameters, 2 * steps * width, 2 * parameters * steps, 2 * steps, steps
    )


MODELLED = (mlp(4096, 4), cnn(256, 8), rnn(2048, 256))


def modelled(work: Work, devices: int, batch: int, machine: Machine) -> dict[str, float]:
    """Seconds of a step on many accelerators, of alternating projections and of backpropagation.

    A projection makes four passes through its products: how much they change with either factor, and what
    is asked of either. Backpropagation makes three. Kernels: about seven for each product that is projected,
    equal products of one set at once; three for each of backpropagation, one after the other.
    """
    samples = max(batch / devices, 1)
    read = 4 * (12 * work.values * samples + 6 * work.parameters)
    sent = 4 * work.parameters
    stacks = min(work.layers, 8)
    projected = machine.compute(4 * work.products * samples, read, 7 * stacks)
    backward = machine.compute(3 * work.products * samples, read / 2, 3 * work.chain)
    return {
        "projections": projected + machine.sum_over(devices, sent),
        "backprop": backward + machine.sum_over(devices, sent),
        "sent share": machine.sum_over(devices, sent) / (projected + machine.sum_over(devices, sent)),
    }


def model_rows(machine: Machine) -> list[dict[str, Any]]:
    rows = []
    for work in MODELLED:
        for devices in (1, *MANY):
            for how, batch in (("strong", 8192), ("weak", 256 * devices)):
                found = modelled(work, devices, batch, machine)
                rows.append({"network": work.name, "how": how, "devices": devices, "batch": batch, **found})
    return rows


def transformer(width: int, layers: int, length: int) -> Work:
    """Blocks of attention over so many tokens."""
    parameters = 12 * layers * width**2
    products = 2 * parameters * length + 4 * layers * length**2 * width
    return Work(
        f"GPT {layers}x{width}, T={length}", parameters, layers * length * width, products, layers, layers
    )


DEEP = ((mlp(4096, 63), 8192), (transformer(4096, 64, 1024), 1024))
"""Networks whose layers are divided over devices, each with a batch."""


def streamed(work: Work, devices: int, batch: int, machine: Machine) -> dict[str, float]:
    """Seconds of an update on many accelerators: data-parallel and pipelined backpropagation, and a stream.

    Stages are as many as devices, up to that of layers; beyond, groups of devices have samples of their own.
    There are half as many micro-batches as stages, with which a stream has four batches under way. A stream
    makes four passes through its products, for it evaluates each stage again when it projects;
    backpropagation makes three, and its pipeline fills and empties in every batch. About seven kernels for
    each layer that is projected, and three for backpropagation.
    """
    stages = math.gcd(devices, work.layers)
    groups, parts = devices // stages, max(1, stages // 2)
    samples = batch / groups / parts
    layers = work.layers / stages
    link = machine.fast if devices <= machine.node else machine.slow
    wire = 4 * work.values / work.layers * samples
    send = machine.latency + wire / link if stages > 1 else 0.0  # up and down at the same time

    def step(passes: int, kernels: int) -> float:
        moved = 4 * (passes * 2 * work.values * samples + 2 * work.parameters) / stages
        return machine.compute(passes * work.products * samples / stages, moved, math.ceil(kernels * layers))

    sums = machine.sum_over(groups, 4 * work.parameters / stages)
    alone = batch / devices
    data = machine.compute(
        3 * work.products * alone, 4 * (6 * work.values * alone + 2 * work.parameters), 3 * work.layers
    )
    return {
        "stages": stages,
        "micro batches": parts,
        "data parallel": data + machine.sum_over(devices, 4 * work.parameters),
        "pipeline": (parts + stages - 1) * (step(3, 3) + send) + sums,
        "stream": parts * (step(4, 7) + send) + sums,
    }


def stream_rows(machine: Machine) -> list[str]:
    """The model of streams, as a table for a page."""
    lines = [
        "\nmodelled ms of an update:\n",
        "| | devices | stages | micro-batches | data-parallel | pipeline | stream |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for work, batch in DEEP:
        for devices in MANY:
            found = streamed(work, devices, batch, machine)
            times = (f"{1e3 * found[name]:,.1f}" for name in ("data parallel", "pipeline", "stream"))
            cells = (f"{work.name}, batch {batch:,}", f"{devices:,}", found["stages"], found["micro batches"])
            lines.append("| " + " | ".join(map(str, (*cells, *times))) + " |")
    return lines


def draw(rows: list[dict[str, Any]], model: list[dict[str, Any]], path: Path) -> None:
    """Measured on the left, modelled on the right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for name in dict.fromkeys(row["network"] for row in rows):
        for how, style in (("strong", "o-"), ("weak", "s--"), ("layers", "^-"), ("time", "v-")):
            mine = [row for row in rows if (row["network"], row["how"]) == (name, how)]
            if mine:
                devices = [row["devices"] for row in mine]
                each = [row["operations"] / mine[0]["operations"] for row in mine]
                axes[0].loglog(devices, each, style, base=2, label=f"{name}, {how}")
                sent = [sum(row["sent"].values()) / 1e3 for row in mine]
                axes[1].plot(devices[1:], sent[1:], style, label=f"{name}, {how}")
    axes[0].set_title("operations of each device, of those of one")
    axes[1].set_title("kB that a device sends in a step")
    axes[1].set_yscale("log")
    for name in dict.fromkeys(row["network"] for row in model):
        for what, style in (("projections", "o-"), ("backprop", "s--")):
            mine = [row for row in model if (row["network"], row["how"]) == (name, "strong")]
            axes[2].loglog(
                [r["devices"] for r in mine], [1e3 * r[what] for r in mine], style, label=f"{name}, {what}"
            )
    axes[2].set_title("modelled ms a step, batch of 8,192")
    for axis in axes:
        axis.set_xlabel("devices")
        axis.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def prepared(name: str, description: str | None, arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a benchmark, in a process that will have as many virtual devices as it takes."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=description)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it into this file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    options = parser.parse_args(arguments)
    os.environ["JAX_PLATFORMS"] = "cpu"
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={max(DEVICES)}"
    return options


def main(arguments: Sequence[str]) -> int:
    options = prepared("scaling", __doc__, arguments)
    rows = measure()
    machine = Machine()
    model = model_rows(machine)
    print(f"\nmodel: {machine}")
    for row in model:
        print(
            f"{row['network']:<16} {row['how']:<7} {row['devices']:>5} devices  batch {row['batch']:>7,}"
            f"  projections {1e3 * row['projections']:>9.3f} ms  backprop {1e3 * row['backprop']:>9.3f} ms"
            f"  of it exchange {row['sent share']:>5.0%}"
        )
    print("\n".join(stream_rows(machine)))
    if options.plot:
        draw(rows, model, options.plot)
    if options.json:
        options.json.write_text(json.dumps({"measured": rows, "modelled": model}, indent=1) + "\n")
    return 0
