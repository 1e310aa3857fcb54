"""The pictures of the pages on the idea and on the code: `python -m website.figures`."""

import io
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

import pjax
from pjax.experiments.results import write_atomically
from pjax.graph.partition import two_sets
from pjax.tools.plotting import FAINT, INK, STYLE
from website.hooks import DOCS

BLUE, ORANGE = "#2b6cb0", "#c05621"


def _save(figure: Any, name: str) -> None:
    file = io.BytesIO()
    figure.savefig(
        file, format="svg", bbox_inches="tight", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
    )
    write_atomically(DOCS / "figures" / name, file.getvalue())


def _plain(axes: Any, title: str, x: str, y: str) -> None:
    axes.set(aspect="equal", title=title, xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)


def projections() -> Any:
    """Points, and the nearest points on the graphs of relu and of rounding."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    rng = np.random.default_rng(3)
    points = rng.uniform(-2, 2, (28, 2)).astype(np.float32)
    x = np.linspace(-2, 2, 801)
    rules: list[tuple[str, Any, Callable[[Any], Any]]] = [
        ("z = max(x, 0)", pjax.rules.SumRelu((1,)), lambda v: v[:, None]),
        ("z = x rounded to whole numbers", pjax.rules.Quantize(levels=3), lambda v: v),
    ]
    for axes, (title, rule, shape) in zip(panels, rules, strict=True):
        curve = np.asarray(rule.forward(jnp.asarray(shape(x), jnp.float32)))
        jumps = np.abs(np.diff(curve)) > 0.5
        axes.plot(x, np.where(np.append(jumps, False), np.nan, curve), color=BLUE, lw=3)
        (ends,), z = rule.project((jnp.asarray(shape(points[:, 0])),), jnp.asarray(points[:, 1]))
        ends = np.asarray(ends).ravel()
        for (a, b), c, d in zip(points, ends, np.asarray(z), strict=True):
            axes.annotate("", (c, d), (a, b), arrowprops={"arrowstyle": "->", "color": FAINT, "lw": 1.2})
        axes.plot(*points.T, "o", color=ORANGE, ms=5)
        _plain(axes, title, "x, the input", "z, the output")
    return figure


def paths() -> Any:
    """Alternating projections and Douglas-Rachford on two constraints in the plane."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 5.2), layout="constrained")
    normal, level = jnp.array([0.35, 1.0]), jnp.array(0.9)
    start = jnp.array([2.4, -0.4])

    def constraints(v: Any) -> Any:
        on_line = pjax.squared_error(normal @ v, level)
        return on_line + pjax.squared_error(pjax.dot(v, v), jnp.array(1.0))

    angle, x = np.linspace(0, 2 * np.pi, 200), np.array([-1.4, 2.7])
    exact: Any = {"constants": "fixed", "consensus": "exact"}
    solvers = {
        "alternating projections": pjax.optim.AlternatingProjections(**exact),
        "Douglas-Rachford": pjax.optim.DouglasRachford(**exact),
    }
    for axes, (title, solver) in zip(panels, solvers.items(), strict=True):
        found = pjax.solve(constraints, start, solver, max_steps=400, record=True)
        assert found.path is not None
        path = np.vstack([start, np.asarray(found.path)[: int(found.steps)]])
        axes.plot(np.cos(angle), np.sin(angle), color=BLUE, lw=2.5)
        axes.plot(x, (float(level) - float(normal[0]) * x) / float(normal[1]), color=BLUE, lw=2.5)
        axes.plot(*path.T, ".-", color=ORANGE, lw=1.2, ms=6)
        axes.plot(*path[0], "o", color=INK)
        axes.plot(*path[-1], "*", color=INK, ms=13)
        _plain(axes, title, "first parameter", "second parameter")
        axes.set(xlim=(-1.4, 2.7), ylim=(-1.2, 1.6))
    return figure


