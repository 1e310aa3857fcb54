"""Figures: training curves, accuracies of a study, accuracy over bytes, one run.

They need matplotlib, and use its figures directly: no window, no global state. Written twice from the same
results, a file is the same, byte for byte.
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pjax.errors import InputError
from pjax.experiments import methods, paper
from pjax.experiments.config import sent as bytes_sent
from pjax.experiments.results import Run, per_seed, read_run
from pjax.experiments.tables import about, describe, in_order, label, number, spell
from pjax.tools import plotting

Axis = Literal["steps", "seconds"]

# Projections warm, gradients blue, what else does without backpropagation green and grey.
COLOURS = {
    "ep": "#e0218a",
    "dr": "#cf1b2b",
    "ap": "#f58518",
    "cp": "#8f4a14",
    "dm": "#c2307e",
    "sgd": "#4ba3dc",
    "adam": "#0b4f9e",
    "fa": "#2f9e5b",
    "ff-sgd": "#b3b8bd",
    "ff-adam": "#737a82",
}
_OTHER = "#6a4fb3"  # a method of the user's own


@dataclasses.dataclass(frozen=True)
class Look:
    """How a method's line is drawn."""

    colour: str
    strong: bool
    dashed: bool

    @property
    def line(self) -> dict[str, Any]:
        style = (0, (4, 1.6)) if self.dashed else "-"
        width = 2.8 if self.strong else 1.9
        return {"color": self.colour, "lw": width, "ls": style, "zorder": 4 if self.strong else 3}

    def label(self, text: str, end: float) -> plotting.Label:
        """What stands at the end of the line."""
        return plotting.Label(end, f"{text} {end:.1f}", self.colour, self.strong)


def look(method: str) -> Look:
    """The same in every figure; with the paper's proximal operator, or with options, dashed."""
    base = method.partition(":")[0].removesuffix("-fp")
    return Look(COLOURS.get(base, _OTHER), base in methods.SOLVERS, base != method)


