"""Well-known models (`examples.zoo`), each trained by projections and by gradients on the same batches.

Both start from the same parameters and take the steps of Adam with the same rate, one given what projections
ask for, the other the gradient. The loss is the mean over all batches. `fall` compares how far the two fell:
0 % is as far as with gradients, -20 % a fifth less.
"""

import argparse
import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax

import pjax
from examples import zoo

SOLVERS: dict[str, Callable[[float], pjax.optim.Solver]] = {
    "ep": lambda rate: pjax.optim.ExtrapolatedProjections(learning_rate=rate),
    "dr": lambda rate: pjax.optim.Outer(pjax.optim.DouglasRachford(), optax.adam(rate)),
    "ap": lambda rate: pjax.optim.Outer(pjax.optim.AlternatingProjections(), optax.adam(rate)),
}
TOLERANCE = 0.1
Step = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Trained:
    """What training came to."""

    loss: float
    compile_seconds: float
    milliseconds: float
    """Of one update; the median."""


def by_projections(model: zoo.Model, loss: Any, solver: pjax.optim.Solver) -> Step:
    """One update of a solver."""

    def step(params: Any, state: Any, batch: Any) -> tuple[Any, Any]:
        params, state, _ = solver.update(loss, params, state, batch=batch, has_aux=model.has_aux)
        return params, state

    return step


def by_gradients(model: zoo.Model, loss: Any, optimizer: optax.GradientTransformation) -> Step:
    """One step of an optimiser along the gradient."""

    def step(params: Any, state: Any, batch: Any) -> tuple[Any, Any]:
        gradient = jax.grad(loss, has_aux=model.has_aux)(params, batch)
        updates, state = optimizer.update(gradient[0] if model.has_aux else gradient, state, params)
        return optax.apply_updates(params, updates), state

    return step


def mean_loss(model: zoo.Model, loss: Any, params: Any, batches: Sequence[Any]) -> float:
    """Over all batches."""
    compiled = jax.jit(loss)
    losses = [compiled(params, batch) for batch in batches]
    return float(np.mean([one[0] if model.has_aux else one for one in losses]))


def train(
    step: Step, params: Any, state: Any, batches: Sequence[Any], updates: int
) -> tuple[Any, float, float]:
    """Parameters after some updates, seconds to compile, and milliseconds of an update."""
    start = time.perf_counter()
    compiled = jax.jit(step).lower(params, state, batches[0]).compile()
    seconds, times = time.perf_counter() - start, []
    for i in range(updates):
        start = time.perf_counter()
        params, state = jax.block_until_ready(compiled(params, state, batches[i % len(batches)]))
        times.append(time.perf_counter() - start)
    return params, seconds, 1e3 * float(np.median(times))


def compare(model: zoo.Model, method: str, updates: int) -> tuple[float, Trained | str, Trained]:
    """The loss before, and what became of it by projections (or the error they raised) and by gradients."""
    params, loss, batches = model.make(jax.random.key(0, impl="rbg"))
    before = mean_loss(model, loss, params, batches)

    def trained(step: Step, state: Any) -> Trained:
        found, *times = train(step, params, state, batches, updates)
        return Trained(mean_loss(model, loss, found, batches), *times)

    optimizer = optax.adam(model.learning_rate)
    gradients = trained(by_gradients(model, loss, optimizer), optimizer.init(params))
    solver = SOLVERS[method](model.learning_rate)
    try:
        projections = trained(by_projections(model, loss, solver), solver.init(params))
    except Exception as error:  # whatever one model raises, the others are to run
        return before, f"{type(error).__name__}: {str(error).strip().splitlines()[0]}", gradients
    return before, projections, gradients


def fall(before: float, projections: Trained, gradients: Trained) -> float:
    """How much further than by gradients the loss fell by projections, relative to the former."""
    return (before - projections.loss) / (before - gradients.loss) - 1


def _row(model: zoo.Model, before: float, projections: Trained | str, gradients: Trained) -> str:
    if isinstance(projections, str):
        loss, difference, seconds, milliseconds = "", "", "", ""
    else:
        loss, seconds = f"{projections.loss:.4g}", f"{projections.compile_seconds:.1f}"
        difference = f"{fall(before, projections, gradients):+.1%}"
        milliseconds = f"{projections.milliseconds:.2g}"
    cells = (
        model.name,
        model.library,
        f"{before:.4g}",
        loss,
        f"{gradients.loss:.4g}",
        difference,
        f"{seconds} / {gradients.compile_seconds:.1f}",
        f"{milliseconds} / {gradients.milliseconds:.2g}",
        projections.replace("|", "/") if isinstance(projections, str) else "",
    )
    return "| " + " | ".join(cells) + " |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks zoo", description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="models with this in their name")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="the K-th of every N models")
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--method", choices=SOLVERS, default="ep")
    options = parser.parse_args(arguments)
    wanted = [name.lower() for name in options.only or [""]]
    models = [m for m in zoo.MODELS.values() if any(name in m.name.lower() for name in wanted)]
    part, _, parts = options.part.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        parser.error(f"--part: expected a part of some, such as 1/4, got {options.part!r}")
    models = models[int(part) - 1 :: int(parts)]
    if not models:
        parser.error(
            f"no model has {' or '.join(options.only)} in its name; there are {', '.join(zoo.MODELS)}"
        )
    method = options.method.upper()
    print(f"{options.updates} updates; where two numbers stand, {method} / Adam\n")
    print(f"| model | library | loss before | {method} | Adam | fall | compile, s | update, ms | error |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---|", flush=True)
    run = far = 0
    for model in models:
        before, projections, gradients = compare(model, options.method, options.updates)
        print(_row(model, before, projections, gradients), flush=True)
        if not isinstance(projections, str):
            run += 1
            far += math.isfinite(projections.loss) and fall(before, projections, gradients) >= -TOLERANCE
    percent = f"{TOLERANCE:.0%}".replace("%", " %")
    print(f"\n{run} of {len(models)} run; {far} of them fall as far as with Adam within {percent}")
    return int(run < len(models))
