"""Fixtures that several test files share."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64 for one test."""
    with jax.enable_x64(True):
        yield
