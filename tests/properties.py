"""What must hold for every function that pjax reads, and for every method: checked on drawn programs.

Each property is a function of a `Case`, a drawn program with a method and options that are drawn too. It
raises `Deviation`, which says the seed, prints the program and the solver, and how far the results are apart.

Deviations are measured in the largest move of a parameter. Where the result itself is at a tie (two nearest
points, between which rounding decides) no two ways to compute it need agree. So a deviation counts only
where it is larger than what roundings do to the result: the parameters are moved by a few units in their last
place, and the update is made again with everything else the same.
"""

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import pjax
from pjax.errors import NeglectedWarning
from tests.generator import Drawn, draw

RELATIVE = {"float64": 1e-8, "float32": 2e-4}
"""Of the largest move of a parameter."""
ROUNDINGS = 64
"""In units of the last place of the largest parameter: what adding a move to it may cost."""
SPREAD = 30
"""How many times as far as roundings move the result may be deviations."""

NEGLECTED = 10
"""How many times as far as the largest term that a history left out, which it says, may be deviations."""

METHODS: dict[str, Any] = {
    "AP": pjax.optim.AlternatingProjections,
    "CP": pjax.optim.CyclicProjections,
    "DR": pjax.optim.DouglasRachford,
    "DM": pjax.optim.DifferenceMap,
}


