"""The fast engine against the one that stores every edge, on the graphs of the tests.

Each solver makes 50 steps with implicit and with explicit edges; the table shows how far the parameters are
apart, relative to the largest of each array. In float64 histories are complete, so that nothing is neglected;
in float32 they are chosen automatically. A complete history is inaccurate where multipliers come near one and
where both factors of a product are zero: two graphs show that, and are not counted.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tests import graphs
from tests.properties import METHODS

LIMITS = {"float64": 1e-8, "float32": 1e-4}
BEYOND_HISTORIES = {"two_targets", "zero_weights"}


def gap(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest number of each array."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    arrays = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs]
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in arrays)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks engines", description=__doc__)
    parser.add_argument("--dtype", choices=LIMITS, default="float64")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--graphs", nargs="*", default=sorted(graphs.GRAPHS), metavar="NAME")
    parser.add_argument("--solvers", nargs="*", default=list(METHODS), choices=METHODS, metavar="NAME")
    options = parser.parse_args(arguments)
    unknown = set(options.graphs) - set(graphs.GRAPHS)
    if unknown:
        parser.error(f"no graph is called {', '.join(sorted(unknown))}; there are {', '.join(graphs.GRAPHS)}")
    jax.config.update("jax_enable_x64", options.dtype == "float64")
    jax.config.update("jax_disable_most_optimizations", True)  # much to compile, little to compute
    limit, worst = LIMITS[options.dtype], 0.0
    print(f"{options.dtype}, {options.steps} steps, implicit against explicit edges, to be below {limit:g}")
    print(
        f"{'graph':24}" + "".join(f"{name:>10}" for name in options.solvers) + f"{'seconds':>10}", flush=True
    )
    for graph in options.graphs:
        fn, params = graphs.make(graph, np.dtype(options.dtype))
        start, row = time.perf_counter(), []
        for name in options.solvers:
            full = name in ("DR", "DM") and options.dtype == "float64"
            implicit = METHODS[name](
                steps_per_update=options.steps, **({"history": options.steps} if full else {})
            )
            explicit = METHODS[name](steps_per_update=options.steps, edges="explicit")
            row.append(gap(implicit.update(fn, params)[0], explicit.update(fn, params)[0]))
            if not (full and graph in BEYOND_HISTORIES):
                worst = max(worst, row[-1])
        spent = time.perf_counter() - start
        print(f"{graph:24}" + "".join(f"{x:10.1e}" for x in row) + f"{spent:10.1f}", flush=True)
    print(f"worst {worst:.1e}")
    return int(worst > limit)
