"""The gallery in small versions: every example runs, draws its picture, and finds what it says."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NAMES = sorted(
    path.stem
    for path in EXAMPLES.glob("*.py")
    if not path.stem.startswith("_") and path.stem != "sudoku_puzzles"
)


@pytest.fixture
def example(monkeypatch):
    """A function from the name of an example to its module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if name in NAMES or name in ("_gallery", "sudoku_puzzles"):
            del sys.modules[name]


EXPECTED = {
    "constrained": lambda f: f["projections, broken"] == 0 and f["projections, error"] < 0.5,
    "logistic_regression": lambda f: f["projections"] < 1e-4,
    "mlp": lambda f: f["dr"] > 60 and f["ap"] > 60,
    "nmf": lambda f: f["projections"] >= f["parts"] - 1,
    "phase_retrieval": lambda f: f["projections"] > f["Adam"],
    "quantised": lambda f: f["levels"] == 3 and f["projections"] > f["gradients"] + 20,
    "rnn": lambda f: f["projections"] > 40,
    "sudoku": lambda f: f["solved"] == f["puzzles"] > f["by gradients"],
}


@pytest.mark.parametrize("name", NAMES)
def test_example(name, example, tmp_path, capsys):
    figures = example(name).main(["--quick", "--pictures", str(tmp_path)])
    assert EXPECTED[name](figures), figures
    assert (tmp_path / f"{name}.png").stat().st_size > 5000
    assert capsys.readouterr().out.count("\n") >= 2


def test_every_example_is_on_the_page_with_a_small_picture():
    page = (ROOT / "docs" / "gallery.md").read_text()
    for name in NAMES:
        assert f"](gallery/{name}.png)" in page
        assert f"python examples/{name}.py" in page
        assert (ROOT / "docs" / "gallery" / f"{name}.png").stat().st_size < 80_000


def test_the_puzzles_are_those_of_the_generator(example):
    puzzles = example("sudoku_puzzles")
    lines = (EXAMPLES / "sudoku_puzzles.txt").read_text().split()
    assert len(lines) == len(set(lines)) == 100
    assert list(puzzles.puzzles(2)) == lines[:2]


def test_the_puzzles_are_hard(example):
    puzzles = example("sudoku_puzzles")
    lines = (EXAMPLES / "sudoku_puzzles.txt").read_text().split()
    for line in lines[::20]:
        grid = list(map(int, line))
        assert puzzles.is_unique(grid)
        assert not puzzles.is_easy(grid)
        for cell in (cell for cell in range(81) if grid[cell]):
            assert not puzzles.is_unique([0 if c == cell else d for c, d in enumerate(grid)])


def test_an_easy_puzzle_is_easy(example):
    puzzles = example("sudoku_puzzles")
    (solution,) = puzzles.solutions(
        list(map(int, (EXAMPLES / "sudoku_puzzles.txt").read_text().split()[0])), 9
    )
    assert puzzles.is_easy([0 if cell % 9 == cell // 9 else d for cell, d in enumerate(solution)])


def test_a_wrong_grid_is_not_right(example):
    sudoku = example("sudoku")
    grid = (np.arange(9) + 3 * np.arange(9)[:, None] + np.arange(9)[:, None] // 3) % 9 + 1
    assert sudoku.right(grid, np.zeros((9, 9), int))
    assert not sudoku.right(grid, np.full((9, 9), 1))
    grid[0, :2] = grid[0, 1::-1]
    assert not sudoku.right(grid, np.zeros((9, 9), int))
