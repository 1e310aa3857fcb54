"""Results of experiments: metrics, folders, the paper's figures, tables and plots."""
# ruff: noqa: RUF001 - tables have minus signs, dashes and crosses

import dataclasses
import itertools
import json
import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjax.errors import InputError, PjaxError
from pjax.experiments import paper, results
from pjax.experiments.report import report, summary
from pjax.tools import plotting
from tests import pages

pytestmark = pytest.mark.usefixtures("quick_compilation")

# --- Metrics ---

accuracies = st.lists(st.floats(0, 100), min_size=1, max_size=40)


@given(accuracies, st.floats(0.01, 1))
def test_steps_to_a_fraction_are_those_of_the_first_check_that_reaches_it(validation, fraction):
    steps = [1000 * (i + 1) for i in range(len(validation))]
    reached = [s for s, v in zip(steps, validation, strict=True) if v >= fraction * max(validation)]
    assert steps[results.check_at_fraction(validation, fraction)] == min(reached)


@given(accuracies, st.integers(1, 8))
def test_stops_when_the_last_checks_are_no_better_than_those_before(validation, patience):
    before, last = validation[:-patience], validation[-patience:]
    expected = bool(before) and max(last) <= max(before)
    assert results.should_stop(validation, patience) == expected


@given(accuracies)
def test_a_summary_takes_the_test_accuracy_of_the_best_validation(validation):
    steps = [500 * (i + 1) for i in range(len(validation))]
    checks = [
        results.Check(step, step / 1000, (0.0, 1.0), (0.0, v), (0.0, float(i)))
        for i, (step, v) in enumerate(zip(steps, validation, strict=True))
    ]
    made = results.summarise(3, 1, checks, 50.0, "limit")
    best = validation.index(max(validation))
    assert (made.seed, made.test, made.best_step) == (3, best, steps[best])
    assert made.best_validation == max(validation)
    assert made.steps <= made.best_step <= made.last_step == steps[-1]
    assert made.seconds == made.steps / 1000
    assert made.ms_per_step == pytest.approx(1.0)


def test_nothing_stops_before_the_first_check():
    assert not results.should_stop([], 1)


# --- The paper ---


def test_the_paper_has_its_rows():
    counts = {}
    for row in paper.rows():
        counts[row.model, row.data] = counts.get((row.model, row.data), 0) + 1
    assert counts == {
        ("mlp", "mnist"): 21,
        ("mlp", "cifar10"): 21,
        ("mlp", "higgs"): 21,
        ("cnn", "mnist"): 19,
        ("cnn", "cifar10"): 19,
        ("rnn", "shakespeare"): 12,
    }


@pytest.mark.parametrize(
    ("key", "metric", "mean", "std"),
    [
        (("mnist", "mlp", "1x128", "sgd"), "seconds", 171.4, 21.4),
        (("mnist", "mlp", "1x128", "ff-sgd"), "test", 12.7, 1.9),
        (("mnist", "mlp", "4x128", "dr"), "test", 85.5, 0.6),
        (("mnist", "mlp", "4x128+skip", "cp"), "ms_per_step", 0.55, 0.0),
        (("cifar10", "mlp", "1x256", "fa"), "train", 73.4, 2.9),
        (("cifar10", "mlp", "4x256+skip", "adam"), "train", 89.2, 6.0),
        (("higgs", "mlp", "1x256", "ff-sgd"), "steps_k", 152.8, 191.6),
        (("higgs", "mlp", "4x256", "ap"), "steps_k", 3.4, 6.8),
        (("mnist", "cnn", "4x16", "dr"), "seconds", 7713.7, 3959.3),
        (("cifar10", "cnn", "4x16+skip", "cp"), "test", 33.7, 1.2),
        (("shakespeare", "rnn", "1x256", "adam"), "test", 49.9, 0.0),
        (("shakespeare", "rnn", "4x128+skip", "ap"), "ms_per_step", 14.44, 0.01),
    ],
)
def test_figures_of_the_paper(key, metric, mean, std):
    assert getattr(paper.lookup(*key), metric) == results.Spread(mean, std)


def test_a_row_is_found_by_name_and_with_the_papers_operator():
    exact = paper.lookup("mnist", "mlp", "1x128", "dr")
    assert exact is not None
    assert paper.lookup("mnist", "mlp", "1x128", "dr-fp") is exact
    assert paper.lookup("digits", "mlp", "1x128", "dr") is None


