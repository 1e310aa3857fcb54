"""Random functions with random options, for as long as you like: what must hold for each of them.

Programs are drawn from seeds, one after the other; every property of `tests.properties` is checked on each.
Seeds that fail are printed with their program. Processes are started anew from time to time: a crash, too, is
a failure, and memory is given back.
"""

import argparse
import collections
import concurrent.futures
import itertools
import multiprocessing
import time
from collections.abc import Sequence
from typing import Any

from tests.properties import PROPERTIES, check

CHUNK = 25
"""So many seeds go through one process."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--seeds", type=int, default=10**9, help="how many, if the time is not up before")
    parser.add_argument("--jobs", type=int, default=1, help="so many processes at once")
    parser.add_argument("--dtype", choices=("float32", "float64"), help="of all; by default both take turns")
    parser.add_argument(
        "--properties", nargs="*", default=list(PROPERTIES), choices=PROPERTIES, metavar="NAME"
    )
    parser.add_argument("--optimised", action="store_true", help="compile as users do: slower to begin with")
    options = parser.parse_args(arguments)
    if options.jobs < 1 or options.seeds < 1:
        parser.error("--jobs and --seeds must be at least 1")
    end = time.monotonic() + 60 * options.minutes
    last = options.seed + options.seeds
    failed: dict[str, list[int]] = {name: [] for name in [*options.properties, "crash"]}
    seconds: collections.Counter[str] = collections.Counter()
    first = itertools.count(options.seed, CHUNK)

    def work() -> int:
        number = 0
        while time.monotonic() < end and (seed := next(first)) < last:
            number += _chunk(seed, min(seed + CHUNK, last), end, options, failed, seconds) - seed
        return number

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as workers:
        futures = [workers.submit(work) for _ in range(options.jobs)]
        number = sum(future.result() for future in futures)
    print(f"{number} seeds from {options.seed} on")
    for name, seeds in failed.items():
        spent = f"{seconds[name]:8.0f} s" if name in seconds else ""
        print(f"{name:10}{len(seeds):6} failed{spent}  {' '.join(map(str, sorted(seeds)))}")
    return int(any(failed.values()))


def _chunk(seed: int, stop: int, end: float, options: Any, failed: Any, seconds: Any) -> int:
    """Some seeds in a process of their own; the seed to go on with."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    names = tuple(options.properties)
    child = context.Process(
        target=_work,
        args=(there, seed, stop, end - time.monotonic(), names, options.dtype, options.optimised),
    )
    child.start()
    there.close()
    try:
        while True:
            seed, failures, spent = here.recv()
            seconds.update(spent)
            for name, text in failures.items():
                failed[name].append(seed)
                print(text, flush=True)
            seed += 1
    except EOFError:  # it has ended
        child.join()
    if child.exitcode:
        failed["crash"].append(seed)
        print(f"seed {seed}: the process ended with status {child.exitcode}", flush=True)
        seed += 1
    return seed


def _work(
    there: Any, seed: int, stop: int, left: float, names: tuple[str, ...], dtype: str | None, optimised: bool
) -> None:
    import jax

    jax.config.update("jax_disable_most_optimizations", not optimised)
    end = time.monotonic() + left
    while seed < stop and time.monotonic() < end:
        failures, spent = check(seed, names, dtype)
        there.send((seed, {name: str(error) for name, error in failures.items()}, spent))
        if seed % 4 == 0:
            jax.clear_caches()  # no two seeds share a program, but they do share small ones
        seed += 1
