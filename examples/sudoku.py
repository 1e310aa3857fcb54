"""Sudoku: a hundred hard puzzles at once, by Douglas-Rachford.

A solution is a 9 x 9 x 9 array of zeros and ones: cell by cell, which digit. Four rules say that slices of
it are one-hot: a cell holds one digit, and in each row, column and box a digit stands once. The clues are
known entries. The array may be any numbers on the way; each rule projects its own copy of it, and consensus
makes them agree. The puzzles, made by `sudoku_puzzles.py`, have one solution, no clue too many, and do not
yield to the two rules that people start with.

Gradients have no way to state "one of nine". The usual relaxation has a softmax over digits in each cell,
and asks rows, columns and boxes to hold each digit once, in squares. Adam ends where rules contradict each
other.

    python examples/sudoku.py
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _gallery import GRADIENTS, PROJECTIONS, options, picture

import pjax
from pjax import optim, sets
from pjax.tools.plotting import INK, Label, decades, end_labels, note, panels, styled

STEPS = 5000
PUZZLES = Path(__file__).with_suffix("").with_name("sudoku_puzzles.txt")


def rules(x: jax.Array, given: jax.Array) -> list[jax.Array]:
    """Everything that a solution must satisfy; ``given`` marks the clues."""
    boxes = x.reshape(3, 3, 3, 3, 9)
    known = jnp.broadcast_to(given.any(-1, keepdims=True), given.shape)
    return [
        pjax.constrain(x, sets.OneHot(), axis=2),  # a cell holds one digit
        pjax.constrain(x, sets.OneHot(), axis=0),  # a digit stands once in each column,
        pjax.constrain(x, sets.OneHot(), axis=1),  # in each row
        pjax.constrain(boxes, sets.OneHot(), axis=(1, 3)),  # and in each box
        pjax.constrain(x, sets.Known(known, given.astype(x.dtype))),
    ]


@jax.jit
@jax.vmap
def solve(given: jax.Array, start: jax.Array) -> Any:
    """One puzzle; by `jax.vmap`, all of them."""
    solver = optim.DouglasRachford()
    return pjax.solve(lambda x: rules(x, given), start, solver, max_steps=STEPS, tolerance=1e-3)


@jax.jit
@jax.vmap
def relax(given: jax.Array, start: jax.Array) -> jax.Array:
    """The same by gradients: Adam on squared violations of softmax probabilities."""

    def digits(x: jax.Array) -> jax.Array:
        return jnp.where(given.any(-1, keepdims=True), given, jax.nn.softmax(x))

    def violation(x: jax.Array) -> jax.Array:
        p = digits(x)
        totals = [p.sum(0), p.sum(1), p.reshape(3, 3, 3, 3, 9).sum((1, 3))]
        undecided = jnp.sum(p * (1 - p))
        return sum(jnp.sum((total - 1) ** 2) for total in totals) + 0.1 * undecided

    adam = optax.adam(0.1)

    def step(_: Any, carry: Any) -> Any:
        x, state = carry
        changes, state = adam.update(jax.grad(violation)(x), state)
        return optax.apply_updates(x, changes), state

    return digits(jax.lax.fori_loop(0, STEPS, step, (start, adam.init(start)))[0])


def right(grid: np.ndarray, puzzle: np.ndarray) -> bool:
    """Whether a grid of digits is a solution."""
    boxes = grid.reshape(3, 3, 3, 3).swapaxes(1, 2).reshape(9, 9)
    units = np.concatenate([grid, grid.T, boxes])
    return bool((np.sort(units) == np.arange(1, 10)).all() and (grid[puzzle > 0] == puzzle[puzzle > 0]).all())


def load(count: int) -> np.ndarray:
    """The first puzzles of the file, as grids of digits; zero where nothing is given."""
    lines = PUZZLES.read_text().split()[:count]
    return np.array([list(map(int, line)) for line in lines]).reshape(-1, 9, 9)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    chosen = options(__doc__, arguments)
    puzzles = load(3 if chosen.quick else 100)
    given = jnp.asarray(puzzles[..., None] == np.arange(1, 10))
    start = jax.random.uniform(jax.random.key(0), given.shape)
    found = solve(given, start)
    grids = np.asarray(found.params).argmax(-1) + 1
    solved = np.array([right(grid, puzzle) for grid, puzzle in zip(grids, puzzles, strict=True)])
    relaxed = np.asarray(relax(given, start)).argmax(-1) + 1
    by_gradients = sum(right(grid, puzzle) for grid, puzzle in zip(relaxed, puzzles, strict=True))
    steps = np.asarray(found.steps)
    print(f"{len(puzzles)} puzzles, at most {STEPS} steps")
    print(
        f"Douglas-Rachford: {solved.sum()} solved, half of them within {np.median(steps[solved]):.0f} steps"
    )
    print(f"Adam on a relaxation: {by_gradients} solved")
    picture(draw(puzzles, grids, steps, solved, by_gradients), chosen.pictures, "sudoku")
    return {"puzzles": len(puzzles), "solved": int(solved.sum()), "by gradients": by_gradients}


@styled
def draw(
    puzzles: np.ndarray, grids: np.ndarray, steps: np.ndarray, solved: np.ndarray, by_gradients: int
) -> Any:
    """A puzzle with its solution, and how many are solved after so many steps."""
    title = f"Sudoku: {solved.sum()} of {len(solved)} hard puzzles solved by projections"
    about = "a 9 x 9 x 9 array in five sets: cells, rows, columns and boxes are one-hot, clues are known"
    figure, (grid, axis) = panels(2, title, about, width=6.2, share=False)
    first = int(np.argmax(solved))
    grid.set(xlim=(0, 9), ylim=(9, 0), aspect="equal", xticks=[], yticks=[])
    grid.grid(False)
    for line in range(10):
        for draw_line in (grid.axhline, grid.axvline):
            thick = (
                {"color": INK, "lw": 2.0, "zorder": 3} if line % 3 == 0 else {"color": "#c9ced2", "lw": 0.8}
            )
            draw_line(line, clip_on=False, **thick)
    for row, column in np.ndindex(9, 9):
        clue = puzzles[first, row, column] > 0
        text = {"color": INK if clue else PROJECTIONS, "fontweight": "bold" if clue else "normal"}
        place = {"ha": "center", "va": "center", "fontsize": 17}
        grid.text(column + 0.5, row + 0.54, str(grids[first, row, column]), **place, **text)
    order = np.sort(steps[solved])
    axis.set(xscale="log", xlim=(order[0] * 0.8, STEPS), ylim=(0, 1.04 * len(solved)))
    decades(axis.xaxis, order[0], STEPS)
    count = np.arange(len(order) + 1)
    axis.step([*order, STEPS], [*count[1:], count[-1]], where="post", color=PROJECTIONS, lw=2.8)
    axis.axhline(by_gradients, color=GRADIENTS, lw=1.9)
    axis.set(xlabel="steps of Douglas-Rachford", ylabel="puzzles solved")
    labels = [("projections", len(order), PROJECTIONS), ("Adam on\na relaxation", by_gradients, GRADIENTS)]
    end_labels(axis, [Label(value, text, colour) for text, value, colour in labels])
    note(figure, ["black: clues", "red: found by projections", f"Adam: after {STEPS} steps"])
    return figure


if __name__ == "__main__":
    main()