def test_the_papers_deviations_divide_by_the_number_of_seeds():
    """Its steps are whole thousands over five seeds; only then do such seeds exist for every row."""
    for row in paper.rows():
        total = round(5 * row.steps_k.mean)
        assert total == pytest.approx(5 * row.steps_k.mean)
        low, high = (max(0, row.steps_k.std + d) ** 2 * 5 + total**2 / 5 for d in (-0.05, 0.05))
        # The sum of five squares, which is odd where the sum of the five numbers is.
        assert any(s % 2 == total % 2 for s in range(math.ceil(low - 1e-6), math.floor(high + 1e-6) + 1))


# --- Folders ---

CONFIG = {
    "data": "mnist",
    "model": "mlp",
    "widths": [128],
    "skip": False,
    "method": "dr",
    "seeds": [0, 1],
    "batch_size": 256,
    "steps_per_batch": 50,
    "max_steps": 8000,
    "check_every": 1000,
    "patience": 5,
    "quick": False,
    "device": "A_device & 100% #1",
}


def write(parent, *, test=(95.0, 96.0), last=(8000, 6000), results_too=True, **changes):
    """A run whose test accuracies end at the given values, and its folder."""
    config = CONFIG | changes
    name = f"{results.architecture(config['widths'], config['skip'])}-{config['method']}"
    folder = parent / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    seeds = range(len(config["seeds"]))
    lines = []
    for step in range(1000, max(last[s] for s in seeds) + 1, 1000):
        values = [test[s] * (1 - 0.5 ** (step / 1000)) if step <= last[s] else None for s in seeds]
        losses = [None if v is None else 2.3 * (1 - v / 101) for v in values]
        line = {"step": step, "seconds": step / 4000, "loss": losses, "validation": values, "test": values}
        lines.append(json.dumps(line) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    if results_too:
        made = [
            results.SeedResult(
                seed, test[s], 97.0, 4000 + 1000 * s, 1.0 + s, 0.25, 96.5, 5000, last[s], "patience"
            )
            for s, seed in enumerate(config["seeds"])
        ]
        (folder / "results.jsonl").write_text("".join(json.dumps(dataclasses.asdict(r)) + "\n" for r in made))
    return folder


def test_a_folder_is_read(tmp_path):
    run = results.read_run(write(tmp_path))
    assert run.finished
    assert (run.architecture, run.method, run.seeds) == ("1x128", "dr", (0, 1))
    assert run.test == results.Spread(95.5, 0.5)
    assert run.steps_k == results.Spread(4.5, 0.5)
    assert run.seconds == results.Spread(1.5, 0.5)
    assert [check.step for check in run.checks] == list(range(1000, 8001, 1000))
    assert math.isnan(run.checks[-1].test[1])
    assert run.results[1].last_step == 6000


def test_an_unfinished_run_and_a_torn_line(tmp_path):
    folder = write(tmp_path, results_too=False)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 9000, "seconds": 1.5, "lo')
    run = results.read_run(folder)
    assert not run.finished
    assert math.isnan(run.test.mean)
    assert len(run.checks) == 8
    (folder / "metrics.jsonl").unlink()
    assert results.read_run(folder).checks == ()


def test_one_of_two_seeds_is_unfinished(tmp_path):
    folder = write(tmp_path)
    path = folder / "results.jsonl"
    path.write_text(path.read_text()[:-20])
    run = results.read_run(folder)
    assert not run.finished
    assert [result.seed for result in run.results] == [0]


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("metrics.jsonl", '"step": 2000', '"step" 2000', r"metrics\.jsonl, line 2: not JSON"),
        ("metrics.jsonl", '"step": 2000', '"step": 2000.5', r"1x128-dr, metrics 2: 'step' must be a whole"),
        (
            "metrics.jsonl",
            '"seconds": 0.25',
            '"seconds": "x"',
            r"metrics 1: 'seconds' must be a number",
        ),
        ("metrics.jsonl", '"test": [', '"test": [1.0, ', r"metrics 1: 'test' must be a list of 2 numbers"),
        ("results.jsonl", '"train"', '"trian"', r"results 1: 'train' is missing; it has .*trian"),
        ("results.jsonl", '{"seed": 0', '[]\n{"seed": 0', r"line 1: expected a JSON object, got \[\]"),
        ("config.json", '"method"', '"methud"', r"1x128-dr, config: 'method' is missing"),
        ("config.json", "[128]", "[12.8]", r"config: 'widths' must be a whole number, got 12\.8"),
        ("config.json", "[128]", "128", r"config: 'widths' must be a list, got 128"),
        ("config.json", "false", '"no"', r"config: 'skip' must be a bool, got 'no'"),
        ("config.json", "{", "", r"config\.json: not JSON"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path, name, old, new, says):
    path = write(tmp_path) / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=says):
        results.read_run(path.parent)


