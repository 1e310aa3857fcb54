"""Runs that are killed at random moments and resumed: do they end with what an undisturbed run ends with?

Three kinds: `pjax train`, `pjax compare`, and two processes that train together, of which one is killed. Each
is run once undisturbed; then, again and again from the beginning, it gets SIGKILL or SIGINT at a moment drawn
from one of as many equal parts of that time as there are kills, so that every phase has its turn: importing,
loading, compiling, steps, checkpoints, drawing. Then it is resumed, and parameters, metrics and results are
compared, bit for bit; where two processes make sums, up to the order of these. An interrupt must also end
with status 130, and who has lost the other process with status 3.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pjax.experiments import checkpoint
from pjax.experiments.endings import INTERRUPTED, LOST

SMALL = "--batch-size 64 --steps-per-batch 5 --widths 1x16 --patience 0 --method ap"
TRAIN = f"train {SMALL} --max-steps 4000 --check-every 200".split()
TOGETHER = f"train {SMALL} --max-steps 300 --check-every 25".split()
METHODS = "adam,ap"
COMPARE = f"compare --preset mlp-mnist --quick --seeds 1 --architectures 1x128 --methods {METHODS}".split()
TIMES = ("seconds", "ms_per_step")
PATIENCE = 600.0
"""Seconds after which a process that should have ended has hung."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Something to kill: processes that work on a folder."""

    name: str
    start: Callable[[Path], list[list[str]]]
    """The commands that begin, or go on where something is in the folder."""
    tolerance: float = 0.0
    """By how much numbers may differ."""


def train(folder: Path) -> list[list[str]]:
    if (folder / "config.json").exists():
        return [["train", "--resume", str(folder)]]
    return [[*TRAIN, "--folder", str(folder)]]


def compare(folder: Path) -> list[list[str]]:
    return [[*COMPARE, "--folder", str(folder)]]


