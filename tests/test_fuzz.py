"""What must hold for every function and every method, on a fixed number of drawn ones.

`python -m benchmarks fuzz --minutes N` tries as many as you like.
"""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import pjax
from pjax.optim import solver as _solver
from tests import properties
from tests.generator import LATER, OPERATIONS, draw, operations
from tests.properties import Case, Deviation, Result

ROOT = Path(__file__).parents[1]
SEEDS = range(10)
FRESH = range(2)
LOOPS = ("scan", "mapped", "repeated")
"""Their bodies have functions that capture a part of the batch."""


@pytest.fixture(autouse=True)
def little_memory():
    """Compiled programs are large, and no two seeds share one. What is computed beside them they share."""
    yield
    _solver._PROGRAMS.clear()


@pytest.mark.parametrize("seed", SEEDS)
def test_all_properties_hold(seed):
    failures = properties.check(seed)[0].values()
    assert not failures, "\n\n".join(map(str, failures))


SECOND = """
import json, sys, jax
from tests.properties import Case
for seed in map(int, sys.argv[1:]):
    case = Case.of(seed, only=("scan", "mapped", "repeated"))
    with jax.enable_x64(case.drawn.dtype == "float64"):
        new, loss, neglected = case.update(1)
        print(json.dumps([{name: x.tolist() for name, x in new.items()}, float(loss), float(neglected)]))
"""


def test_the_second_batch_is_that_of_a_fresh_process():
    command = [sys.executable, "-c", SECOND, *map(str, FRESH)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for seed, line in zip(FRESH, done.stdout.splitlines(), strict=True):
        case, (new, loss, neglected) = Case.of(seed, only=LOOPS), json.loads(line)
        fresh = Result({name: np.asarray(x) for name, x in new.items()}, loss, neglected)
        with jax.enable_x64(case.drawn.dtype == "float64"):
            case.update(0)
            case.agree("fresh", case.update(1), fresh, functools.partial(case.update, 1))


def test_all_operations_can_be_read():
    assert set(operations()) == {*OPERATIONS, *LATER}


def test_a_seed_is_one_program():
    first, again = draw(7), draw(7)
    assert first == again
    assert first.source != draw(8).source
    assert "def fn(p):" in first.source


def test_batches_differ_in_constants_alone():
    drawn = draw(0, only=LOOPS)
    with jax.enable_x64(drawn.dtype == "float64"):
        texts = [str(jax.make_jaxpr(drawn.function(batch))(drawn.params())) for batch in (0, 1, 0)]
        losses = [np.concatenate([np.ravel(x) for x in drawn.function(b)(drawn.params())]) for b in (0, 1, 0)]
    assert texts[0] == texts[1]
    assert not np.allclose(losses[0], losses[1])
    assert np.array_equal(losses[0], losses[2])


@pytest.mark.usefixtures("x64")
def test_a_deviation_says_what_to_run(monkeypatch):
    case = Case.of(7, "float64")
    monkeypatch.setattr(
        Case, "update", lambda self, *_, **options: Result(self.params, 1.0 + ("stack" in options))
    )
    with pytest.raises(
        Deviation, match=re.escape("seed 7 (float64), stacked: the losses are 1.0 and 2.0")
    ) as info:
        properties.stacked(case)
    assert case.drawn.source in str(info.value)
    assert f"solver = {case.settings.text}" in str(info.value)
    assert isinstance(eval(case.settings.text, {"pjax": pjax}), pjax.optim.solver.Solver)
