"""Who works and who waits where the layers of a network are divided over devices.

By schedule, for alternating projections and for backpropagation in a pipeline: when each device works, if one
does as many operations a second as the other and sending takes no time. Of projections all nodes of a set
work at once; what is left is that blocks of layers are not quite equal, and that the values at the start of
an update are computed one layer after the other. A pipeline fills and empties in every batch, which leaves
(d - 1) / (m + d - 1) of d devices idle with m micro-batches; GPipe and 1F1B differ in memory only. A stream
(`pjax.optim.Streamed`) never fills nor empties: in every step all stages work, and only the largest keeps the
others waiting, by what the ends of the network add to it.

By the compiled programs on 1, 2, 4 and 8 virtual CPU devices: all devices run the same program, so that what
each does in a step, times their number, is what the step takes; beyond the operations of one device it is
work done twice, or on padding.
"""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.scaling import DEVICES, account, collectives, in_words, prepared

LAYERS, WIDTH, INPUTS, CLASSES, BATCH = 32, 64, 64, 10, 64
STEPS = 50
MICRO_BATCHES = (4, 16, 64)


@dataclasses.dataclass(frozen=True)
class Span:
    """That a device works, from when to when, and on what."""

    device: int
    begin: float
    end: float
    kind: str


def idle(spans: Sequence[Span], devices: int) -> float:
    """Which part of their time devices wait, from the first beginning to the last end.

    >>> idle([Span(0, 0, 1, "forward"), Span(1, 1, 2, "forward")], 2)
    0.5
    """
    whole = devices * (max(s.end for s in spans) - min(s.begin for s in spans))
    return 1 - sum(s.end - s.begin for s in spans) / whole


def blocks(work: Sequence[float], devices: int) -> list[float]:
    """What each device does of a list of layers, in blocks whose largest is as small as possible.

    >>> blocks([1, 1, 2, 1, 1], 2)
    [4, 2]
    """
    most = sorted({sum(work[i:j]) for i in range(len(work)) for j in range(i + 1, len(work) + 1)})

    def filled(most: float) -> list[float]:
        each: list[float] = []
        for one in work:
            if each and each[-1] + one <= most:
                each[-1] += one
            else:
                each.append(one)
        return each

    largest = max(work)
    found = next(each for each in (filled(m) for m in most if m >= largest) if len(each) <= devices)
    return found + [0] * (devices - len(found))


def projections(
    forward: Sequence[float], sets: Sequence[Sequence[float]], devices: int, steps: int
) -> list[Span]:
    """An update of alternating projections.

    Args:
        forward: operations of each layer in the evaluation at the start.
        sets: of each node of each set when it projects, in the order of layers.
        devices: how many.
        steps: in the update.
    """
    spans, now = [], 0.0
    for device, work in enumerate(blocks(forward, devices)):
        spans.append(Span(device, now, now + work, "forward"))
        now += work
    for _ in range(steps):
        for number, nodes in enumerate(sets):
            each = blocks(nodes, devices)
            spans += [Span(d, now, now + work, f"set {number + 1}") for d, work in enumerate(each)]
            now += max(each)
    return spans


def pipeline(forward: Sequence[float], devices: int, parts: int, *, early: bool = False) -> list[Span]:
    """Backpropagation of one batch in a pipeline; going back takes twice as long.

    Args:
        forward: operations of each layer.
        devices: how many.
        parts: micro-batches.
        early: a device goes back as soon as it can (1F1B), and not after all forward (GPipe).
    """
    cost = [work / parts for work in blocks(forward, devices)]
    orders = []
    for device in range(devices):
        ahead = min(devices - device - 1, parts) if early else parts
        order = [("forward", m) for m in range(ahead)]
        for m in range(parts - ahead):
            order += [("forward", ahead + m), ("backward", m)]
        orders.append(order + [("backward", m) for m in range(parts - ahead, parts)])
    ends: dict[tuple[str, int, int], float] = {}
    spans: list[Span] = []
    free, places = [0.0] * devices, [0] * devices
    while any(place < 2 * parts for place in places):
        for device, order in enumerate(orders):
            if places[device] == 2 * parts:
                continue
            kind, m = order[places[device]]
            before = ("forward", device - 1, m) if kind == "forward" else ("backward", device + 1, m)
            if before[1] == -1:
                ready: float | None = 0.0
            else:
                ready = ends.get(("forward", device, m) if before[1] == devices else before)
            if ready is None:
                continue
            begin = max(ready, free[device])
            free[device] = begin + cost[device] * (1 if kind == "forward" else 2)
            ends[kind, device, m] = free[device]
            spans.append(Span(device, begin, free[device], kind))
            places[device] += 1
    return spans


