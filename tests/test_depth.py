"""The study of depth."""

import json

import pytest

from pjax.errors import InputError
from pjax.experiments import depth

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_rows_are_measured_written_and_not_measured_again(tmp_path):
    seen = []
    rows = depth.run(tmp_path, depths=(1, 2), methods=("sgd",), repeats=2, progress=seen.append)
    rows = depth.run(tmp_path, depths=(1,), methods=("sgd", "ap"), repeats=2, progress=seen.append)
    assert [(row.depth, row.method) for row in rows] == [(1, "sgd"), (2, "sgd"), (1, "ap")]
    assert tuple(seen) == rows == depth.read(tmp_path)
    for row in rows:
        assert (row.width, row.inputs, row.steps, row.repeats) == (16, 784, 50, 2)
        assert row.ms_per_step > 0
        assert row.compile_seconds > 0
        assert row.temp_bytes is None or row.temp_bytes > 0
    assert str(rows[0]).startswith("SGD with 1 hidden layers: ")
    seen.clear()
    assert depth.run(tmp_path, depths=(1,), methods=("ap", "sgd"), progress=seen.append) == rows
    assert seen == []


def test_an_interrupted_study_goes_on_where_it_stopped(tmp_path):
    rows = depth.run(tmp_path, depths=(1,), methods=("sgd", "adam"), repeats=1)
    path = tmp_path / "steps.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    assert depth.read(tmp_path) == rows[:1]
    seen = []
    again = depth.run(tmp_path, depths=(1,), methods=("sgd", "adam"), repeats=1, progress=seen.append)
    assert again[0] == rows[0]
    assert [row.method for row in seen] == ["adam"]
    assert depth.read(tmp_path) == again


@pytest.mark.parametrize("method", ["sgd", "dr"])
def test_fifty_steps_reduce_the_loss(method):
    steps, arguments = depth.program(method, 1)
    state, losses = steps(*arguments)
    assert losses.shape == ((50,) if method == "sgd" else (1,))
    _, after = steps(state, *arguments[1:])
    assert after[-1] < losses[0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"depths": (0,)}, "depths must be at least 1"),
        ({"methods": ("adm",)}, "Did you mean 'adam'"),
    ],
)
def test_wrong_options(tmp_path, options, says):
    with pytest.raises(InputError, match=says):
        depth.run(tmp_path, **options)
    assert not (tmp_path / "steps.jsonl").exists()


def test_wrong_files(tmp_path):
    with pytest.raises(InputError, match="expected the folder of a depth study"):
        depth.read(tmp_path)
    (tmp_path / "steps.jsonl").write_text(json.dumps({"method": "sgd"}) + "\n")
    with pytest.raises(InputError, match=r"steps\.jsonl, line 1: not a row of a depth study.*ms_per_step"):
        depth.read(tmp_path)
