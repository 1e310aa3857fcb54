"""Training: kill and resume, checkpoints that do not fit, seeds together and one by one."""

import concurrent.futures
import json
import math
import os
import socket
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjax
from pjax.experiments import checkpoint, data, methods, models
from pjax.experiments import train as training
from pjax.experiments.compare import PRESETS, Preset, compare
from pjax.experiments.config import Config, parse_widths
from pjax.experiments.loop import Loop
from pjax.experiments.results import Check, read_lines, summarise
from pjax.experiments.train import Progress, load_params, train
from pjax.tools import trees

pytestmark = pytest.mark.usefixtures("quick_compilation")

SMALL = {"data": "digits", "widths": (16,), "batch_size": 64, "patience": 0}
ADAM = Config(method="adam", max_steps=120, check_every=20, **SMALL)


class StopError(Exception):
    """Where a test interrupts a run."""


def interrupt_at(step: float):
    def progress(p: Progress) -> None:
        if p.step >= step:
            raise StopError

    return progress


def outcome(folder: Path) -> tuple[dict[str, np.ndarray], list[dict], list[dict]]:
    """All that a run leaves, but for times."""
    with np.load(checkpoint.last(folder), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files if name != "note"}
    lines = []
    for file in ("metrics.jsonl", "results.jsonl"):
        text = (folder / file).read_text().splitlines()
        lines.append([{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in text])
    return arrays, *lines


TIMES = ("seconds", "ms_per_step")


def assert_same(a: Path, b: Path) -> None:
    (arrays, *lines), (others, *other_lines) = outcome(a), outcome(b)
    assert lines == other_lines
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        assert array.tobytes() == others[name].tobytes(), name


@pytest.mark.parametrize(("method", "together"), [("adam", True), ("dr", False)])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, method: str, together: bool) -> None:
    steps = {"max_steps": 300, "check_every": 100} if method == "dr" else {"max_steps": 60, "check_every": 20}
    config = Config(method=method, seeds=(3, 4), **steps, **SMALL)
    train(config, tmp_path / "whole", together=together)
    # Before the first check, and after it.
    for part in (0.5, 1.2):
        with pytest.raises(StopError):
            train(
                config,
                tmp_path / "parts",
                resume=(tmp_path / "parts").exists(),
                together=together,
                progress=interrupt_at(part * config.check_every),
            )
    train(config, tmp_path / "parts", resume=True, together=together)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_torn_line_of_metrics_is_written_again(tmp_path: Path) -> None:
    train(ADAM, tmp_path / "whole")
    with pytest.raises(StopError):
        train(ADAM, tmp_path / "run", progress=interrupt_at(50))
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"step": 60, "seco')
    train(None, tmp_path / "run", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_seeds_together_are_the_seeds_one_by_one(tmp_path: Path) -> None:
    config = Config(method="dr", seeds=(0, 1), max_steps=200, check_every=100, **SMALL)
    one, other = (train(config, tmp_path / str(t), together=t) for t in (False, True))
    for a, b in zip(one.checks, other.checks, strict=True):
        np.testing.assert_allclose(a.loss, b.loss, rtol=1e-3)
        np.testing.assert_allclose(a.test, b.test, atol=1.0)
    single = train(Config(**(config.as_json() | {"seeds": (1,)})), tmp_path / "single")
    assert single.checks[0].loss[0] == one.checks[0].loss[1]


def test_early_stopping_keeps_the_best(tmp_path: Path) -> None:
    config = Config(method="adam", max_steps=2000, check_every=20, **SMALL | {"patience": 3})
    run = train(config, tmp_path / "run")
    (result,) = run.results
    validation = [check.validation[0] for check in run.checks]
    assert result.stopped == "patience"
    assert result.last_step == result.best_step + 60 == run.checks[-1].step
    assert result.best_validation == max(validation)
    params = load_params(tmp_path / "run")
    loop = Loop(config)
    stacked = {name: value[None] for name, value in params.items()}
    assert loop.accuracy(stacked, "test")[0] == pytest.approx(result.test, abs=1e-4)
    assert loop.accuracy(stacked, "val")[0] == pytest.approx(result.best_validation, abs=1e-4)


def test_accuracy_counts_every_sample_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(ADAM)
    params = loop.params(loop.start())
    logits = loop.model.apply({k: v[0] for k, v in params.items()}, loop.see(loop.dataset.x_test))
    expected = 100 * np.mean(np.argmax(logits, -1) == loop.dataset.y_test)
    monkeypatch.setattr("pjax.experiments.loop.EVALUATED", 77)
    assert loop.accuracy(params, "test")[0] == pytest.approx(expected)


def test_accuracy_on_part_of_the_data() -> None:
    loop = Loop(Config(**(ADAM.as_json() | {"evaluated": 50})))
    params = loop.params(loop.start())
    logits = loop.model.apply({k: v[0] for k, v in params.items()}, loop.see(loop.dataset.x_test[:50]))
    expected = 100 * np.mean(np.argmax(logits, -1) == loop.dataset.y_test[:50])
    assert loop.accuracy(params, "test")[0] == pytest.approx(expected)


def test_a_run_that_diverges_says_so_and_ends(tmp_path: Path) -> None:
    config = Config(method="sgd", learning_rate=1e30, max_steps=1000, check_every=20, **SMALL)
    run = train(config, tmp_path / "run")
    assert run.diverged
    assert run.results[0].stopped == "diverged"
    assert run.results[0].last_step < 1000
    assert all(np.isfinite(value).all() for value in load_params(tmp_path / "run").values())


def test_parameters_that_are_not_finite_have_no_accuracy(tmp_path: Path) -> None:
    """Neither that of the first class, nor do they count as the best."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 3)), (rng.random(300) > 0.9).astype(int)
    config = Config(method="sgd", learning_rate=1e38, max_steps=4, check_every=1)
    run = train(config, tmp_path / "run", data=(x, y))
    assert run.results[0].stopped == "diverged"
    assert run.checks[-1].test == (0.0,)
    assert run.results[0].best_step < run.checks[-1].step
    checks = [Check(10, 1.0, (1.0,), (50.0,), (40.0,)), Check(20, 2.0, (math.nan,), (99.0,), (99.0,))]
    assert summarise(0, 0, checks, 50.0, "diverged").test == 40.0


def test_the_last_check_is_at_the_last_step(tmp_path: Path) -> None:
    """Wherever checks and calls come to lie before it; seeds together or one by one."""
    for together in (False, True):
        config = Config(method="adam", seeds=(0, 1), max_steps=50, check_every=20, **SMALL)
        run = train(config, tmp_path / f"run-{together}", together=together)
        assert [check.step for check in run.checks] == [20, 40, 50]
        assert {result.stopped for result in run.results} == {"limit"}
        assert {result.last_step for result in run.results} == {50}
    later = train(Config(method="adam", max_steps=10, check_every=20, **SMALL), tmp_path / "later")
    assert [check.step for check in later.checks] == [10]


class TestExtending:
    LONG = Config(method="adam", max_steps=60, check_every=20, **SMALL)
    SHORT = Config(method="adam", max_steps=40, check_every=20, **SMALL)

    def test_a_run_that_has_ended_goes_on(self, tmp_path: Path) -> None:
        train(self.LONG, tmp_path / "whole")
        train(self.SHORT, tmp_path / "run")
        assert train(self.SHORT, tmp_path / "run", resume=True, max_steps=60).finished
        assert_same(tmp_path / "whole", tmp_path / "run")
        saved = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("whole", "run")]
        assert saved[0] == saved[1]

    def test_an_extension_that_is_interrupted_goes_on(self, tmp_path: Path) -> None:
        train(self.LONG, tmp_path / "whole")
        train(self.SHORT, tmp_path / "run")
        with pytest.raises(StopError):
            train(None, tmp_path / "run", resume=True, max_steps=60, progress=interrupt_at(50))
        assert not (tmp_path / "run" / "results.jsonl").exists()
        train(None, tmp_path / "run", resume=True)
        assert_same(tmp_path / "whole", tmp_path / "run")

    def test_what_cannot_be_extended(self, tmp_path: Path) -> None:
        train(self.SHORT, tmp_path / "run")
        before = outcome(tmp_path / "run")
        with pytest.raises(pjax.PjaxError, match="has made 40 steps; max_steps must be more, got 20"):
            train(None, tmp_path / "run", resume=True, max_steps=20)
        assert train(None, tmp_path / "run", resume=True, max_steps=40).checks[-1].step == 40
        with pytest.raises(pjax.PjaxError, match=r"no seed can go on.*patience"):
            train(None, tmp_path / "run", resume=True, max_steps=40, patience=1)
        with pytest.raises(pjax.PjaxError, match="for a run that is resumed"):
            train(self.SHORT, tmp_path / "other", max_steps=40)
        assert str(outcome(tmp_path / "run")) == str(before)
        checkpoint.remove(tmp_path / "run")
        with pytest.raises(pjax.PjaxError, match="there is no checkpoint, so the run cannot go on"):
            train(None, tmp_path / "run", resume=True, max_steps=60)

    def test_after_stopping_early_patience_must_grow(self, tmp_path: Path) -> None:
        config = Config(method="adam", max_steps=2000, check_every=20, **SMALL | {"patience": 2})
        ended = train(config, tmp_path / "run").results[0]
        assert ended.stopped == "patience"
        with pytest.raises(pjax.PjaxError, match="no seed can go on"):
            train(None, tmp_path / "run", resume=True, max_steps=3000)
        longer = train(None, tmp_path / "run", resume=True, max_steps=ended.last_step + 40, patience=0)
        assert longer.results[0].last_step == ended.last_step + 40


class TestErrors:
    def test_a_folder_with_a_run_is_not_overwritten(self, tmp_path: Path) -> None:
        train(ADAM, tmp_path / "run")
        before = outcome(tmp_path / "run")
        with pytest.raises(pjax.PjaxError, match="there is a run already; resume it"):
            train(ADAM, tmp_path / "run")
        assert str(outcome(tmp_path / "run")) == str(before)
        assert train(None, tmp_path / "run", resume=True).finished

    def test_another_configuration_is_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(StopError):
            train(ADAM, tmp_path / "run", progress=interrupt_at(50))
        other = Config(**(ADAM.as_json() | {"batch_size": 32}))
        with pytest.raises(pjax.PjaxError, match="batch_size is 64 there and 32 here"):
            train(other, tmp_path / "run", resume=True)

    def test_nothing_to_resume(self, tmp_path: Path) -> None:
        with pytest.raises(pjax.PjaxError, match="no run to resume"):
            train(None, tmp_path / "none", resume=True)
        with pytest.raises(pjax.PjaxError, match="which run to resume"):
            train(None, resume=True)

    def test_a_damaged_checkpoint_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StopError):
            train(ADAM, tmp_path / "run", progress=interrupt_at(30))
        path = tmp_path / "run" / "checkpoint-20.npz"
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(pjax.PjaxError, match=r"checkpoint-20\.npz: not a checkpoint, or cut off"):
            train(None, tmp_path / "run", resume=True)

    @pytest.mark.parametrize(
        ("note", "message"),
        [
            ([], "expected a JSON object"),
            ({}, "'config' is missing"),
            ({"batch": "x"}, "'batch' must be a whole"),
        ],
    )
    def test_a_checkpoint_of_something_else_is_named(
        self, tmp_path: Path, note: object, message: str
    ) -> None:
        train(ADAM, tmp_path)
        path = checkpoint.last(tmp_path)
        assert path is not None
        arrays, own = trees.read(path)
        trees.write(path, arrays, own | note if note else note)
        with pytest.raises(pjax.PjaxError, match=rf"checkpoint-\d+\.npz: {message}"):
            train(None, tmp_path, resume=True, max_steps=2 * ADAM.max_steps)


DEEP = "[" * 100_000 + "]" * 100_000


def test_brackets_without_end(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(DEEP)
    with pytest.raises(pjax.PjaxError, match=r"config\.json: not JSON \(nested too deeply\)"):
        train(None, tmp_path, resume=True)
    (tmp_path / "metrics.jsonl").write_text(DEEP + "\n")
    with pytest.raises(pjax.PjaxError, match=r"metrics\.jsonl, line 1: not JSON \(nested too deeply\)"):
        list(read_lines(tmp_path / "metrics.jsonl"))
    np.savez(tmp_path / "checkpoint-1.npz", note=np.frombuffer(DEEP.encode(), np.uint8))
    with pytest.raises(pjax.PjaxError, match="nested too deeply"):
        checkpoint.last(tmp_path)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    train(ADAM, tmp_path / "whole")
    with pytest.raises(StopError):
        train(ADAM, tmp_path / "run", progress=interrupt_at(50))
    path = tmp_path / "run" / "checkpoint-40.npz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=r"checkpoint-40\.npz: not a checkpoint.*checkpoint-20\.npz"):
        train(None, tmp_path / "run", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "run")


def with_seed(seed: int) -> Config:
    return Config(**(ADAM.as_json() | {"seeds": (seed,)}))


def test_runs_that_start_together_have_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (1, 2):
        train(with_seed(seed), tmp_path / f"alone-{seed}")
    monkeypatch.chdir(tmp_path)
    # Each waits until the other knows where it will write.
    meeting = threading.Barrier(2, timeout=60)
    met = threading.local()

    def wait_once(_: Progress) -> None:
        if not hasattr(met, "yes"):
            met.yes = True
            meeting.wait()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        runs = list(pool.map(lambda seed: train(with_seed(seed), progress=wait_once), (1, 2)))
    assert {run.folder.name for run in runs} == {"digits-mlp-1x16-adam", "digits-mlp-1x16-adam-2"}
    for seed, run in zip((1, 2), runs, strict=True):
        assert_same(tmp_path / f"alone-{seed}", run.folder)


def test_a_run_under_way_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By all that write into its folder."""
    preset = Preset("digits", "mlp", ("1x16",), ("adam",), {"seeds": (0,), "steps": 120, "batch_size": 64})
    monkeypatch.setitem(PRESETS, "small", preset)
    (config,) = preset.configs(quick=True)
    train(config, tmp_path / "whole")
    folder = tmp_path / "quick" / "small" / config.run_name
    tried: list[str] = []

    def disturb(p: Progress) -> None:
        if p.step not in (24.0, 72.0) or math.isnan(p.test):
            return
        for other in (
            lambda: train(config, folder, resume=True),
            lambda: train(None, folder, resume=True),
            lambda: train(config, folder),
            lambda: compare("small", tmp_path, quick=True),
            lambda: training.time_again(folder),
        ):
            with pytest.raises(pjax.PjaxError, match=r"process \d+ on .*|there is a run already") as caught:
                other()
            tried.append(str(caught.value))

    train(config, folder, progress=disturb)
    assert len(tried) == 10
    assert f"process {os.getpid()} on {socket.gethostname()} writes into it" in tried[0]
    assert_same(tmp_path / "whole", folder)
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "results.jsonl",
        "checkpoint-96.npz",
        "checkpoint-120.npz",
    }
    assert train(None, folder, resume=True).finished


