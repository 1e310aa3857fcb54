"""Looks at settings: each refuses what cannot be, and says what can."""

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np

from pjax.errors import InputError


def check_name(kind: str, name: Any, names: Iterable[str]) -> None:
    """Refuse a name that is not one of several, with the nearest ones."""
    known = list(names)
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"{kind} must be one of {', '.join(known)}; got {name!r}.{hint}")


def check_whole(name: str, value: object, least: int, end: int = 2**63) -> None:
    """Refuse what is not a whole number in a range."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not (whole and least <= int(value) < end):  # type: ignore[call-overload]
        raise InputError(f"{name} must be a whole number from {least} to {end - 1}, got {value!r}")


def check_multiple(name: str, value: int, of: int, what: str) -> None:
    """Refuse a number that cannot be divided."""
    if value % of:
        near = max(value // of, 1) * of
        raise InputError(f"{name} must be a multiple of the {of} {what}, got {value}: take {near}")
