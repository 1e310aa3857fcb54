"""Checks for projections and layouts: what `jax.test_util.check_grads` is for derivatives."""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from pjax.errors import InputError
from pjax.rules import Primitive, Target, registered
from pjax.sets import Constrain, Set
from pjax.testing import search
from pjax.testing.rounding import rounding

Shapes = tuple[tuple[int, ...], ...]

_TOLERANCE = {"float64": 1e-7, "float32": 1e-3}
_ROUNDINGS = 16  # how many units of rounding are forgiven
_HARD = 1e6  # weight of a loss whose minimisers are projected onto


class Report(NamedTuple):
    """What `check_projection` measured."""

    points: int
    """How many points were projected and searched."""
    excess: float
    """Largest relative excess of the squared distance over the best point that the search found."""
    offset: float
    """Largest distance of the output from the function of the inputs, in units of rounding."""
    drift: float
    """Largest move when projecting a second time, in units of rounding."""


def check_projection(
    rule: Primitive | Target,
    shapes: Sequence[Sequence[Sequence[int]]],
    *,
    constant: Sequence[int] = (),
    sided: Sequence[int] = (),
    labels: str = "classes",
    scale: float | None = None,
    samples: int | Sequence[int] = 256,
    scales: tuple[float, float] = (1e-4, 1e6),
    weights: tuple[float, float] = (1.0, 1000.0),
    dtype: str = "float64",
    tolerance: float | None = None,
    key: int = 0,
) -> Report:
    r"""Check that a rule projects onto the graph of its function. Nothing about the rule is assumed.

    For a `Primitive` with the function :math:`f`, points :math:`(x_0, z_0)` and weights :math:`w` over many
    scales, ties, zeros and :math:`x = \pm y` included, are projected, and the answer :math:`(x, z)` must

    - lie on the graph, :math:`z = f(x)`, or on either side of a jump of :math:`f`;
    - be as near as the best point that a search finds, in :math:`|x - x_0|^2 + w (z - z_0)^2`;
    - stay where it is when projected again;
    - be the same for many points at once and one by one under `jax.vmap`, for a scalar weight and an array;
    - keep its type, and be finite for inputs of 1e-9 and of 1e9.

    Where the function has no value, points are infinitely far; inputs outside its domain are projected too.

    For a `Target` with the loss :math:`\ell`, the prediction must minimise
    :math:`\tfrac12 |x - x_0|^2 + s\, \ell(x)`, or, if ``scale`` is ``None``, be the nearest
    minimiser of :math:`\ell`.

    The search is independent of the rule's formulas: it uses values and slopes of the function only.

    Args:
        rule: the primitive or target.
        shapes: cases; each lists the shape of one copy of every input (for a target: of the predictions).
        constant: positions of inputs that must not move.
        sided: positions of inputs that stay on their side of zero.
        labels: for a target, what to draw: ``"classes"``, ``"probabilities"`` or ``"numbers"``.
        scale: for a target, the factor :math:`s`, or ``None``.
        samples: number of points for each case, or one number per case.
        scales: smallest and largest size of the inputs. Targets are up to 100 times the natural size.
        weights: smallest and largest weight.
        dtype: the type in which the rule computes. The search always uses float64.
        tolerance: largest relative excess; by default 1e-7 in float64 and 1e-3 in float32.
        key: seed.

    Returns:
        A `Report` of the worst figures.

    Raises:
        AssertionError: naming the property, the point, and by how much it fails.

    >>> from pjax.rules import Identity
    >>> check_projection(Identity(), [[()]], samples=16).points
    16
    """
    if labels not in ("classes", "probabilities", "numbers"):
        raise ValueError(f'labels must be "classes", "probabilities" or "numbers", got {labels!r}.')
    limit = _TOLERANCE.get(dtype, 1.0) if tolerance is None else tolerance
    worst = Report(0, 0.0, 0.0, 0.0)
    counts = [samples] * len(shapes) if isinstance(samples, int) else list(samples)
    for number, (case, count) in enumerate(zip(shapes, counts, strict=True)):
        core = tuple(tuple(shape) for shape in case)
        rng = np.random.default_rng((key, number))
        if not rule.is_target:
            one = cast(Primitive, rule)
            check: Any = _Check(one, core, frozenset(constant), dtype, limit, frozenset(sided))
            points: Any = _sample(check, count, rng, scales, weights)
        else:
            check = _TargetCheck(cast(Target, rule), core, dtype, limit, scale)
            points = _sample_target(check, count, rng, scales, labels)
        if number == len(shapes) // 2:  # these do not depend on the length
            check.check_uniformity(points)
            check.check_extremes(points)
        found = check.run(points, number + key)
        worst = Report(worst.points + found.points, *map(max, worst[1:], found[1:]))
    return worst