def test_a_run_that_could_not_begin_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    too_large = Config(**(ADAM.as_json() | {"batch_size": 5000}))
    for folder in (None, tmp_path / "some" / "where"):
        with pytest.raises(pjax.PjaxError, match="batch_size must be at most"):
            train(too_large, folder)
    assert not list(tmp_path.iterdir())


def test_a_run_stopped_before_its_first_check_may_be_started_again(tmp_path: Path) -> None:
    def interrupt(p: Progress) -> None:
        if p.message == "compiling":
            raise StopError

    with pytest.raises(StopError):
        train(with_seed(1), tmp_path / "run", progress=interrupt)
    assert (tmp_path / "run" / "config.json").exists()
    train(ADAM, tmp_path / "run")
    train(ADAM, tmp_path / "whole")
    assert_same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("name", ["checkpoint-7.npz", "run.png", "data.json", "config.json"])
def test_files_of_others_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(pjax.PjaxError, match=rf"{name}.* choose another folder"):
        train(ADAM, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == '{"mine": 1}'


TREE = {"params": {"a.b": np.arange(3.0), "c": np.zeros((2, 2), np.float32)}, "n": (np.int32(7),)}


class TestCheckpoint:
    def test_round_trip(self, tmp_path: Path) -> None:
        path = checkpoint.path(tmp_path, 1)
        checkpoint.save(path, TREE, {"step": 3})
        tree, note = checkpoint.load(path, TREE)
        assert note == {"step": 3}
        assert jax.tree.structure(tree) == jax.tree.structure(TREE)
        for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(TREE), strict=True):
            np.testing.assert_array_equal(a, b, strict=True)

    def test_the_one_before_is_kept(self, tmp_path: Path) -> None:
        for step in (8, 9, 10):
            path = checkpoint.path(tmp_path, step)
            checkpoint.save(path, TREE, {"step": step})
        assert {file.name for file in tmp_path.iterdir()} == {"checkpoint-9.npz", "checkpoint-10.npz"}
        data = bytearray(path.read_bytes())
        data[data.index(b"leaf:params/c.npy") + 150] ^= 1  # one bit of an array
        path.write_bytes(data)
        (tmp_path / ".checkpoint-11.npz.1234abcd").touch()
        with pytest.warns(UserWarning, match=r"10.* cut off.*from checkpoint-9.npz"):
            found = checkpoint.last(tmp_path)
        assert found is not None
        assert checkpoint.load(found, TREE)[1] == {"step": 9}
        found.write_bytes(found.read_bytes()[:-1])
        with pytest.raises(pjax.PjaxError, match=r"10.*cut off"):
            checkpoint.last(tmp_path)
        checkpoint.save(path, TREE, {})
        assert {file.name for file in tmp_path.iterdir()} == {"checkpoint-9.npz", "checkpoint-10.npz"}

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"params": {"a.b": np.arange(3.0)}}, "holds n/0, params/c, which this run does not have"),
            ({**TREE, "more": np.zeros(1)}, "holds no more;"),
            ({**TREE, "n": (np.float32(7),)}, r"n/0 is int32\[\], this run has float32\[\]"),
            (
                {**TREE, "params": {"a.b": np.arange(4.0), "c": np.zeros((2, 2), np.float32)}},
                r"params/a\.b is float64\[3\], this run has float64\[4\]",
            ),
        ],
    )
    def test_mismatches_are_refused_by_name(self, tmp_path: Path, change: dict, message: str) -> None:
        path = checkpoint.path(tmp_path, 1)
        checkpoint.save(path, TREE, {})
        with pytest.raises(pjax.PjaxError, match=message):
            checkpoint.load(path, change)

    def test_nothing_is_executed(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "checkpoint-1.npz", note=np.array([print], dtype=object))
        with pytest.raises(pjax.PjaxError, match="not a checkpoint"):
            checkpoint.load(tmp_path / "checkpoint-1.npz", {})

    def test_nothing_is_unpacked(self, tmp_path: Path) -> None:
        """Ours are not compressed: what is may be a thousand times as large."""
        np.savez_compressed(tmp_path / "checkpoint-1.npz", note=np.zeros(1 << 26, np.uint8))
        with pytest.raises(pjax.PjaxError, match=r"not a checkpoint.*compressed"):
            checkpoint.load(tmp_path / "checkpoint-1.npz", {})

    def test_a_failed_write_leaves_the_old_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        checkpoint.save(tmp_path / "checkpoint-1.npz", TREE, {"step": 1})

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.save(tmp_path / "checkpoint-1.npz", TREE, {"step": 2})
        assert checkpoint.load(tmp_path / "checkpoint-1.npz", TREE)[1] == {"step": 1}
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1.npz"]


