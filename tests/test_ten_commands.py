"""The ten commands of the page on your own data and model, one after the other, in an empty folder."""

import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pjax.experiments.results import read_run
from pjax_command import app
from tests import pages

pytestmark = pytest.mark.usefixtures("quick_compilation")

PAGE = pages.ROOT / "docs" / "own.md"
BLOCK = re.search(r"^```sh\n(pjax train .*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
COMMANDS = [line.partition("  #")[0].split() for line in BLOCK[1].splitlines()] if BLOCK else []


def logged(folder: Path) -> list[tuple[str, int, float]]:
    """What files for TensorBoard hold: names, steps and values."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, place = path.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event = Event.FromString(data[place + 12 : place + 12 + length])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            place += length + 16
    return found


def interrupted(command: list[str], folder: Path) -> None:
    """Start a command, and press Ctrl-C when it has a checkpoint."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pjax_command", *command[1:]],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    until = time.monotonic() + 120
    while not list(folder.glob("checkpoint-*.npz")) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert f"go on with: pjax train --resume {folder}" in said


def test_there_are_ten_commands() -> None:
    assert len(COMMANDS) == 10
    assert {words[0] for words in COMMANDS} == {"pjax", "tensorboard"}


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is no signal there")
def test_the_story_of_a_new_user() -> None:
    table, model = pages.sources(PAGE)[:2]
    exec(table, {})
    Path("networks.py").write_text(model)
    folder, first, *others = Path("runs/flowers"), *COMMANDS[:9]
    # Long enough to be interrupted, and then ended early.
    interrupted([*first, "--max-steps", "4000", "--check-every", "50", "--patience", "0"], folder)
    made = read_run(folder)
    assert not made.finished
    assert 0 < made.checks[-1].step < 4000
    said = {}
    for words in others:
        result = CliRunner().invoke(app, shlex.split(" ".join(words[1:])))
        assert result.exit_code == 0, result.output
        said[" ".join(words[1:3])] = result.output
    run = read_run(folder)
    assert run.config["max_steps"] == run.checks[-1].step == 6000
    assert run.results[0].test > 90
    assert "R²" in said["train --data"]
    assert read_run("runs/price").test.mean > 95
    assert re.search(r"runs/flowers +EP +0 +6,000 +[\d.]+ +limit", said["list"])
    assert float(said["eval runs/flowers"].split()[1]) > 85  # of new.csv
    table = Path("predicted.csv").read_text().splitlines()
    assert table[0] == "class,score_iris,score_rose,score_tulip"
    assert len(table) == 101
    truth = [line.rpartition(",")[2] for line in Path("new.csv").read_text().splitlines()[1:]]
    assert np.mean([line.split(",")[0] == kind for line, kind in zip(table[1:], truth, strict=True)]) > 0.85
    assert (folder / "run.png").stat().st_size > 10_000
    figures = {path.name for path in Path("report").glob("figures/*.png")}
    assert {"networks.make-flowers.png", "mlp-flowers.png"} <= figures
    report = Path("report/report.md").read_text()
    assert "## MLP on flowers (price)" in report
    assert "test and train are R²" in report
    tests = {step: value for name, step, value in logged(folder) if name == "test"}
    assert sorted(tests) == [check.step for check in run.checks]
    assert list(tests.values())[-1] == pytest.approx(run.checks[-1].test[0], rel=1e-5)