def check_registered(*names: str, **options: Any) -> Report:
    """Check every example of the rules that `pjax.register_primitive` knows, by `check_projection`.

    Rules that do not promise the nearest point are left out.

    Args:
        names: of the rules to check; by default all, those of pjax included.
        options: for `check_projection`: ``samples``, ``dtype``, ``key`` and so on.

    Returns:
        A `Report` of the worst figures.

    >>> check_registered("identity", samples=16).points
    16
    """
    known = {example.rule.name for example in registered()}
    if missing := sorted(set(names) - known):
        raise InputError(
            f"no rule is called {', '.join(map(repr, missing))}; there are {', '.join(sorted(known))}."
            " Register it first: pjax.register_primitive(rule, shapes)"
        )
    worst = Report(0, 0.0, 0.0, 0.0)
    for example in registered():
        if example.nearest and (not names or example.rule.name in names):
            found = check_projection(
                example.rule,
                example.shapes,
                constant=example.constant,
                sided=example.sided,
                labels=example.labels,
                scale=example.scale,
                **options,
            )
            worst = Report(worst.points + found.points, *map(max, worst[1:], found[1:]))
    return worst


def _brief(array: np.ndarray) -> str:
    return np.array2string(array, threshold=8, edgeitems=3)


class _Points(NamedTuple):
    inputs: tuple[np.ndarray, ...]
    target: np.ndarray
    weight: np.ndarray