class TestConfig:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"data": "mnst"}, "Did you mean 'mnist'"),
            ({"method": "dra"}, "Did you mean 'dr'"),
            ({"model": "transformer"}, "model must be one of mlp, cnn, rnn"),
            ({"widths": ()}, "widths must hold at least one number"),
            ({"widths": (0,)}, "widths must be at least 1"),
            ({"widths": "128"}, "widths must be a list, got '128'"),
            ({"seeds": (1, 1)}, "seeds must be from 0 to 4294967295, and differ; got 1, 1"),
            ({"seeds": (-1,)}, "seeds must be from 0"),
            ({"batch_size": 0}, "batch_size must be at least 1"),
            ({"batch_size": True}, "batch_size must be a whole number, got True"),
            ({"learning_rate": float("nan")}, "learning_rate must be a positive number"),
            (
                {"method": "dr", "check_every": 120},
                "check_every must be a multiple of the 50 steps .* take 100",
            ),
            (
                {"method": "dr", "max_steps": 1520},
                "max_steps must be a multiple of the 50 steps .* take 1500",
            ),
            ({"check_every": 0}, "check_every must be at least 1, got 0"),
            ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
            ({"data": "shakespeare", "model": "mlp"}, "rnn goes with shakespeare"),
            ({"model": "rnn"}, "rnn goes with shakespeare"),
            ({"data": "shakespeare", "init_scale": 2.0}, "init_scale is for the models mlp and cnn, got 2.0"),
            ({"method": "ff-adam", "skip": True}, "not defined for recurrent networks and skip"),
            ({"method": "fa", "model": "cnn"}, "FA is for the model mlp"),
            ({"method": "ap:metrics=balanced"}, "an option of ap must be one of .* Did you mean 'metric'"),
            ({"method": "fa:steps=3"}, "the method fa has no options"),
            ({"method": "ap:steps=many"}, "steps must be a number, got 'many'"),
            ({"method": "ap:steps=0"}, "steps must be at least 1"),
            ({"method": "ep:precision=half"}, "precision must be one of float32, tf32, bfloat16"),
            ({"levels": 1}, "levels must be 0, or at least 2"),
            ({"levels": 4, "model": "cnn"}, "levels must be 0, or at least 2 for the model mlp"),
        ],
    )
    def test_bad_settings(self, settings: dict, message: str) -> None:
        with pytest.raises(pjax.PjaxError, match=message):
            Config(**settings)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            (
                {"method": "dr", "learning_rate": 0.1},
                "learning_rate .* takes steps_per_batch, loss_scale, consensus",
            ),
            ({"method": "dr", "learning_rate": 0.1}, r"its own, as in dr:groups=…, are .*relaxation"),
            (
                {"method": "ep", "consensus": "exact"},
                "consensus does not apply to the method ep.* learning_rate",
            ),
            (
                {"method": "adam", "loss_scale": 2.0},
                "loss_scale does not apply to the method adam.* learning_rate",
            ),
            (
                {"method": "fa", "consensus": "paper"},
                "consensus .* fa. Of these settings it takes learning_rate, schedule",
            ),
            ({"method": "adam", "steps_per_batch": 50}, "steps_per_batch is 1 for the method adam; got 50"),
            ({"method": "ap:steps=10", "steps_per_batch": 5}, "steps_per_batch is 10 for .*; got 5"),
            ({"method": "ap:loss_scale=2", "loss_scale": 5.0}, "loss_scale is 2.0 for .*; got 5.0"),
            ({"sequence_length": 16}, "sequence_length is for texts"),
        ],
    )
    def test_settings_of_other_methods_are_refused(self, settings: dict, message: str) -> None:
        with pytest.raises(pjax.PjaxError, match=message):
            Config(**settings)

    @pytest.mark.parametrize("data", data.names())
    @pytest.mark.parametrize("method", [m for m in methods.LABELS if not m.endswith("-fp")])
    def test_a_hundred_steps_suit_every_method(self, data: str, method: str) -> None:
        if data == "shakespeare" and method in ("fa", "ff-sgd", "ff-adam"):
            return  # not defined for it
        config = Config(data=data, method=method, max_steps=100)
        assert config.next_check(0) <= config.max_steps == 100

    @pytest.mark.parametrize("method", ["ep", "dr", "adam", "ap:outer=adam:steps=10", "ap:loss_scale=1"])
    def test_what_is_used_is_recorded(self, method: str) -> None:
        config = Config(data="mnist", method=method)
        recorded = config.as_json()
        assert None not in recorded.values()
        assert Config.from_json(recorded) == config
        assert ("learning_rate" in recorded) == (method in ("ep", "adam", "ap:outer=adam:steps=10"))
        assert ("loss_scale" in recorded) == (method != "adam")
        assert recorded["steps_per_batch"] == config.made_method().steps_per_batch

    def test_files_of_earlier_versions_are_read(self) -> None:
        """They name settings that do not apply, and leave open what was used."""
        old = Config(method="adam").as_json() | {
            "loss_scale": 5.0,
            "consensus": "paper",
            "sequence_length": 64,
        }
        assert Config.from_json(old | {"learning_rate": None, "evaluated": None}) == Config(method="adam")

    def test_unknown_settings(self) -> None:
        with pytest.raises(pjax.PjaxError, match="Did you mean 'batch_size'"):
            Config.from_json({"batchsize": 3})

    @pytest.mark.parametrize("text", ["", "4x", "x4", "0x3", "4x128+skp", "a-b", "4x128-3", "4x8+q"])
    def test_bad_architectures(self, text: str) -> None:
        with pytest.raises(pjax.PjaxError, match="an architecture is written as"):
            parse_widths(text)

    def test_a_batch_larger_than_the_data(self) -> None:
        with pytest.raises(pjax.PjaxError, match="batch_size must be at most 1294"):
            Loop(Config(batch_size=5000))