def stream(forward: Sequence[float], devices: int, parts: int) -> list[Span]:
    """An update of a stream that runs already: forwards, and backwards with the values found again.

    Args:
        forward: operations of each layer.
        devices: how many.
        parts: micro-batches.
    """
    cost = [work / parts for work in blocks(forward, devices)]
    spans, now = [], 0.0
    for _ in range(parts):
        for device, work in enumerate(cost):
            spans += [
                Span(device, now, now + work, "forward"),
                Span(device, now + work, now + 4 * work, "backward"),
            ]
        now += 4 * max(cost)
    return spans


def network() -> tuple[Any, tuple[Any, Any]]:
    """The network, and a batch."""
    import jax.numpy as jnp

    from pjax.experiments import models

    model = models.MLP(INPUTS, (WIDTH,) * LAYERS, CLASSES)
    return model, (jnp.zeros((BATCH, INPUTS)), jnp.zeros(BATCH, jnp.int32))


def operations() -> tuple[list[float], list[list[float]]]:
    """Of each layer going forward, and of each node of both sets when it projects, by the compiler."""
    import jax

    import pjax
    from pjax import optim

    model, (x, y) = network()
    params = jax.eval_shape(model.init, jax.random.key(0))
    found = pjax.summary(
        lambda p: pjax.cross_entropy(model.apply(p, x), y),
        params,
        optim.AlternatingProjections(stack=False),
    )
    sizes = [INPUTS, *[WIDTH] * LAYERS, CLASSES]
    forward = [2.0 * BATCH * a * b for a, b in itertools.pairwise(sizes)]
    nodes = [node for node in found.nodes if node.op != "parameter"]
    return forward, [[node.operations for node in nodes if node.set == k] for k in (1, 2)]


def schedules(forward: list[float], sets: list[list[float]]) -> list[dict[str, Any]]:
    """How long devices wait, by their number and by what they do."""
    rows = []
    for devices in DEVICES:
        alone = projections([0.0] * devices, sets, devices, 1)
        row: dict[str, Any] = {
            "devices": devices,
            "steps": idle([span for span in alone if span.kind != "forward"], devices),
            "update": idle(projections(forward, sets, devices, STEPS), devices),
        }
        for parts in MICRO_BATCHES:
            found = [idle(pipeline(forward, devices, parts, early=early), devices) for early in (False, True)]
            row[f"pipeline {parts}"], row[f"1F1B {parts}"] = found
            row[f"stream {parts}"] = idle(stream(forward, devices, parts), devices)
            row[f"formula {parts}"] = (devices - 1) / (parts + devices - 1)
        rows.append(row)
    return rows


def programs() -> list[dict[str, Any]]:
    """What each device does and sends in one step, by the compiler: three steps minus two."""
    from pjax import optim

    class Unrolled(optim.AlternatingProjections):
        """Without a loop, whose steps the compiler's account would count once."""

        def moves(self, problem: Any, mean: Any = None) -> Any:
            del mean
            iteration = self.iteration(problem)
            state = iteration.start()
            for _ in range(self.steps_per_update):
                state = iteration.step(state)
            return iteration.parameters(state), state.neglected

    model, batch = network()
    rows: list[dict[str, Any]] = []
    for devices in DEVICES:
        two, three = (
            account(model, batch, devices, layers=True, steps=n, kind=Unrolled, whole=True) for n in (2, 3)
        )
        each = three["operations"] - two["operations"]
        sent = {kind: size - two["sent"].get(kind, 0) for kind, size in three["sent"].items()}
        share = (rows[0]["operations"] if rows else each) / (devices * each)
        rows.append({"devices": devices, "operations": each, "share": share, "sent": sent})
    return rows


