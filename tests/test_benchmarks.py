"""Benchmarks in small versions: they run, and measure what they say."""

import importlib.util
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks import beside_adam, functions, speed
from benchmarks.utilisation import blocks, idle, pipeline, projections, schedules, stream
from pjax.experiments import models

pytestmark = pytest.mark.usefixtures("quick_compilation")


# --- Functions of JAX one by one ---


def test_functions_are_asked_as_by_gradients_or_said_to_be_wrong(monkeypatch, capsys):
    assert functions.main(["--only", "lax.rsqrt"]) == 0
    assert capsys.readouterr().out.split() == ["1", "as", "gradients"]
    assert functions.main(["--only", "while_loop"]) == 0
    assert "while_loop: refused, as by jax.grad" in capsys.readouterr().out
    monkeypatch.setattr(functions, "CLOSE", -1.0)
    assert functions.main(["--only", "lax.rsqrt"]) == 1
    assert "lax.rsqrt: not as gradients" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        functions.main(["--only", "nothing"])
    assert "no function has 'nothing'" in capsys.readouterr().err


# --- Projections beside Adam: both methods agree, runs are made once ---


@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_both_methods_start_alike_and_runs_are_kept(model, tmp_path, capsys):
    out = tmp_path / "runs.jsonl"
    arguments = ["--tiny", "--only", model, "--seeds", "1", "--updates", "2", "--out", str(out)]
    assert beside_adam.main(arguments) == 0
    shown = capsys.readouterr().out.splitlines()
    runs = [json.loads(line) for line in out.read_text().splitlines()]
    assert [run["method"] for run in runs] == ["Adam", "EP"]
    # Flax's variance is cut off at zero: a kink, near which the characters' embeddings start.
    assert runs[1]["cosine"] > (0.98 if model == "gpt" else 0.9999)
    assert runs[0]["losses"] == pytest.approx(runs[1]["losses"], rel=1e-3)
    assert beside_adam.main(arguments) == 0  # now from the file
    again = capsys.readouterr().out.splitlines()
    assert again == shown[2:]
    assert len(again) == 3
    assert len(out.read_text().splitlines()) == 2


def test_a_run_that_fails_does_not_stop_the_others(monkeypatch, capsys):
    made = []

    def train(_, method, seeds):
        made.append((method, seeds))
        if method == "Adam":
            raise ValueError("no such luck")
        return []

    monkeypatch.setattr(beside_adam, "train", train)
    assert beside_adam.main(["--tiny", "--only", "vgg", "--seeds", "2", "--updates", "2"]) == 1
    assert made == [("Adam", [0]), ("EP", [0]), ("Adam", [1]), ("EP", [1])]
    assert "vgg    Adam  seeds [0] failed: ValueError('no such luck')" in capsys.readouterr().out
    assert beside_adam.main(["--tiny", "--only", "vgg", "--updates", "2", "--minutes", "0"]) == 0
    assert len(made) == 4


