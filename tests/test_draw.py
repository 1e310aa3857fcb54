"""Drawings: what is in them, that it is well formed, and that nothing lies on top of anything else."""

import hashlib
import itertools
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import pjax
from pjax import nn, optim
from pjax.graph import read as _trace
from pjax.graph.partition import two_sets
from pjax.tools.drawing.place import place
from pjax.tools.drawing.svg import box_size, label_size, text_width
from pjax_command import app
from tests import graphs

pytestmark = pytest.mark.usefixtures("quick_compilation")

SVG = "{http://www.w3.org/2000/svg}"
STEPS = 64
SMALL = ["mlp", "deep_skip", "tied", "residual", "rnn_scan", "powers", "one_wire_many_sources", "two_targets"]


@pytest.fixture(scope="module")
def recurrent():
    """A recurrent network of 64 steps."""
    model = nn.RNN(7, [4])
    x = np.arange(2 * STEPS).reshape(2, STEPS) % 7
    return pjax.draw(lambda p: pjax.cross_entropy(model.apply(p, x), x), model.init(jax.random.key(0)))


def drawn(name, **options):
    return pjax.draw(*graphs.make(name, jnp.float32), **options)


def boxes(drawing):
    return {box.key: box for box in drawing.diagram.boxes}


# --- What is in it ---


@pytest.mark.parametrize("name", SMALL)
def test_every_node_and_every_wire_is_there(name):
    fn, params = graphs.make(name, jnp.float32)
    graph = two_sets(_trace.build(_trace.read(fn, params))).graph
    drawing = pjax.draw(fn, params, fold=False)
    shown = [box for box in drawing.diagram.boxes if box.kind != "constant"]
    assert [box.names for box in shown] == [(node.name,) for node in graph.nodes]
    assert [box.shape for box in shown] == [node.shape for node in graph.nodes]
    wires = {
        (graph.nodes[s].name, node.name, i)
        for node in graph.nodes
        for i, w in enumerate(node.wires)
        for s in w.sources
    }
    by_key = {box.key: box.names for box in shown}
    arrows = [a for a in drawing.diagram.arrows if a.source in by_key]
    assert {(by_key[a.source][0], by_key[a.target][0], a.input) for a in arrows} == wires
    assert len(arrows) == len(wires)


@pytest.mark.parametrize("name", SMALL)
def test_folding_loses_no_node_and_no_edge(name):
    whole, folded = drawn(name, fold=False), drawn(name)
    everyone = [n for box in whole.diagram.boxes for n in box.names]
    assert sorted(n for box in folded.diagram.boxes for n in box.names) == sorted(everyone)

    def edges(drawing):
        # Captured constants are read in part by some members of a stack, so only nodes are compared.
        return sum(a.edges for a in drawing.diagram.arrows if a.source.startswith("n"))

    assert edges(folded) == edges(whole)


@pytest.mark.parametrize("name", SMALL)
def test_neighbours_are_of_different_colours(name):
    drawing = drawn(name)
    found = boxes(drawing)
    assert drawing.diagram.sets == 2
    for arrow in drawing.diagram.arrows:
        if arrow.role == "edges" and found[arrow.source].kind != "constant":
            assert found[arrow.source].set != found[arrow.target].set


def test_labels_of_the_paper_s_network():
    x, y = jnp.ones((32, 784)), jnp.zeros(32, int)
    model = nn.Sequential(nn.Linear(784, 16), nn.ReLU(16), nn.Linear(16, 10))
    params = jax.eval_shape(model.init, jax.random.key(0))  # shapes are enough
    drawing = pjax.draw(lambda p: nn.cross_entropy(model.apply(p, x), y), params)
    found = boxes(drawing)
    assert {b.title for b in found.values() if b.kind == "parameter"} == set(params)
    assert {b.title for b in found.values() if b.kind == "constant"} == {"x", "y"}
    assert [b.title for b in found.values() if b.kind == "target"] == ["cross_entropy"]
    assert [b.title for b in found.values() if b.kind == "operation"] == ["dot", "sum_relu", "dot"]
    fan_out = {(found[a.source].title, found[a.target].title): a.label for a in drawing.diagram.arrows}
    assert fan_out["x", "dot"] == "×16"  # each input is read by all hidden units
    assert fan_out["layers.0.weight", "dot"] == "×32"  # each weight by all samples
    assert fan_out["layers.1.bias", "sum_relu"] == "broadcast · ×32"
    assert fan_out["sum_relu", "dot"] == "×10"
    assert fan_out["dot", "sum_relu"] == ""
    assert fan_out["y", "cross_entropy"] == "labels"
    assert all("test_draw.py" in b.line for b in found.values() if b.kind == "target")
    assert "test_draw.py:" in drawing.svg


