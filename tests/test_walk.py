"""`python -m tools.walk`: what it counts, on a small package and on pjax itself."""

import doctest
import textwrap

import pytest

from tools import walk

FILES = {
    "__init__.py": "from walked.optim import Method",
    "errors.py": "class Wrong(Exception): ...",
    "rules/__init__.py": "from .base import Rule\nfrom .product import Product",
    "rules/base.py": "from walked.errors import Wrong\nclass Rule: ...",
    "rules/product.py": """
        from walked.rules.base import Rule
        class Product(Rule):
            def asks(self, other):
                return isinstance(other, Product)
    """,
    "graph.py": """
        import dataclasses
        from typing import TYPE_CHECKING
        from walked import rules
        if TYPE_CHECKING:
            from walked import optim
        @dataclasses.dataclass
        class Node:
            rule: rules.Rule | None
    """,
    "engines.py": """
        from walked import graph
        from walked.rules import Product, Rule
        KINDS = (Product, int)
        def asks(value):
            from walked.optim import Method
            if isinstance(value, KINDS) or isinstance(value, str):
                return type(value) is Product
            match value:
                case graph.rules.Rule():
                    return issubclass(type(value), Rule | int)
            return isinstance(value, graph.Node)
    """,
    "optim.py": "from walked import engines\nclass Method: ...",
    "attic.py": "import walked.cellar\nclass Attic:\n    def unseen(self): ...",
    "cellar.py": "import walked.attic, walked.optim",
}


@pytest.fixture
def known(tmp_path, monkeypatch):
    """The modules of a package with a line of every kind that is counted."""
    for name, text in FILES.items():
        path = tmp_path / "walked" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).strip() + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    return walk.modules(tmp_path / "walked")


def test_imports_are_those_of_a_running_program(known):
    found = {(one.importer, one.imported, one.late) for one in walk.imports(known)}
    prefix = "walked."
    assert {(a.removeprefix(prefix), b.removeprefix(prefix), late) for a, b, late in found} == {
        ("walked", "optim", False),
        ("rules", "rules.base", False),
        ("rules", "rules.product", False),
        ("rules.base", "errors", False),
        ("rules.product", "rules.base", False),
        ("graph", "rules", False),
        ("engines", "graph", False),
        ("engines", "rules", False),
        ("engines", "optim", True),
        ("optim", "engines", False),
        ("attic", "cellar", False),
        ("cellar", "attic", False),
        ("cellar", "optim", False),
    }


def test_the_longest_chain(known):
    found = walk.imports(known)
    early = [one for one in found if not one.late]
    chain = walk.longest_chain(early, "walked")
    assert [name.removeprefix("walked.") for (name,) in chain] == [
        *("errors", "rules.base", "rules.product", "rules", "graph", "engines", "optim", "walked"),
    ]
    assert walk.levels(chain) == 7
    assert walk.longest_chain(early)[-1] == ["walked.attic", "walked.cellar"]  # they import each other
    assert ["walked.engines", "walked.optim"] in walk.longest_chain(found)


def test_imports_that_point_upwards(known):
    assert [str(one) for one in walk.upward(walk.imports(known))] == [
        "walked.engines:5 imports walked.optim (late)"
    ]


def test_who_asks_for_the_class_of_a_rule(known):
    kinds = walk.rules(known)
    assert {kind.__name__ for kind in kinds} == {"Rule", "Product"}
    assert [line.split()[0] for line in walk.asked(known, kinds)] == [
        f"walked.engines:{number}" for number in (6, 7, 9, 10)
    ]


def test_the_rules_of_the_package():
    found = {kind.__name__ for kind in walk.rules(walk.modules())}
    assert {"Dot", "Max", "DotGeneral", "Convolution", "Constrain", "CrossEntropy"} <= found
    assert not {"Node", "Module", "AlternatingProjections"} & found


def test_imports_of_the_package_point_downwards():
    """No rule of a higher folder is known below it, and none is imported late to hide a circle."""
    found = walk.imports(walk.modules())
    assert walk.upward(found) == []
    assert [one for one in found if one.late] == []
    assert walk.levels(walk.longest_chain(found, "pjax")) <= 12


def test_what_nothing_mentions(known):
    found = [line.split()[1] for line in walk.unmentioned(known)]
    assert sorted(found) == ["Attic", "unseen"]


def test_all_of_the_package_is_mentioned():
    assert walk.unmentioned(walk.modules()) == []


def test_an_update_is_watched():
    found = walk.first_update("AP")
    assert found.files > 5
    assert found.changes > found.files
    again = walk.first_update("AP")
    assert again.changes < found.changes  # what was compiled is kept


def test_the_examples_of_the_tool_are_right():
    found = doctest.testmod(walk)
    assert found.attempted
    assert not found.failed
