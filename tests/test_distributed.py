"""Runs on several devices and in several processes: the same results, a process that is killed, resuming."""

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from jax.tree_util import tree_leaves, tree_leaves_with_path
from typer.testing import CliRunner

from pjax.errors import InputError
from pjax.experiments import checkpoint
from pjax.experiments.config import Config
from pjax.experiments.devices import Devices
from pjax.experiments.loop import Loop
from pjax.experiments.processes import LOST, explain
from pjax.experiments.train import Progress, _expected, train
from pjax_command import app
from tests import pages

pytestmark = pytest.mark.usefixtures("quick_compilation")

CONFIG = Config(
    method="ap", widths=(8,), batch_size=64, steps_per_batch=5, max_steps=60, check_every=10, patience=0
)
SETTINGS = "--method ap --widths 1x8 --batch-size 64 --steps-per-batch 5 --max-steps 60 --check-every 10"
START = [*SETTINGS.split(), "--patience", "0", "--folder"]


def start(devices: int, *arguments: str | Path) -> subprocess.Popen:
    """`pjax train` in a process with so many devices."""
    return python(devices, "-m", "pjax", "train", *map(str, arguments))


def python(devices: int, *arguments: str) -> subprocess.Popen:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_two(*arguments: str | Path, port: int = 0) -> list[subprocess.Popen]:
    address = f"127.0.0.1:{port or free_port()}"
    cluster = f"--distributed --coordinator {address} --processes 2 --timeout 6 --process".split()
    return [start(2, *arguments, *cluster, str(i)) for i in range(2)]


def finish(process: subprocess.Popen, seconds: float = 100) -> str:
    """All that it says, after it has ended."""
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        process.kill()


def assert_close(a: Path, b: Path) -> None:
    """Two runs are the same up to the order in which sums are made."""
    shapes = _expected(Loop(CONFIG))
    one, other = (checkpoint.load(checkpoint.last(folder), shapes)[0] for folder in (a, b))
    for (path, found), right in zip(tree_leaves_with_path(one), tree_leaves(other), strict=True):
        np.testing.assert_allclose(found, right, atol=2e-6, err_msg=str(path))
    for name in ("metrics.jsonl", "results.jsonl"):
        lines, others = ([json.loads(line) for line in (f / name).read_text().splitlines()] for f in (a, b))
        assert len(lines) == len(others) > 0
        for line, same in zip(lines, others, strict=True):
            for key in line.keys() - {"seconds", "ms_per_step"}:
                assert line[key] == pytest.approx(same[key], abs=1e-5), (name, key)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on one device."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    train(CONFIG, folder)
    return folder


class StopError(Exception):
    """Where a test interrupts a run."""


def stop_at(step: float) -> Callable[[Progress], None]:
    def progress(p: Progress) -> None:
        if p.step >= step and not math.isnan(p.test):
            raise StopError

    return progress


def test_four_devices_do_what_one_does(alone: Path, tmp_path: Path) -> None:
    """And go on with what one has begun."""
    folder = tmp_path / "run"
    with pytest.raises(StopError):
        train(CONFIG, folder, progress=stop_at(10))
    process = start(4, "--resume", folder, "--devices", "all")
    said = finish(process)
    assert process.returncode == 0, said
    assert {path.name for path in folder.glob("checkpoint*")} == {"checkpoint-10.npz", "checkpoint-12.npz"}
    assert_close(folder, alone)


DIVIDED = """
import sys
from pathlib import Path
import jax
from pjax.experiments.devices import Devices
from pjax.experiments.train import train
from tests.test_distributed import CONFIG, StopError, stop_at

gathered = Devices.gathered

def look(devices, tree):
    for leaf in jax.tree.leaves(tree["state"]["method"]) + jax.tree.leaves(tree["best"]):
        if leaf.ndim > 1:  # with the axis of seeds
            parts = [part.data.size for part in leaf.addressable_shards]
            assert parts == [leaf.size // devices.count] * devices.count, (leaf.shape, parts)
    return gathered(devices, tree)

Devices.gathered = look
folder = Path(sys.argv[1])
for count, step in ((4, 20), (2, 30)):
    devices = Devices(count, shard_parameters=True)
    try:
        train(CONFIG, folder, resume=folder.exists(), devices=devices, progress=stop_at(step))
    except StopError:
        print("stopped", count)
"""


def test_parameters_over_devices(alone: Path, tmp_path: Path) -> None:
    """Each has its part of them: four devices, then two, and at last one, which has all."""
    folder = tmp_path / "run"
    process = python(4, "-c", DIVIDED, str(folder))
    said = finish(process)
    assert process.returncode == 0, said
    assert said.split("\n") == ["stopped 4", "stopped 2", ""]
    assert {path.name for path in folder.glob("checkpoint*")} == {"checkpoint-4.npz", "checkpoint-6.npz"}
    train(None, folder, resume=True)
    assert {path.name for path in folder.glob("checkpoint*")} == {"checkpoint-10.npz", "checkpoint-12.npz"}
    assert_close(folder, alone)