def together(folder: Path) -> list[list[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begun = (folder / "config.json").exists()
    what = ["train", "--resume", str(folder)] if begun else [*TOGETHER, "--folder", str(folder)]
    cluster = f"--distributed --coordinator 127.0.0.1:{port} --processes 2 --timeout 5 --process".split()
    return [[*what, *cluster, str(process)] for process in range(2)]


KINDS = (Kind("train", train), Kind("compare", compare), Kind("distributed", together, tolerance=1e-5))


@dataclasses.dataclass
class Ended:
    """How a process has ended."""

    code: int
    said: str


@contextlib.contextmanager
def started(commands: Sequence[Sequence[str]], data: Path) -> Iterator[list["subprocess.Popen[str]"]]:
    environment = {**os.environ, "PJAX_DATA": str(data)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "pjax_command", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def finish(processes: Sequence["subprocess.Popen[str]"]) -> list[Ended]:
    """Wait for all. They say little: a pipe is large enough for it."""
    said = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    return [Ended(process.returncode, text) for process, text in zip(processes, said, strict=True)]


def undisturbed(kind: Kind, folder: Path, data: Path) -> float:
    """Run to the end; the seconds that it took."""
    begin = time.monotonic()
    with started(kind.start(folder), data) as processes:
        for end in finish(processes):
            if end.code:
                raise RuntimeError(f"{kind.name} ended with status {end.code}: {end.said}")
    return time.monotonic() - begin


def disturbed(kind: Kind, folder: Path, data: Path, seconds: float, chance: random.Random) -> str:
    """Run, kill after so many seconds, go on; what was wrong with how it ended, or nothing."""
    how = chance.choice((signal.SIGKILL, signal.SIGINT))
    with started(kind.start(folder), data) as processes:
        victim = chance.randrange(len(processes))
        time.sleep(seconds)
        late = processes[victim].poll() is not None
        processes[victim].send_signal(how)
        ends = finish(processes)
    if not late:
        code = INTERRUPTED if how == signal.SIGINT else -signal.SIGKILL
        for process, end in enumerate(ends):
            codes = {0, code} if process == victim else {0, LOST}
            if process == victim and how == signal.SIGINT and "pjax" not in end.said:
                codes |= {1, -signal.SIGINT}  # Python itself was still starting, and says so in its own way
            if end.code not in codes:
                return f"{how.name} after {seconds:.1f} s: status {end.code}: {end.said[-500:]}"
    undisturbed(kind, folder, data)
    return ""


def outcome(folder: Path) -> dict[str, Any]:
    """All numbers that a folder has in the end, by name, but for times."""
    found: dict[str, Any] = {}
    for config in sorted(folder.rglob("config.json")):
        run = config.parent
        name = run.relative_to(folder).as_posix()
        for file in ("metrics.jsonl", "results.jsonl"):
            for number, line in enumerate((run / file).read_text().splitlines()):
                for key, value in json.loads(line).items():
                    if key not in TIMES:
                        found[f"{name} {file} {number} {key}"] = value
        if (last := checkpoint.last(run)) is not None:
            found |= {f"{name} {key}": value for key, value in arrays(last).items()}
    return found


def arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint."""
    with np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files if key != "note"}


def differences(found: dict[str, Any], right: dict[str, Any], tolerance: float) -> list[str]:
    """The names of what is not the same."""
    if found.keys() != right.keys():
        return sorted(found.keys() ^ right.keys())
    return [name for name, value in right.items() if not same(found[name], value, tolerance)]


def same(a: Any, b: Any, tolerance: float) -> bool:
    """Whether two values are the same, bit for bit or nearly.

    >>> same([1.0, None], [1.0, None], 0), same([1.0], [1.1], 0), same([1.0], [1.1], 0.2)
    (True, False, True)
    """
    a, b = np.asarray(a), np.asarray(b)
    if not tolerance or a.dtype.kind != "f":
        return (a.dtype, a.shape, a.tolist()) == (b.dtype, b.shape, b.tolist())
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=0, atol=tolerance))


def made_up(folder: Path) -> Path:
    """A folder with data for the comparison: noise in the form of MNIST."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    np.savez(
        folder / "mnist.npz",
        **{f"x_{part}": rng.integers(256, size=(n, 28, 28), dtype=np.uint8) for part, n in ROWS.items()},
        **{f"y_{part}": rng.integers(10, size=n, dtype=np.uint8) for part, n in ROWS.items()},
    )
    return folder


ROWS = {"train": 600, "test": 100}


def run(kind: Kind, times: int, jobs: int, seed: int, folder: Path, data: Path) -> bool:
    """Kill so many times, some of them side by side, and print a line; whether all was as it should be."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as workers:
        whole = [folder / f"whole-{worker}" for worker in range(jobs)]
        seconds = max(workers.map(lambda where: undisturbed(kind, where, data), whole))
        right = outcome(whole[0])

        def kill(number: int) -> str:
            chance = random.Random(f"{seed} {number}")
            at = (number + chance.random()) * seconds / times
            where = folder / str(number)
            wrong = disturbed(kind, where, data, at, chance)
            if not wrong and (names := differences(outcome(where), right, kind.tolerance)):
                wrong = f"killed after {at:.1f} s: another {', '.join(names[:3])}"
            if wrong:
                print(f"{kind.name}: {wrong}", file=sys.stderr, flush=True)
            return wrong

        good = sum(not wrong for wrong in workers.map(kill, range(times)))
    how = f"to {kind.tolerance:g}" if kind.tolerance else "bit for bit"
    print(f"{kind.name}: {good} of {times} the same {how} (undisturbed {seconds:.1f} s)", flush=True)
    return good == times


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks kills", description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="kills of each kind")
    parser.add_argument(
        "--jobs", type=int, default=1, help="kinds are run one by one, so many of a kind at once"
    )
    parser.add_argument("--only", nargs="*", choices=[kind.name for kind in KINDS], help="some of the kinds")
    parser.add_argument("--seed", type=int, default=None, help="of the moments; by default another each time")
    options = parser.parse_args(arguments)
    if options.times < 1 or options.jobs < 1:
        parser.error("--times and --jobs must be at least 1")
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        data = made_up(Path(temporary) / "data")
        for kind in KINDS:
            if options.only is None or kind.name in options.only:
                good &= run(kind, options.times, options.jobs, seed, Path(temporary) / kind.name, data)
    return int(not good)
