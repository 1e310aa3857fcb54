"""Prove projections on many points: ``python -m benchmarks check_projections``.

All that are registered are checked, and functions of one number, in float64 and in float32.

Prints a line for each rule and type as it goes: how many points were projected, the worst relative excess of
the squared distance over the best point that an independent search found, and the time. The exit code is 1 if
a rule fails.
"""

import argparse
import concurrent.futures
import math
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence

import pjax.losses  # noqa: F401  (registers its targets)
from pjax.rules import Example, Primitive, registered
from pjax.testing.projections import check_example
from tests import functions

TYPES = ("float64", "float32")


def examples() -> list[Example]:
    """All that promise the nearest point, each once."""
    return [e for e in dict.fromkeys((*registered(), *functions.EXAMPLES)) if e.nearest]


def shares(example: Example, points: int) -> list[int]:
    """How many points to give each case: all get some, long inputs fewer, together at least ``points``."""
    weights = [1 / (16 + sum(math.prod(shape) for shape in case)) for case in example.shapes]
    return [math.ceil(points * weight / sum(weights)) for weight in weights]


def check(number: int, dtype: str, points: int, key: int) -> tuple[bool, str]:
    """Whether an example passes, and its line."""
    example, begin = examples()[number], time.perf_counter()
    name = f"{example.name:<52} {dtype:<8}"
    try:
        report = check_example(example, samples=shares(example, points), dtype=dtype, key=key)
    except AssertionError as error:
        return False, f"{name} FAILED: {error}"
    is_graph = isinstance(example.rule, Primitive)
    graph = (f"{report.offset:.2f}", f"{report.drift:.2f}") if is_graph else ("", "")
    seconds = time.perf_counter() - begin
    return (
        True,
        f"{name} {report.points:>8} {report.excess:>13.1e} {graph[0]:>10} {graph[1]:>7} {seconds:>8.1f}",
    )


def row(number: int, types: Sequence[str], points: int, key: int) -> list[tuple[bool, str]]:
    """An example in some types: what is compiled for the search serves all of them."""
    return [check(number, dtype, points, key) for dtype in types]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks check_projections", description=__doc__)
    parser.add_argument("--points", type=int, default=100_000, help="points for each rule")
    parser.add_argument("--dtype", choices=TYPES, help="by default both")
    parser.add_argument(
        "--rows", nargs="*", default=[], metavar="NAME", help="rules whose name contains one of these"
    )
    parser.add_argument("--key", type=int, default=0, help="of the points that are drawn")
    parser.add_argument("--jobs", type=int, default=1, help="so many processes at once")
    options = parser.parse_args(arguments)
    if options.jobs < 1 or options.points < 1:
        parser.error("--jobs and --points must be at least 1")
    names = [example.name for example in examples()]
    chosen = [
        i for i, name in enumerate(names) if not options.rows or any(part in name for part in options.rows)
    ]
    if not chosen:
        parser.error(f"no rule is called {' or '.join(options.rows)}; there are {', '.join(names)}")
    same = [options.dtype] if options.dtype else TYPES, options.points, options.key
    print("scales 1e-4..1e6, weights 1..1000, targets up to 100 times the natural size\n")
    head = f"{'points':>8} {'worst excess':>13} {'off graph':>10} {'drift':>7} {'seconds':>8}"
    print(f"{'rule':<52} {'type':<8} {head}", flush=True)
    begin, passed = time.perf_counter(), []

    def results() -> Iterator[list[tuple[bool, str]]]:
        if options.jobs == 1:
            yield from (row(i, *same) for i in chosen)
            return
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(options.jobs, context, max_tasks_per_child=4) as pool:
            futures = [pool.submit(row, i, *same) for i in chosen]
            yield from (future.result() for future in concurrent.futures.as_completed(futures))

    for lines in results():
        for good, line in lines:
            passed.append(good)
            print(line, flush=True)
    print("\nOff graph and drift (of a second projection) are in units of rounding.")
    print(f"{sum(passed)} of {len(passed)} passed in {time.perf_counter() - begin:.0f} s")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