def test_no_run_at_all(tmp_path):
    with pytest.raises(InputError, match="expected the folder of a run"):
        results.read_run(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        results.read_runs(tmp_path / "nowhere")
    with pytest.raises(InputError, match="pjax compare"):
        report(tmp_path)


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new" / "file"
    results.write_atomically(path, b"old")

    def fail(*_):
        raise OSError(28, "disk full")

    monkeypatch.setattr("pjax.tools.files.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        results.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


# --- Tables ---


@pytest.fixture
def folder(tmp_path):
    """A block with all three architectures, a quick one, and a method without row."""
    block = tmp_path / "mlp-mnist"
    write(block)
    write(block, method="dr-fp", test=(94.0, 94.5))
    write(block, method="adam", test=(98.2, 98.1), last=(2000, 1000))
    write(block, method="dm", test=(90.0, 91.0))
    write(block, widths=[128] * 4, test=(85.0, 85.4))
    write(block, widths=[128] * 4, method="sgd", results_too=False)
    write(block, widths=[128] * 4, skip=True, test=(80.0, 81.0))
    quick = {"quick": True, "seeds": [0], "batch_size": 64, "max_steps": 2500}
    write(tmp_path / "quick" / "cnn-cifar10", data="cifar10", model="cnn", widths=[32], test=(27.0,), **quick)
    return tmp_path


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table(text):
    """The cells of the first table of a text, without its header."""
    lines = itertools.dropwhile(lambda line: not line.startswith("|"), text.splitlines())
    return [cells(line) for line in itertools.takewhile(lambda line: line.startswith("|"), lines)][2:]


def test_markdown(folder):
    made = report(folder, plots=())
    assert made == (folder / "report.md",)
    text = made[0].read_text(encoding="utf-8")
    full, quick = (text.index(t) for t in ("## MLP on MNIST", "## CNN on CIFAR-10 (quick"))
    assert full < quick
    block = text[full:quick]
    assert (
        "Full version: 2 seeds, A_device & 100% #1, batches of 256; at most 8,000 steps on 160 batches"
        in block
    )
    assert "at most 8,000 steps on 8,000 batches for the others" in block
    assert "Unfinished: 4 × 128 SGD (2 of 2 seeds)." in block
    first, _, folded = block.partition("<details markdown>")
    rows, more = table(first), table(folded)
    assert [row[:2] for row in rows] == [row[:2] for row in more]
    assert [(row[0], row[1]) for row in rows] == [
        ("1 × 128", "Adam"),
        ("", "DR"),
        ("", "DM"),
        ("", "DR, fixed point"),
        ("4 × 128", "SGD"),
        ("", "DR"),
        ("4 × 128 + skip", "DR"),
    ]
    dr, dm, unfinished = rows[1], rows[2], rows[4]
    assert dr[2:5] == ["95.8 ± 0.6", "95.5 ± 0.5", "−0.3"]
    assert more[1][2:] == [
        "97.0 ± 0.0 (96.9)",
        "4.5 ± 0.5 (16.6)",
        "1.50 (3.7)",
        "0.250 (0.22)",
    ]
    assert more[2][2] == "97.0 ± 0.0"
    assert more[4][2] == "– (98.8)"
    assert dm[2:5] == ["–", "90.5 ± 0.5", "–"]
    assert unfinished[2:5] == ["96.9 ± 0.2", "–", "–"]
    assert "`pjax compare --preset mlp-mnist`" in block
    assert "|" not in text[:full]  # nothing has five seeds, so no row of the paper is there
    said = text[quick:]
    assert "Quick version, not trained to the end: 1 seed" in said
    assert "batches of 64; at most 2,500 steps on 50 batches" in said
    assert "| 1 × 32 | DR | 27.6 ± 0.6 | 27.0 | −0.6 |" in said
    assert "`pjax compare --preset cnn-cifar10 --quick`" in said


FIVE = {"seeds": [0, 1, 2, 3, 4], "last": (8000,) * 5}


def test_rows_of_the_paper_are_counted_and_those_that_are_missing_shown(tmp_path):
    block = tmp_path / "mlp-mnist"
    write(block, test=(94.0,) * 5, **FIVE)  # 1.8 points below
    write(block, test=(92.0,) * 5, method="dr-fp", **FIVE)  # the same row, which does not count twice
    write(block, test=(96.0,) * 5, method="adam", **FIVE)  # 2.1 points below
    write(block, test=(90.0, 92.0), method="ap")  # too few seeds
    write(block, test=(98.0,) * 5, method="ep", **FIVE)  # none of the paper's
    write(tmp_path, test=(85.5,) * 5, widths=[128] * 4, study="learning", **FIVE)
    text = texts(tmp_path)
    line = "2 of 113 rows of the paper, 1 of them within 2 points of its test accuracy"
    assert summary(results.read_runs(tmp_path)) == f"{line} (DR, AP, CP: 1 of 51, 1 of them)"
    overview, _, blocks = text.partition("## MLP on MNIST")
    counted = {tuple(row[:2]): row[2:] for row in table(overview)}
    assert counted["[MLP](#mlp-on-mnist)", "MNIST"] == ["2 of 21", "1", "1 of 9", "1"]
    assert counted["CNN", "CIFAR-10"] == ["0 of 19", "0", "0 of 9", "0"]
    assert counted["All", ""] == ["2 of 113", "1", "1 of 51", "1"]
    rows = table(blocks.partition("<details markdown>")[0])
    assert len(rows) == 21 + 2  # EP and DR by fixed points besides
    assert ["", "CP", "92.4 ± 0.6", "–", "–", "–"] in rows
    assert ["4 × 128", "SGD", "96.9 ± 0.2", "–", "–", "–"] in rows
    assert "Not counted, fewer than 5 seeds: 1 × 128 AP (2 of 2 seeds)." in blocks


def test_seconds_to_the_papers_best_projection(tmp_path):
    """With one hidden layer DR, 95.8 %; the mean of both seeds counts, also when one has stopped."""
    write(tmp_path, method="adam", test=(98.0, 97.0), last=(8000, 2000))
    write(tmp_path, method="sgd", test=(98.0, 98.0), last=(8000, 8000))
    rows = {row[1]: row for row in table(texts(tmp_path))}
    assert rows["Adam"][5] == "–"
    assert rows["SGD"][5] == "1.5"  # a check is 4000 steps a second, and the sixth the first with 95.8


def test_a_table_without_the_papers_rows_has_only_ours(tmp_path):
    write(tmp_path, data="digits")
    text = texts(tmp_path)
    assert "Paper's" not in text
    assert "the paper has" not in text
    assert table(text) == [["1 × 128", "DR", "95.5 ± 0.5", "97.0 ± 0.0", "4.5 ± 0.5", "1.50", "0.250"]]


def test_runs_on_two_devices_are_two_tables(tmp_path):
    write(tmp_path, device="one")
    write(tmp_path, device="two", method="ap", test=(90.0, 91.0))
    text = report(tmp_path, plots=())[0].read_text(encoding="utf-8")
    assert text.count("## MLP on MNIST") == 2
    assert "2 seeds, one," in text
    assert "2 seeds, two," in text


def test_two_runs_of_a_method_are_told_apart(tmp_path):
    write(tmp_path).rename(tmp_path / "first")
    write(tmp_path, test=(90.0, 91.0))
    text = report(tmp_path, plots=())[0].read_text(encoding="utf-8")
    assert "DR (first)" in text
    assert "DR (1x128-dr)" in text


def test_a_study_is_shown_beside_adam(tmp_path):
    common = {"study": "learning", "patience": 0, "steps_per_batch": 1, "max_steps": 8000}
    write(tmp_path, method="adam", test=(96.0, 98.0), last=(8000, 8000), **common)
    write(tmp_path, method="ep", test=(95.0, 96.0), last=(8000, 8000), **common)
    write(tmp_path, method="ap", test=(50.0, 60.0), last=(8000, 8000), **(common | {"steps_per_batch": 50}))
    report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "| " in line]
    ep, adam, ap = (next(row for row in rows if row[1] == name) for name in ("EP", "Adam", "AP"))
    assert "Learning: MLP on MNIST" in text
    assert ep[0] == "1 × 128"
    assert ep[2:5] == ["95.50 ± 0.50", "−1.50", "97.0"]
    # 97 % of Adam's 97, which falls short by a half at the first check, by a quarter at the next, and so on
    assert adam[5:7] == ["5,000", "1.25"]
    assert ep[5:7] == ["6,000", "1.5"]
    assert ap[5:7] == ["–", "–"]
    assert (tmp_path / "figures" / "learning-mlp-mnist.png").exists()
    assert "Seconds to 97%" in text


def test_the_study_of_depth_has_a_line_for_each_method(tmp_path):
    from pjax.experiments import plots

    for depth, method in itertools.product((1, 4, 64), ("ep", "ap")):
        write(tmp_path, widths=[128] * depth, method=method, study="depth", test=(97.0 - depth, 96.0 - depth))
    report(tmp_path)
    assert (tmp_path / "figures" / "depth.png").exists()
    (axis,) = plots.accuracy_over_depth(results.read_runs(tmp_path)).axes
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1", "4", "64"]
    lines = {line.get_color(): line for line in axis.lines if len(line.get_xdata()) == 3}
    assert lines[plots.COLOURS["ep"]].get_xdata() == pytest.approx([1, 4, 64])
    assert lines[plots.COLOURS["ap"]].get_ydata() == pytest.approx([95.5, 92.5, 32.5])


def test_other_studies_have_bars_and_no_times(tmp_path):
    for method in ("adam:precision=bfloat16", "adam", "ep:precision=bfloat16"):
        write(tmp_path, method=method, study="precision", levels=4)
    report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "Seconds to" not in text
    assert "EP, precision bfloat16" in text
    assert "1 × 128, 4 levels" in text
    assert (tmp_path / "figures" / "precision.png").exists()


@pytest.mark.parametrize("study", ["depth", "precision", "exchanges", "learning"])
def test_a_study_of_which_nothing_has_ended_is_reported_so_far(tmp_path, study):
    write(
        tmp_path, method="adam:groups=8" if study == "exchanges" else "adam", study=study, results_too=False
    )
    report(tmp_path)
    assert "Unfinished: 1 × 128 Adam" in (tmp_path / "report.md").read_text()


def test_the_study_of_exchanges_counts_bytes(tmp_path):
    common = {"study": "exchanges", "patience": 0, "max_steps": 8000, "last": (8000, 8000)}
    common |= {"check_every": 1000}
    write(tmp_path, method="adam:groups=8", steps_per_batch=1, test=(96.0, 98.0), **common)
    write(tmp_path, method="adam:groups=8:sync_every=100", steps_per_batch=1, **common)
    write(tmp_path, method="ap:groups=8:sync_every=5", steps_per_batch=10, **common)
    report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "| " in line]
    adam, seldom, ap = (next(r for r in rows if r[1] == name) for name in (
        "Adam, groups 8", "Adam, groups 8, sync_every 100", "AP, groups 8, sync_every 5",
    ))  # fmt: skip
    # 784 x 128 + 128 + 128 x 10 parameters of four bytes, 2 x 7/8 of which each device sends
    batch = 2 * 7 / 8 * 4 * (784 * 128 + 128 + 128 * 10) / 1e6
    assert adam[6:] == ["1", f"{8000 * batch:,.0f}", f"{5000 * batch:,.0f}"]
    assert seldom[6:8] == ["1/100", f"{80 * batch:.3g}"]
    assert ap[6:8] == ["2", f"{800 * 2 * batch:,.0f}"]
    assert seldom[3] == "−1.50"
    assert (tmp_path / "figures" / "exchanges.png").exists()


