"""How far one must walk through the code to follow it: ``python -m tools.walk``.

For a first `update` of a network with two layers: how many files of the package are entered, and how many
calls go from one file to another. For the package as it lies there: who asks for the class of a rule, how
many imports stand on each other, which of them point upwards, which are late; what nothing mentions; lines,
and tracked files.
"""

import ast
import collections
import concurrent.futures
import dataclasses
import functools
import importlib
import inspect
import multiprocessing
import re
import subprocess
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = "pjax"
SOURCE = ROOT / "src" / PACKAGE

METHODS = {
    "AP": "AlternatingProjections",
    "DR": "DouglasRachford",
    "EP": "ExtrapolatedProjections",
}

LAYERS: dict[str, tuple[str, ...]] = {
    "errors": ("errors", "checks"),
    "backends": ("backends", "devices"),
    "rules": ("rules", "sets", "losses"),
    "graph": ("graph",),
    "engines": ("engines",),
    "optim": ("optim",),
    "containers": ("containers", "numpy"),
    "nn": ("nn",),
    "tools": ("tools", "debug", "testing"),
    "experiments": ("experiments", "__main__"),
}
"""From the bottom up, with the modules of each: a name stands for what lies below it too, and the longest
name that fits counts. The package itself, which hands on the public names, is in none."""

RULES = "rules"
"""The layer in which rules may ask for the classes of rules."""


# --- One update ---


@dataclasses.dataclass(frozen=True)
class Steps:
    """What an update went through."""

    files: int
    changes: int
    """Calls from one file of the package straight into another."""


def network() -> tuple[Any, Any]:
    """A function with two layers, and its parameters."""
    import jax
    import jax.numpy as jnp

    import pjax

    x, labels = jnp.ones((8, 4)), jnp.zeros(8, int)
    params = {
        "w1": jnp.full((4, 6), 0.1),
        "b1": jnp.zeros(6),
        "w2": jnp.full((6, 3), 0.2),
        "b2": jnp.zeros(3),
    }

    def loss(p: Any) -> Any:
        hidden = jax.nn.relu(x @ p["w1"] + p["b1"])
        return pjax.cross_entropy(hidden @ p["w2"] + p["b2"], labels)

    return loss, params


def first_update(method: str) -> Steps:
    """Make an update, and watch its calls. The first in a process: later ones find much of it done."""
    from pjax import optim

    optimiser = getattr(optim, METHODS[method])()
    fn, params = network()
    state = optimiser.init(params)
    folder, entered, changes = str(SOURCE), set(), 0

    def watch(frame: types.FrameType, event: str, _: Any) -> None:
        nonlocal changes
        here = frame.f_code.co_filename
        if event != "call" or not here.startswith(folder) or frame.f_code.co_name == "<module>":
            return
        entered.add(here)
        caller = frame.f_back.f_code.co_filename if frame.f_back else here
        changes += caller.startswith(folder) and caller != here

    sys.setprofile(watch)
    try:
        optimiser.update(fn, params, state)
    finally:
        sys.setprofile(None)
    return Steps(len(entered), changes)


def first_updates() -> dict[str, Steps]:
    """Each method in a process of its own."""
    with concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), max_tasks_per_child=1
    ) as processes:
        return dict(zip(METHODS, processes.map(first_update, METHODS), strict=True))


# --- Modules and imports ---


@dataclasses.dataclass(frozen=True)
class Module:
    """A file of the package."""

    name: str
    path: Path
    is_package: bool

    @functools.cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


@dataclasses.dataclass(frozen=True)
class Import:
    """An import of one module of the package by another."""

    importer: str
    imported: str
    line: int
    late: bool
    """Whether it is inside a function."""

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}" + (" (late)" if self.late else "")


