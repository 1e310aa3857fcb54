"""What a step costs by the compiler's own account: operations, bytes, temporary memory.

These numbers do not depend on how busy a machine is. They are compared with those of a file, which is part of
the repository: a change that makes a step do more than a few per cent more fails, and one that makes it do
less asks for the file to be written anew (--update), so that it stays that way. On CPU, where the tests run.
The body of a loop counts once, however often it runs: so steps of a loop that are written out count each.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("costs.json")
TOLERANCE = 0.05
FIGURES = ("operations", "bytes", "temporary")


def cases() -> dict[str, tuple[Any, Any]]:
    """Functions with their parameters, by name."""
    import jax
    import jax.numpy as jnp

    import pjax
    from pjax.experiments import models

    def case(kind: str, shape: tuple[int, ...], widths: Sequence[int], batch: int, **options: Any) -> Any:
        classes = 10
        model = models.make(kind, shape, widths, classes, **options)
        dtype = jnp.int32 if kind == "rnn" else jnp.float32
        x = jnp.zeros((batch, *shape), dtype)
        y = jnp.zeros((batch, *shape) if kind == "rnn" else batch, jnp.int32)
        return lambda p: pjax.cross_entropy(model.apply(p, x), y), model.init(jax.random.key(0))

    return {
        "mlp 4x128+skip": case("mlp", (784,), [128] * 4, 256, skip=True),
        "mlp 16x16": case("mlp", (16,), [16] * 16, 1),
        "cnn 2x8": case("cnn", (14, 14, 1), [8] * 2, 16),
        "rnn 1x64": case("rnn", (16,), [64], 16),
    }


def measure(only: str = "") -> dict[str, dict[str, float]]:
    """The figures of one update of two steps, by network and method."""
    import jax

    from pjax import optim

    solvers = {
        "AP": optim.AlternatingProjections(steps_per_update=2),
        "DR": optim.DouglasRachford(steps_per_update=2),
        "EP": optim.ExtrapolatedProjections(),
    }
    found = {}
    for name, (fn, params) in cases().items():
        for method, solver in solvers.items():
            if only not in f"{name} {method}":
                continue
            update = jax.jit(lambda p, s, fn=fn, solver=solver: solver.update(fn, p, s))
            compiled = update.lower(params, solver.init(params)).compile()
            cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
            figures = (cost["flops"], cost["bytes accessed"], memory.temp_size_in_bytes)
            found[f"{name} {method}"] = dict(zip(FIGURES, map(float, figures), strict=True))
    return found


def compare(found: dict[str, dict[str, float]], known: dict[str, dict[str, float]]) -> list[str]:
    """What is not as it was, in words."""
    said = []
    for name, figures in found.items():
        if name not in known:
            said.append(f"{name}: not in the file")
            continue
        for figure, value in figures.items():
            before = known[name][figure]
            if abs(value - before) > TOLERANCE * before:
                said.append(f"{name}: {figure} {value:,.0f}, were {before:,.0f}: {value / before - 1:+.1%}")
    return said


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks costs", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the file anew")
    parser.add_argument("--only", default="", help="networks and methods whose name contains this")
    options = parser.parse_args(arguments)
    os.environ["JAX_PLATFORMS"] = "cpu"
    found = measure(options.only)
    for name, figures in found.items():
        print(f"{name:<20}" + "".join(f"{figures[f]:>16,.0f} {f}" for f in FIGURES))
    whole = options.update and not options.only
    known = {} if whole else json.loads(FILE.read_text())["costs"]
    if options.update:
        import jax

        text = json.dumps({"jax": jax.__version__, "costs": known | found}, indent=1)
        FILE.write_text(text + "\n")
        return 0
    said = compare(found, known)
    print("\n".join(said) or "as they were", file=sys.stderr if said else sys.stdout)
    return int(bool(said))