def streams() -> list[dict[str, Any]]:
    """What each device does and sends in one step of a stream of the same network, by the compiler."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    import pjax
    from pjax import optim

    chain = optim.Chain(
        first=lambda _, batch: batch[0],
        layer=lambda _, own, x: jax.nn.relu(x @ own["w"] + own["b"]),
        last=lambda rest, x, batch: pjax.cross_entropy(x @ rest["out"], batch[1]),
    )
    layers = {"w": jnp.zeros((LAYERS, WIDTH, WIDTH)), "b": jnp.zeros((LAYERS, WIDTH))}
    params = {"layers": layers, "out": jnp.zeros((WIDTH, CLASSES))}
    batch = network()[1]
    rows: list[dict[str, Any]] = []
    for devices in DEVICES:
        mesh = jax.make_mesh(
            (devices,), ("stages",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
        )
        optimizer = optim.Streamed(
            optim.ExtrapolatedProjections(),
            stages=LAYERS,
            micro_batches=1,
            sharding=NamedSharding(mesh, PartitionSpec("stages")) if devices > 1 else None,
        )
        placed = optimizer.place(chain, params)
        state = optimizer.init(chain, placed, batch=batch)
        update = jax.jit(lambda p, s, b, optimizer=optimizer: optimizer.update(chain, p, s, batch=b))
        _, state, _ = update(placed, state, batch)
        compiled = update.lower(placed, state, batch).compile()
        each = compiled.cost_analysis()["flops"]
        share = (rows[0]["operations"] if rows else each) / (devices * each)
        sent = collectives(compiled.as_text())
        rows.append({"devices": devices, "operations": each, "share": share, "sent": sent})
    return rows


def draw(forward: list[float], sets: list[list[float]], rows: list[dict[str, Any]], path: Path) -> None:
    """Timelines of eight devices, and how much of the time devices wait."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"forward": "#4ba3dc", "backward": "#0b4f9e", "set 1": "#f58518", "set 2": "#cf1b2b"}
    devices, parts = max(DEVICES), MICRO_BATCHES[0]
    shown = {
        f"backpropagation, GPipe, {parts} micro-batches": pipeline(forward, devices, parts),
        f"backpropagation, 1F1B, {parts} micro-batches": pipeline(forward, devices, parts, early=True),
        f"a stream, {parts} micro-batches": stream(forward, devices, parts),
        "alternating projections: the start of an update, and its first four steps": projections(
            forward, sets, devices, 4
        ),
    }
    figure = plt.figure(figsize=(13, 7), layout="constrained")
    grid = figure.add_gridspec(4, 2, width_ratios=(2.2, 1))
    for place, (title, spans) in enumerate(shown.items()):
        axis = figure.add_subplot(grid[place, 0])
        axis.set_facecolor("#ececec")
        for span in spans:
            width = span.end - span.begin
            axis.broken_barh(
                [(span.begin / 1e6, width / 1e6)], (span.device - 0.45, 0.9), color=colours[span.kind]
            )
        for kind in dict.fromkeys(span.kind for span in spans):
            axis.barh(0, 0, color=colours[kind], label=kind)
        axis.set_xlim(0, max(span.end for span in spans) / 1e6)
        axis.set_ylim(devices - 0.5, -0.5)
        axis.set_title(f"{title}: {idle(spans, devices):.0%} idle", fontsize=10, loc="left")
        axis.set_ylabel("device", fontsize=9)
        axis.legend(fontsize=7, loc="lower right", ncols=3)
    axis.set_xlabel("time, in M operations of a device", fontsize=9)
    axis = figure.add_subplot(grid[:, 1])
    lines = {f"pipeline, {parts} micro-batches": f"pipeline {parts}" for parts in MICRO_BATCHES}
    lines |= {f"stream, {MICRO_BATCHES[0]} micro-batches": f"stream {MICRO_BATCHES[0]}"}
    lines |= {f"projections, {STEPS} steps with their start": "update", "projections, steps": "steps"}
    for (label, name), style in zip(lines.items(), ("s--", "s--", "s--", "^-", "o-", "o-"), strict=True):
        axis.plot([row["devices"] for row in rows], [100 * row[name] for row in rows], style, label=label)
    axis.set_xlabel("devices")
    axis.set_title("idle, % of the time of all devices", fontsize=10, loc="left")
    axis.set_xticks(DEVICES)
    axis.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str]) -> int:
    options = prepared("utilisation", __doc__, arguments)
    forward, sets = operations()
    rows = schedules(forward, sets)
    print(f"MLP {LAYERS}x{WIDTH}, a batch of {BATCH}. By schedule, idle part of the time of all devices:")
    for row in rows:
        waits = "  ".join(
            f"{parts} parts {row[f'pipeline {parts}']:.1%} (equal stages {row[f'formula {parts}']:.1%})"
            for parts in MICRO_BATCHES
        )
        print(
            f"{row['devices']:>2} devices  projections: steps {row['steps']:.1%}, {STEPS} with their start"
            f" {row['update']:.1%}  pipeline: {waits}"
        )
        beside = "  ".join(
            f"{parts} parts: GPipe {1 - row[f'pipeline {parts}']:.1%}, 1F1B {1 - row[f'1F1B {parts}']:.1%},"
            f" stream {1 - row[f'stream {parts}']:.1%}"
            for parts in MICRO_BATCHES
        )
        print(f"{row['devices']:>2} devices  at work, {beside}")
    compiled, streaming = programs(), streams()
    for name, found in (("alternating projections", compiled), ("a stream", streaming)):
        print(f"By the compiled programs, in one step of {name}:")
        for row in found:
            print(
                f"{row['devices']:>2} devices  {row['operations'] / 1e6:>8.2f} M operations each"
                f"  useful {row['share']:>6.1%}  sends {in_words(row['sent'])}"
            )
    if options.plot:
        draw(forward, sets, rows, options.plot)
    if options.json:
        options.json.write_text(
            json.dumps({"schedules": rows, "programs": compiled, "streams": streaming}, indent=1) + "\n"
        )
    return 0
