"""The pages of the documentation, and the gallery: their examples run, and nothing public is missing."""

import contextlib
import dataclasses
import doctest
import importlib
import io
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
import yaml

import pjax
import pjax.testing
import pjax_command
from pjax.experiments import cli, methods
from tests import pages
from website import hooks, notebook

# --- Pages ---

DOCS = pages.ROOT / "docs"
# Some pages have tests of their own; notebooks are run when the site is built.
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if pages.blocks(page)
    and page.name not in ("debugging.md", "distributed.md", "extending.md")
    and "\nnotebook: true\n" not in page.read_text()
]


def test_there_are_examples():
    assert {"index.md", "optimisers.md", "interoperability.md"} <= {page.name for page in PAGES}


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page):
    with contextlib.redirect_stdout(io.StringIO()):
        pages.run(page)


def test_the_page_on_debugging_shows_what_it_prints(capsys):
    page = DOCS / "debugging.md"
    exec(compile("\n".join(pages.sources(page)), "train.py", "exec"), {"__name__": "page"})
    assert Path("violations.png").is_file()
    printed = capsys.readouterr().out
    blocks = re.findall(
        r"^```text\n(not finite.*?|update: .*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    assert len(blocks) == 2
    for block in blocks:
        assert block in printed


def test_the_reference_is_complete():
    assert hooks.missing(DOCS / "api") == []


def test_a_missing_name_is_noticed(tmp_path):
    (tmp_path / "page.md").write_text((DOCS / "api" / "pjax.md").read_text().replace("::: pjax.solve\n", ""))
    missing = hooks.missing(tmp_path)
    assert "pjax.solve" in missing
    assert "pjax.trace" not in missing


def test_a_name_that_is_gone_is_noticed(tmp_path):
    (tmp_path / "page.md").write_text("::: pjax.nothing\n")
    with pytest.raises(ValueError, match=r"pjax\.nothing, which does not exist"):
        hooks.missing(tmp_path)


def test_what_users_import_has_pages():
    """Packages that pages document; the rest of pjax may change without a word."""
    public = {"debug", "errors", "experiments", "losses", "nn", "optim", "rules", "sets", "testing"}
    assert set(hooks.modules(DOCS / "api")) == {"pjax", *(f"pjax.{name}" for name in public)}


@pytest.mark.parametrize("module", [hooks, notebook], ids=lambda m: m.__name__)
def test_doctests_of_the_site(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def test_files_that_pages_link_to_are_there():
    """Links of pages outside of docs/, which the site copies, and README's links to pages."""
    everything = [pages.ROOT / "README.md", pages.ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    for page in everything:
        for target in re.findall(r"\]\(([^)\s#:]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


EXTRAS = {
    "experiments": r"(?m)^(\| `)?pjax [a-z]",
    "draw": r"pjax graph .*--out|\.save\(\"\w+\.(svg|png)\"\)|import matplotlib",
    "examples": r"python examples/",
    "tensorboard": r"--log \S*tensorboard|TensorBoard\(",
}
"""What lines of commands, and of examples, need, by extra."""
SHOWN = re.compile(r"^```(?:sh|python)\n(.*?)^```$|^\| (`.*?)\|", flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "page", [pages.ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda p: p.stem
)
def test_what_commands_need_is_named_above_them(page):
    """By an install line of the same page, before the commands or among them."""
    text = page.read_text()
    for shown in SHOWN.finditer(text):
        said = text[: shown.end()]
        named = {name for extras in re.findall(r"pjax-learn\[([\w,]+)\]", said) for name in extras.split(",")}
        lines = "\n".join(line.partition("  #")[0] for line in shown[0].splitlines())
        needed = {extra for extra, pattern in EXTRAS.items() if re.search(pattern, lines)}
        assert needed <= named, f"{page.name} shows {shown[0].strip()[:60]!r}"


def commands(group, path=()):
    """Every command of the command line, by its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(typer.main.get_command(pjax_command.app)))
COMMAND_LINE = (DOCS / "command-line.md").read_text()
SECTIONS = dict(
    re.findall(r"^## pjax ([a-z ]+)\n(.*?)(?=^## |\Z)", COMMAND_LINE, flags=re.DOTALL | re.MULTILINE)
)


def test_every_command_has_a_section():
    assert set(SECTIONS) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_has_a_row(name):
    """And no row has an option that there is not."""
    rows = re.findall(r"^\| (`--.*?) \|", SECTIONS[name], flags=re.MULTILINE)
    documented = [option for row in rows for option in re.findall(r"`(--[a-z-]+)", row)]
    options = [p for p in COMMANDS[name].params if p.param_type_name == "option" and not p.hidden]
    assert sorted(documented) == sorted(o for p in options for o in (*p.opts, *p.secondary_opts))


def test_options_of_methods_are_those_there_are():
    rows = dict(
        re.findall(r"^\| ((?:`[a-z]+`,? ?)+) \| ((?:`\w+`,? ?)+) \|$", COMMAND_LINE, flags=re.MULTILINE)
    )
    found = {m: o for cell, o in rows.items() for m in re.findall(r"`([a-z]+)`", cell)}
    assert {m: re.findall(r"`(\w+)`", o) for m, o in found.items()} == {
        method: sorted(options) for method, options in methods.OPTIONS.items() if not method.endswith("-fp")
    }


LINES = sorted(
    {
        line.partition("  #")[0].strip()
        for page in (pages.ROOT / "README.md", *DOCS.rglob("*.md"))
        for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
        if line.startswith("pjax ") and "…" not in line
    }
)


def test_examples_of_commands_can_be_given():
    """Every line of every page is parsed, with its options; nothing is run."""
    assert len(LINES) > 30
    for line in LINES:
        words = shlex.split(line)[1:]
        name = next(
            n for n in sorted(COMMANDS, key=len, reverse=True) if words[: len(n.split())] == n.split()
        )
        given = COMMANDS[name].make_context(name, words[len(name.split()) :]).params
        if name == "train" and given["resume"] is None:
            cli._config(**{key: given[key] for key in pjax_command.SETTINGS})


def test_the_home_page_opens_with_a_picture_and_a_result():
    opening = (DOCS / "index.md").read_text().partition("\n## ")[0]
    assert re.search(r"!\[.+\]\(\S+\.(png|svg)\)", opening)
    assert re.search(r"\d %", opening)


def test_what_all_solvers_share_comes_first():
    api = (DOCS / "api" / "optim.md").read_text()
    entries = re.findall(r"^::: pjax\.optim\.(\w+)", api, flags=re.MULTILINE)
    assert entries[0] == "Solver"
    assert entries.index("ExtrapolatedProjections") < entries.index("OptimizerState")
    assert "members: [init, update" in api
    chosen = (DOCS / "optimisers.md").read_text()
    shared = chosen.partition("## What all share\n")[2].partition("\n## ")[0]
    around, but_one = shared.split("all but `ExtrapolatedProjections`")
    named = set(re.findall(r"^\| `(\w+)`", but_one, flags=re.MULTILINE))
    assert {"constants"} <= named <= {field.name for field in dataclasses.fields(pjax.optim.EdgeSolver)}
    assert set(re.findall(r"^\| `optim\.(\w+)", around, flags=re.MULTILINE)) == {
        kind.__name__ for kind in pjax.optim.wrappers.Wrapper.__subclasses__()
    }
    assert chosen.index("## What all share") < chosen.index("## To train a network")


def test_the_search_needs_no_server_and_no_network():
    site = yaml.safe_load((pages.ROOT / "mkdocs.yml").read_text())
    assert {"search", "offline"} <= {plugin for plugin in site["plugins"] if isinstance(plugin, str)}
    assert all((DOCS / script).is_file() for script in site["extra"]["polyfills"])
    assert any("iframe-worker" in script for script in site["extra"]["polyfills"])


def test_formulas_that_cannot_be_drawn_are_refused():
    with pytest.raises(ValueError, match="nonsense"):
        hooks.render(r'<span class="arithmatex">\(\nonsense{x}\)</span>')


def test_a_formula_of_a_docstring_spans_lines():
    text = "Set: :math:`a\n    + b`.\n\n    .. math:: x\n        = y\n\n    More."
    assert hooks.markdown(text) == "Set: $a + b$.\n\n\n    $$ x = y $$\n\n    More."


# --- The gallery in small versions: every example runs, draws its picture, and finds what it says ---

GALLERY_MARK = pytest.mark.usefixtures("quick_compilation")


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


@GALLERY_MARK
@pytest.mark.parametrize("name", NAMES)
def test_example(name, example, tmp_path, capsys):
    figures = example(name).main(["--quick", "--pictures", str(tmp_path)])
    assert EXPECTED[name](figures), figures
    assert (tmp_path / f"{name}.png").stat().st_size > 5000
    assert capsys.readouterr().out.count("\n") >= 2


@GALLERY_MARK
def test_every_example_is_on_the_page_with_a_small_picture():
    page = (ROOT / "docs" / "gallery.md").read_text()
    for name in NAMES:
        assert f"](gallery/{name}.png)" in page
        assert f"python examples/{name}.py" in page
        assert (ROOT / "docs" / "gallery" / f"{name}.png").stat().st_size < 80_000


@GALLERY_MARK
def test_the_puzzles_are_those_of_the_generator(example):
    puzzles = example("sudoku_puzzles")
    lines = (EXAMPLES / "sudoku_puzzles.txt").read_text().split()
    assert len(lines) == len(set(lines)) == 100
    assert list(puzzles.puzzles(2)) == lines[:2]


@GALLERY_MARK
def test_the_puzzles_are_hard(example):
    puzzles = example("sudoku_puzzles")
    lines = (EXAMPLES / "sudoku_puzzles.txt").read_text().split()
    for line in lines[::20]:
        grid = list(map(int, line))
        assert puzzles.is_unique(grid)
        assert not puzzles.is_easy(grid)
        for cell in (cell for cell in range(81) if grid[cell]):
            assert not puzzles.is_unique([0 if c == cell else d for c, d in enumerate(grid)])


@GALLERY_MARK
def test_an_easy_puzzle_is_easy(example):
    puzzles = example("sudoku_puzzles")
    (solution,) = puzzles.solutions(
        list(map(int, (EXAMPLES / "sudoku_puzzles.txt").read_text().split()[0])), 9
    )
    assert puzzles.is_easy([0 if cell % 9 == cell // 9 else d for cell, d in enumerate(solution)])


@GALLERY_MARK
def test_a_wrong_grid_is_not_right(example):
    sudoku = example("sudoku")
    grid = (np.arange(9) + 3 * np.arange(9)[:, None] + np.arange(9)[:, None] // 3) % 9 + 1
    assert sudoku.right(grid, np.zeros((9, 9), int))
    assert not sudoku.right(grid, np.full((9, 9), 1))
    grid[0, :2] = grid[0, 1::-1]
    assert not sudoku.right(grid, np.zeros((9, 9), int))
