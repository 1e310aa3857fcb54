"""Fixtures that several test files share."""

import os
from collections.abc import Iterator

# Tests compile many small programs and run each a few times: compiling fast matters more than running fast.
# Before jax starts its backend; programs that tests start inherit it.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax
import pytest


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64 for one test."""
    with jax.enable_x64(True):
        yield