def test_inserted_identities_are_shown():
    drawing = drawn("residual")
    inserted = [box for box in drawing.diagram.boxes if box.kind == "identity"]
    assert inserted
    assert all(box.names[0].endswith(".identity") for box in inserted)
    assert "inserted identity" in drawing.svg


def test_a_long_loop_is_a_few_boxes(recurrent):
    found = [box for box in recurrent.diagram.boxes if box.kind != "constant"]
    assert len(found) <= 12
    # Both products and both relus of the cell; the state after the last step is read by nobody.
    counts = [box.count for box in found if box.kind == "operation"]
    assert sorted(counts) == [1, STEPS - 1, STEPS - 1, STEPS, STEPS]
    (back,) = [a for a in recurrent.diagram.arrows if a.back]
    assert back.offset == -1
    assert back.label.startswith("previous")
    assert f"×{STEPS}" in recurrent.mermaid
    indices = [a for a in recurrent.diagram.arrows if a.role == "indices"]
    assert [boxes(recurrent)[a.source].title for a in indices] == ["x"]


def test_equal_layers_are_one_box():
    x, y = jnp.ones((2, 3)), jnp.zeros(2, int)
    model = nn.Sequential(nn.Linear(3, 4), *[nn.Sequential(nn.ReLU(4), nn.Linear(4, 4)) for _ in range(5)])
    params = model.init(jax.random.key(0))

    def loss(p):
        return pjax.cross_entropy(model.apply(p, x), y)

    titles = {b.title: b.count for b in pjax.draw(loss, params).diagram.boxes if b.kind == "parameter"}
    assert titles == {
        "layers.0.weight": 1,
        "layers.1…5.layers.0.bias": 5,
        "layers.1…5.layers.1.weight": 5,
    }
    constants, products, relus, targets = 2, 6, 5, 1
    unfolded = pjax.draw(loss, params, fold=False).diagram.boxes
    assert len(unfolded) == constants + len(params) + products + relus + targets


def test_what_follows_from_parameters_steers():
    """How many edges leave what an order or a branch chooses is not known without running it."""
    x = jnp.ones((2, 4))

    def loss(p):
        first = jnp.where(p["c"].sum() > 0, x @ p["w"], p["b"])
        return jnp.sum(first * jnp.sort(p["b"])[0])

    params = {"b": jnp.ones(3), "c": jnp.ones(2), "w": jnp.ones((4, 3))}
    arrows = pjax.draw(loss, params, fold=False).diagram.arrows
    found = boxes(pjax.draw(loss, params, fold=False))
    assert {found[a.source].title for a in arrows if a.role == "indices"} >= {"c"}
    assert all(a.fan_out is None for a in arrows if found[a.source].title == "c")
    summary = pjax.summary(loss, params)
    copies = {node.name: node.copies for node in summary.nodes if node.op == "parameter"}
    assert copies == {"b": None, "c": (0, 0), "w": (2, 2)}
    assert re.search(r"^b .* \? ", str(summary), flags=re.MULTILINE)


def test_other_methods_show_their_own_sets():
    cyclic = drawn("mlp", solver=optim.CyclicProjections())
    assert cyclic.diagram.sets > 2
    assert max(box.set or 0 for box in cyclic.diagram.boxes) == cyclic.diagram.sets - 1
    ElementTree.fromstring(cyclic.svg)
    loop = drawn("rnn_scan", solver=optim.ExtrapolatedProjections())
    assert [box.steps for box in loop.diagram.boxes if box.title == "scan"] == [3]