def network() -> Any:
    """A network as a graph, in its two sets."""
    from pjax.graph import read as _trace

    x, y = jnp.ones((4, 3)), np.array([0, 1, 1, 0])
    params = {"w1": jnp.ones((3, 5)), "b": jnp.zeros(5), "w2": jnp.ones((5, 2))}

    def loss(p: Any) -> Any:
        hidden = jnp.maximum(x @ p["w1"] + p["b"], 0)
        return pjax.cross_entropy(hidden @ p["w2"], y)

    partition = two_sets(_trace.build(_trace.read(loss, params)))
    place = {"w1": (0, 1), "dot": (1.4, 0), "b": (1.4, 1), "sum_relu": (2.8, 0), "w2": (2.8, 1)}
    place |= {"dot 2": (4.2, 0), "cross_entropy": (5.8, 0)}
    figure, axes = plt.subplots(figsize=(11, 3.0), layout="constrained")
    centre: dict[int, tuple[float, float]] = {}
    for node in partition.graph.nodes:
        word = node.name if node.is_parameter else node.op
        word = "dot 2" if word == "dot" and place["dot"] in centre.values() else word
        centre[node.index] = place[word]
        for source in {s for wire in node.wires for s in wire.sources}:
            level = centre[source][1] == centre[node.index][1]
            shrink = {"shrinkA": 45 if level else 22, "shrinkB": (18 + 4.6 * len(word)) if level else 24}
            arrow = {"arrowstyle": "->", "color": FAINT, "lw": 1.6, **shrink}
            axes.annotate("", centre[node.index], centre[source], arrowprops=arrow)
        colour = (BLUE, ORANGE)[partition.set_of()[node.index]]
        shape = "square" if node.is_parameter else "round"
        box = {"boxstyle": f"{shape},pad=0.5", "facecolor": colour, "edgecolor": "none"}
        axes.text(*place[word], word.removesuffix(" 2"), ha="center", va="center", color="white", bbox=box)
    axes.set(xlim=(-0.5, 6.6), ylim=(-0.45, 1.45))
    axes.axis("off")
    return figure


def batch() -> Any:
    """The way of one batch through the files."""
    figure, axes = plt.subplots(figsize=(11, 5.4), layout="constrained")
    bands = [
        (3.35, 1.1, "for every call"),
        (1.75, 1.3, "once for each graph, then from a cache"),
        (-0.45, 1.9, "compiled: for every call"),
    ]
    for bottom, height, word in bands:
        axes.add_patch(mpl.patches.Rectangle((-1.1, bottom), 12.2, height, facecolor="#f2f2f2", lw=0))
        axes.text(11.0, bottom + height - 0.08, word, ha="right", va="top", color=FAINT, size=9)
    files = {
        "update": (0, 3.8, "optim/solver.py\nupdate", BLUE),
        "read": (3.4, 3.8, "graph/read.py\nfunction → jaxpr", ORANGE),
        "checks": (6.8, 3.8, "checks.py\nNaN, empty, meshes", INK),
        "build": (0, 2.3, "graph/builder.py\njaxpr → nodes, wires", ORANGE),
        "passes": (3.4, 2.3, "graph/passes.py\nneeded, fused", ORANGE),
        "partition": (6.8, 2.3, "graph/partition.py\ntwo sets, layers", ORANGE),
        "stack": (10, 2.3, "graph/stack/\nequal nodes as one", ORANGE),
        "point": (0, 0.6, "engines/point.py\nforward evaluation", BLUE),
        "engine": (3.9, 0.6, "engines/\nconsensus, edges, soft", BLUE),
        "rules": (3.9, -0.15, "rules/, losses/, sets/: move, ask", ORANGE),
        "applied": (8.2, 0.6, "optim/solver.py\nmoves → parameters", BLUE),
    }
    pairs = [
        ("update", "read"),
        ("read", "checks"),
        ("build", "passes"),
        ("passes", "partition"),
        ("partition", "stack"),
        ("point", "engine"),
        ("engine", "applied"),
    ]
    for first, second in pairs:
        arrow = {"arrowstyle": "->", "color": FAINT, "lw": 1.6, "shrinkA": 62, "shrinkB": 66}
        axes.annotate("", files[second][:2], files[first][:2], arrowprops=arrow)
    bent = {"arrowstyle": "->", "color": FAINT, "lw": 1.6}
    axes.annotate("", (0, 2.65), (6.8, 3.45), arrowprops=bent)
    axes.annotate("", (0, 0.95), (10, 1.95), arrowprops=bent)
    axes.annotate("", (3.6, 0.3), (3.6, 0.02), arrowprops=bent)
    axes.annotate("", (4.2, 0.02), (4.2, 0.3), arrowprops=bent)
    for x, y, word, colour in files.values():
        box = {"boxstyle": "round,pad=0.45", "facecolor": colour, "edgecolor": "none"}
        axes.text(x, y, word, ha="center", va="center", color="white", size=9, bbox=box)
    axes.set(xlim=(-1.2, 11.2), ylim=(-0.6, 4.6))
    axes.axis("off")
    return figure


def main() -> None:
    mpl.use("agg")
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        for draw in (projections, paths, network, batch):
            _save(draw(), f"{draw.__name__}.svg")
            plt.close("all")


if __name__ == "__main__":
    main()