def test_diverged_and_cut_runs_are_named(tmp_path):
    path = write(tmp_path) / "results.jsonl"
    path.write_text(path.read_text().replace("patience", "diverged", 1).replace("patience", "limit", 1))
    text = report(tmp_path, plots=())[0].read_text(encoding="utf-8")
    assert "Diverged: 1 × 128 DR (1 of 2 seeds)." in text
    assert "Cut at the largest number of steps: 1 × 128 DR (1 of 2 seeds)." in text


def test_unknown_formats_are_refused(folder):
    with pytest.raises(InputError, match="format of plots must be one of png, svg; got 'gif'"):
        report(folder, plots=("gif",))
    assert not list(folder.rglob("report.*"))


# --- Packed runs ---


def texts(folder):
    """All that a report writes, but for plots."""
    (path,) = report(folder, plots=())
    return path.read_text(encoding="utf-8")


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def packed_names(folder):
    return sorted(path.name for path in folder.rglob("*.runs.jsonl"))


def test_the_report_of_packed_runs_is_the_same(folder):
    write(folder / "learning", study="learning", method="adam")
    before = texts(folder)
    unfinished = {run.folder for run in results.read_runs(folder) if not run.finished}
    results.pack(folder)
    assert packed_names(folder) == ["learning.runs.jsonl", "paper.runs.jsonl", "quick.runs.jsonl"]
    assert {path.parent for path in folder.rglob("config.json")} == unfinished
    assert texts(folder) == before


