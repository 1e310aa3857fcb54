"""Fixtures that several test files share."""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from pjax import devices as _devices
from pjax.graph import equations
from pjax.optim import solver as _solver
from pjax.rules import registry as _registry


def pytest_collection_finish() -> None:
    """Modules stay until the end, and what tracing allocates goes with it: collect that rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


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


@pytest.fixture(scope="session")
def said_by() -> Callable[[str, int], Any]:
    """What a module of tests prints, as JSON, in a process with so many CPU devices."""

    def said(module: str, devices: int) -> Any:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        done = subprocess.run(
            [sys.executable, "-m", module],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "XLA_FLAGS": flags},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return said


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
