"""Rules: that they project onto the graphs of their functions, compared with a search."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from pjax.checks import check_name
from pjax.errors import InputError
from pjax.rules import Example, Primitive, Target, registered
from pjax.rules.registry import check_case, check_kind
from pjax.testing import report, search
from pjax.testing.report import Report, Shapes, Witness

_HARD = 1e6  # weight of a loss whose minimisers are projected onto


def check_projection(
    rule: Primitive | Target,
    shapes: Sequence[Sequence[Sequence[int]]],
    *,
    constant: Sequence[int] = (),
    sided: Sequence[int] = (),
    labels: str = "classes",
    scale: float | None = None,
    samples: int | Sequence[int] = 256,
    scales: tuple[float, float] = report.SCALES,
    dtype: str = "float64",
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

    Points are what the type of the rule can tell from the input. A function of one number may be so steep
    that its values at two neighbours have nothing in common, as the tangent of a large number beside a pole:
    which value such a point has is chance. It is nearer only if its neighbours on both sides are so, too.

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
        dtype: the type in which the rule computes, ``"float64"`` or ``"float32"``. The search always uses
            float64.
        key: seed.

    Returns:
        A `Report` of the worst figures.

    Raises:
        AssertionError: naming the property, the point, and by how much it fails.

    >>> from pjax.rules import Identity
    >>> check_projection(Identity(), [[()]], samples=16).points
    16
    """
    check_name("labels", labels, ("classes", "probabilities", "numbers"))
    check_name("dtype", dtype, report.TOLERANCE)
    check_kind(rule)
    for case in shapes:
        check_case(rule, tuple(map(tuple, case)), labels)
        if not _takes_several(rule, case):
            raise InputError(
                f"{type(rule).__name__} is joint, and its forward does not give one number for each of"
                " several copies along leading axes, which is what is checked here: write a test of its own"
            )
    limit = report.TOLERANCE[dtype]
    if rule.is_target and scale is None:
        limit = max(limit, 4 / _HARD)
    if not rule.is_target:
        weight = inspect.signature(rule.project).parameters.get("weight")
        if weight is None or weight.default != 1:
            raise AssertionError(f"{rule.name}: the weight is 1 by default: got {weight}.")
    reports = []
    kind = _TargetCheck if rule.is_target else _Check
    given = frozenset(constant), frozenset(sided), labels, scale
    counts = [samples] * len(shapes) if isinstance(samples, int) else list(samples)
    for number, (case, count) in enumerate(zip(shapes, counts, strict=True)):
        check = kind(rule, tuple(map(tuple, case)), dtype, limit, *given)
        points = check.sample(np.random.default_rng((key, number)), count, scales)
        if number == len(shapes) // 2:  # these do not depend on the length
            check.uniformity(points)
            check.extremes(points)
        reports.append(check.run(points, number + key))
    return report.worst(reports)


def _takes_several(rule: Primitive | Target, case: Sequence[Sequence[int]]) -> bool:
    """Whether a rule gives one number for each of many copies, as those of whole arrays need not."""
    if not getattr(rule, "joint", False):
        return True
    inputs = [jax.ShapeDtypeStruct((2, *shape), np.float32) for shape in case]
    try:
        return bool(jax.eval_shape(rule.forward, *inputs).shape == (2,))
    except Exception:  # whatever it says of more axes than it has
        return False