COMMITTED = pages.ROOT / "results"


@pytest.mark.skipif(not (COMMITTED / "paper.runs.jsonl").exists(), reason="only in the repository")
def test_the_report_of_the_repository_is_that_of_its_runs(tmp_path):
    (made,) = report(COMMITTED, tmp_path, plots=())
    committed = (COMMITTED / "report.md").read_text(encoding="utf-8").splitlines()
    pictures = [i for i, line in enumerate(committed) if line.startswith("![")]
    assert all((COMMITTED / committed[i].partition("(")[2].rstrip(")")).exists() for i in pictures)
    words = [line for line in committed if line and not line.startswith("![")]
    assert [line for line in made.read_text(encoding="utf-8").splitlines() if line] == words


def test_the_same_runs_are_packed_to_the_same_bytes(tmp_path):
    for order, place in ((("ap", "dr"), "one"), (("dr", "ap"), "two")):
        for method in order:
            write(tmp_path / place, method=method)
            results.pack(tmp_path / place)  # the second is added to the first
    assert len(results.read_runs(tmp_path / "one")) == 2
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_unpacked_runs_are_what_they_were(tmp_path):
    write(tmp_path / "a")
    write(tmp_path / "b", method="ap")
    for path in tmp_path.rglob("config.json"):
        results.write_object(path, json.loads(path.read_text()))  # as training writes it
    before = files(tmp_path)
    results.pack(tmp_path)
    results.unpack(tmp_path, tmp_path / "a")
    assert {path: text for path, text in before.items() if path.parts[0] == "a"}.items() <= files(
        tmp_path
    ).items()
    assert not (tmp_path / "b").exists()