def test_computations_can_be_drawn():
    fn, params = graphs.make("two_targets", jnp.float32)
    assert pjax.draw(pjax.trace(fn, params)).mermaid == pjax.draw(fn, params).mermaid
    w = pjax.parameter(jnp.ones((3, 2)), name="w")
    loss = pjax.squared_error(pjax.dot(pjax.array(jnp.ones((4, 3)), name="inputs"), w), jnp.zeros((4, 2)))
    assert [box.title for box in pjax.draw(loss).diagram.boxes if box.kind != "constant"] == [
        "w",
        "dot",
        "squared_error",
    ]
    assert "inputs" in {box.title for box in pjax.draw(loss).diagram.boxes}


# --- How it is written ---


def test_svg_is_well_formed_and_complete(recurrent):
    root = ElementTree.fromstring(recurrent.svg)
    groups = {
        kind: [g for g in root.iter(f"{SVG}g") if g.get("class") == kind] for kind in ("box", "wire", "label")
    }
    assert {g.get("id") for g in groups["box"]} == set(boxes(recurrent))
    assert len(groups["wire"]) == len(recurrent.diagram.arrows)
    assert len(groups["label"]) == sum(bool(a.label) for a in recurrent.diagram.arrows)
    every = [g.get("id") for kind in groups.values() for g in kind]
    assert len(set(every)) == len(every)
    assert all(g.find(f"{SVG}title").text for g in groups["box"] + groups["wire"])
    assert recurrent._repr_svg_() == recurrent.svg


def test_names_with_special_letters_are_escaped():
    names = ['a<b>"&', "back\\slash", "#hash"]
    params = {name: jnp.ones(2) for name in names}
    drawing = pjax.draw(lambda p: pjax.squared_error(sum(p.values()), jnp.ones(2)), params)
    texts = {t.text for t in ElementTree.fromstring(drawing.svg).iter(f"{SVG}text")}
    assert set(names) <= texts
    assert len(parsed_mermaid(drawing.mermaid)[0]) == len(drawing.diagram.boxes)


def parsed_mermaid(text):
    """The keys of all boxes, and the ends of all arrows."""
    head, *body = text.splitlines()
    assert head == "flowchart LR"
    keys, arrows = [], []
    for line in body:
        if match := re.fullmatch(r'  (\w+)(?:\(\[|\[\[|\[|\()"[^"]*"(?:\]\)|\]\]|\]|\)):::\w+', line):
            keys.append(match[1])
        elif match := re.fullmatch(r'  (\w+) (?:-->|-\.->)(?:\|"[^"]*"\|)? (\w+)', line):
            arrows.append((match[1], match[2]))
        else:
            assert line.startswith("  classDef "), line
    return keys, arrows


def test_mermaid_has_all_boxes_and_arrows(recurrent):
    ends = [(a.source, a.target) for a in recurrent.diagram.arrows]
    assert parsed_mermaid(recurrent.mermaid) == (list(boxes(recurrent)), ends)


def test_the_same_in_another_process_and_no_extra_before_it_is_needed():
    code = (
        "import sys, hashlib, pjax\nimport jax.numpy as jnp\nfrom tests import graphs\n"
        "d = pjax.draw(*graphs.make('deep_skip', jnp.float32))\n"
        "text = d.mermaid\n"
        "print(sorted({'igraph', 'matplotlib'} & set(sys.modules)))\n"
        "print(hashlib.sha256((d.svg + text).encode()).hexdigest())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )
    d = drawn("deep_skip")
    here = hashlib.sha256((d.svg + d.mermaid).encode())
    assert run.stdout.split() == ["[]", here.hexdigest()]


def test_saving_goes_by_the_suffix(tmp_path):
    drawing = drawn("mlp")
    for suffix, content in [("svg", drawing.svg), ("mmd", drawing.mermaid)]:
        assert drawing.save(tmp_path / f"new/x.{suffix}").read_text() == content
    assert drawing.save(str(tmp_path / "x.SVG")).read_text() == drawing.svg
    with pytest.raises(pjax.InputError, match=r"saved as \.svg or \.mmd; got .*x\.jpeg"):
        drawing.save(tmp_path / "x.jpeg")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "x.SVG"]


