"""Which parameters learn."""

import difflib
import fnmatch
from collections.abc import Mapping
from typing import TypeVar

from pjax.errors import InputError

T = TypeVar("T")


def freeze(params: Mapping[str, T], *patterns: str) -> tuple[dict[str, T], dict[str, T]]:
    """Divide parameters into those that learn and those that stay as they are.

    An optimiser is given the first alone; the second enters the function as constants, through
    ``model.apply(trainable | frozen, x)``.

    Args:
        params: values by name, as `Module.init` returns them.
        patterns: names of what stays as it is, with ``*``, ``?`` and ``[…]`` as in the names of files; ``*``
            matches dots too.

    Returns:
        The parameters that learn, and those that do not.

    Raises:
        InputError: if a pattern matches nothing.

    >>> trainable, frozen = freeze({"embed.weight": 1, "out.weight": 2, "out.bias": 3}, "embed.*", "*.bias")
    >>> trainable, frozen
    ({'out.weight': 2}, {'embed.weight': 1, 'out.bias': 3})
    """
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in params):
            near = difflib.get_close_matches(pattern, params, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(
                f"freeze: the pattern {pattern!r} matches no parameter.{hint} The parameters are "
                f"{', '.join(params) or 'none'}."
            )
    frozen = {
        name: value
        for name, value in params.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
    return {name: value for name, value in params.items() if name not in frozen}, frozen