def test_a_folder_counts_before_what_was_packed_of_it(tmp_path):
    write(tmp_path)
    results.pack(tmp_path)
    write(tmp_path, test=(50.0, 50.0))
    (run,) = results.read_runs(tmp_path)
    assert run.test.mean == 50.0
    results.pack(tmp_path)
    assert not list(tmp_path.rglob("config.json"))
    assert results.read_runs(tmp_path) == (run,)


def test_other_files_of_a_run_stay(tmp_path):
    kept = write(tmp_path) / "run.png"
    kept.write_bytes(b"picture")
    results.pack(tmp_path)
    assert list(kept.parent.iterdir()) == [kept]


def test_a_run_with_a_checkpoint_stays(tmp_path):
    """It can be evaluated, and go on."""
    (write(tmp_path) / "checkpoint-3.npz").write_bytes(b"")
    with pytest.raises(InputError, match="is without a checkpoint"):
        results.pack(tmp_path)
    assert list(tmp_path.rglob("config.json"))


def test_a_run_without_checks_is_packed(tmp_path):
    (write(tmp_path) / "metrics.jsonl").unlink()
    results.pack(tmp_path)
    (run,) = results.read_runs(tmp_path)
    assert run.finished
    assert run.checks == ()


def test_nothing_to_pack(tmp_path):
    write(tmp_path, results_too=False)
    with pytest.raises(InputError, match="none has ended"):
        results.pack(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda line: line | {"run": "../elsewhere"}, "'run' must be a path below"),
        (lambda line: line | {"run": "/elsewhere"}, "'run' must be a path below"),
        (lambda line: line | {"config": []}, r"line 1, config: expected a JSON object, got \[\]"),
        (lambda line: line | {"metrics": [1]}, "line 1, metrics 1: expected a JSON object, got 1"),
        (lambda line: line | {"results": [{}]}, "line 1, results 1: 'seed' is missing"),
        (lambda line: {"run": line["run"]}, "'metrics' must be a list, got None"),
    ],
)
def test_packed_lines_that_are_no_runs(tmp_path, change, says):
    write(tmp_path)
    (path,) = results.pack(tmp_path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))) + "\n")
    with pytest.raises(InputError, match=says):
        results.read_runs(tmp_path)


