"""How step time, memory and compile time grow with depth.

The paper's setting: an MLP with 16 hidden units per layer, one sample of the size of an MNIST image, 1 to 64
hidden layers. Every method makes its 50 steps on the sample inside one compiled loop, so that none of them
pays for Python.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pjax.errors import InputError
from pjax.experiments import models
from pjax.experiments.checks import check_name
from pjax.experiments.methods import LABELS, make
from pjax.experiments.results import append_line, read_lines, write_lines
from pjax.experiments.train import device as current_device

DEPTHS = (1, 2, 4, 8, 16, 32, 64)
METHODS = ("sgd", "adam", "dr", "ap", "cp")
WIDTH, INPUTS, CLASSES, STEPS = 16, 784, 10, 50
FILE = "steps.jsonl"


@dataclasses.dataclass(frozen=True)
class Row:
    """A method at a depth."""

    method: str
    depth: int
    """Hidden layers."""
    width: int
    inputs: int
    steps: int
    """How many steps the compiled loop makes."""
    repeats: int
    ms_per_step: float
    """The median over repeats of the loop's time, without compiling, over its steps."""
    temp_bytes: int | None
    """Temporary memory of the compiled loop, where the device's compiler tells."""
    compile_seconds: float
    """Tracing and compiling."""
    device: str

    def __str__(self) -> str:
        memory = "" if self.temp_bytes is None else f", {self.temp_bytes / 1024:.1f} KiB"
        label = f"{LABELS.get(self.method, self.method)} with {self.depth} hidden layers"
        return (
            f"{label}: {self.ms_per_step:.3g} ms per step{memory}, compiled in {self.compile_seconds:.1f} s"
        )


def run(
    out: str | Path,
    *,
    depths: Sequence[int] = DEPTHS,
    methods: Sequence[str] = METHODS,
    repeats: int = 20,
    progress: Callable[[Row], None] | None = None,
) -> tuple[Row, ...]:
    """Measure every method at every depth, each loop so many times, and return all rows.

    Each row is written to ``steps.jsonl`` in the folder ``out`` as soon as it is measured. Rows that are
    there are not measured again, so that an interrupted study goes on where it stopped.
    """
    if repeats < 1:
        raise InputError(f"repeats must be at least 1, got {repeats!r}")
    if any(depth < 1 for depth in depths):
        raise InputError(f"depths must be at least 1, got {list(depths)}")
    for name in methods:
        check_name("method", name, LABELS)
    path = Path(out) / FILE
    device = current_device()
    rows = list(read(out)) if path.exists() else []
    # A line that a killed process left half must not become the start of the next one.
    write_lines(path, [dataclasses.asdict(row) for row in rows])
    for depth in depths:
        for name in methods:
            if any((r.method, r.depth, r.device) == (name, depth, device) for r in rows):
                continue
            row = measure(name, depth, repeats=repeats)
            append_line(path, dataclasses.asdict(row))
            rows.append(row)
            if progress is not None:
                progress(row)
    return tuple(rows)


def read(folder: str | Path) -> tuple[Row, ...]:
    """The rows of a study's folder, so far."""
    path = Path(folder) / FILE
    if not path.exists():
        raise InputError(f"{path}: no such file; expected the folder of a depth study")
    names = {field.name for field in dataclasses.fields(Row)}
    for where, line in (found := list(read_lines(path))):
        if wrong := sorted(set(line) ^ names):
            raise InputError(f"{where}: not a row of a depth study: missing or unknown: {', '.join(wrong)}")
    return tuple(Row(**line) for _, line in found)


def measure(name: str, depth: int, *, repeats: int = 20) -> Row:
    """Compile and time a method at a depth."""
    steps, arguments = program(name, depth)
    start = time.perf_counter()
    compiled = jax.jit(steps).lower(*arguments).compile()
    compile_seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    for _ in range(2):  # first runs allocate
        jax.block_until_ready(compiled(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - start)
    return Row(
        method=name,
        depth=depth,
        width=WIDTH,
        inputs=INPUTS,
        steps=STEPS,
        repeats=repeats,
        ms_per_step=1000 * statistics.median(times) / STEPS,
        temp_bytes=None if memory is None else int(memory.temp_size_in_bytes),
        compile_seconds=compile_seconds,
        device=current_device(),
    )


def program(name: str, depth: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function that makes the steps, and what it is called with."""
    method = make(name, steps_per_batch=STEPS)
    model = models.make("mlp", method.inputs((INPUTS,), CLASSES), [WIDTH] * depth, CLASSES)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.uniform(size=(1, INPUTS)), dtype=jnp.float32)
    y = jnp.asarray(rng.integers(CLASSES, size=1), dtype=jnp.int32)
    key = jax.random.key(0)
    # A projection method makes its steps in one update, the others make one each.
    updates = STEPS // method.steps_per_batch

    def steps(state: Any, x: jax.Array, y: jax.Array, key: jax.Array) -> tuple[Any, jax.Array]:
        def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            return method.update(model, state, x, y, key)

        return jax.lax.scan(step, state, jax.random.split(key, updates))

    return steps, (method.init(model, key), x, y, key)
