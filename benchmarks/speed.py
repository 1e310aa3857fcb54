"""How long a projection step takes and how much memory, beside backprop SGD.

Everything runs in one process on synthetic data, so nothing is downloaded. Compilation is timed apart.
Each measurement is one compiled call of as many steps for every method; methods take turns, so that a
noisy machine hurts them alike, and medians are shown. SGD takes its steps inside one `lax.scan`. Stored
edges ("AP explicit") are so slow that they are timed once, over two steps.
"""

import argparse
import dataclasses
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pjax
from pjax import _trace as tracing
from pjax.contraction import Contraction
from pjax.experiments import models

BATCH = 256
MOST_GIB = 6.0
MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Case:
    """A network and the shape of its data."""

    name: str
    shape: tuple[int, ...]
    classes: int
    widths: tuple[int, ...]
    skip: bool = False
    steps: int = 50

    @property
    def convolutional(self) -> bool:
        return len(self.shape) == 3

    def make(self) -> tuple[Any, jax.Array, jax.Array, Callable[..., jax.Array]]:
        """Parameters, inputs, labels, and the network."""
        rng = np.random.default_rng(0)
        x = jnp.asarray(rng.uniform(size=(BATCH, *self.shape)), jnp.float32)
        y = jnp.asarray(rng.integers(self.classes, size=BATCH), jnp.int32)
        kind = "cnn" if self.convolutional else "mlp"
        model = models.make(kind, self.shape, self.widths, self.classes, skip=self.skip)
        return model.init(jax.random.key(0)), x, y, model.apply


CASES = (
    Case("MNIST MLP 1x128", (784,), 10, (128,)),
    Case("MNIST MLP 4x128", (784,), 10, (128,) * 4),
    Case("CIFAR MLP 1x256", (3072,), 10, (256,)),
    Case("HIGGS MLP 1x256", (28,), 2, (256,)),
    Case("MNIST CNN 4x16+skip", (28, 28, 1), 10, (16,) * 4, skip=True, steps=10),
)


@dataclasses.dataclass(frozen=True)
class Goal:
    """A limit on a figure of the table."""

    case: str
    method: str
    figure: str
    limit: float

    def said(self, value: float) -> str:
        unit = "MiB" if self.figure == "temp_mib" else "x SGD"
        what = "time per step" if self.figure == "time_ratio" else "temporary memory"
        verdict = "yes" if value <= self.limit else "NO"
        return (
            f"{self.case:<20} {self.method:<3} {what:<17}"
            f" goal ≤ {self.limit:>6g} {unit:<5} measured {value:>8.2f}   {verdict}"
        )


GOALS = (
    Goal("MNIST MLP 1x128", "AP", "time_ratio", 1.8),
    Goal("CIFAR MLP 1x256", "AP", "time_ratio", 1.3),
    Goal("MNIST MLP 1x128", "DR", "time_ratio", 3.5),
    Goal("CIFAR MLP 1x256", "DR", "time_ratio", 2.5),
    *(Goal(case.name, "AP", "temp_ratio", 3) for case in CASES if not case.convolutional),
    *(Goal(case.name, "DR", "temp_ratio", 16) for case in CASES if not case.convolutional),
    Goal("MNIST CNN 4x16+skip", "AP", "temp_mib", 1024),
)

Update = Callable[[Any, jax.Array, jax.Array], Any]


