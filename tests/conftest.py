"""Fixtures that several test files share."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from pjax import devices as _devices
from pjax.graph import equations
from pjax.optim import solver as _solver
from pjax.rules import registry as _registry


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


@pytest.fixture(scope="module")
def quick_compilation() -> Iterator[None]:
    """For tests that prove no numerics: they compile much and compute little. Processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        jax.config.update("jax_disable_most_optimizations", True)
        yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[object, object]:
    """The compiled programs: none to begin with."""
    empty = type(_solver._PROGRAMS)()
    monkeypatch.setattr(_solver, "_PROGRAMS", empty)
    return empty


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(equations, "OWN", dict(equations.OWN))
    monkeypatch.setattr(_registry, "_examples", list(_registry._examples))