def test_missing_data_are_named(tmp_path, capsys):
    assert beside_adam.main(["--only", "gpt", "vgg", "--data", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "shakespeare.txt is missing" in error
    assert "cifar10.npz is missing" in error


def test_pictures_from_jpeg_files_end_to_end():
    image = pytest.importorskip("PIL.Image")
    plain = [np.full((32, 32, 3), shade, np.uint8) for shade in (0, 90, 250)]
    files = []
    for picture in plain:
        buffer = beside_adam.io.BytesIO()
        image.fromarray(picture).save(buffer, format="JPEG")
        files.append(np.frombuffer(buffer.getvalue(), np.uint8))
    found = beside_adam.unpacked(np.concatenate(files), np.cumsum([len(file) for file in files]))
    np.testing.assert_allclose(found.astype(int), np.stack(plain).astype(int), atol=2)


def test_every_sample_is_seen_once_per_epoch():
    options = beside_adam.argparse.Namespace(tiny=True, dtype="float32", updates=8, data=None)
    task = beside_adam.task("vgg", options)  # 64 samples, 16 in a batch
    order = task.order(0)
    assert order.shape == (8, 16)
    for epoch in (order[:4], order[4:]):
        assert sorted(epoch.ravel()) == list(range(64))
    assert (order[:4] != order[4:]).any()
    assert (order != task.order(1)).any()


# --- The same networks in PyTorch ---

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")


@needs_torch
@pytest.mark.parametrize("optimiser", ["SGD", "Adam"])
@pytest.mark.parametrize(
    ("kind", "shape", "widths", "skip"),
    [
        ("mlp", (12,), (8,), False),
        ("mlp", (12,), (8, 6), True),
        ("cnn", (6, 5, 1), (4, 3), True),
        ("cnn", (4, 4, 2), (3, 3), False),
        ("rnn", (7,), (8,), False),
        ("rnn", (7,), (8, 6), True),
    ],
)
def test_networks_in_torch_are_those_in_jax(kind, shape, widths, skip, optimiser):
    """The same logits and losses, and the same losses while they learn."""
    from benchmarks import in_torch

    rng = np.random.default_rng(0)
    model = models.make(kind, shape, widths, 5, skip=skip)
    params = {
        name: leaf + 0.1 * rng.normal(size=leaf.shape).astype(np.float32)  # biases begin at zero
        for name, leaf in model.init(jax.random.key(0)).items()
    }
    x = rng.normal(size=(3, *shape)).astype(np.float32)
    y = rng.integers(5, size=3)
    if kind == "rnn":
        x, y = (rng.integers(5, size=(3, *shape)) for _ in range(2))
    x, y = jnp.asarray(x), jnp.asarray(y, jnp.int32)
    training = in_torch.Training(kind, params, x, y, optimiser, skip=skip)
    logits = training.network(training.x).detach().numpy()
    np.testing.assert_allclose(logits, model.apply(params, x), rtol=1e-4, atol=1e-5)

    rule = {"SGD": optax.sgd(0.01), "Adam": optax.adam(1e-3)}[optimiser]
    _, losses = jax.jit(speed.backprop(speed.Network(model.apply), rule, 4))(params, x, y)
    for loss in losses:
        assert training.loss().item() == pytest.approx(float(loss), rel=1e-4)
        training.run(1)


@needs_torch
def test_torch_has_rows_beside_the_others(capsys):
    arguments = ["--only", "MLP 4x16, 1 sample", "--steps", "2", "--repeats", "1"]
    speed.main([*arguments, "--methods", "Adam,PyTorch Adam"])
    lines = [line for line in capsys.readouterr().out.splitlines() if "1 sample" in line]
    assert [line[23:36].strip() for line in lines] == ["SGD", "Adam", "PyTorch Adam"]


def test_torch_is_asked_for_where_it_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(speed, "torch_is_here", lambda: False)
    with pytest.raises(SystemExit):
        speed.main(["--methods", "PyTorch SGD"])
    assert "need PyTorch" in capsys.readouterr().err


# --- Who works and who waits where layers are divided over devices, by schedule ---


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("devices", "parts"), [(1, 3), (2, 1), (4, 4), (4, 2), (8, 16)])
def test_a_pipeline_of_equal_stages_waits_as_the_formula_says(devices, parts, early):
    spans = pipeline([1.0] * 2 * devices, devices, parts, early=early)
    assert idle(spans, devices) == pytest.approx((devices - 1) / (parts + devices - 1))
    assert sum(span.end - span.begin for span in spans) == pytest.approx(3 * 2 * devices)
    for device in range(devices):  # one thing after the other
        mine = sorted((s.begin, s.end) for s in spans if s.device == device)
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in itertools.pairwise(mine))


def test_projections_wait_for_the_largest_block_and_for_the_start():
    still = [0.0] * 4
    assert idle(projections(still, [[1.0] * 8, [0.5] * 4], 4, 3), 4) == 0
    assert idle(projections(still, [[1.0] * 6], 4, 1), 4) == pytest.approx(1 - 6 / 8)
    # Of four devices one at a time at the start, then all of them.
    assert idle(projections([1.0] * 4, [[1.0] * 4], 4, 6), 4) == pytest.approx(1 - (4 + 24) / (16 + 24))


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_stream_waits_for_its_largest_stage_only(devices):
    assert idle(stream([1.0] * 2 * devices, devices, 4), devices) == pytest.approx(0)
    uneven = [1.0] * (2 * devices - 1) + [2.0]  # the last stage has half as much again
    assert idle(stream(uneven, devices, 4), devices) == pytest.approx(1 - (2 + 1 / devices) / 3)


def test_a_stream_works_where_pipelines_wait():
    forward = [2.0 * 64 * 64 * 64] * 32 + [2.0 * 64 * 64 * 10]
    for row in schedules(forward, [[1.0] * 32]):
        for parts in (4, 16, 64):
            assert 1 - row[f"stream {parts}"] >= 0.95
            assert row[f"stream {parts}"] <= min(row[f"pipeline {parts}"], row[f"1F1B {parts}"])


def test_blocks_are_as_equal_as_can_be():
    assert blocks([2, 3, 3, 3, 3, 1], 2) == [8, 7]
    assert blocks([1, 1], 3) == [1, 1, 0]


def test_methods_are_compiled_in_processes_of_their_own(tmp_path, capsys):
    file = tmp_path / "speed.json"
    arguments = ["--only", "MLP 4x16", "--methods", "EP", "--steps", "2", "--repeats", "1"]
    speed.main([*arguments, "--fresh", "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    assert [row["method"] for row in rows] == ["SGD", "EP"]
    assert all(0.05 < row["compile_s"] < 60 for row in rows)
    capsys.readouterr()
    speed.main(["--compile", "MLP 4x16, 1 sample", "EP"])
    assert 0.05 < float(capsys.readouterr().out.split()[-1]) < 60
