"""The paper's training loop as it stands, without `jit` and with a new function for every batch.

It must compile once, and cost little more than the same loop with a jitted update. Both loops take turns,
on the same synthetic batches.
"""

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np

import pjax
from pjax.experiments.learners import Params
from pjax.experiments.models import MLP
from pjax.optim import solver as _solver

Batch = tuple[jax.Array, jax.Array]
Loop = Callable[[Params, Sequence[Batch]], Params]
TURN = 10
MOST = 1.3


def plain(model: MLP, optimizer: pjax.optim.Solver) -> Loop:
    """The listing: plain functions, a closure over each batch, no jit."""

    def loop(params: Params, data: Sequence[Batch]) -> Params:
        for x, y in data:

            def loss_fn(params: Params) -> jax.Array:
                logits = model.apply(params, x)  # noqa: B023 - called at once
                return pjax.cross_entropy(logits, y)  # noqa: B023

            params, _ = optimizer.update(loss_fn, params)
        return params

    return loop


def jitted(model: MLP, optimizer: pjax.optim.Solver) -> Loop:
    """The same with a jitted update."""

    @jax.jit
    def update(params: Params, x: jax.Array, y: jax.Array) -> tuple[Params, jax.Array]:
        return optimizer.update(lambda p: pjax.cross_entropy(model.apply(p, x), y), params)

    def loop(params: Params, data: Sequence[Batch]) -> Params:
        for x, y in data:
            params, _ = update(params, x, y)
        return params

    return loop


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of the functions that are compiled inside the block, as they come."""
    names: list[str] = []

    def listen(event: str, duration: float, **about: Any) -> None:  # noqa: ARG001
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(str(about.get("fun_name", "?")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def make_data(batches: int, size: int, inputs: int = 784, classes: int = 10) -> list[Batch]:
    """Synthetic batches on the device."""
    rng = np.random.default_rng(0)
    return [
        (
            jnp.asarray(rng.uniform(size=(size, inputs)), jnp.float32),
            jnp.asarray(rng.integers(classes, size=size), jnp.int32),
        )
        for _ in range(batches)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks listing", description=__doc__)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--size", type=int, default=256, help="samples in a batch")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args(arguments)
    if options.batches < 2:
        parser.error("--batches must be at least 2: the first one compiles")

    optimizer = pjax.optim.DouglasRachford(steps_per_update=options.steps)
    data = make_data(options.batches, options.size)
    model = MLP(784, [options.hidden], 10)
    start = model.init(jax.random.key(0))
    loops = {"as printed": plain(model, optimizer), "jitted": jitted(model, optimizer)}
    params, seconds = dict.fromkeys(loops, start), dict.fromkeys(loops, 0.0)

    def turn(name: str, data: Sequence[Batch]) -> float:
        begin = time.perf_counter()
        params[name] = jax.block_until_ready(loops[name](params[name], data))
        return time.perf_counter() - begin

    programs = len(_solver._PROGRAMS)
    first, later = {}, []
    for name in loops:
        with compilations() as compiled:
            first[name] = turn(name, data[:1])
        updates = sum("update" in function for function in compiled)
        print(f"{name:<10}  first batch {first[name]:6.2f} s, compilations of the update: {updates}")
    for i in range(1, options.batches, TURN):
        for name in loops:
            with compilations() as compiled:
                seconds[name] += turn(name, data[i : i + TURN])
            later += compiled
    rest = options.batches - 1
    for name in loops:
        each = 1e3 * seconds[name] / rest
        print(f"{name:<10}  {rest} batches {seconds[name]:6.2f} s, {each:.1f} ms a batch")
    ratio = seconds["as printed"] / seconds["jitted"]
    apart = max(
        float(jnp.max(jnp.abs(a - b)))
        for a, b in zip(*(jax.tree.leaves(params[name]) for name in loops), strict=True)
    )
    made = len(_solver._PROGRAMS) - programs
    print(f"programs made: {made}; compilations after the first batch: {len(later)}")
    print(f"largest difference of the parameters: {apart:.3g}")
    verdict = "yes" if ratio <= MOST and made == 1 and not later else "NO"
    print(f"as printed / jitted: {ratio:.2f} (goal: one program, at most {MOST})  {verdict}")
