"""The package as such: what importing it does, what it ships, what it documents."""

import ast
import doctest
import importlib.metadata
import inspect
import os
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import yaml

import hatch_build
import pjax
import pjax.optim
from tests import pages

ROOT = Path(__file__).parents[1]
PACKAGE = Path(pjax.__file__).parent


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    ).stdout.strip()


def test_importing_touches_no_device():
    # A platform that does not exist is noticed by the first call that needs a device, and not before.
    code = "import pjax, pjax.optim, jax\ntry: jax.devices()\nexcept RuntimeError: print('untouched')"
    assert run(code, JAX_PLATFORMS="none_such") == "untouched"


def test_importing_changes_no_setting():
    code = (
        "import jax; before = dict(jax.config.values); import pjax;"
        "print([k for k, v in jax.config.values.items() if before.get(k) != v])"
    )
    assert run(code) == "[]"


def test_version_is_that_of_the_distribution():
    assert pjax.__version__ == importlib.metadata.version("pjax-learn")


def test_the_type_marker_is_shipped():
    assert (PACKAGE / "py.typed").is_file()


def test_what_a_test_saves_is_not_in_the_checkout():
    Path("picture.svg").write_text("")
    assert not Path("picture.svg").resolve().is_relative_to(ROOT)


def test_links_of_the_readme_on_a_package_index():
    found = doctest.testmod(hatch_build)
    assert found.attempted
    assert not found.failed
    shown = hatch_build.on_index((ROOT / "README.md").read_text(), None)
    assert not re.search(r"\]\((?!https:)", shown)


@pytest.mark.skipif("PJAX_TEST_WHEEL" not in os.environ, reason="only against the built wheel")
def test_the_wheel_says_what_it_is():
    about = importlib.metadata.metadata("pjax-learn")
    assert "pjax is to projections" in about["Description"]
    assert "](docs/" not in about["Description"]


@pytest.mark.skipif("PJAX_TEST_WHEEL" not in os.environ, reason="only against the built wheel")
def test_the_wheel_is_what_is_tested():
    assert PACKAGE.parent == Path(os.environ["PJAX_TEST_WHEEL"])
    assert ROOT / "src" not in PACKAGE.parents


def public(module):
    return {
        k: v for k, v in vars(module).items() if not k.startswith("_") and not isinstance(v, types.ModuleType)
    }


@pytest.mark.parametrize("module", [pjax, pjax.optim, pjax.sets], ids=lambda m: m.__name__)
def test_public_names_have_docstrings(module):
    assert inspect.getdoc(module)
    bare = [name for name, value in public(module).items() if callable(value) and not value.__doc__]
    assert bare == []


@pytest.mark.parametrize("module", [pjax, pjax.optim, pjax.sets], ids=lambda m: m.__name__)
def test_public_names_are_our_own(module):
    foreign = [name for name, value in public(module).items() if not value.__module__.startswith("pjax")]
    assert foreign == []


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_are_documented_and_import_no_stars(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    stars = [
        n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and any(a.name == "*" for a in n.names)
    ]
    assert stars == []


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def distributions(requirements):
    return {re.split(r"[\[<>=!~ ]", r)[0] for r in requirements}


def test_run_time_dependencies_are_few():
    assert distributions(PROJECT["dependencies"]) == {"jax", "numpy", "optax"}
    extras = PROJECT["optional-dependencies"].values()
    assert not distributions(PROJECT["dependencies"]) & distributions(
        one for extra in extras for one in extra
    )


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    for name in ("version", "license", "keywords"):
        assert citation[name] == PROJECT[name]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_quick_start_needs_no_extra(page):
    """With everything out of reach that only an extra installs."""
    needs = set(distributions(PROJECT["dependencies"]))
    queue = list(needs)
    while queue:
        found = importlib.metadata.requires(queue.pop()) or []
        new = distributions(r for r in found if "extra ==" not in r) - needs
        needs |= new
        queue += new
    extras = (
        distributions(one for extra in PROJECT["optional-dependencies"].values() for one in extra) - needs
    )
    modules = {name for name, of in importlib.metadata.packages_distributions().items() if set(of) <= extras}
    assert {"matplotlib", "rich", "typer"} <= modules
    assert not modules & {"optax", "pjax"}
    first = pages.sources(ROOT / page)[0]
    run(f"import sys; sys.modules.update(dict.fromkeys({sorted(modules)!r}))\n" + first)


README = (ROOT / "README.md").read_text()
BLOCKS = pages.sources(ROOT / "README.md")


def test_the_readme_has_examples():
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_examples_of_the_readme_run(number):
    exec(compile(BLOCKS[number], f"README.md, example {number + 1}", "exec"), {"__name__": "readme"})


def test_the_readme_names_the_commands():
    head = README[: README.index("\n## ")]
    assert "make demo" in head
    assert "make test" in head