# --- Where things are ---


def overlap(a, b):
    return abs(a.x - b.x) < (a.width + b.width) / 2 and abs(a.y - b.y) < (a.height + b.height) / 2


def inside(point, box, margin=0.5):
    return abs(point[0] - box.x) < box.width / 2 - margin and abs(point[1] - box.y) < box.height / 2 - margin


def points(route):
    here = route.start
    for segment in route.segments:
        for t in np.linspace(0, 1, 24):
            if len(segment) == 1:
                yield tuple((1 - t) * np.array(here) + t * np.array(segment[0]))
            else:
                p0, p1, p2, p3 = map(np.array, (here, *segment))
                yield tuple(
                    (1 - t) ** 3 * p0 + 3 * t * (1 - t) ** 2 * p1 + 3 * t * t * (1 - t) * p2 + t**3 * p3
                )
        here = segment[-1]


@pytest.mark.parametrize("name", [*SMALL, "recurrent"])
def test_nothing_lies_on_anything(name, recurrent):
    diagram = (recurrent if name == "recurrent" else drawn(name)).diagram
    sizes = {box.key: box_size(box) for box in diagram.boxes}
    labels = [label_size(arrow) if arrow.label else None for arrow in diagram.arrows]
    placed = place(diagram, sizes, labels)
    pills = [route.label for route in placed.routes if route.label is not None]
    assert not any(overlap(a, b) for a, b in itertools.combinations([*placed.boxes.values(), *pills], 2))
    for arrow, route in zip(diagram.arrows, placed.routes, strict=True):
        for point in points(route):
            assert not any(inside(point, box) for box in placed.boxes.values()), arrow
            others = (other.label for other in placed.routes if other is not route and other.label)
            assert arrow.back or not any(inside(point, pill) for pill in others), arrow
    end = (placed.width + 0.5, placed.height + 0.5)
    assert all(-0.5 <= p[0] <= end[0] and -0.5 <= p[1] <= end[1] for r in placed.routes for p in points(r))
    for spot in (*placed.boxes.values(), *pills):
        assert spot.width / 2 <= spot.x + 0.5
        assert spot.x + spot.width / 2 <= end[0]
        assert spot.y + spot.height / 2 <= end[1]


# --- What is refused ---


@pytest.mark.parametrize("package", ["igraph", "matplotlib"])
def test_without_the_extra_it_says_what_to_install(package, monkeypatch):
    drawing = drawn("mlp")
    monkeypatch.setitem(sys.modules, package, None)
    for name in [m for m in sys.modules if m.startswith(f"{package}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    text_width.cache_clear()
    with pytest.raises(pjax.PjaxError, match=rf'need {package}: pip install "pjax-learn\[draw\]"'):
        _ = drawing.svg
    assert drawing.mermaid.startswith("flowchart")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((lambda p: p,), "needs its parameters"),
        ((3, {}), "expected a function with its parameters, or a Computation"),
        ((pjax.squared_error(pjax.parameter([1.0]), [0.0]), {}), "brings its parameters along"),
        ((lambda p: p, jnp.ones(2)), "neither a loss nor a real number"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(pjax.PjaxError, match=message):
        pjax.draw(*arguments)


def test_the_command_prints_or_writes(tmp_path):
    small = ["graph", "--widths", "1x8", "--batch-size", "4"]
    printed = CliRunner().invoke(app, small)
    assert printed.exit_code == 0
    keys, _ = parsed_mermaid(printed.output)
    assert len(keys) == 9
    out = [tmp_path / "mlp.svg", tmp_path / "mlp.mmd"]
    written = CliRunner().invoke(app, [*small, *(part for path in out for part in ("--out", str(path)))])
    assert written.exit_code == 0
    assert out[1].read_text() == printed.output
    ElementTree.parse(out[0])
    refused = CliRunner().invoke(app, [*small, "--out", str(tmp_path / "mlp.gif")])
    assert refused.exit_code == 2
    assert "drawings are saved as" in " ".join(refused.output.split())
    assert "only projection methods" in CliRunner().invoke(app, [*small, "--method", "adam"]).output