def check_registered(*names: str, **options: Any) -> Report:
    """Check every example of the rules that `pjax.register_primitive` knows, by `check_projection`.

    Rules that do not promise the nearest point are left out.

    Args:
        names: of the rules to check; by default all, those of pjax included, but for those of whole arrays
            that cannot be given many copies at once.
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
    found = [e for e in registered() if e.nearest and e.rule.name in (names or known)]
    if not names:
        found = [e for e in found if all(_takes_several(e.rule, case) for case in e.shapes)]
    return report.worst(check_example(example, **options) for example in found)


def check_example(example: Example, **options: Any) -> Report:
    """`check_projection` of a rule as it is registered."""
    given = {f.name: getattr(example, f.name) for f in dataclasses.fields(example) if f.name != "nearest"}
    return check_projection(**given, **options)


Points: TypeAlias = tuple[Any, ...]
"""What a rule projects: inputs, target and weight of a primitive; predictions and labels of a target."""


def _flat(arrays: Sequence[Any]) -> Any:
    return jnp.concatenate([jnp.reshape(a, (a.shape[0], -1)) for a in arrays], axis=-1)


def _floats(points: Points, change: Callable[[np.ndarray], np.ndarray]) -> Points:
    """Points with numbers changed, but for labels that are classes."""
    changed: Points = jax.tree.map(lambda a: a if a.dtype.kind == "i" else change(a), points)
    return changed


@functools.partial(jax.jit, static_argnums=(0, 1))
def _call(of: Any, method: str, *arguments: Any) -> Any:
    """What a method of a rule or a check returns, compiled."""
    return getattr(of, method)(*arguments)


@functools.partial(jax.jit, static_argnums=0)
def _mapped(rule: Any, first: Any, second: Any, *weight: Any) -> Any:
    return jax.vmap(lambda a, b: rule.project(a, b, *weight))(first, second)


@dataclasses.dataclass(frozen=True)
class _Check:
    """The properties of a primitive for inputs of one shape, and most of those of a target."""

    rule: Any
    core: Shapes
    dtype: str = dataclasses.field(compare=False)  # the search is compiled once for all types of the rule
    limit: float = dataclasses.field(compare=False)
    constant: frozenset[int]
    sided: frozenset[int]
    labels: str
    scale: float | None
    firmly: bool = False
    """Whether a point is only as good as those on both sides that rounding could confuse with it."""

    def witness(self, points: Points) -> Witness:
        return Witness(self.rule.name, functools.partial(self.describe, points))

    def project(self, points: Points) -> Any:
        with jax.enable_x64(self.dtype == "float64"):
            return jax.tree.map(np.asarray, _call(self.rule, "project", *points))

    def wide(self, method: str, *arguments: Any) -> Any:
        """A method in float64."""
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, _call(self, method, *arguments))

    def figures(self, every: Any, key: int) -> Any:
        """What `examine` finds, in blocks of one length, so that it is compiled once."""
        units = float(np.finfo(self.dtype).eps), float(np.finfo(self.dtype).tiny)
        count, width = len(jax.tree.leaves(every)[0]), sum(map(math.prod, self.core))
        blocks = math.ceil(count * width / 20_000)
        rows = np.resize(np.arange(count), (blocks, math.ceil(count / blocks)))
        parts = (jax.tree.map(lambda a, i=i: a[i], every) for i in rows)
        found = [self.wide("examine", part, *units, jax.random.key(key)) for part in parts]
        return tuple(np.concatenate(v)[:count] for v in zip(*found, strict=True))

    def run(self, points: Points, key: int) -> Report:
        result = self.project(points)
        every = _floats((points, result, *self.more(points, result)), lambda a: a.astype(np.float64))
        figures = self.figures(every, key)
        beaten = np.flatnonzero(figures[0] > self.limit)
        if len(beaten) and self.alone:
            rows = np.resize(beaten, 64 * math.ceil(len(beaten) / 64))  # few lengths: less to compile
            firm = dataclasses.replace(self, firmly=True)
            again = firm.figures(jax.tree.map(lambda a: a[rows], every), key)
            for old, new in zip(figures, again, strict=True):
                old[rows] = new
        excess, offset, drift, found, best = figures

        def costs(row: int) -> str:
            return f"relative excess: cost {found[row]:.9g}, but a search found {best[row]:.9g}"

        return self.witness(points).report(excess, offset, drift, self.limit, costs)

    def uniformity(self, points: Points) -> None:
        """Points at once with an array of weights, and one by one under vmap with a scalar weight, agree."""
        points = _floats(points, lambda a: np.clip(a, -1e28, 1e28).astype(np.float32))
        first, second, *weights = points
        with jax.enable_x64(False):
            many = _call(self.rule, "project", first, second, *(np.full_like(w, 3.0) for w in weights))
            mapped = _mapped(self.rule, first, second, *(3.0 for _ in weights))
        wide = [jax.tree.leaves(_floats(a, lambda x: np.asarray(x, np.float64))) for a in (many, mapped)]
        size = max(np.abs(a).max(initial=0) for a in (*jax.tree.leaves((first, second)), *wide[0]))
        for a, b in zip(*wide, strict=True):
            gap = np.abs(a - b)
            limit = 1e3 * np.finfo(np.float32).eps * size
            self.witness(points).demand(
                "vmap equals one call", gap <= limit, gap.reshape(len(gap), -1).max(-1)
            )

    def extremes(self, points: Points) -> None:
        """Types are kept; the result is finite for tiny, huge, equal, opposite and zero inputs."""
        for dtype in ("float64", "float32", "bfloat16"):
            sizes = (0.0, 1e-2, 0.1, 1.0) if dtype == "bfloat16" else (0.0, 1e-9, 1.0, 1e9)
            extreme = self.extreme(points, sizes, jnp.dtype(dtype))
            result = dataclasses.replace(self, dtype=dtype).project(extreme)
            self.witness(extreme).kept(extreme[:-1], result)

    def value(self, flat: Any) -> Any:
        parts = jnp.split(flat, np.cumsum([math.prod(shape) for shape in self.core])[:-1], axis=-1)
        return self.rule.forward(*(p.reshape(p.shape[0], *s) for p, s in zip(parts, self.core, strict=True)))

    def slopes(self, flat: Any) -> tuple[Any, Any]:
        values, pull = jax.vjp(self.value, flat)
        return values, pull(jnp.ones_like(values))[0]

    @property
    def alone(self) -> bool:
        """Whether a single number may move."""
        return not self.rule.is_target and bool(self.free().sum() == 1)

    def free(self) -> np.ndarray:
        """1 for the numbers that may move, 0 for the others."""
        return self.each(lambda i: i not in self.constant)

    def each(self, trait: Callable[[int], bool]) -> np.ndarray:
        """For every number 1 where its input has the trait, else 0."""
        return np.concatenate([np.full(math.prod(s), float(trait(i))) for i, s in enumerate(self.core)])

    def describe(self, points: Points, row: int) -> str:
        inputs, target, weight = points
        shown = ", ".join(report.brief(x[row]) for x in inputs)
        return f"inputs {shown} of shapes {self.core}, target {target[row]!r}, weight {weight[row]!r}"

    def more(self, points: Points, result: Any) -> tuple[Any, ...]:
        inputs, output = result
        for i in self.constant:
            self.witness(points).demand("constant inputs stay", inputs[i] == points[0][i])
        with jax.enable_x64(self.dtype == "float64"):
            own = np.asarray(_call(self.rule, "forward", *inputs))
        return self.project((inputs, output, points[2])), own

    def extreme(self, points: Points, sizes: Sequence[float], kind: Any) -> Points:
        count = len(points[1])  # as in the other checks, so that nothing is compiled again
        scale = np.repeat(sizes, 16)
        turns = np.tile([1.0, 1.0, -1.0, 0.0], 16)  # of all inputs but the first
        wild = np.resize(np.tile(np.repeat([-100.0, 0.0, 1.0, 100.0], 4), 4), count)
        inputs = tuple(
            np.ones((count, *shape)) * np.resize((turns if i else 1.0) * scale, (count, *[1] * len(shape)))
            for i, shape in enumerate(self.core)
        )
        values = self.wide("slopes", np.concatenate([x.reshape(count, -1) for x in inputs], axis=-1))[0]
        most = float(jnp.finfo(kind).max) / 200
        values = np.clip(np.where(np.isfinite(values), values, 0), -most, most)
        target = wild * values + np.sign(wild) * (np.abs(wild) > 1)
        weight = np.full(count, 3.0)
        return _floats((inputs, target, weight), lambda a: a.astype(kind))

    def sample(self, rng: np.random.Generator, count: int, scales: tuple[float, float]) -> Points:
        dtype = np.dtype(self.dtype)
        inputs = tuple(x.astype(dtype) for x in report.drawn_inputs(rng, count, self.core, scales))
        flat = np.concatenate([x.astype(np.float64).reshape(count, -1) for x in inputs], axis=-1)
        values, slopes = self.wide("slopes", flat)
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
        weight = report.drawn_weights(rng, count)
        return inputs, target.astype(dtype), weight.astype(dtype)

    def examine(self, points: Any, eps: float, tiny: float, key: jax.Array) -> Any:
        """Excess, offset and drift of every point, the cost found, and the best known."""
        (inputs, target, weight), (ends, output), (again, output_again), own = points
        origin, end, free = _flat(inputs), _flat(ends), jnp.asarray(self.free())
        norm = functools.partial(jnp.linalg.norm, axis=-1)
        # Points that rounding could confuse with the result; beside a kink or a jump, on both sides of it
        size = jnp.maximum(jnp.maximum(jnp.abs(end), jnp.abs(origin)), jnp.abs(output)[:, None])
        pushes = (0.0, 1.0, -1.0, jnp.where(jnp.arange(end.shape[-1]) % 2, 1.0, -1.0))
        nearby = jnp.concatenate([end + push * (2 * eps * size) for push in pushes])
        values, pull = jax.vjp(jax.vmap(self.value), nearby.reshape(len(pushes), *end.shape))
        slopes = norm(pull(jnp.ones_like(values))[0] * free)
        alone = self.alone
        if alone or self.sided:  # some of the points may lie beyond a border or on a pole
            slope, off_graph = jnp.nanmax(slopes, axis=0), jnp.nanmin(jnp.abs(output - values), axis=0)
        else:
            slope, off_graph = slopes.max(0), jnp.abs(output - values).min(0)
        if alone:
            # The derivative may be infinite, or none, at a border: what matters is how much the function
            # changes. Where it has no value in float64, but one in the type of the rule, nothing can be said.
            steep = jnp.minimum(jnp.where(jnp.isnan(slope), jnp.inf, slope), self.steepness(end, origin, eps))
            slope = jnp.where(jnp.isfinite(values[0]), steep, 1e150)
        # What one unit of rounding in every number can change, in the output and in the distance
        reach = norm(origin) + norm(end)
        height = jnp.abs(target) + jnp.abs(output) + slope * reach
        if alone:  # a function may be less accurate in the type of the rule than the last digit
            noise = jnp.nanmin(jnp.abs(own - values), axis=0)  # at a jump, from the nearest side
            height = (
                height + jnp.where(jnp.isfinite(noise), noise, 0) / eps + search.rounding(self.value, end)
            )
        least = tiny if alone else 1e-300
        unit = eps * (reach + jnp.sqrt(weight) * height) + least
        offset = off_graph / (eps * height + least)
        drift = jnp.sqrt(norm(_flat(again) - end) ** 2 + weight * (output_again - output) ** 2) / unit

        found = norm(end - origin) ** 2 + weight * (output - target) ** 2
        best = self.searched(end, origin, target, weight, found, eps, key)
        # A point that is off by rounding is off by this much in its cost.
        excess = report.relative_excess(found, best, report.ROUNDINGS * unit)
        finite = jnp.isfinite(found)
        return tuple(jnp.where(finite, v, jnp.inf) for v in (excess, offset, drift, found, best))

    def searched(
        self,
        end: jax.Array,
        origin: jax.Array,
        target: jax.Array,
        weight: jax.Array,
        found: jax.Array,
        eps: float,
        key: jax.Array,
    ) -> jax.Array:
        """The least cost that a search finds, from the projections (``end``), their costs, and elsewhere."""
        free, alone = jnp.asarray(self.free()), self.alone
        norm = functools.partial(jnp.linalg.norm, axis=-1)
        kept = jnp.asarray(self.each(lambda i: i in self.sided))
        coarse = eps * 2.0 ** jnp.floor(jnp.log2(jnp.abs(origin)))
        single = float(np.finfo(np.float32).eps)

        def plain(flat: jax.Array) -> Any:
            total = norm(flat - origin) ** 2 + weight * (self.value(flat) - target) ** 2
            same_side = jnp.all(kept * flat * jnp.where(origin < 0, -1, 1) >= 0, axis=-1)
            return jnp.where(jnp.isfinite(total) & same_side, total, jnp.inf)

        def cost(flat: jax.Array) -> Any:
            if alone:  # what the type of the rule can tell from the origin, and what it has
                flat = jnp.where(coarse > 0, origin + coarse * jnp.round((flat - origin) / coarse), flat)
                flat = jnp.where(eps < single, flat, jax.lax.reduce_precision(flat, 11, 23))
            total = plain(flat)
            if self.firmly:
                step = eps * jnp.maximum(jnp.abs(flat), jnp.abs(origin)) * free
                beside = (plain(flat + step), plain(flat - step))  # infinite beyond a border
                total = functools.reduce(jnp.maximum, (jnp.where(c < jnp.inf, c, 0) for c in beside), total)
            return total

        best = search.keep((origin, cost(origin)), end, cost(end))
        first, *more = jax.random.split(key, 4)
        wide = jnp.maximum(jnp.maximum(norm(origin), jnp.abs(target)), jnp.sqrt(jnp.abs(target)))
        fine = 8 if end.shape[-1] <= 64 else 5
        slopes = jax.grad(lambda flat: jnp.sum(self.value(flat)))(origin)
        directions = [jnp.ones_like(origin) * free]
        if end.shape[-1] > 1:
            noise = jax.random.normal(first, origin.shape) * free
            directions += [slopes * free, end - origin, origin * free, noise]
        best = search.along(cost, best, origin, jnp.stack(directions), wide, fine)
        if alone:
            best = search.dense(cost, best, origin, jnp.ones_like(origin) * free, jnp.sqrt(found))
        noise = jax.random.normal(more[0], origin.shape) * free
        starts = [end, origin, best[0], origin + wide[:, None] * noise / math.sqrt(end.shape[-1])]
        best = search.levenberg(self.value, cost, best, jnp.stack(starts), origin, target, weight, free)
        return search.around(cost, best, norm(best[0] - origin), more[1], free)[1]

    def steepness(self, end: jax.Array, origin: jax.Array, eps: float) -> jax.Array:
        """How much the function of one number changes when rounding changes the number, over that change."""
        step = 2 * eps * jnp.maximum(jnp.abs(end), jnp.abs(origin)) * self.free()
        values = jnp.stack([self.value(end + push * step) for push in (0, 1, -1)])
        known = jnp.isfinite(values)
        high, low = jnp.where(known, values, -jnp.inf).max(0), jnp.where(known, values, jnp.inf).min(0)
        return (high - low) / jnp.maximum(step.max(-1), 1e-300)


@dataclasses.dataclass(frozen=True)
class _TargetCheck(_Check):
    """The same of a target, of which only the distance is compared."""

    def more(self, points: Points, result: Any) -> tuple[Any, ...]:  # noqa: ARG002
        return ()

    def describe(self, points: Points, row: int) -> str:
        return f"predictions {report.brief(points[0][row])}, labels {report.brief(points[1][row])}"

    def extreme(self, points: Points, sizes: Sequence[float], kind: Any) -> Points:
        x, y = points
        x = x / max(float(np.abs(x).max()), 1e-30)
        x = np.resize(sizes, (len(x), *[1] * (x.ndim - 1))) * x
        return _floats((x, y if y.dtype.kind == "i" else np.clip(y, -9, 9)), lambda a: a.astype(kind))

    def sample(self, rng: np.random.Generator, count: int, scales: tuple[float, float]) -> Points:
        (shape,) = self.core
        (x,) = report.drawn_inputs(rng, count, self.core, scales)
        if self.labels == "classes":
            return x.astype(self.dtype), rng.integers(0, shape[-1], (count, *shape[:-1])).astype(np.int32)
        if self.labels == "probabilities":
            y = rng.dirichlet(np.ones(shape[-1]), (count, *shape[:-1]))
        else:
            large = rng.normal(size=x.shape) * np.abs(x).max(initial=1e-3, axis=None)
            y = np.where(rng.random(x.shape) < 0.2, 0, large)
            y = np.where(rng.random(x.shape) < 0.5, rng.normal(size=x.shape), y)
        return x.astype(self.dtype), y.astype(self.dtype)

    def examine(self, points: Any, eps: float, tiny: float, key: jax.Array) -> Any:  # noqa: ARG002
        (start, labels), end = points
        origin, final = _flat([start]), _flat([end])
        norm: Callable[[Any], jax.Array] = functools.partial(jnp.linalg.norm, axis=-1)
        factor = _HARD if self.scale is None else 2 * self.scale

        def cost(flat: jax.Array) -> jax.Array:
            loss = self.rule.forward(flat.reshape(start.shape), labels)
            return norm(flat - origin) ** 2 + factor * loss.reshape(len(flat), -1).sum(-1)

        found = cost(final)
        best = search.keep((origin, cost(origin)), final, found)
        reach = jnp.maximum(norm(origin), norm(final)) + 1
        noise = jax.random.normal(key, origin.shape)
        directions = jnp.stack([final - origin, noise, jax.grad(lambda flat: jnp.sum(cost(flat)))(origin)])
        best = search.along(cost, best, origin, directions, reach, 6)
        best = search.descend(cost, best, jnp.stack([final, origin, best[0]]))
        best = search.around(cost, best, norm(best[0] - origin), key, jnp.ones(origin.shape[-1]))
        unit = norm(origin) + norm(final)
        if labels.dtype == origin.dtype and self.scale is not None:
            unit = unit + factor * norm(_flat([labels]))  # labels are rounded too
        off = report.ROUNDINGS * eps * unit
        # The last term is the noise of the loss as the search evaluates it.
        noise = 8 * float(np.finfo(np.float64).eps) * norm(final)
        excess = report.relative_excess(found, best[1], off, factor * (off * off + noise))
        figures = (excess, 0 * excess, 0 * excess, found, best[1])
        return tuple(jnp.where(jnp.isfinite(found), v, jnp.inf) for v in figures)