def _blocks(count: int, width: int) -> list[slice]:
    """Slices of at most a few million numbers each."""
    block = max(1, min(count, 3_000_000 // max(width, 1)))
    return [slice(i, min(i + block, count)) for i in range(0, count, block)]


def _flat(arrays: Sequence[Any]) -> Any:
    return jnp.concatenate([jnp.reshape(a, (a.shape[0], -1)) for a in arrays], axis=-1)


def _split(flat: Any, core: Shapes) -> tuple[Any, ...]:
    sizes = [math.prod(shape) for shape in core]
    parts = jnp.split(flat, np.cumsum(sizes)[:-1], axis=-1)
    return tuple(p.reshape(p.shape[0], *shape) for p, shape in zip(parts, core, strict=True))


@functools.partial(jax.jit, static_argnums=0)
def _project(rule: Any, *arguments: Any) -> Any:
    return rule.project(*arguments)


@functools.partial(jax.jit, static_argnums=0)
def _evaluate(rule: Primitive, *inputs: Any) -> Any:
    return rule.forward(*inputs)


@functools.partial(jax.jit, static_argnums=0)
def _mapped(rule: Any, first: Any, second: Any, *weight: Any) -> Any:
    return jax.vmap(lambda a, b: rule.project(a, b, *weight))(first, second)


class _Check(NamedTuple):
    """The properties of a primitive for inputs of one shape."""

    rule: Primitive
    core: Shapes
    constant: frozenset[int]
    dtype: str
    limit: float
    sided: frozenset[int] = frozenset()

    def value(self, flat: Any) -> Any:
        return self.rule.forward(*_split(flat, self.core))

    def free(self) -> np.ndarray:
        """1 for the numbers that may move, 0 for the others."""
        return self.each(lambda i: i not in self.constant)

    def each(self, trait: Callable[[int], bool]) -> np.ndarray:
        """For every number 1 where its input has the trait, else 0."""
        return np.concatenate([np.full(math.prod(s), float(trait(i))) for i, s in enumerate(self.core)])

    def project(self, points: _Points) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        with jax.enable_x64(self.dtype == "float64"):
            inputs, output = _project(self.rule, points.inputs, points.target, points.weight)
            return tuple(map(np.asarray, inputs)), np.asarray(output)

    def run(self, points: _Points, key: int) -> Report:
        inputs, output = self.project(points)
        again, output_again = self.project(_Points(inputs, output, points.weight))
        for position in self.constant:
            self.demand(points, "constant inputs stay", inputs[position] == points.inputs[position])
        with jax.enable_x64(self.dtype == "float64"):
            own = np.asarray(_evaluate(self.rule, *inputs))
        wide = [jax.tree.map(lambda a: a.astype(np.float64), t) for t in (points, (inputs, output, own))]
        figures = []
        same = self._replace(dtype="", limit=0.0)  # what the search depends on: compiled once for all types
        rounding = float(np.finfo(self.dtype).eps), float(np.finfo(self.dtype).tiny)
        with jax.enable_x64(True):
            for rows in _blocks(len(output), len(self.free())):
                part = jax.tree.map(lambda a, rows=rows: a[rows], (*wide, (again, output_again)))
                figures.append(
                    jax.tree.map(np.asarray, _examine(same, *part, *rounding, jax.random.key(key)))
                )
        excess, offset, drift, found, best = (np.concatenate(f) for f in zip(*figures, strict=True))
        self.demand(
            points, "the result lies on the graph", offset <= _ROUNDINGS, offset, "units of rounding off"
        )
        self.demand(
            points, "projecting again changes nothing", drift <= _ROUNDINGS, drift, "units of rounding"
        )
        detail = [
            f"relative excess: cost {f:.9g}, but a search found {b:.9g}"
            for f, b in zip(found, best, strict=True)
        ]
        self.demand(points, "no better point exists", excess <= self.limit, excess, detail)
        return Report(len(output), float(excess.max()), float(offset.max()), float(drift.max()))

    def check_uniformity(self, points: _Points) -> None:
        """Points at once with an array of weights, and one by one under vmap with a scalar weight, agree."""
        default = inspect.signature(self.rule.project).parameters["weight"].default
        if default != 1:
            raise AssertionError(f"{self.rule.name}: the weight is 1 by default: got {default!r}.")
        inputs, target, _ = points = jax.tree.map(
            lambda a: np.clip(a, -1e28, 1e28).astype(np.float32), points
        )
        with jax.enable_x64(False):
            many = _project(self.rule, inputs, target, np.full_like(target, 3.0))
            mapped = _mapped(self.rule, inputs, target, 3.0)
            _same_numbers(f"{self.rule.name}: vmap equals one call", points, mapped, many)

    def check_extremes(self, points: _Points) -> None:
        """Types are kept; the result is finite for tiny, huge, equal, opposite and zero inputs."""
        count = len(points.target)  # as in the other checks, so that nothing is compiled again
        for dtype in ("float64", "float32", "bfloat16"):
            kind, half = jnp.dtype(dtype), dtype == "bfloat16"
            scale = np.repeat((0.0, 1e-2, 0.1, 1.0) if half else (0.0, 1e-9, 1.0, 1e9), 16)
            turns = np.tile([1.0, 1.0, -1.0, 0.0], 16)  # of all inputs but the first
            wild = np.resize(np.tile(np.repeat([-100.0, 0.0, 1.0, 100.0], 4), 4), count)
            inputs = tuple(
                np.ones((count, *shape))
                * np.resize((turns if i else 1.0) * scale, (count, *[1] * len(shape)))
                for i, shape in enumerate(self.core)
            )
            with jax.enable_x64(True):
                flat = np.concatenate([x.reshape(count, -1) for x in inputs], axis=-1)
                values = np.asarray(_slopes(self._replace(dtype="", limit=0.0), flat)[0])
            most = float(jnp.finfo(kind).max) / 200
            values = np.clip(np.where(np.isfinite(values), values, 0), -most, most)
            target = (wild * values + np.sign(wild) * (np.abs(wild) > 1)).astype(kind)
            inputs = tuple(x.astype(kind) for x in inputs)
            with jax.enable_x64(dtype == "float64"):
                ends, end = _project(self.rule, inputs, target, np.full(count, 3.0).astype(kind))
            self.check_result(inputs, target, tuple(map(np.asarray, ends)), np.asarray(end))

    def check_result(self, inputs: Any, target: np.ndarray, ends: Any, end: np.ndarray) -> None:
        for got, want in zip((*ends, end), (*inputs, target), strict=True):
            if got.dtype != want.dtype or got.shape != want.shape:
                raise AssertionError(
                    f"{self.rule.name}: types and shapes are kept: {want.dtype}{list(want.shape)} became "
                    f"{got.dtype}{list(got.shape)}."
                )
            wrong = ~np.isfinite(got.astype(np.float64)).reshape(len(target), -1).all(-1)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise AssertionError(
                    f"{self.rule.name}: the result is finite: got {_brief(got[row])} in {got.dtype} for "
                    f"inputs {', '.join(_brief(x[row]) for x in inputs)}, target {target[row]} and weight 3."
                )

    def demand(
        self, points: _Points, what: str, passed: Any, figures: Any = None, unit: str | list[str] = ""
    ) -> None:
        passed = np.asarray(passed)
        if passed.all():
            return
        rows = passed.reshape(len(passed), -1).all(-1)
        row = int(np.argmin(rows) if figures is None else np.nanargmax(np.where(rows, -np.inf, figures)))
        amount = (
            ""
            if figures is None
            else f" by {figures[row]:.3g} {unit if isinstance(unit, str) else unit[row]}"
        )
        inputs = ", ".join(_brief(x[row]) for x in points.inputs)
        raise AssertionError(
            f"{self.rule.name}: failed: {what}{amount} ({(~rows).sum()} of {len(rows)} points). "
            f"Point {row}: inputs {inputs} of shapes {self.core}, "
            f"target {points.target[row]!r}, weight {points.weight[row]!r}."
        )


def _same_numbers(what: str, points: _Points, one: Any, other: Any) -> None:
    size = max(
        float(np.abs(np.asarray(a, np.float64)).max(initial=0)) for a in (*points.inputs, points.target)
    )
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        gap = float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max(initial=0))
        if not gap <= 1e3 * np.finfo(b.dtype).eps * size:
            inputs = ", ".join(map(_brief, points.inputs))
            raise AssertionError(f"{what}: the results differ by {gap:.3g} at inputs {inputs}.")


@functools.partial(jax.jit, static_argnums=0)
def _examine(
    check: _Check, points: Any, result: Any, again: Any, eps: float, tiny: float, key: jax.Array
) -> Any:
    """Excess, offset and drift of every point, the cost found, and the best known."""
    origin, target, weight = _flat(points.inputs), points.target, points.weight
    end, output = _flat(result[0]), result[1]
    free = jnp.asarray(check.free())
    norm = functools.partial(jnp.linalg.norm, axis=-1)
    # Points that rounding could confuse with the result; beside a kink or a jump, on both sides of it
    size = jnp.maximum(jnp.maximum(jnp.abs(end), jnp.abs(origin)), jnp.abs(output)[:, None])
    pushes = (0.0, 1.0, -1.0, jnp.where(jnp.arange(end.shape[-1]) % 2, 1.0, -1.0))
    nearby = jnp.concatenate([end + push * (2 * eps * size) for push in pushes])
    values, pull = jax.vjp(jax.vmap(check.value), nearby.reshape(len(pushes), *end.shape))
    slopes = norm(pull(jnp.ones_like(values))[0] * free)
    alone = check.free().sum() == 1
    if alone or check.sided:  # some of the points may lie beyond a border or on a pole
        slope, off_graph = jnp.nanmax(slopes, axis=0), jnp.nanmin(jnp.abs(output - values), axis=0)
    else:
        slope, off_graph = slopes.max(0), jnp.abs(output - values).min(0)
    if alone:
        # The derivative may be infinite, or none, at a border: what matters is how much the function changes.
        # Where it has no value in float64, though it has one in the type of the rule, nothing can be said.
        steep = jnp.minimum(jnp.where(jnp.isnan(slope), jnp.inf, slope), _steepness(check, end, origin, eps))
        slope = jnp.where(jnp.isfinite(values[0]), steep, 1e150)
    # What one unit of rounding in every number can change, in the output and in the distance
    reach = norm(origin) + norm(end)
    height = jnp.abs(target) + jnp.abs(output) + slope * reach
    if alone:  # a function may be less accurate in the type of the rule than the last digit
        noise = jnp.nanmin(jnp.abs(result[2] - values), axis=0)  # at a jump, from the nearest side
        height = height + jnp.where(jnp.isfinite(noise), noise, 0) / eps + rounding(check.value, end)
    least = tiny if alone else 1e-300
    unit = eps * (reach + jnp.sqrt(weight) * height) + least
    offset = off_graph / (eps * height + least)
    drift = jnp.sqrt(norm(_flat(again[0]) - end) ** 2 + weight * (again[1] - output) ** 2) / unit

    kept = jnp.asarray(check.each(lambda i: i in check.sided))
    coarse = eps * 2.0 ** jnp.floor(jnp.log2(jnp.abs(origin)))

    def cost(flat: jax.Array) -> Any:
        if alone:  # what the type of the rule can tell from the origin
            flat = jnp.where(coarse > 0, origin + coarse * jnp.round((flat - origin) / coarse), flat)
        total = norm(flat - origin) ** 2 + weight * (check.value(flat) - target) ** 2
        same_side = jnp.all(kept * flat * jnp.where(origin < 0, -1, 1) >= 0, axis=-1)
        return jnp.where(jnp.isfinite(total) & same_side, total, jnp.inf)

    found = norm(end - origin) ** 2 + weight * (output - target) ** 2
    best = search.keep((origin, cost(origin)), end, cost(end))
    first, *more = jax.random.split(key, 4)
    wide = jnp.maximum(jnp.maximum(norm(origin), jnp.abs(target)), jnp.sqrt(jnp.abs(target)))
    fine = 8 if end.shape[-1] <= 64 else 5
    slopes = jax.grad(lambda flat: jnp.sum(check.value(flat)))(origin)
    directions = [jnp.ones_like(origin) * free]
    if end.shape[-1] > 1:
        noise = jax.random.normal(first, origin.shape) * free
        directions += [slopes * free, end - origin, origin * free, noise]
    best = search.along(cost, best, origin, jnp.stack(directions), wide, fine)
    if alone:
        best = search.dense(cost, best, origin, jnp.ones_like(origin) * free, jnp.sqrt(found))
    noise = jax.random.normal(more[0], origin.shape) * free
    starts = [end, origin, best[0], origin + wide[:, None] * noise / math.sqrt(end.shape[-1])]
    best = search.levenberg(check.value, cost, best, jnp.stack(starts), origin, target, weight, free, 24)
    best = search.around(cost, best, norm(best[0] - origin), more[1], free)
    # A point that is off by rounding is off by this much in its cost.
    off = _ROUNDINGS * unit
    slack = 2 * jnp.sqrt(best[1]) * off + off * off
    excess = jnp.maximum(found - best[1] - slack, 0) / jnp.maximum(found, 1e-300)
    finite = jnp.isfinite(found)
    return tuple(jnp.where(finite, v, jnp.inf) for v in (excess, offset, drift, found, best[1]))


def _steepness(check: _Check, end: jax.Array, origin: jax.Array, eps: float) -> jax.Array:
    """How much the function of one number changes when rounding changes the number, over that change."""
    step = 2 * eps * jnp.maximum(jnp.abs(end), jnp.abs(origin)) * check.free()
    values = jnp.stack([check.value(end + push * step) for push in (0, 1, -1)])
    known = jnp.isfinite(values)
    high, low = jnp.where(known, values, -jnp.inf).max(0), jnp.where(known, values, jnp.inf).min(0)
    return (high - low) / jnp.maximum(step.max(-1), 1e-300)


@functools.partial(jax.jit, static_argnums=0)
def _slopes(check: _Check, flat: jax.Array) -> tuple[Any, Any]:
    values, pull = jax.vjp(check.value, flat)
    return values, pull(jnp.ones_like(values))[0]


def _spread(rng: np.random.Generator, limits: tuple[float, float], count: int) -> np.ndarray:
    """Numbers between the limits, evenly on a logarithmic scale."""
    return 10 ** rng.uniform(math.log10(limits[0]), math.log10(limits[1]), count)


def _inputs(
    count: int, core: Shapes, rng: np.random.Generator, scales: tuple[float, float]
) -> list[np.ndarray]:
    """Numbers of many sizes, with zeros, ties, outliers and equal and opposite inputs among them."""
    size = _spread(rng, scales, count)
    kind = np.arange(count) % 16
    arrays: list[np.ndarray] = []
    for shape in core:
        columns = (count,) + (1,) * len(shape)
        x = rng.normal(size=(count, *shape))
        x = np.where((kind == 0).reshape(columns), 0, x)
        x = np.where((kind == 1).reshape(columns), 1, x)
        x = np.where((kind == 4).reshape(columns), np.round(x), x)
        x = np.where((kind == 5).reshape(columns) & (rng.random(x.shape) < 0.1), 1e3 * x, x)
        x = x * size.reshape(columns)
        if arrays and arrays[0].shape == x.shape:
            x = np.where(
                (kind == 2).reshape(columns), arrays[0], np.where((kind == 3).reshape(columns), -arrays[0], x)
            )
        arrays.append(x)
    return arrays


def _sample(
    check: _Check,
    count: int,
    rng: np.random.Generator,
    scales: tuple[float, float],
    weights: tuple[float, float],
) -> _Points:
    dtype = np.dtype(check.dtype)
    inputs = tuple(x.astype(dtype) for x in _inputs(count, check.core, rng, scales))
    with jax.enable_x64(True):
        flat = np.concatenate([x.astype(np.float64).reshape(count, -1) for x in inputs], axis=-1)
        values, slopes = map(np.asarray, _slopes(check._replace(dtype="", limit=0.0), flat))
    sizes = np.abs(values) + np.abs(slopes).max(-1, initial=0)
    far = ~(sizes < min(float(np.finfo(dtype).max) ** 0.75, 1e140))  # no value here, or none to aim at
    values, slopes = np.where(far, 0, values), np.where(far[:, None], 0, slopes)
    slope, length = np.linalg.norm(slopes, axis=-1), np.linalg.norm(flat, axis=-1)
    natural = np.abs(values) + slope * length + np.abs(flat).max(-1) + 1e-3 * (length == 0)
    wild = rng.normal(size=count)
    kinds = [
        values + natural * 10 ** rng.uniform(-6, 0, count) * wild,
        values + natural * wild,
        natural * wild,
        100 * natural * rng.uniform(-1, 1, count),
        np.where(rng.random(count) < 0.5, values, 0),
    ]
    target = np.choose(rng.integers(0, 5, count), kinds)
    weight = _spread(rng, weights, count)
    return _Points(inputs, target.astype(dtype), weight.astype(dtype))


class _TargetCheck(NamedTuple):
    """The properties of a target for predictions of one shape."""

    rule: Target
    core: Shapes
    dtype: str
    limit: float
    scale: float | None

    def run(self, points: tuple[np.ndarray, np.ndarray], key: int) -> Report:
        name = self.rule.name
        with jax.enable_x64(self.dtype == "float64"):
            end = np.asarray(_project(self.rule, *points))
        figures = []
        same = self._replace(dtype="", limit=0.0)
        eps = float(np.finfo(self.dtype).eps)
        with jax.enable_x64(True):
            x, y = (a if a.dtype.kind == "i" else a.astype(np.float64) for a in points)
            for rows in _blocks(len(end), end[0].size):
                part = x[rows], y[rows], end[rows].astype(np.float64)
                figures.append(
                    jax.tree.map(np.asarray, _examine_target(same, *part, eps, jax.random.key(key)))
                )
        excess, found, best = (np.concatenate(f) for f in zip(*figures, strict=True))
        limit = max(self.limit, 4 / _HARD) if self.scale is None else self.limit
        if not (excess <= limit).all():
            row = int(np.nanargmax(excess))
            raise AssertionError(
                f"{name}: failed: no better point exists by {excess[row]:.3g} relative excess "
                f"({(~(excess <= limit)).sum()} of {len(excess)} points): cost {found[row]:.9g}, "
                f"but a search found {best[row]:.9g}. "
                f"Point {row}: predictions {_brief(points[0][row])}, labels {_brief(points[1][row])}."
            )
        return Report(len(end), float(excess.max()), 0.0, 0.0)

    def check_uniformity(self, points: tuple[np.ndarray, np.ndarray]) -> None:
        x, y = (a if a.dtype.kind == "i" else a.astype(np.float32) for a in points)
        with jax.enable_x64(False):
            many = np.asarray(_project(self.rule, x, y))
            size = _Points((x,), many, np.ones(1))
            _same_numbers(f"{self.rule.name}: vmap equals one call", size, _mapped(self.rule, x, y), many)

    def check_extremes(self, points: tuple[np.ndarray, np.ndarray]) -> None:
        x, y = points
        count = len(x)
        x = x / max(float(np.abs(x).max()), 1e-30)
        for dtype in ("float64", "float32", "bfloat16"):
            sizes = (0.0, 1e-2, 0.1, 1.0) if dtype == "bfloat16" else (0.0, 1e-9, 1.0, 1e9)
            kind = jnp.dtype(dtype)
            start = (np.resize(sizes, (count, *[1] * (x.ndim - 1))) * x).astype(kind)
            labels = y if y.dtype.kind == "i" else np.clip(y, -9, 9).astype(kind)
            with jax.enable_x64(dtype == "float64"):
                end = np.asarray(_project(self.rule, start, labels))
            if end.dtype != kind or end.shape != start.shape:
                raise AssertionError(
                    f"{self.rule.name}: types and shapes are kept: {dtype} became {end.dtype}."
                )
            wrong = ~np.isfinite(end.astype(np.float64)).reshape(count, -1).all(-1)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise AssertionError(
                    f"{self.rule.name}: the result is finite: got {_brief(end[row])} in {dtype} "
                    f"from {_brief(start[row])}."
                )


@functools.partial(jax.jit, static_argnums=0)
def _examine_target(
    check: _TargetCheck, start: Any, labels: Any, end: Any, eps: float, key: jax.Array
) -> Any:
    origin, final = _flat([start]), _flat([end])
    norm: Callable[[Any], jax.Array] = functools.partial(jnp.linalg.norm, axis=-1)
    factor = _HARD if check.scale is None else 2 * check.scale

    def cost(flat: jax.Array) -> jax.Array:
        loss = check.rule.forward(flat.reshape(start.shape), labels)
        return norm(flat - origin) ** 2 + factor * loss.reshape(len(flat), -1).sum(-1)

    found = cost(final)
    best = search.keep((origin, cost(origin)), final, found)
    reach = jnp.maximum(norm(origin), norm(final)) + 1
    noise = jax.random.normal(key, origin.shape)
    directions = jnp.stack([final - origin, noise, jax.grad(lambda flat: jnp.sum(cost(flat)))(origin)])
    best = search.along(cost, best, origin, directions, reach, 6)
    best = search.descend(cost, best, jnp.stack([final, origin, best[0]]), 100)
    best = search.around(cost, best, norm(best[0] - origin), key, jnp.ones(origin.shape[-1]))
    unit = norm(origin) + norm(final)
    if labels.dtype == origin.dtype and check.scale is not None:
        unit = unit + factor * norm(_flat([labels]))  # labels are rounded too
    off = _ROUNDINGS * eps * unit
    # The last term is the noise of the loss as the search evaluates it.
    noise = 8 * float(np.finfo(np.float64).eps) * norm(final)
    slack = 2 * jnp.sqrt(jnp.abs(best[1])) * off + (1 + factor) * off * off + factor * noise
    excess = jnp.maximum(found - best[1] - slack, 0) / jnp.maximum(jnp.abs(found), 1e-300)
    return tuple(jnp.where(jnp.isfinite(found), v, jnp.inf) for v in (excess, found, best[1]))


def _sample_target(
    check: _TargetCheck, count: int, rng: np.random.Generator, scales: tuple[float, float], labels: str
) -> tuple[np.ndarray, np.ndarray]:
    (shape,) = check.core
    (x,) = _inputs(count, check.core, rng, scales)
    if labels == "classes":
        return x.astype(check.dtype), rng.integers(0, shape[-1], (count, *shape[:-1])).astype(np.int32)
    if labels == "probabilities":
        y = rng.dirichlet(np.ones(shape[-1]), (count, *shape[:-1]))
    else:
        y = np.where(
            rng.random(x.shape) < 0.2, 0, rng.normal(size=x.shape) * np.abs(x).max(initial=1e-3, axis=None)
        )
        y = np.where(rng.random(x.shape) < 0.5, rng.normal(size=x.shape), y)
    return x.astype(check.dtype), y.astype(check.dtype)


def check_set(
    into: Set,
    shape: Sequence[int],
    *,
    samples: int = 256,
    scales: tuple[float, float] = (1e-4, 1e6),
    weights: tuple[float, float] = (1.0, 1000.0),
    dtype: str = "float64",
    tolerance: float | None = None,
    key: int = 0,
) -> Report:
    r"""Check that a set's projection gives the nearest point, whatever the set is.

    Points :math:`x_0, z_0` and weights :math:`w` over many scales, with ties and zeros, are projected as
    `pjax.constrain` does: onto the :math:`x` in the set with the least
    :math:`|x - x_0|^2 + w |x - z_0|^2`. The answer must

    - be as near as any member that a search finds: those nearest to other points, far and close, to other
      members, and to what members become when their entries are exchanged or change their signs;
    - stay where it is when projected again;
    - be the same for many points at once and one by one under `jax.vmap`;
    - keep its type, and be finite for inputs of 1e-9 and of 1e9.

    Args:
        into: the set. Arrays in it must fit a value of the shape.
        shape: of one value; its last axes are those of a member.
        samples: number of points.
        scales: smallest and largest size of the points.
        weights: smallest and largest weight.
        dtype: the type in which the set projects.
        tolerance: largest relative excess; by default 1e-7 in float64 and 1e-3 in float32.
        key: seed.

    Raises:
        AssertionError: naming the property, the point, and by how much it fails.

    >>> from pjax.sets import Ball
    >>> check_set(Ball(2.0), (3,), samples=16).points
    16
    """
    limit = _TOLERANCE[dtype] if tolerance is None else tolerance
    rng = np.random.default_rng(key)
    shape = tuple(shape)
    first, second = (a.astype(dtype) for a in _inputs(samples, (shape, shape), rng, scales))
    extreme = np.resize([0.0, 1e-9, 1e9, 1.0], (16, *[1] * len(shape))) * rng.choice([-1, 1], (16, *shape))
    first, second = (np.concatenate([a, extreme.astype(dtype)]) for a in (first, second))
    weight = _spread(rng, weights, len(first)).astype(dtype).reshape(-1, *[1] * len(shape))
    with jax.enable_x64(dtype == "float64"):
        whole = into.fitted(first.shape, first.shape[: first.ndim - into.core], dtype)
        arrays, structure = jax.tree.flatten(whole)
        rule = Constrain(type(into), structure)
        (end, *_), output = _project(rule, (first, *arrays), second, np.broadcast_to(weight, first.shape))
        end, output = np.asarray(end), np.asarray(output)
        again = np.asarray(_nearest(rule, arrays, end))
        one_by_one = np.asarray(_nearest_mapped(rule, arrays, first))
        at_once = np.asarray(_nearest(rule, arrays, first))
        middle = (first + weight * second) / (1 + weight)
        tried = [np.asarray(_nearest(rule, arrays, y)) for y in _other_points(rng, middle, end)]
    return _SetCheck(into, first, second, weight, limit).run(end, output, again, one_by_one - at_once, tried)


@functools.partial(jax.jit, static_argnums=0)
def _nearest(rule: Constrain, arrays: Any, x: Any) -> Any:
    return rule.forward(x, *arrays)


@functools.partial(jax.jit, static_argnums=0)
def _nearest_mapped(rule: Constrain, arrays: Any, x: Any) -> Any:
    return jax.vmap(rule.forward)(x, *arrays)


def _other_points(rng: np.random.Generator, middle: np.ndarray, end: np.ndarray) -> list[np.ndarray]:
    """Points whose nearest members may be nearer than the one that was found."""
    flat = end.reshape(len(end), -1)
    size = np.abs(middle).reshape(len(middle), -1).max(-1) + np.abs(flat).max(-1) + 1e-3
    size = size.reshape(-1, *[1] * (middle.ndim - 1))
    found = [np.zeros_like(end), -end, middle[rng.permutation(len(middle))], end[rng.permutation(len(end))]]
    for axis in range(1, end.ndim):
        for _ in range(8):
            order = np.arange(end.shape[axis])
            a, b = rng.integers(0, len(order), 2)
            order[[a, b]] = order[[b, a]]
            found.append(end.take(order, axis))
    for radius in 10.0 ** np.arange(-6, 2):
        for base in (middle, end):
            for share in (1.0, 0.3):  # of the entries move
                noise = rng.normal(size=end.shape) * (rng.random(end.shape) < share)
                found.append(base + radius * size * noise)
    return [y.astype(end.dtype) for y in found]


class _SetCheck(NamedTuple):
    """The properties of a set's projection at given points."""

    into: Set
    first: np.ndarray
    second: np.ndarray
    weight: np.ndarray
    limit: float

    def cost(self, x: np.ndarray) -> np.ndarray:
        wide = [a.astype(np.float64) for a in (x, self.first, self.second, self.weight)]
        terms = (wide[0] - wide[1]) ** 2 + wide[3] * (wide[0] - wide[2]) ** 2
        return terms.reshape(len(x), -1).sum(-1)

    def run(
        self, end: np.ndarray, output: np.ndarray, again: np.ndarray, gap: np.ndarray, tried: list[np.ndarray]
    ) -> Report:
        def norm(a: np.ndarray) -> np.ndarray:
            return np.linalg.norm(a.astype(np.float64).reshape(len(a), -1), axis=-1)

        name, kind = self.into.name, self.first.dtype
        if end.dtype != kind or end.shape != self.first.shape:
            raise AssertionError(
                f"{name}: types and shapes are kept: {kind}{self.first.shape} became {end.dtype}{end.shape}."
            )
        # What one unit of rounding in every number can change.
        unit = np.finfo(kind).eps * (norm(self.first) + norm(self.second) + norm(end)) + 1e-300
        self.demand("the result is finite", np.isfinite(end).reshape(len(end), -1).all(-1), norm(end))
        offset, drift = norm(end - output) / unit, norm(again - end) / unit
        self.demand("input and output agree", offset <= _ROUNDINGS, offset)
        self.demand("projecting again changes nothing", drift <= _ROUNDINGS, drift)
        apart = norm(gap) / unit
        self.demand("vmap equals one call", apart <= _ROUNDINGS, apart)
        found = self.cost(end)
        best = np.min([self.cost(y) for y in tried], axis=0)
        off = _ROUNDINGS * unit * np.sqrt(1 + self.weight.reshape(-1))
        slack = 2 * np.sqrt(found) * off + off * off
        excess = np.maximum(found - best - slack, 0) / np.maximum(found, 1e-300)
        self.demand("no better point exists", excess <= self.limit, excess)
        return Report(len(end) - 16, float(excess.max()), float(offset.max()), float(drift.max()))

    def demand(self, what: str, passed: np.ndarray, figures: np.ndarray) -> None:
        if not passed.all():
            row = int(np.argmax(np.where(passed, -np.inf, np.nan_to_num(figures, nan=np.inf))))
            raise AssertionError(
                f"{self.into.name}: failed: {what}, by {figures[row]:.3g} ({(~passed).sum()} of {len(passed)}"
                f" points). Point {row}: {_brief(self.first[row])} and {_brief(self.second[row])}, "
                f"weight {self.weight[row].item():g}."
            )


def check_layout(fn: Callable[..., Any], *shapes: Sequence[int]) -> None:
    """Check that a function of arrays is a layout: that it only moves numbers.

    Every slot of the result must copy one scalar of an argument or hold a constant. Then the consensus of
    everything that reads a scalar is :math:`L^\\top v / L^\\top 1`, where :math:`L` is the linear part of the
    function, and no inverse need be written. Checked are:

    - each slot copies one scalar or is constant (the function is evaluated on the digits of the scalars'
      numbers, so rounding hides nothing);
    - the transpose that JAX derives adds up, for each scalar, exactly the slots that read it;
    - the transpose of ones counts them;
    - the consensus of unchanged copies is the scalar itself, and nothing for a scalar that nobody reads.

    Args:
        fn: a function of arrays that returns an array.
        shapes: the shapes of its arguments.

    Raises:
        AssertionError: if one of these does not hold; the message says which, and where.

    >>> check_layout(lambda x: jnp.concatenate([x.T, jnp.ones((1, 2))]), (2, 3))
    >>> check_layout(lambda x: 2 * x, (3,))
    Traceback (most recent call last):
        ...
    AssertionError: not a layout: slot (0,) is neither a copy of a scalar nor constant
    """
    shapes = tuple(tuple(shape) for shape in shapes)
    sizes = [math.prod(shape) for shape in shapes]
    total = sum(sizes)

    def flat(x: Any) -> Any:
        parts = np.cumsum([0, *sizes])
        given = (x[a:b].reshape(s) for a, b, s in zip(parts, parts[1:], shapes, strict=False))
        return jnp.asarray(fn(*given)).astype(jnp.float32)

    digits = [(np.arange(total) >> bit) & 1 for bit in range(total.bit_length())]
    inputs = jnp.asarray(np.stack([np.zeros(total), np.ones(total), *digits]), jnp.float32)
    seen = np.asarray(jax.vmap(flat)(inputs))
    shape = seen.shape[1:]
    seen = seen.reshape(len(seen), -1)
    copies = (seen[0] == 0) & (seen[1] == 1) & np.isin(seen, (0, 1)).all(0)
    number = (seen[2:] * (1 << np.arange(len(digits)))[:, None]).sum(0).astype(int)
    copies &= number < total
    # A constant 0 or 1 does not change between the first two evaluations; a copy does.
    constant = (seen == seen[0]).all(0)
    rng = np.random.default_rng(0)
    probe = rng.permutation(total).astype(np.float32) + 3
    for x in (probe, -probe):  # both orders, both signs: a maximum copies, too, but not always the same
        value = np.asarray(flat(jnp.asarray(x))).ravel()
        copies &= value == x[np.minimum(number, total - 1)]
        constant &= value == seen[0]
    _no_slot("not a layout: slot {} is neither a copy of a scalar nor constant", shape, ~(copies | constant))

    def linear(x: Any) -> Any:
        return flat(x) - jnp.asarray(np.where(constant, seen[0], 0).reshape(shape), jnp.float32)

    transpose = jax.linear_transpose(
        lambda x: jax.jvp(linear, (jnp.asarray(probe),), (x,))[1], jax.ShapeDtypeStruct((total,), jnp.float32)
    )
    cotangent = rng.integers(-8, 9, shape).astype(np.float32)
    for given, what in ((cotangent, "transpose"), (np.ones(shape, np.float32), "count")):
        expected = np.zeros(total, np.float32)
        np.add.at(expected, number[copies], given.ravel()[copies])
        found = np.asarray(transpose(jnp.asarray(given))[0])
        bad = found != expected
        if bad.any():
            at = int(bad.argmax())
            raise AssertionError(
                f"the {what} of scalar {at} is {found[at]:g}, but its readers add up to {expected[at]:g}"
            )
    counts = np.asarray(transpose(jnp.ones(shape, jnp.float32))[0])
    sums = np.asarray(transpose(linear(jnp.asarray(probe)))[0])
    consensus = sums / np.maximum(counts, 1)
    wanted = np.where(counts > 0, probe, 0)
    if not np.allclose(consensus, wanted, rtol=1e-5, atol=0):
        at = int((~np.isclose(consensus, wanted, rtol=1e-5, atol=0)).argmax())
        raise AssertionError(f"the consensus of scalar {at} is {consensus[at]:g} instead of {wanted[at]:g}")


def _no_slot(message: str, shape: tuple[int, ...], bad: np.ndarray) -> None:
    if bad.any():
        place = tuple(int(i) for i in np.unravel_index(int(bad.argmax()), shape))
        raise AssertionError(message.format(place))