def modules(source: Path = SOURCE) -> dict[str, Module]:
    """All modules below the folder of a package, by their names."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = Module(name, path, is_package)
    return found


def imports(known: Mapping[str, Module]) -> list[Import]:
    """Who imports whom. What is imported for types alone is left out: it is not there when a program runs."""
    found = []
    for module in known.values():
        for node, late in _statements(module.tree):
            for imported in dict.fromkeys(_imported(node, module, known)):
                if imported != module.name:
                    found.append(Import(module.name, imported, node.lineno, late))
    return found


def _statements(node: ast.AST, late: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, late
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _statements(child, late or inside)


def _imported(
    node: ast.Import | ast.ImportFrom, module: Module, known: Mapping[str, Module]
) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
        return
    base = node.module or ""
    if node.level:
        above = module.name.split(".")[: None if module.is_package and node.level == 1 else -node.level]
        base = ".".join([*above, *filter(None, [node.module])])
    for alias in node.names:
        whole = f"{base}.{alias.name}"
        if whole in known or base in known:
            yield whole if whole in known else base


def longest_chain(found: Iterable[Import], top: str | None = None) -> list[list[str]]:
    """The longest chain of imports, from the bottom; modules that import each other stand together.

    Args:
        found: the imports.
        top: a module; then only what it imports counts, and what that imports, and so on.
    """
    edges: dict[str, set[str]] = {}
    for one in found:
        edges.setdefault(one.importer, set()).add(one.imported)
        edges.setdefault(one.imported, set())
    groups = _circles(edges, sorted(edges) if top is None else [top])
    home = {name: index for index, group in enumerate(groups) for name in group}
    chains: list[tuple[int, list[list[str]]]] = []
    for index, group in enumerate(groups):  # what a group imports comes before it
        below = {home[name] for member in group for name in edges[member]} - {index}
        size, chain = max((chains[i] for i in below), key=lambda c: c[0], default=(0, []))
        chains.append((size + len(group), [*chain, sorted(group)]))
    return max(chains, key=lambda c: c[0], default=(0, []))[1]


def levels(chain: Sequence[Sequence[str]]) -> int:
    """How many imports a chain has; all that a circle could have count."""
    return max(sum(map(len, chain)) - 1, 0)


def _circles(edges: Mapping[str, set[str]], tops: Iterable[str]) -> list[list[str]]:
    """Modules with all that import each other in one group; those that are imported come first."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    waiting: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        waiting.append(name)
        for other in sorted(edges[name]):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in waiting:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            place = waiting.index(name)
            groups.append(waiting[place:])
            del waiting[place:]

    for name in tops:
        if name not in order:
            visit(name)
    return groups


def layer(name: str) -> int | None:
    """The number of a module's layer, from the bottom; None where it is in none.

    >>> list(LAYERS)[layer("pjax.optim._solver")], layer("pjax")
    ('optim', None)
    """
    inside = name.partition(".")[2]
    fitting = [
        (len(prefix), number)
        for number, prefixes in enumerate(LAYERS.values())
        for prefix in prefixes
        if inside == prefix or inside.startswith(f"{prefix}.")
    ]
    return max(fitting)[1] if fitting else None


def upward(found: Iterable[Import]) -> list[Import]:
    """Imports of a module from a higher layer, late or not."""
    wrong = []
    for one in found:
        low, high = layer(one.importer), layer(one.imported)
        if low is not None and high is not None and high > low:
            wrong.append(one)
    return wrong


# --- Rules ---


def rules(known: Mapping[str, Module]) -> set[type]:
    """The classes of rules: what the graph says that a node's rule may be, and their subclasses.

    A protocol's classes are those with all of its members.
    """
    loaded = [importlib.import_module(name) for name in known if not name.endswith("__main__")]
    classes = {
        value
        for module in loaded
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__
    }
    nodes = [one for one in classes if one.__name__ == "Node" and "rule" in inspect.get_annotations(one)]
    if not nodes:
        raise LookupError("no class Node with a field rule: where do nodes keep their rules now?")
    allowed = {kind for node in nodes for kind in _classes(typing.get_type_hints(node)["rule"])}
    return {one for one in classes if any(_is(one, kind) for kind in allowed)}


def _classes(annotation: Any) -> set[type]:
    """The classes of a union, a tuple, or alone."""
    if inspect.isclass(annotation):
        return set() if annotation is types.NoneType else {annotation}
    parts = annotation if isinstance(annotation, tuple) else typing.get_args(annotation)
    return {kind for part in parts for kind in _classes(part)}


def _is(one: type, kind: type) -> bool:
    if getattr(kind, "_is_protocol", False):
        members = {name for name in {**vars(kind), **kind.__annotations__} if not name.startswith("_")}
        return one is kind or all(hasattr(one, name) for name in members)
    return issubclass(one, kind)


