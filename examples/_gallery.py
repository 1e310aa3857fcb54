"""What the examples share: two options, two ways to train, and pictures in one style."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from pjax import optim
from pjax.experiments import data
from pjax.tools.plotting import panels, save

PROJECTIONS, GRADIENTS, OTHER = "#cf1b2b", "#0b4f9e", "#6b7278"
PICTURES = Path(__file__).parents[1] / "docs" / "gallery"

Update = Callable[..., tuple[Any, Any, jax.Array]]
Method = tuple[Callable[[Any], Any], Update]
"""How a state begins, and how parameters, a state and a batch become parameters, a state and a loss."""


def options(about: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """``--quick``: a small version; ``--pictures``: the folder for the picture."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="a small version, in seconds")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="the folder for the picture")
    return parser.parse_args(arguments)


def by_projections(solver: optim.Solver, loss: Callable[..., Any]) -> Method:
    """A solver of pjax on a loss of parameters and a batch."""

    @jax.jit
    def update(params: Any, state: Any, *batch: Any) -> Any:
        return solver.update(lambda p: loss(p, *batch), params, state)

    return solver.init, update


def by_gradients(rate: float, loss: Callable[..., Any]) -> Method:
    """Adam on the gradients of the mean loss."""
    adam = optax.adam(rate)

    @jax.jit
    def update(params: Any, state: Any, *batch: Any) -> Any:
        value, slope = jax.value_and_grad(lambda p: loss(p, *batch).mean())(params)
        changes, state = adam.update(slope, state, params)
        return optax.apply_updates(params, changes), state, value

    return adam.init, update


def train(
    method: Method, params: Any, batches: Iterable[tuple[Any, ...]], every: int, test: Callable[[Any], Any]
) -> tuple[Any, np.ndarray]:
    """The trained parameters, and rows of a step's number and its test, at the start and every so many."""
    init, update = method
    state, found = init(params), [(0, float(test(params)))]
    for step, batch in enumerate(batches, 1):
        params, state, _ = update(params, state, *batch)
        if step % every == 0:
            found.append((step, float(test(params))))
    return params, np.array(found)


def digits(quick: bool) -> tuple[Callable[[int, int], Iterable[tuple[Any, Any]]], Any, Any]:
    """Digits: a function from a number of batches and their size to them, and images and labels to test."""
    found, most = data.load("digits"), 300 if quick else None
    x, test = (found.normalise(rows[:most]).reshape(-1, 64) for rows in (found.x_train, found.x_test))
    y = found.y_train[:most]

    def batches(count: int, size: int) -> Iterable[tuple[Any, Any]]:
        rng = np.random.default_rng(0)
        chosen = (rng.choice(len(x), size, replace=False) for _ in range(count))
        return ((x[rows], y[rows]) for rows in chosen)

    return batches, test, found.y_test[:most]


def one_panel(title: str, about: str) -> tuple[Any, Any]:
    """A figure with one panel, and room for long labels at its right."""
    figure, (axis,) = panels(1, title, about, width=10.7, share=False)
    box = axis.get_position()
    axis.set_position((box.x0, box.y0, 0.88 * box.width, box.height))
    return figure, axis


def picture(figure: Any, folder: Path, name: str) -> Path:
    """Write a figure, and say where."""
    (path,) = save(figure, folder / name, ("png",))
    print(f"picture: {path.name}, {path.stat().st_size / 1000:.0f} kB")
    return path