class Deviation(AssertionError):  # noqa: N818 - what pytest shows
    """A property that does not hold."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """A method and its options, as they are printed."""

    method: str
    options: tuple[tuple[str, Any], ...]

    def solver(self, **more: Any) -> Any:
        return METHODS[self.method](**{**dict(self.options), **more})

    @property
    def text(self) -> str:
        options = ", ".join(f"{k}={v!r}" for k, v in self.options)
        return f"pjax.optim.{METHODS[self.method].__name__}({options})"

    def get(self, name: str) -> Any:
        return dict(self.options).get(name)


def draw_settings(seed: int) -> Settings:
    """The method of a seed, with options that apply to it."""
    rng = np.random.default_rng([seed, 3])
    method = str(rng.choice(["AP", "CP", "DR", "DM"], p=[0.3, 0.15, 0.35, 0.2]))
    steps = int(rng.integers(1, 7))
    options: dict[str, Any] = {"steps_per_update": steps}
    if rng.random() < 0.4:
        options["consensus"] = "exact"
    if rng.random() < 0.3:
        options["constants"] = "fixed"
    if rng.random() < 0.25:
        options["metric"] = "balanced"
    if method in ("AP", "CP") and rng.random() < 0.3:
        options["extrapolate"] = "tensor"
    if method in ("DR", "DM") and rng.random() < 0.3:
        options["history"] = int(rng.choice([1, steps]))
    if method == "DM" and rng.random() < 0.3:
        options["beta"] = 0.7
    return Settings(method, tuple(options.items()))


class Result(NamedTuple):
    """Of an update."""

    params: Any
    loss: Any
    neglected: Any = 0.0
    """The largest term that a history left out."""


def updated(solver: Any, fn: Callable[[Any], Any], params: Any) -> Result:
    new, state, loss = solver.update(fn, params, solver.init(params))
    return Result(new, loss, state.neglected)


class Case:
    """A drawn program with a method, and the result of an update with it."""

    def __init__(self, drawn: Drawn, settings: Settings) -> None:
        self.drawn, self.settings = drawn, settings

    @classmethod
    def of(cls, seed: int, dtype: str | None = None, only: Sequence[str] = ()) -> "Case":
        return cls(draw(seed, dtype, only), draw_settings(seed))

    @functools.cached_property
    def params(self) -> Any:
        return self.drawn.params()

    @functools.cached_property
    def result(self) -> Result:
        """Of the method as it is, on the first batch."""
        return self.update()

    def update(self, batch: int = 0, params: Any = None, **options: Any) -> Result:
        """On a batch, with other options."""
        params = self.params if params is None else params
        return updated(self.settings.solver(**options), self.drawn.function(batch), params)

    def deviates(self, name: str, what: str) -> Deviation:
        solver = f"solver = {self.settings.text}"
        text = f"seed {self.drawn.seed} ({self.drawn.dtype}), {name}: {what}"
        return Deviation(f"{text}\n{self.drawn.source}\n{solver}")

    def agree(self, name: str, found: Result, expected: Result, again: Callable[[Any], Result]) -> None:
        """Compare two results.

        Args:
            name: of the property.
            found: one result.
            expected: the other one, which defines what is right.
            again: makes this from other parameters.
        """
        eps = float(jnp.finfo(self.drawn.dtype).eps)
        new, loss, _ = expected
        move = apart(new, self.params)
        size = max(largest(self.params), largest(new))
        neglected = max(float(found.neglected), float(expected.neglected))
        allowed = (RELATIVE[self.drawn.dtype] + NEGLECTED * neglected) * move + ROUNDINGS * eps * size
        gap = apart(found.params, new)
        if not gap <= allowed:
            spread = max(apart(again(self.rounded(i)).params, new) for i in range(3))
            if not gap <= allowed + SPREAD * spread:
                raise self.deviates(
                    name, f"parameters are {gap:.1e} apart where they move by {move:.1e} ({gap / move:.1e})"
                )
        gap = apart(found.loss, loss)
        if not gap <= ROUNDINGS * eps * max(largest(loss), 1.0):
            raise self.deviates(name, f"the losses are {found.loss} and {loss}")

    def rounded(self, seed: int) -> Any:
        """The parameters with other last digits."""
        rng = np.random.default_rng(seed)
        eps = 4 * float(jnp.finfo(self.drawn.dtype).eps)
        return {
            name: x + jnp.asarray(eps * largest(x) * rng.uniform(-1, 1, x.shape), x.dtype)
            for name, x in self.params.items()
        }


def apart(found: Any, expected: Any) -> float:
    """The largest difference of two pytrees."""
    return largest(difference(found, expected))


def difference(found: Any, expected: Any) -> Any:
    """Of two pytrees, in double precision."""
    return jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64), found, expected)


def largest(tree: Any) -> float:
    """The largest absolute value."""
    return max(float(np.abs(np.asarray(x, np.float64)).max(initial=0.0)) for x in jax.tree.leaves(tree))


# --- The properties ---


def runs(case: Case) -> None:
    """An update ends, with finite numbers."""
    if not all(np.isfinite(x).all() for x in jax.tree.leaves(case.result)):
        raise case.deviates("runs", "the result is not finite")


def edges(case: Case) -> None:
    """Implicit edges are explicit ones. A history that was asked to be short is not."""
    history = case.settings.get("history")
    if history is not None and history < case.settings.get("steps_per_update"):
        return
    again = functools.partial(
        case.update, 0, edges="explicit", **({} if history is None else {"history": None})
    )
    case.agree("edges", case.result, again(), again)


def stacked(case: Case) -> None:
    """Stacked nodes do what each of them does."""
    again = functools.partial(case.update, 0, stack=False)
    case.agree("stacked", case.result, again(), again)


def batches(case: Case) -> None:
    """The second batch is answered as by a program that never saw another one.

    Other names of parameters make another program.
    """
    case.result  # noqa: B018 - the first batch

    def fresh(params: Any = None) -> Result:
        fn = case.drawn.function(1)
        given = {"again": case.params if params is None else params}
        found = updated(case.settings.solver(), lambda p: fn(p["again"]), given)
        return found._replace(params=found.params["again"])

    case.agree("batches", case.update(1), fresh(), fresh)


def jitted(case: Case) -> None:
    """Inside jit an update is what it is outside, or it warns that a history neglected too much."""

    def again(params: Any = None) -> Result:
        fn, solver = case.drawn.function(), case.settings.solver()
        return jax.jit(lambda p: updated(solver, fn, p))(case.params if params is None else params)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", NeglectedWarning)
        found = jax.block_until_ready(again())
        jax.effects_barrier()
    if not any(issubclass(warning.category, NeglectedWarning) for warning in said):
        case.agree("jitted", case.result, found, again)


def values(case: Case) -> None:
    """The trace has the values of the function, and the loss is the mean of what it returns."""
    eps = float(jnp.finfo(case.drawn.dtype).eps)
    raw, counted = (
        _flat(jax.jit(case.drawn.function(0, text))(case.params))
        for text in (case.drawn.raw, case.drawn.counted)
    )
    targets = pjax.trace(case.drawn.function(), case.params)
    targets = targets if isinstance(targets, tuple) else (targets,)
    traced = _flat([t.value for t in targets if t.op != "member"])
    limit = ROUNDINGS * eps * max(largest(raw), 1.0)
    if traced.shape != raw.shape or not apart(np.sort(traced), np.sort(raw)) <= limit:
        raise case.deviates(
            "values", f"the trace has the losses {np.sort(traced)}, the function {np.sort(raw)}"
        )
    loss = float(case.result.loss)
    if not abs(loss - counted.mean()) <= ROUNDINGS * eps * max(largest(counted), 1.0):
        raise case.deviates("values", f"the loss is {loss}, the mean of what is returned {counted.mean()}")


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate(
        [np.ravel(np.asarray(x, np.float64)) for x in jax.tree.leaves(tree)] or [np.zeros(0)]
    )


LEAST_COSINE = 0.999


def gradient(case: Case) -> None:
    """Extrapolated projections move along the negative gradient of the mean loss, where there is one."""
    import optax

    drawn = case.drawn
    if not drawn.smooth:
        return
    solver = pjax.optim.ExtrapolatedProjections(outer=optax.sgd(1.0))
    fn, params = drawn.function(), case.params
    wanted = _flat(jax.jit(jax.grad(lambda p: jnp.concatenate([jnp.ravel(x) for x in fn(p)]).mean()))(params))
    new, _, _ = solver.update(drawn.function(), params, solver.init(params))
    move = _flat(
        jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64), new, params)
    )
    lengths = np.linalg.norm(move) * np.linalg.norm(wanted)
    if np.linalg.norm(wanted) < 1e-5:
        return
    cosine = -float(move @ wanted) / lengths if lengths else 0.0
    if not cosine >= LEAST_COSINE:
        raise case.deviates("gradient", f"the move has cosine {cosine:.4f} with the negative gradient")


PROPERTIES: dict[str, Callable[[Case], None]] = {
    f.__name__: f for f in (runs, values, edges, stacked, batches, jitted, gradient)
}


def check(
    seed: int, names: tuple[str, ...] = tuple(PROPERTIES), dtype: str | None = None
) -> tuple[dict[str, Deviation], dict[str, float]]:
    """The properties of a seed that do not hold, with what they say, and how long each took."""
    failures: dict[str, Deviation] = {}
    seconds: dict[str, float] = {}
    case = Case.of(seed, dtype)
    with jax.enable_x64(case.drawn.dtype == "float64"), warnings.catch_warnings():
        warnings.simplefilter("ignore", NeglectedWarning)  # of histories that were asked to be short
        for name in names:
            start = time.perf_counter()
            try:
                PROPERTIES[name](case)
            except Deviation as deviation:
                failures[name] = deviation
            except Exception as error:
                failures[name] = case.deviates(name, f"{type(error).__name__}: {error}")
                failures[name].__cause__ = error
            seconds[name] = time.perf_counter() - start
            if name == "runs" and failures:
                break  # and none of the others can hold
    return failures, seconds
