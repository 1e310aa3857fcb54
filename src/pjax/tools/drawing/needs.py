"""Packages that only drawing needs."""

import importlib
from typing import Any

from pjax.errors import PjaxError


def module(name: str) -> Any:
    """A module of the extra ``draw``, imported when it is needed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise PjaxError(
            f'pictures need {package}: pip install "pjax-learn[draw]". DOT and Mermaid need nothing more'
        ) from None