def test_a_packed_file_that_is_cut_short(tmp_path):
    write(tmp_path)
    (path,) = results.pack(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="last line has no end"):
        results.read_runs(tmp_path)


# --- Plots ---

FIGURES = ["mlp-mnist", "depth-and-skip", "quick-cnn-cifar10"]


def test_plots(folder):
    made = report(folder, plots=("png", "svg"))
    names = {f"{name}.{ending}" for name in FIGURES for ending in ("png", "svg")}
    assert {path.name for path in made[1:]} == names
    text = made[0].read_text(encoding="utf-8")
    for path in made[1:]:
        data = path.read_bytes()
        if path.suffix == ".png":
            assert data.startswith(b"\x89PNG")
            assert 10_000 < len(data) < 300_000
            assert f"(figures/{path.name})" in text
        else:
            assert b"</svg>" in data
            assert b"<dc:date>" not in data
            assert 10_000 < len(data) < 400_000


def test_plots_are_the_same_bytes_again(tmp_path):
    write(tmp_path)
    first = {path.name: path.read_bytes() for path in report(tmp_path)}
    assert {name.rpartition(".")[2] for name in first} == {"md", "png"}  # one format of plots
    again = {path.name: path.read_bytes() for path in report(tmp_path)}
    assert first == again


def test_lines_of_a_figure(tmp_path):
    from pjax.experiments import plots

    write(tmp_path)
    write(tmp_path, method="adam", test=(98.2, 98.0), last=(2000, 1000))
    figure = plots.training_curves(results.read_runs(tmp_path))
    axis, below = figure.axes
    assert (axis.get_xlabel(), below.get_xlabel()) == ("steps", "seconds")
    words = " ".join(text.get_text() for text in [*figure.texts, *axis.texts])
    for word in ("MLP on MNIST", "A_device", "2 seeds", "DR 95.5", "Adam 98.1", "the paper, 5 seeds"):
        assert word in words
    alone = plots.training_curves(results.read_runs(tmp_path), ("steps",))
    assert [axis.get_xlabel() for axis in alone.axes] == ["steps"]
    diamonds = {line.get_ydata()[0] for line in axis.lines if line.get_marker() == "D"}
    assert diamonds == {95.8, 98.1}
    colours = {line.get_color() for line in axis.lines}
    assert {plots.COLOURS["dr"], plots.COLOURS["adam"]} <= colours


LONG = "ap:metric=balanced:extrapolate=tensor:outer=adam:steps=10"


def test_nothing_is_cut_off(tmp_path):
    """Whatever the labels: nothing touches the border of the picture."""
    from PIL import Image

    from pjax.experiments import plots

    for number in range(20):
        settings = {"method": LONG, "steps_per_batch": 10, "seeds": [number], "test": (95.0 + number / 10,)}
        write(tmp_path, **settings, last=(8000,)).rename(tmp_path / f"a-folder-with-a-long-name-{number}")
    runs = results.read_runs(tmp_path)
    figures = {
        "one": plots.training_curves(runs[:1]),
        "many": plots.training_curves(runs),
        "bars": plots.accuracies(runs),
        "single": plots.single_run(runs[0]),
    }
    for name, figure in figures.items():
        (path,) = plotting.save(figure, tmp_path / name, ("png",))
        pixels = np.asarray(Image.open(path).convert("L"))
        for edge in (pixels[:5], pixels[-5:], pixels[:, :5], pixels[:, -5:]):
            assert (edge == 255).all(), name


