"""Who works and who waits where layers are divided over devices, by schedule."""

import itertools

import pytest

from benchmarks.utilisation import blocks, idle, pipeline, projections, schedules, stream

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("devices", "parts"), [(1, 3), (2, 1), (4, 4), (4, 2), (8, 16)])
def test_a_pipeline_of_equal_stages_waits_as_the_formula_says(devices, parts, early):
    spans = pipeline([1.0] * 2 * devices, devices, parts, early=early)
    assert idle(spans, devices) == pytest.approx((devices - 1) / (parts + devices - 1))
    assert sum(span.end - span.begin for span in spans) == pytest.approx(3 * 2 * devices)
    for device in range(devices):  # one thing after the other
        mine = sorted((s.begin, s.end) for s in spans if s.device == device)
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in itertools.pairwise(mine))


def test_projections_wait_for_the_largest_block_and_for_the_start():
    still = [0.0] * 4
    assert idle(projections(still, [[1.0] * 8, [0.5] * 4], 4, 3), 4) == 0
    assert idle(projections(still, [[1.0] * 6], 4, 1), 4) == pytest.approx(1 - 6 / 8)
    # Of four devices one at a time at the start, then all of them.
    assert idle(projections([1.0] * 4, [[1.0] * 4], 4, 6), 4) == pytest.approx(1 - (4 + 24) / (16 + 24))


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_stream_waits_for_its_largest_stage_only(devices):
    assert idle(stream([1.0] * 2 * devices, devices, 4), devices) == pytest.approx(0)
    uneven = [1.0] * (2 * devices - 1) + [2.0]  # the last stage has half as much again
    assert idle(stream(uneven, devices, 4), devices) == pytest.approx(1 - (2 + 1 / devices) / 3)


def test_a_stream_works_where_pipelines_wait():
    forward = [2.0 * 64 * 64 * 64] * 32 + [2.0 * 64 * 64 * 10]
    for row in schedules(forward, [[1.0] * 32]):
        for parts in (4, 16, 64):
            assert 1 - row[f"stream {parts}"] >= 0.95
            assert row[f"stream {parts}"] <= min(row[f"pipeline {parts}"], row[f"1F1B {parts}"])


def test_blocks_are_as_equal_as_can_be():
    assert blocks([2, 3, 3, 3, 3, 1], 2) == [8, 7]
    assert blocks([1, 1], 3) == [1, 1, 0]