def test_a_process_is_killed_and_the_run_goes_on(alone: Path, tmp_path: Path) -> None:
    folder, port = tmp_path / "run", free_port()
    first, second = start_two(*START, folder, port=port)
    try:
        metrics, deadline = folder / "metrics.jsonl", time.monotonic() + 100
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 1):
            assert first.poll() is None, finish(first)
            assert time.monotonic() < deadline
            time.sleep(0.005)
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        if sys.platform == "linux":  # where the machine has more than one such address
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), timeout=5)
        second.kill()
        killed = time.monotonic()
        said = finish(first, 60)
    finally:
        first.kill()
        finish(second)
    assert time.monotonic() - killed < 60
    assert first.returncode == LOST, said
    # The library that carries messages may notice first, and abort: then nobody knows which one it was.
    assert "error: process 1 has died" in said or "error: another process has died" in said
    assert "Traceback" not in said
    assert f"pjax train --resume {folder}" in said
    assert not (folder / "results.jsonl").exists(), "it ended before one could be killed"

    shutil.copytree(folder, tmp_path / "one")
    train(None, tmp_path / "one", resume=True)
    assert_close(tmp_path / "one", alone)

    both = start_two("--resume", folder, "--shard-parameters")
    said, other = map(finish, both)
    assert [process.returncode for process in both] == [0, 0], said + other
    assert "step 60" in said
    assert "step 60" not in other
    assert {path.name for path in folder.glob("checkpoint*")} == {"checkpoint-10.npz", "checkpoint-12.npz"}
    assert_close(folder, alone)


IMPATIENT = """
import sys
from pjax.experiments import processes
from pjax.__main__ import main
processes.START_SECONDS = 3
if "--guarded" in sys.argv:
    main()
code, *arguments = sys.argv[1:]
sys.exit(processes.watch([sys.executable, "-c", code, *arguments, "--guarded"], "pjax train --resume run"))
"""


def first_of_two(address: str) -> list[str]:
    return f"--distributed --coordinator {address} --processes 2 --process 0".split()


def test_processes_that_do_not_come_are_not_waited_for(tmp_path: Path) -> None:
    cluster = first_of_two(f"127.0.0.1:{free_port()}")
    first = python(1, "-c", IMPATIENT, IMPATIENT, "train", "--folder", str(tmp_path / "run"), *cluster)
    said = finish(first)
    assert first.returncode == LOST, said
    assert "error: the processes have not met within 3 seconds. Start all of them" in said
    assert said.endswith("go on with: pjax train --resume run\n")
    assert not (tmp_path / "run").exists()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process = start(1, "--folder", tmp_path / "run", *first_of_two(address))
        said = finish(process)
    assert process.returncode == 2, said
    assert f"error: process 0 cannot listen on {address} (Address already in use" in said


def test_a_watcher_passes_an_interrupt_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as coordinator:
        coordinator.settimeout(100)
        address = f"127.0.0.1:{coordinator.getsockname()[1]}"
        cluster = f"--distributed --coordinator {address} --processes 2 --process 1".split()
        process = start(1, "--folder", tmp_path / "run", *cluster)
        try:
            with coordinator.accept()[0]:  # it waits for the others
                process.send_signal(signal.SIGINT)
                said = finish(process)
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert said.endswith("\ninterrupted; there was no checkpoint yet\n")


EARLY = """
import os, signal, sys
from pjax.experiments import processes
start = processes.subprocess.Popen
def interrupted(*args, **options):
    child = start(*args, **options)
    child.send_signal(signal.SIGINT)  # while Python itself begins
    return child
processes.subprocess.Popen = interrupted
sys.exit(processes.watch([sys.executable, "-m", "pjax_command", "--help"], ""))
"""


def test_an_interrupt_waits_until_a_watched_process_can_say_so() -> None:
    process = python(1, "-c", EARLY)
    said = finish(process)
    assert process.returncode == 130, said
    assert said.strip() == "interrupted"


def test_state_that_is_divided_goes_through_orbax() -> None:
    (example,) = pages.blocks(pages.ROOT / "docs" / "distributed.md")
    check = """
weight = run[0]["layers.0.weight"]
assert len(weight.sharding.device_set) == 4 and not weight.is_fully_replicated
right = update(*run)
for a, b in zip(jax.tree.leaves((*restored, loss)), jax.tree.leaves(right), strict=True):
    assert len(a.sharding.device_set) == 1
    assert jnp.allclose(jax.device_get(a), jax.device_get(b), atol=1e-6)
"""
    process = python(4, "-c", example + check)
    said = finish(process)
    assert process.returncode == 0, said


def test_last_words_of_jax_are_explained() -> None:
    assert "process 0 has died" in explain("Either the leader task was preempted/died", "")
    silent = "tasks are unhealthy (stopped sending heartbeats):\n1\n2\nThe tasks have crashed."
    assert "processes 1, 2 have died" in explain(silent, "")
    assert "have not met within 45 seconds" in explain("RPC: …/RegisterTask", "")
    assert explain("something else\n", "pjax …").startswith("something else\nerror: another process has died")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--devices none", "--devices must be a number from 1, or all"),
        ("--devices 99", "devices must be from 1 to"),
        ("--shard-parameters", "over several devices, got one: give --devices too"),
        ("--process 1", "--process: for several processes, give --distributed too"),
        ("--distributed", "--distributed needs --folder or --resume"),
        ("--distributed --processes 2", "coordinator is missing"),
        ("--distributed --coordinator here --processes 2 --process 0", "must be HOST:PORT"),
        ("--distributed --coordinator a:1 --processes 2 --process 2", "process must be from 0 to 1"),
        ("--distributed --folder x --devices 2", "drop --devices"),
    ],
)
def test_bad_options(tmp_path: Path, arguments: str, message: str) -> None:
    result = CliRunner().invoke(app, ["train", *arguments.split()])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not list(tmp_path.iterdir())


def test_a_batch_that_cannot_be_divided() -> None:
    devices = Devices()
    devices.count = 3
    with pytest.raises(InputError, match="batch_size must be a multiple of the 3 devices, got 64: take 63"):
        Loop(CONFIG, devices=devices)