@pytest.mark.parametrize("seeds", [([0], [1], [2]), ([0, 1], [0, 1], [0, 1])])
def test_runs_of_one_method_are_told_apart_in_plots(tmp_path, seeds):
    from pjax.experiments import plots

    for number, own in enumerate(seeds):
        write(tmp_path, method="ep", seeds=own, steps_per_batch=1).rename(tmp_path / f"run-{number}")
    figure = plots.training_curves(results.read_runs(tmp_path))
    axis = figure.axes[0]
    labels = [text.get_text() for text in axis.texts]
    expected = [f"EP (seed {n})" if len(own) == 1 else f"EP (run-{n})" for n, own in enumerate(seeds)]
    assert [" ".join(label.split()[:-1]) for label in labels] == expected
    assert len({text.get_color() for text in axis.texts}) == 3


@pytest.mark.parametrize(("test", "stretched"), [((95.0, 96.0), True), ((55.0, 56.0), False)])
def test_an_axis_says_that_it_is_stretched(tmp_path, test, stretched):
    from pjax.experiments import plots

    run = results.read_run(write(tmp_path, test=test, data="digits"))
    for figure in (plots.training_curves([run]), plots.single_run(run)):
        labels = " ".join(axis.get_ylabel() for axis in figure.axes)
        assert "accuracy (%)" in labels
        assert ("stretched near 100" in labels) is stretched


@pytest.mark.parametrize("test", [(99.9,), (100.0,)])
def test_accuracies_near_100_are_on_the_scale(tmp_path, test):
    from pjax.experiments import plots

    run = results.read_run(write(tmp_path, seeds=[0], test=test, data="digits"))
    checks = [dataclasses.replace(check, validation=test, test=test) for check in run.checks]
    run = dataclasses.replace(run, checks=tuple(checks))
    for figure in (plots.training_curves([run]), plots.single_run(run)):
        axis = figure.axes[-1]
        low, high = (axis.transData.transform((0, at))[1] for at in axis.get_ylim())
        assert low < axis.transData.transform((0, test[0]))[1] < high


def test_layers_are_whole_numbers(tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    from benchmarks import dilution

    drawn = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: drawn.append(figure))
    dilution.draw({"gradient": ([1.0] * 5, [1.0] * 5)}, tmp_path / "picture.png")
    for axis in drawn[0].axes:
        assert all(float(tick).is_integer() for tick in axis.get_xticks())
    plt.close(drawn[0])


def test_a_seed_that_stopped_keeps_its_last_value(tmp_path):
    from pjax.experiments import plots

    run = results.read_run(write(tmp_path))
    values = results.per_seed(run, "test")
    assert np.isfinite(values).all()
    assert (values[5:, 1] == values[5, 1]).all()
    steps, mean, std = plots.curve(run)
    assert steps[-1] == 8000
    assert mean[-1] == pytest.approx(values[-1].mean())
    assert std[-1] == pytest.approx(values[-1].std())
    seconds, _, _ = plots.curve(run, "seconds")
    assert seconds[-1] == 2.0


@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_the_plot_of_one_run(tmp_path, seeds):
    from pjax.experiments import plots

    folder = write(tmp_path, seeds=seeds, data="digits", results_too=len(seeds) == 2)
    path = plots.plot_run(folder)
    assert path == folder / "run.png"
    assert path.stat().st_size > 10_000


def test_nothing_to_plot(tmp_path):
    from pjax.experiments import plots

    folder = write(tmp_path, results_too=False)
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match="no run has a check"):
        plots.plot_run(folder)
    with pytest.raises(InputError, match="no run has a check"):
        plots.training_curves(results.read_runs(tmp_path))
    assert [path.suffix for path in report(tmp_path)] == [".md"]


def test_without_matplotlib(folder, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PjaxError, match=r'pip install "pjax-learn\[experiments\]"'):
        report(folder)
    assert not (folder / "report.md").exists()
    assert report(folder, plots=())


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.2))
def test_labels_do_not_overlap_and_keep_their_order(positions, gap):
    placed = plotting.spread_apart(positions, gap)
    ranks = sorted(range(len(positions)), key=positions.__getitem__)
    moved = [placed[i] for i in ranks]
    assert all(b - a >= gap - 1e-9 for a, b in itertools.pairwise(moved))
    assert np.mean(placed) == pytest.approx(np.mean(positions))
    distances = [b - a for a, b in itertools.pairwise(sorted(positions))]
    if all(d >= gap for d in distances):
        assert placed == pytest.approx(positions)
