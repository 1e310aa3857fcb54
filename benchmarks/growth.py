"""How time and memory of a step grow with batch size, width, depth and length.

For each axis a few networks, each method compiled once and timed in turns. The slope is that of a straight
line through the larger half of the points on log axes: 1 where cost grows in proportion. Work grows in
proportion to batch size, depth and length; with the square of the width where layers are wide. Methods whose
time, memory or operations (by the compiler's account) grow faster than that are named at the end.
"""

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import pjax
from benchmarks.speed import Measured, Network, backprop, projections
from pjax.experiments import models

STEPS = 20


@dataclasses.dataclass(frozen=True)
class Axis:
    """One thing that grows, from a network that is otherwise the same."""

    name: str
    values: tuple[int, ...]
    most: float
    """The slope of the work."""

    def network(self, value: int) -> tuple[Any, jax.Array, jax.Array, Any]:
        sizes = {"batch": 64, "width": 64, "depth": 2, "length": 0} | {self.name: value}
        if self.name == "length":
            model: Any = models.RNN(65, [64])
            x = jnp.zeros((8, value), jnp.int32)
            return model.init(jax.random.key(0)), x, x, Network(model.apply)
        model = models.MLP(64, [sizes["width"]] * sizes["depth"], 10)
        rng = np.random.default_rng(0)
        x = jnp.asarray(rng.normal(size=(sizes["batch"], 64)), jnp.float32)
        y = jnp.asarray(rng.integers(10, size=sizes["batch"]), jnp.int32)
        return model.init(jax.random.key(0)), x, y, Network(model.apply)


AXES = (
    Axis("batch", (256, 1024, 4096, 16384, 65536), 1),
    Axis("width", (64, 128, 256, 512, 1024), 2),
    Axis("depth", (4, 8, 16, 32), 1),
    Axis("length", (32, 128, 512, 2048), 1),
)
SOLVERS = (
    pjax.optim.AlternatingProjections(steps_per_update=STEPS),
    pjax.optim.DouglasRachford(steps_per_update=STEPS),
    pjax.optim.ExtrapolatedProjections(steps_per_update=STEPS),
)


def measure(axis: Axis, value: int, repeats: int) -> list[dict[str, Any]]:
    """All methods at one point."""
    params, x, y, apply = axis.network(value)
    updates = {"SGD": backprop(apply, optax.sgd(0.01), STEPS)}
    updates |= {solver.name: projections(apply, solver) for solver in SOLVERS}
    runs = [Measured(name, update, STEPS, (params, x, y)) for name, update in updates.items()]
    for run in runs:
        run.run()
    for _ in range(repeats):
        for run in runs:
            run.seconds.append(run.run())
    return [
        {
            "axis": axis.name,
            "value": value,
            "method": run.name,
            "step_ms": 1e3 * statistics.median(run.seconds) / STEPS,
            "temp_mib": run.temp_mib,
            "mega_ops": operations(run),
            "compile_s": run.compile_s,
        }
        for run in runs
    ]


def operations(run: Measured) -> float:
    """Millions of operations by the compiler's account, which a noisy machine does not change."""
    return run.compiled.cost_analysis()["flops"] / 1e6


def slope(values: Sequence[float], costs: Sequence[float]) -> float:
    """Of the larger half of the points, on log axes.

    >>> slope([1, 2, 4, 8], [9, 8, 16, 32])
    1.0
    """
    half = len(values) // 2
    return round(float(np.polyfit(np.log(values[half:]), np.log(costs[half:]), 1)[0]), 2)


def table(rows: list[dict[str, Any]], axis: Axis, figure: str) -> list[str]:
    """Lines of text, one for each method."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if (row["axis"], row["method"]) == (axis.name, method)]
        costs = [row[figure] for row in mine]
        found = slope([row["value"] for row in mine], [max(cost, 1e-9) for cost in costs])
        cells = "".join(f"{cost:>11.3f}" for cost in costs)
        lines.append(f"{axis.name:<8} {figure:<10} {method:<5} {cells:<58} slope {found:>5.2f}")
    return lines


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Time above, memory below, a column for each axis."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, len(AXES), figsize=(3.6 * len(AXES), 6), layout="constrained")
    for column, axis in enumerate(AXES):
        for method in dict.fromkeys(row["method"] for row in rows):
            mine = [row for row in rows if (row["axis"], row["method"]) == (axis.name, method)]
            for place, name in enumerate(("step_ms", "temp_mib")):
                panels[place][column].loglog(
                    [r["value"] for r in mine], [r[name] for r in mine], "o-", label=method, base=2
                )
        panels[0][column].set_title(axis.name)
    panels[0][0].set_ylabel("ms per step")
    panels[1][0].set_ylabel("temporary memory, MiB")
    panels[0][0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks growth", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", choices=["", *(axis.name for axis in AXES)])
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it into this file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument(
        "--read", type=Path, nargs="+", metavar="FILE", help="show what was measured before and written there"
    )
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    known = [row for path in options.read or () for row in json.loads(path.read_text())["rows"]]
    bad = []
    for axis in AXES:
        if options.only not in ("", axis.name):
            continue
        for value in axis.values:
            rows += (
                [row for row in known if (row["axis"], row["value"]) == (axis.name, value)]
                if options.read
                else measure(axis, value, options.repeats)
            )
        print(f"{axis.name}: {', '.join(map(str, axis.values))}; work grows with slope {axis.most:g} at most")
        for figure in ("step_ms", "temp_mib", "mega_ops", "compile_s"):
            lines = table(rows, axis, figure)
            print("\n".join(lines), flush=True)
            if figure != "compile_s":
                bad += [line for line in lines if float(line.rpartition(" ")[2]) > axis.most + 0.15]
    if bad:
        print("above the work:", *bad, sep="\n")
    if options.plot and not options.only:
        draw(rows, options.plot)
    if options.json:
        about = {"jax": jax.__version__, "device": jax.devices()[0].device_kind}
        options.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    return int(bool(bad) or not all(math.isfinite(row["step_ms"]) for row in rows))
