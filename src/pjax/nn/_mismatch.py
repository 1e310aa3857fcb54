"""Whether given values are those of a model's parameters, and a message that shows where they are not."""

import difflib
from collections.abc import Mapping
from typing import Any

from pjax.errors import InputError
from pjax.nn._parameter import Parameter

_MOST_LINES = 40  # parameters that fit are left out of longer lists


def check_parameters(model: str, declared: Mapping[str, Parameter], given: Any) -> None:
    """Raise an `InputError` unless there is one value of the right shape for each parameter."""
    if not isinstance(given, Mapping):
        raise InputError(
            f"{model}.apply: the parameters must be a dictionary as model.init(key) returns it, got "
            f"{type(given).__name__}. Are the arguments in the order apply(params, x)?"
        )
    missing = [name for name in declared if name not in given]
    unknown = [name for name in given if name not in declared]
    wrong = [
        name
        for name in declared
        if name in given and getattr(given[name], "shape", None) != declared[name].shape
    ]
    if not (missing or unknown or wrong):
        return
    counts = [
        f"{len(names)} {what}"
        for names, what in ((missing, "missing"), (unknown, "unknown"), (wrong, "of another shape"))
        if names
    ]
    expected_notes = dict.fromkeys(missing, "missing") | {
        name: f"given {_shape(given[name])}" for name in wrong
    }
    given_notes = {name: _unknown(name, given[name], declared, missing) for name in unknown} | {
        name: f"expected {declared[name].shape}" for name in wrong
    }
    raise InputError(
        f"{model}: the parameters are not those of the model: {', '.join(counts)}.\n"
        f"Expected:\n{_listing({name: str(p.shape) for name, p in declared.items()}, expected_notes)}\n"
        f"Given:\n{_listing({str(name): _shape(x) for name, x in given.items()}, given_notes)}\n"
        "Pass what model.init(key) returned for this model, or an update of it."
    )


def _shape(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}, not an array" if shape is None else str(tuple(shape))


def _unknown(name: Any, value: Any, declared: Mapping[str, Parameter], missing: list[str]) -> str:
    if isinstance(value, Mapping):
        return "unknown; names are paths with dots in one flat dictionary, such as 'hidden.weight'"
    # What is missing is meant more likely than what was given too.
    near = difflib.get_close_matches(str(name), missing, 1) or difflib.get_close_matches(
        str(name), declared, 1
    )
    return f"unknown; did you mean {near[0]!r}?" if near else "unknown"


def _listing(shapes: Mapping[str, str], notes: Mapping[str, str]) -> str:
    """One line for each entry, with a mark and a note where something is wrong."""
    if not shapes:
        return "    nothing"
    names = list(shapes)
    if len(names) > _MOST_LINES:
        names = [name for name in names if name in notes]
    width = max(map(len, names), default=0)
    lines = [
        f"  ✗ {name:{width}}  {shapes[name]}  ← {notes[name]}"
        if name in notes
        else f"    {name:{width}}  {shapes[name]}"
        for name in names
    ]
    if len(names) < len(shapes):
        lines.append(f"    … and {len(shapes) - len(names)} that fit")
    return "\n".join(lines)