def test_the_order_is_a_function_of_the_seed(tmp_path: Path) -> None:
    first, again, other = (
        train(Config(**(ADAM.as_json() | {"seeds": [seed]})), tmp_path / name)
        for name, seed in (("a", 5), ("b", 5), ("c", 6))
    )
    assert first.checks[-1].loss == again.checks[-1].loss != other.checks[-1].loss


def test_a_network_by_hand_learns_the_same(tmp_path: Path) -> None:
    """The loop does what a plain loop over batches does."""
    config = Config(method="ap", max_steps=200, check_every=100, **SMALL)
    loop = Loop(config)
    run = train(config, tmp_path / "run")
    initial, _ = jax.random.split(jax.random.key(0))
    params = loop.model.init(initial)
    solver = pjax.optim.AlternatingProjections(steps_per_update=50)
    for rows in data.batches(0, 0, 4, len(loop.dataset.x_train), 64):
        x, y = loop.see(jnp.asarray(loop.dataset.x_train[rows])), loop.dataset.y_train[rows]
        params, _ = solver.update(lambda p, x=x, y=y: pjax.cross_entropy(loop.model.apply(p, x), y), params)
    logits = loop.model.apply(params, loop.see(loop.dataset.x_test))
    accuracy = 100 * np.mean(np.argmax(logits, -1) == loop.dataset.y_test)
    assert accuracy == pytest.approx(run.checks[-1].test[0], abs=0.6)


