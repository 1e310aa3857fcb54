"""The compiler's account of a step, against the committed one: noise cannot fool it."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks import costs

ROOT = Path(__file__).parents[1]


def test_steps_cost_what_they_did():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "costs"], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, (
        f"{done.stderr[-2000:]}\nIf this is meant: python -m benchmarks costs --update"
    )


def test_more_and_less_are_both_noticed():
    known = json.loads(costs.FILE.read_text())["costs"]
    name = next(iter(known))
    more = {name: known[name] | {"bytes": known[name]["bytes"] * 1.1}}
    less = {name: known[name] | {"operations": known[name]["operations"] * 0.9}}
    assert costs.compare(known, known) == []
    assert "bytes" in costs.compare(more, known)[0]
    assert "-10.0%" in costs.compare(less, known)[0]
    assert costs.compare({"new": known[name]}, known) == ["new: not in the file"]