def asked(known: Mapping[str, Module], kinds: set[type]) -> list[str]:
    """Lines outside the rules that ask whether something is of the class of a rule."""
    home, found = list(LAYERS).index(RULES), []
    for module in known.values():
        if layer(module.name) == home or module.name.endswith("__main__"):
            continue
        namespace = vars(importlib.import_module(module.name))
        lines = {
            node.lineno
            for node in ast.walk(module.tree)
            if (question := _question(node)) is not None and _names(question, namespace) & kinds
        }
        text = module.text.splitlines()
        found += [f"{module.name}:{line} {text[line - 1].strip()}" for line in sorted(lines)]
    return found


def _question(node: ast.AST) -> ast.expr | None:
    """The class, or classes, that an expression asks for."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
            return kinds
        case ast.MatchClass(cls=kind):
            return kind
        case ast.Compare(left=ast.Call(func=ast.Name(id="type"), args=[_]), comparators=[kind]):
            return kind
    return None


def _names(question: ast.expr, namespace: Mapping[str, Any]) -> set[type]:
    """The classes that an expression names, as far as its module knows them."""
    try:
        value = eval(compile(ast.Expression(question), "<classes>", "eval"), dict(namespace))
    except (AttributeError, NameError):  # something local
        return set()
    return _classes(value)


# --- Names ---

CALLED_BY_OTHERS = {"tree_flatten", "tree_unflatten", "render", "_repr_svg_", "_repr_markdown_"}
"""Methods that JAX, rich and notebooks call."""


def unmentioned(known: Mapping[str, Module]) -> list[str]:
    """Functions and classes of which the package says nothing but that they are there.

    A method that overrides one which nobody calls any more is among them.
    """
    beside = [path.read_text(encoding="utf-8") for path in SOURCE.parent.glob("*.py")]  # the command
    texts = [*(module.text for module in known.values()), *beside]
    count = collections.Counter(word for text in texts for word in re.findall(r"\w+", text))
    return [
        f"{module.name}:{node.lineno} {node.name}"
        for module in known.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and count[node.name] == 1
        and node.name not in CALLED_BY_OTHERS
        and not node.name.startswith("__")
    ]


# --- Files ---


def lines(folder: Path) -> int:
    """Lines of Python below a folder."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


def tracked() -> int:
    """How many files git knows."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return len(listed.stdout.splitlines())


# --- The table ---


def main() -> None:
    known = modules()
    imported = importlib.import_module(PACKAGE).__file__
    if imported != str(known[PACKAGE].path):
        sys.exit(
            f"{PACKAGE} is imported from {imported}, not from {SOURCE}: install it with pip install -e ."
        )
    for name, steps in first_updates().items():
        print(f"first update, {name}: {steps.files} files entered, {steps.changes} changes of file")
    found = imports(known)
    early, late = [one for one in found if not one.late], [one for one in found if one.late]
    chain = longest_chain(early, PACKAGE)
    questions, wrong = asked(known, rules(known)), upward(found)
    alone = unmentioned(known)
    homeless = [name for name in known if layer(name) is None and name != PACKAGE]
    print(f"lines that ask for the class of a rule, outside the rules: {len(questions)}")
    print(
        f"import levels: {levels(chain)}; with experiments {levels(longest_chain(early))}; "
        f"with late imports {levels(longest_chain(found))}"
    )
    print(f"upward imports: {len(wrong)}, of which late: {sum(one.late for one in wrong)}")
    print(f"late imports of the package's own modules: {len(late)}")
    print(f"modules: {len(known)}, of which in no layer: {len(homeless)}")
    print(f"functions and classes that nothing mentions: {len(alone)}")
    print(f"lines of source: {lines(SOURCE):,}; of tests: {lines(ROOT / 'tests'):,}")
    print(f"tracked files: {tracked():,}")
    _list("the longest chain of imports, from the bottom", [" with ".join(group) for group in chain])
    _list("lines that ask for the class of a rule", questions)
    _list("upward imports", wrong)
    _list("late imports", late)
    _list("modules in no layer", homeless)
    _list("what nothing mentions", alone)


def _list(title: str, values: Sequence[Any]) -> None:
    if values:
        print(f"\n{title}:", *values, sep="\n  ")


if __name__ == "__main__":
    main()
