"""What reaches the layers of a network: the moves of one update beside the gradient, layer by layer.

For each method, the weights of each layer move by some displacement in one update of a batch. The table shows
how long it is, relative to that of the last layer (of gradients as well), and its cosine with the downhill
direction of the mean loss. With --plot both are drawn.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import pjax
from pjax import optim
from pjax.experiments import data, models
from pjax.experiments.learners import mean_cross_entropy


def _keep(moves: Any, _: Any, __: Any = None) -> tuple[Any, Any]:
    return jax.tree.map(jnp.zeros_like, moves), moves


# An outer optimiser that moves nothing, and keeps what it is given: a difference of parameters would lose
# moves that are much smaller than they are.
KEEP = optax.GradientTransformation(lambda params: params, _keep)
METHODS: dict[str, optim.Solver] = {
    "AP": optim.Outer(optim.AlternatingProjections(steps_per_update=10), KEEP),
    "AP, balanced": optim.Outer(optim.AlternatingProjections(steps_per_update=10, metric="balanced"), KEEP),
    "AP, balanced, extrapolated": optim.Outer(
        optim.AlternatingProjections(steps_per_update=10, metric="balanced", extrapolate="tensor"), KEEP
    ),
    "EP, softness 1": optim.ExtrapolatedProjections(softness=1.0, outer=KEEP),
    "EP": optim.ExtrapolatedProjections(outer=KEEP),
}


def measure(depth: int, width: int) -> dict[str, tuple[list[float], list[float]]]:
    """For each method, relative lengths and cosines of the moves of the layers' weights."""
    dataset = data.load("digits")
    x, y = jnp.asarray(dataset.x_train[:256]), jnp.asarray(dataset.y_train[:256])
    x = dataset.normalise(x).reshape(len(x), -1)
    model = models.MLP(x.shape[1], [width] * depth, dataset.classes)
    params = model.init(jax.random.key(0))
    layers = [f"hidden.{i}.weight" for i in range(depth)] + ["out.weight"]
    gradient = jax.grad(lambda p: mean_cross_entropy(model.apply(p, x), y))(params)

    def relative(moves: Any) -> list[float]:
        return [float(jnp.linalg.norm(moves[k]) / jnp.linalg.norm(moves[layers[-1]])) for k in layers]

    def cosines(moves: Any) -> list[float]:
        pairs = [(moves[k].ravel(), gradient[k].ravel()) for k in layers]
        return [float(-a @ g / (jnp.linalg.norm(a) * jnp.linalg.norm(g))) for a, g in pairs]

    found = {"gradient": (relative(gradient), [1.0] * len(layers))}
    for name, solver in METHODS.items():
        _, state, _ = solver.update(
            lambda p: pjax.cross_entropy(model.apply(p, x), y, 1.0), params, solver.init(params)
        )
        moves = jax.tree.map(jnp.negative, state.outer)
        found[name] = relative(moves), cosines(moves)
    return found


def draw(found: dict[str, tuple[list[float], list[float]]], path: Path) -> None:
    """Both tables as a picture."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for name, values in found.items():
        for axis, numbers in zip(axes, values, strict=True):
            places = range(1, len(numbers) + 1)
            axis.plot(places, numbers, "k--" if name == "gradient" else "o-", label=name)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set(yscale="log", xlabel="layer", title="length of the move, relative to the last layer's")
    axes[1].set(ylim=(-0.1, 1.05), xlabel="layer", title="cosine with the downhill direction")
    axes[1].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks dilution", description=__doc__)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it into this file")
    options = parser.parse_args(arguments)
    found = measure(options.depth, options.width)
    layers = "".join(f"{i + 1:>9}" for i in range(options.depth + 1))
    for title, which in (("length relative to the last layer's", 0), ("cosine with downhill", 1)):
        print(f"{title:36}{layers}")
        for name, values in found.items():
            print(f"  {name:34}" + "".join(f"{x:9.2g}" for x in values[which]))
    if options.plot:
        draw(found, options.plot)
    ends = found["EP"][1]
    return int(not math.isfinite(sum(ends)) or min(ends) < 0.9)
