"""Hard Sudoku puzzles: ``python examples/sudoku_puzzles.py > examples/sudoku_puzzles.txt``.

A puzzle is a line of 81 digits, 0 where nothing is given. Each has one solution, loses it when any clue is
taken away, and cannot be solved by the two rules that people start with: the only digit that fits a cell,
and the only cell of a row, column or box that fits a digit.
"""

import random
from collections.abc import Iterator

UNITS = [
    *([9 * r + c for c in range(9)] for r in range(9)),
    *([9 * r + c for r in range(9)] for c in range(9)),
    *([9 * (r + i) + c + j for i in range(3) for j in range(3)] for r in (0, 3, 6) for c in (0, 3, 6)),
]
PEERS = [sorted({p for unit in UNITS if cell in unit for p in unit} - {cell}) for cell in range(81)]
ALL = 0b111111111


def candidates(grid: list[int]) -> list[int]:
    """For each empty cell the digits that fit, as bits; 0 for the others."""
    fits = [ALL] * 81
    for cell, digit in enumerate(grid):
        for peer in PEERS[cell] if digit else ():
            fits[peer] &= ~(1 << digit - 1)
    return [0 if digit else fit for digit, fit in zip(grid, fits, strict=True)]


def solutions(grid: list[int], most: int, rng: random.Random | None = None) -> Iterator[list[int]]:
    """Solutions, at most so many, by trying digits in the cell with the fewest; with ``rng`` at random."""
    grid = list(grid)

    def search(fits: list[int]) -> Iterator[list[int]]:
        empty = [cell for cell in range(81) if not grid[cell]]
        if not empty:
            yield list(grid)
            return
        cell = min(empty, key=lambda cell: fits[cell].bit_count())
        digits = [d for d in range(1, 10) if fits[cell] >> d - 1 & 1]
        if rng is not None:
            rng.shuffle(digits)
        for digit in digits:
            grid[cell] = digit
            left = list(fits)
            for peer in PEERS[cell]:
                left[peer] &= ~(1 << digit - 1)
            yield from search(left)
        grid[cell] = 0

    found = search(candidates(grid))
    return (solution for _, solution in zip(range(most), found, strict=False))


def is_unique(grid: list[int]) -> bool:
    """Whether there is exactly one solution."""
    return len(list(solutions(grid, 2))) == 1


def is_easy(grid: list[int]) -> bool:
    """Whether the two rules solve it."""
    grid = list(grid)
    while True:
        fits = candidates(grid)
        found = {cell: fit.bit_length() for cell, fit in enumerate(fits) if fit.bit_count() == 1}
        for unit in UNITS:
            for digit in range(1, 10):
                places = [cell for cell in unit if fits[cell] >> digit - 1 & 1]
                if len(places) == 1:
                    found[places[0]] = digit
        if not found:
            return all(grid)
        for cell, digit in found.items():
            grid[cell] = digit


def puzzles(count: int, seed: int = 0) -> Iterator[str]:
    """So many hard puzzles."""
    rng = random.Random(seed)
    while count:
        (grid,) = solutions([0] * 81, 1, rng)
        for cell in rng.sample(range(81), 81):
            digit, grid[cell] = grid[cell], 0
            if not is_unique(grid):
                grid[cell] = digit
        if not is_easy(grid):
            count -= 1
            yield "".join(map(str, grid))


if __name__ == "__main__":
    print("\n".join(puzzles(100)))
