"""Fixtures that several test files share."""

import os
from collections.abc import Iterator
from pathlib import Path

# Tests compile many small programs and run each a few times: compiling fast matters more than running fast.
# Before jax starts its backend; programs that tests start inherit it.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax
import pytest

from pjax import devices as _devices
from pjax.graph import equations
from pjax.rules import registry as _registry

MANY = 6
"""So many cases of a test always run."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests with many cases every second or third runs, unless PJAX_TEST_ALL is set."""
    if "PJAX_TEST_ALL" in os.environ:
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left = set()
    for group in cases.values():
        if len(group) > MANY:
            left |= set(group) - set(group[:: 3 if len(group) > 3 * MANY else 2])
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in a folder of its own: what it saves does not end up in the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64 for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs have kernels for GPUs, though there is none."""
    monkeypatch.setattr(_devices, "ANYWHERE", True)


@pytest.fixture
def quick_compilation() -> Iterator[None]:
    """For tests that compile much and compute little."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(equations, "OWN", dict(equations.OWN))
    monkeypatch.setattr(_registry, "_examples", list(_registry._examples))