def _networks(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each network, by what it is called."""
    found: dict[str, list[Run]] = {}
    trained = list(dict.fromkeys(describe([run]) for run in runs))
    for run in sorted(in_order(runs), key=lambda run: trained.index(describe([run]))):
        title = spell(run.architecture)
        found.setdefault(title if len(trained) == 1 else f"{describe([run])}, {title}", []).append(run)
    return found


def _by_network(runs: Sequence[Run], title: str, **options: Any) -> tuple[Any, list[tuple[Any, list[Run]]]]:
    """A figure with a panel for each network, in each row: its axes, and its runs."""
    found, head = _networks(runs), f"{describe(runs)}: {title}"
    figure, axes = plotting.panels(len(found), head, about(runs), titles=list(found), **options)
    return figure, list(zip(axes, itertools.cycle(found.values()), strict=False))


# --- Training curves ---


@plotting.styled
def training_curves(runs: Sequence[Run], over: Sequence[Axis] = (), title: str = "") -> Any:
    """Test accuracy over steps and, below, if all were timed, over seconds: a panel per network.

    Lines are means over seeds, bands one standard deviation. A method that stopped goes on as a dotted line
    at the accuracy of its best parameters, to its label. Diamonds are the paper's results.
    """
    runs = _started(runs)
    timed = not any(math.isnan(check.seconds) for run in runs for check in run.checks)
    over = over or (("steps", "seconds") if timed else ("steps",))
    figure, found = _by_network(
        runs,
        title or f"test {runs[0].score} over training steps{' and time' if timed else ''}",
        labels=[f"{label(run, runs)} 99.9" for run in runs],
        height=max(6.4, 2.7 + 0.26 * max(Counter(run.architecture for run in runs).values())),
        rows=len(over),
    )
    across = len(found) // len(over)
    for x, start in zip(over, range(0, len(found), across), strict=True):
        row = found[start : start + across]
        _scales([axis for axis, _ in row], runs, x)
        for axis, shown in row:
            looks = _looks(shown)
            ends = [_curve(axis, run, x, looks[run.folder], label(run, runs)) for run in shown]
            plotting.end_labels(axis, ends)
    words = ["line and band: mean ± std over seeds"] if any(len(run.seeds) > 1 for run in runs) else []
    words.append("dotted: stopped, best parameters kept")
    if any(map(paper.of, runs)):
        words.append(f"◇ the paper, {paper.SEEDS} seeds, {paper.DEVICE}")
    plotting.note(figure, words)
    return figure


@plotting.styled
def accuracy_over_depth(runs: Sequence[Run]) -> Any:
    """Test accuracy over the number of layers, a line for each method; of runs with results."""
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for run in in_order(runs):
        lines.setdefault(run.method, []).append((len(run.widths), run.test.mean, run.test.std))
    title = f"{describe(runs)}: test accuracy over depth"
    figure, (axis,) = plotting.panels(1, title, about(runs), width=11.0)
    drawn = {look(method): np.array(line).T for method, line in lines.items()}
    depths, means, _ = np.concatenate(list(drawn.values()), axis=1)
    plotting.accuracy_scale(axis, means, "test accuracy (%)")
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks := np.unique(depths), [f"{depth:.0f}" for depth in ticks])
    axis.minorticks_off()
    axis.set_xlabel("layers")
    ends = [_line(axis, tuple(points), how, banded=True)[1] for how, points in drawn.items()]
    names = zip(drawn, map(methods.label, lines), ends, strict=True)
    plotting.end_labels(axis, [how.label(name, end) for how, name, end in names])
    plotting.note(figure, ["line and band: mean ± std over seeds"])
    return figure


@plotting.styled
def accuracies(runs: Sequence[Run]) -> Any:
    """Test accuracy of every run of a study, all with results: a line with a point, grouped by network."""
    networks = _networks(runs)
    height = 2.8 + 0.36 * (len(runs) + len(networks))
    figure, (axis,) = plotting.panels(
        1, f"{describe(runs)}: test accuracy", about(runs), width=13.0, height=height, share=False
    )
    low = 10 * math.floor((min(run.test.mean - run.test.std for run in runs) - 1) / 10)
    labels = {run.folder: label(run, runs) for run in runs}
    width = max([len(label) for label in labels.values()] + [1.6 * len(name) for name in networks])
    share = min(width / 140 + 0.03, 0.7)  # of the figure, for the names: 140 characters would fill it
    right = 100 + 0.06 * (100 - low)
    axis.set_xlim((low - share * right) / (1 - share), right)
    to_the_left = {"xytext": (-10, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
    place = 0.0
    for name, shown in networks.items():
        axis.annotate(name, (low, place), **to_the_left, fontweight="bold")
        for run in shown:
            place += 1
            test, how = run.test, {"color": look(run.method).colour, "fmt": "o", "ms": 8, "lw": 2.5}
            axis.errorbar(test.mean, place, xerr=test.std, **how)
            axis.annotate(labels[run.folder], (low, place), **to_the_left, fontsize=12)
            at, beside = (test.mean + test.std, place), {"textcoords": "offset points", "va": "center"}
            axis.annotate(f"{test.mean:.1f}", at, (9, 0), **beside, fontsize=12)
        place += 1.3
    axis.set_ylim(place - 0.6, -0.8)
    axis.set_yticks([])
    axis.set_xticks(range(low, 101, 5 if low >= 60 else 10))
    axis.spines["left"].set_visible(False)
    axis.set_xlabel("test accuracy (%)", x=(1 + share) / 2)
    return figure


@plotting.styled
def accuracy_over_bytes(runs: Sequence[Run]) -> Any:
    """Test accuracy over what each device has sent: a line for each method and number of exchanges.

    The fewer exchanges, the fainter; methods that backpropagate are dashed.
    """
    runs = _started(runs)
    figure, found = _by_network(runs, "accuracy over bytes sent", width=11.0, height=7.4)
    lines = {}
    for run in runs:
        rate, sent = bytes_sent(run)
        steps, mean, _ = curve(run)
        base = run.method.partition(":")[0]
        lines[run.folder] = rate, base, steps / run.steps_per_batch * sent / 1e6, mean
    everywhere = np.concatenate([mean for *_, mean in lines.values()])
    for axis, shown in found:
        plotting.accuracy_scale(axis, everywhere, "test accuracy (%)" if axis is figure.axes[0] else "")
        axis.set_xscale("log")
        own = sorted((lines[run.folder] for run in shown), key=lambda line: line[0])
        axis.set_xlim(min(line[2][0] for line in own) / 1.3, max(line[2][-1] for line in own) * 1.3)
        plotting.decades(axis.xaxis, *axis.get_xlim())
        axis.set_xlabel("MB sent by each device")
        best: dict[str, float] = {}
        for rate, base, where, mean in own:
            best[base] = max(best.get(base, 0.0), float(mean[-1]))
            same = sorted({line[0] for line in own if line[1] == base})
            forwards, colour = base in methods.SOLVERS, look(base).colour
            strength = 0.3 + 0.7 * (same.index(rate) + 1) / len(same)
            how = {"color": colour, "alpha": strength, "zorder": 3 + forwards}
            axis.plot(where, mean, ls="-" if forwards else (0, (4, 1.6)), lw=2.4, **how)
            axis.plot(where[-1:], mean[-1:], "o", ms=7, **how)
            above = {"xytext": (0, 9 if forwards else -19), "textcoords": "offset points", "ha": "center"}
            axis.annotate(str(rate), (where[-1], mean[-1]), color=colour, fontsize=11, **above)
        plotting.end_labels(axis, [look(base).label(methods.label(base), end) for base, end in best.items()])
    words = ["at the ends: exchanges for each batch", "dashed: backpropagation", "right: the best"]
    plotting.note(figure, words)
    return figure


def curve(run: Run, x: Axis = "steps", metric: str = "test") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps or seconds, and mean and standard deviation of a metric over seeds, at each check."""
    where = np.array([check.step if x == "steps" else check.seconds for check in run.checks], float)
    values = per_seed(run, metric)
    return where, values.mean(axis=1), values.std(axis=1)


def _line(axis: Any, points: tuple[np.ndarray, ...], how: Look, banded: bool) -> tuple[float, float]:
    """Draw a mean, with a band of one deviation around it; where it ends."""
    where, mean, std = plotting.thin(*points)
    axis.plot(where, mean, **how.line)
    if banded:
        axis.fill_between(where, mean - std, mean + std, color=how.colour, alpha=0.16, lw=0, zorder=2)
    return float(where[-1]), float(mean[-1])


def _looks(runs: Sequence[Run]) -> dict[Path, Look]:
    """How the runs of one panel are drawn: those that would look alike from dark to light."""
    alike: dict[Look, list[Run]] = {}
    for run in runs:
        alike.setdefault(look(run.method), []).append(run)
    return {
        run.folder: dataclasses.replace(how, colour=plotting.shade(how.colour, place, len(same)))
        for how, same in alike.items()
        for place, run in enumerate(same)
    }


def _curve(axis: Any, run: Run, x: Axis, how: Look, name: str) -> plotting.Label:
    """Draw a run's line, and return its label."""
    last, mean = _line(axis, curve(run, x), how, len(run.seeds) > 1)
    end = run.test.mean if run.finished else mean
    # From the last check to the best parameters, and on to the label.
    axis.plot([last, last], [mean, end], color=how.colour, lw=1.3, zorder=3)
    axis.plot([last], [end], "o", color=how.colour, ms=5.5 if how.strong else 4.5, zorder=5)
    axis.plot([last, axis.get_xlim()[1]], [end, end], ":", color=how.colour, lw=1.3, alpha=0.6, zorder=2)
    if row := paper.of(run):
        at_the_edge = {"transform": axis.get_yaxis_transform(), "clip_on": False, "zorder": 6}
        axis.plot([1.0], [row.test.mean], "D", ms=6.5, mfc="white", mec=how.colour, mew=1.6, **at_the_edge)
    return how.label(name, end)


def _scales(axes: Sequence[Any], runs: Sequence[Run], x: Axis) -> None:
    """Limits and ticks that all panels share."""
    lines = [curve(run, x) for run in runs]
    ends = [float(where[-1]) for where, _, _ in lines]
    starts = [float(where[where > 0][0]) for where, _, _ in lines if where[-1] > 0]
    printed = [row.test.mean for run in runs if (row := paper.of(run)) is not None]
    accuracies = np.concatenate([*(mean for _, mean, _ in lines), printed])
    for axis in axes:
        plotting.accuracy_scale(axis, accuracies, "" if axis is not axes[0] else f"test {runs[0].score} (%)")
        if starts and max(ends) > 4 * min(ends):
            axis.set_xscale("log", nonpositive="mask")
            axis.set_xlim(min(starts) * 0.9, max(ends) * 1.12)
            plotting.decades(axis.xaxis, *axis.get_xlim())
        else:
            axis.set_xlim(0, max(ends) * 1.02 or 1)
            plotting.linear_scale(axis.xaxis)
        axis.set_xlabel(x)


def _started(runs: Sequence[Run]) -> list[Run]:
    started = [run for run in runs if run.checks]
    if not started:
        raise InputError("no run has a check yet: nothing to plot")
    return started


# --- One run ---


@plotting.styled
def single_run(run: Run) -> Any:
    """Loss and accuracies of one run over its steps."""
    _started([run])
    how, quiet = look(run.method), Look("#8b9298", strong=False, dashed=False)
    name, _, options = methods.label(run.method).partition(", ")
    model, _, data = describe([run]).partition(" ")
    shown = spell(run.architecture)
    title = f"{name}: {model} {'' if shown == model else f'{shown} '}{data}"
    below = f"{options}  ·  {about([run])}" if options else about([run])
    titles = ["Loss", run.score.capitalize()]
    figure, (left, right) = plotting.panels(2, title, below, titles=titles, share=False)
    loss, test, validation = (curve(run, "steps", name) for name in ("loss", "test", "validation"))
    for axis in (left, right):
        axis.set_xlim(0, run.checks[-1].step * 1.02 or 1)
        axis.set_xlabel("steps")
        plotting.linear_scale(axis.xaxis)
    several = len(run.seeds) > 1
    _line(left, loss, how, several and how.strong)
    seen = loss[1][np.isfinite(loss[1])]
    if seen.size and seen.min() > 0 and seen.max() > 20 * seen.min():
        left.set_yscale("log")
        plotting.decades(left.yaxis, seen.min(), seen.max())
    plotting.accuracy_scale(right, np.concatenate([test[1], validation[1]]), f"{run.score} (%)")
    beside = quiet.label("validation", _line(right, validation, quiet, False)[1])
    own = how.label("test", _line(right, test, how, several and how.strong)[1])
    plotting.end_labels(right, [beside, own])
    if run.results:
        best = f"{number(run.test, 1, alone=len(run.results) == 1)} %"
        words = f"test {run.score} of the parameters with the best validation {run.score}"
        plotting.note(figure, [f"{words}: {best}"])
    return figure


def plot_run(folder: str | Path) -> Path:
    """Write the figure of a run into its folder, as ``run.png``."""
    return plotting.save(single_run(read_run(folder)), Path(folder) / "run", ("png",))[0]