def test_a_run_that_has_ended_leaves_no_data_behind() -> None:
    import gc
    import weakref

    loop = Loop(ADAM)
    loop.advance(loop.start(), 0, [0], lambda *_: None)
    gone = weakref.ref(loop)
    del loop
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "ap:metric=balanced:extrapolate=tensor:outer=adam:steps=5:loss_scale=1"},
        {"method": "ep:softness=0.1:reach=1:precision=bfloat16"},
        {"method": "ep", "levels": 2},
        {"method": "adam", "levels": 2},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_methods_with_options_learn(settings: dict, tmp_path: Path) -> None:
    config = Config(**(SMALL | {"max_steps": 400, "check_every": 200} | settings))
    run = train(config, tmp_path / config.run_name)
    assert run.checks[-1].test[0] > 40
    assert run.architecture == ("1x16+q2" if config.levels else "1x16")


def test_edges_that_are_stored_learn_the_same(tmp_path: Path) -> None:
    settings = SMALL | {"max_steps": 100, "check_every": 100, "steps_per_batch": 10}
    losses = [
        train(Config(method=name, **settings), tmp_path / str(i)).checks[-1].loss[0]
        for i, name in enumerate(("dr", "dr:edges=explicit"))
    ]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_a_quantised_network_has_few_values() -> None:
    """Whatever the parameters; and derivatives pass only straight through."""
    model = models.QuantisedMLP(4, [6], 3, levels=4)
    params = model.init(jax.random.key(0))
    through = models.QuantisedMLP(4, [6], 3, levels=4, straight_through=True)
    x = jax.random.normal(jax.random.key(1), (5, 4))
    np.testing.assert_allclose(model.apply(params, x), through.apply(params, x), atol=1e-6)
    for network, zero in ((model, True), (through, False)):
        gradient = jax.grad(lambda p, n=network: jnp.sum(n.apply(p, x) ** 2))(params)
        assert bool(jnp.all(gradient["weight.0"] == 0)) is zero


def test_studies_see_the_same_batches() -> None:
    for name, preset in PRESETS.items():
        for quick in (False, True):
            configs = list(preset.configs(quick))
            if preset.study:
                assert len({c.max_steps // c.steps_per_batch for c in configs}) == 1, name
                assert {c.patience for c in configs} == {0}
                assert len({c.run_name for c in configs}) == len(configs)
            for steps in (100, 1000):
                shorter = list(preset.configs(quick, max_steps=steps))
                assert {c.max_steps for c in shorter} == {steps}
