"""Prove projections on many points: ``python -m benchmarks check_projections``.

All that are registered are checked, and functions of one number.

Prints a table: the rule, how many points were projected, the worst relative excess of the squared distance
over the best point that an independent search found, and the time. The exit code is 1 if a rule fails.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence

import pjax.losses  # noqa: F401  (registers its targets)
from pjax.rules import Example, Primitive, registered
from pjax.testing.projections import check_example
from tests import functions


def shares(example: Example, points: int) -> list[int]:
    """How many points to give each case: all get some, long inputs fewer, together at least ``points``."""
    weights = [1 / (16 + sum(math.prod(shape) for shape in case)) for case in example.shapes]
    return [math.ceil(points * weight / sum(weights)) for weight in weights]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=100_000, help="points for each rule")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--only", default="", help="check the rules whose name contains this")
    parser.add_argument("--key", type=int, default=0)
    options = parser.parse_args(arguments)
    print(f"{options.dtype}, scales 1e-4..1e6, weights 1..1000, targets up to 100 times the natural size\n")
    print(f"{'rule':<52} {'points':>8} {'worst excess':>13} {'off graph':>10} {'drift':>7} {'seconds':>8}")
    failures = 0
    for example in (*registered(), *functions.EXAMPLES):
        if options.only not in example.name or not example.nearest:
            continue
        begin = time.perf_counter()
        try:
            samples = shares(example, options.points)
            report = check_example(example, samples=samples, dtype=options.dtype, key=options.key)
        except AssertionError as error:
            failures += 1
            print(f"{example.name:<52} FAILED: {error}", flush=True)
            continue
        graph = (
            (f"{report.offset:.2f}", f"{report.drift:.2f}")
            if isinstance(example.rule, Primitive)
            else ("", "")
        )
        seconds = time.perf_counter() - begin
        figures = f"{report.points:>8} {report.excess:>13.1e} {graph[0]:>10} {graph[1]:>7} {seconds:>8.1f}"
        print(f"{example.name:<52} {figures}", flush=True)
    print("\nOff graph and drift (of a second projection) are in units of rounding.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