def sgd(apply: Callable[..., jax.Array], steps: int, loop: bool = True) -> Update:
    """Backprop with plain gradient steps, all in one scan; without a loop, just one."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        logs = jax.nn.log_softmax(apply(params, x))
        return -jnp.take_along_axis(logs, y[:, None], axis=-1).mean()

    def update(params: Any, x: jax.Array, y: jax.Array) -> Any:
        def step(params: Any, _: None) -> tuple[Any, jax.Array]:
            value, slope = jax.value_and_grad(loss)(params, x, y)
            return jax.tree.map(lambda p, g: p - 0.01 * g, params, slope), value

        if not loop:
            return step(params, None)
        params, values = jax.lax.scan(step, params, length=steps)
        return params, values[0]

    return update


def projections(apply: Callable[..., jax.Array], solver: pjax.optim.Solver) -> Update:
    """One update of a solver."""

    def update(params: Any, x: jax.Array, y: jax.Array) -> Any:
        return solver.update(lambda p: pjax.cross_entropy(apply(p, x), y), params)

    return update


def edge_gib(apply: Callable[..., jax.Array], params: Any, x: jax.Array, y: jax.Array) -> float:
    """About what stored edges need: the state, the next state, and one array between."""
    graph = tracing.build(tracing.read(lambda p: pjax.cross_entropy(apply(p, x), y), params))
    edges = sum(
        node.rule.edges if isinstance(node.rule, Contraction) else math.prod(wire.shape)
        for node in graph.nodes
        for wire in node.wires
    )
    return 3 * 4 * edges / 2**30


class Measured:
    """One method on one network: compiled once, timed many times."""

    def __init__(self, name: str, update: Update, steps: int, arguments: tuple[Any, ...]) -> None:
        self.name = name
        self.steps = steps
        self.arguments = arguments
        start = time.perf_counter()
        self.compiled = jax.jit(update).lower(*arguments).compile()
        self.compile_s = time.perf_counter() - start
        memory = self.compiled.memory_analysis()
        self.temp_mib = memory.temp_size_in_bytes / MIB if memory is not None else math.nan
        self.seconds: list[float] = []

    def run(self) -> float:
        start = time.perf_counter()
        jax.block_until_ready(self.compiled(*self.arguments))
        return time.perf_counter() - start

    @property
    def step_ms(self) -> float:
        return 1e3 * statistics.median(self.seconds) / self.steps


def measure(case: Case, steps: int | None, repeats: int) -> list[dict[str, Any]]:
    """All methods on one network, as rows of the table."""
    params, x, y, apply = case.make()
    # On the CPU a backprop step with convolutions is more than ten times slower inside a loop than outside.
    slow = case.convolutional and jax.default_backend() == "cpu"
    steps, repeats = steps or (1 if slow else case.steps), min(repeats, 1) if slow else repeats
    methods: dict[str, tuple[Update, int]] = {"SGD": (sgd(apply, steps), steps)}
    for solver in (
        pjax.optim.AlternatingProjections(steps_per_update=steps),
        pjax.optim.CyclicProjections(steps_per_update=steps),
        pjax.optim.DouglasRachford(steps_per_update=steps),
    ):
        methods[solver.name] = (projections(apply, solver), steps)
    if case.convolutional:  # so show what a step costs outside one, too
        methods["SGD no loop"] = (sgd(apply, 1, loop=False), 1)
    few = min(steps, 2)  # stored edges are slow: two steps, once
    explicit = pjax.optim.AlternatingProjections(steps_per_update=few, edges="explicit")
    needs = edge_gib(apply, params, x, y)
    if needs <= MOST_GIB:
        methods["AP explicit"] = (projections(apply, explicit), few)

    runs = [Measured(name, update, n, (params, x, y)) for name, (update, n) in methods.items()]
    for run in runs:
        first = run.run()  # not like the others, so it does not count
        if run.name == "AP explicit":
            run.seconds.append(first)
    for _ in range(repeats):
        for run in runs:
            if run.name != "AP explicit":
                run.seconds.append(run.run())
    base = runs[0]
    rows = [
        {
            "case": case.name,
            "method": run.name,
            "steps": run.steps,
            "runs": len(run.seconds),
            "step_ms": run.step_ms,
            "time_ratio": run.step_ms / base.step_ms,
            "temp_mib": run.temp_mib,
            "temp_ratio": run.temp_mib / base.temp_mib if base.temp_mib else math.nan,
            "compile_s": run.compile_s,
        }
        for run in runs
    ]
    if needs > MOST_GIB:
        rows.append({"case": case.name, "method": "AP explicit", "needs_gib": needs})
    return rows


HEAD = f"{'network':<20} {'method':<12}   ms/step   of SGD   temp MiB   of SGD   compile  runs x steps"


def line(row: dict[str, Any]) -> str:
    name = f"{row['case']:<20} {row['method']:<12}"
    if "needs_gib" in row:
        return f"{name}   needs {row['needs_gib']:.0f} GiB"
    return (
        f"{name} {row['step_ms']:>9.3f} {row['time_ratio']:>8.2f} {row['temp_mib']:>10.2f}"
        f" {row['temp_ratio']:>8.2f} {row['compile_s']:>7.2f} s {row['runs']:>5} x {row['steps']}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks speed", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="networks whose name contains this")
    parser.add_argument(
        "--steps", type=int, help="steps in one measurement (50; convolutions 10, or 1 on the CPU)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each method")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    options = parser.parse_args(arguments)
    if options.repeats < 1 or (options.steps is not None and options.steps < 1):
        parser.error("--steps and --repeats must be at least 1")
    cases = [c for c in CASES if options.only is None or options.only.lower() in c.name.lower()]
    if not cases:
        parser.error(f"no network is called {options.only!r}; there are: {', '.join(c.name for c in CASES)}")

    device = jax.devices()[0]
    print(
        f"jax {jax.__version__}, {device.device_kind} ({device.platform}), {os.cpu_count()} CPU cores,"
        f" batch {BATCH}, float32, medians over the runs"
    )
    print(HEAD)
    rows: list[dict[str, Any]] = []
    for case in cases:
        for row in measure(case, options.steps, options.repeats):
            print(line(row), flush=True)
            rows.append(row)
    found = {(r["case"], r["method"]): r for r in rows if "step_ms" in r}
    print("\ngoals")
    for goal in GOALS:
        if (goal.case, goal.method) in found:
            print(goal.said(found[goal.case, goal.method][goal.figure]))
    if options.json:
        about = {"jax": jax.__version__, "device": device.device_kind, "python": platform.python_version()}
        with open(options.json, "w") as file:
            json.dump({**about, "batch": BATCH, "repeats": options.repeats, "rows": rows}, file, indent=1)
