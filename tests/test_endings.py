"""How the command line ends: exit codes, interrupts, disks that are full, networks that are too large."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import kills
from pjax.experiments.checkpoint import last
from pjax.experiments.cli import app
from pjax.experiments.train import train

pytestmark = pytest.mark.usefixtures("quick_compilation")

COMMAND = [sys.executable, "-m", "pjax_command"]
SMALL = "train --widths 1x8 --batch-size 64"
LONG = f"{SMALL} --method adam --max-steps 100000 --check-every 50 --patience 0".split()


def start(*arguments: str | Path, shell: str = "") -> "subprocess.Popen[str]":
    """The command, after one of the shell."""
    before = ["bash", "-c", f'{shell}; exec "$@"', "-"] if shell else []
    return subprocess.Popen(
        [*before, *COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def finish(process: "subprocess.Popen[str]") -> str:
    try:
        return process.communicate(timeout=100)[0]
    finally:
        process.kill()


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 100
    while not path.exists():
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_runs_that_are_killed_end_with_the_same_bits(tmp_path: Path) -> None:
    data = kills.made_up(tmp_path / "data")
    assert kills.run(kills.KINDS[0], 2, 1, 3, tmp_path / "runs", data)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at what a process has mapped")
def test_an_interrupt_ends_it_at_once_and_says_how_to_go_on(tmp_path: Path) -> None:
    """While it imports, while it compiles, and while it trains."""
    folders = [tmp_path / str(i) for i in range(3)]
    importing, compiling, training = [start(*LONG, "--folder", folder) for folder in folders]
    try:
        while "jaxlib" not in Path(f"/proc/{importing.pid}/maps").read_text():
            time.sleep(0.005)
        importing.send_signal(signal.SIGINT)
        wait_for(folders[1] / "config.json", compiling)
        compiling.send_signal(signal.SIGINT)
        while last(folders[2]) is None:
            assert training.poll() is None
            time.sleep(0.01)
        training.send_signal(signal.SIGINT)
    finally:
        said = [finish(process) for process in (importing, compiling, training)]
    assert [process.returncode for process in (importing, compiling, training)] == [130, 130, 130], said
    assert said[0] == "\ninterrupted\n"
    assert not folders[0].exists()
    assert said[1] == "\ninterrupted; there was no checkpoint yet\n"
    assert said[2].endswith(f"\ninterrupted; go on with: pjax train --resume {folders[2]}\n")
    assert not any((folder / ".lock").exists() for folder in folders)


def test_two_at_once(tmp_path: Path) -> None:
    """The second into the same folder is refused, and a run that was killed keeps nobody out."""
    folder = tmp_path / "run"
    first = start(*LONG, "--folder", folder)
    try:
        wait_for(folder / ".lock", first)
        refused = run("train", "--folder", folder, code=2)
        assert re.search(rf"run: process {first.pid} on .* writes into it", refused)
        first.kill()
        first.wait(60)
    finally:
        finish(first)
    assert (folder / ".lock").exists()
    run(*f"{SMALL} --method adam --max-steps 50 --check-every 50 --folder {folder}".split())
    assert not (folder / ".lock").exists()


def run(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_a_run_that_diverges_has_its_own_status(tmp_path: Path) -> None:
    settings = f"{SMALL} --method sgd --learning-rate 1e30 --max-steps 100 --check-every 50".split()
    said = run(*settings, "--folder", tmp_path / "run", code=4)
    assert "diverged at 50" in said
    assert "diverged: the loss was not finite" in said
    run("train", "--resume", tmp_path / "run", code=4)


class TestDisk:
    def test_a_file_in_place_of_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        for folder in (tmp_path / "file", tmp_path / "file" / "run"):
            said = run("train", "--folder", folder, code=2)
            assert re.fullmatch(r"error: \S+file\S*: (File exists|Not a directory)\. What .* kept", said)
        assert (tmp_path / "file").read_text() == "mine"

    @pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder where nobody may write")
    def test_a_folder_that_cannot_be_written(self) -> None:
        said = run("train", "--folder", "/sys/kernel/run", code=2)
        assert re.fullmatch(r"error: /sys/kernel/run: (Operation not permitted|Permission denied)\. .*", said)

    def test_a_disk_that_fills_up(self, tmp_path: Path) -> None:
        """Room for some checkpoints, but not for lines without end: what is there is kept."""
        folder = tmp_path / "run"
        settings = f"{SMALL} --method adam --max-steps 4000 --check-every 20 --patience 0 --folder {folder}"
        process = start(*settings.split(), shell="ulimit -f 24")
        said = finish(process)
        assert process.returncode == 2, said
        assert re.search(rf"error: {folder}/\S+: File too large\. What was written before is kept\n$", said)
        assert "Traceback" not in said
        kept = last(folder)
        assert kept is not None
        steps = [check.step for check in train(None, folder, resume=True).checks]
        assert steps == list(range(20, 4001, 20))


def test_a_network_that_is_too_large(tmp_path: Path) -> None:
    said = run("train", "--widths", "2x3000000", "--folder", tmp_path / "run", code=2)
    assert re.fullmatch(r"error: there is not enough memory \(.+\): take smaller --widths.*", said), said
