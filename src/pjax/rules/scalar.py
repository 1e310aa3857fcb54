"""Functions of one number: one rule for all of them, and the table of those that JAX has."""

import dataclasses
import math
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp

from pjax.errors import InputError
from pjax.rules.arithmetic import weight_like, wide, wide_reals
from pjax.rules.base import Arrays, Asked, Primitive, Projection, Weight
from pjax.rules.nearest import derivatives, finite, nearest


@dataclasses.dataclass(frozen=True)
class Traits:
    """What helps the search for the nearest point of a graph. None of it is needed."""

    domain: tuple[float, float] = (-float("inf"), float("inf"))
    """Where the function is defined, borders included or not."""
    points: tuple[float, ...] = ()
    """Kinks, poles, borders and minima other than zero: where to look closely. With a period, one of each."""
    steps: float | None = None
    """Where the function jumps at this number and at all that differ from it by an integer."""
    poles: bool = False
    """Whether it has a pole at every integer from zero downwards."""
    period: float = float("inf")
    """The function repeats itself: the nearest point is within half of this."""
    pieces: bool = False
    """Whether it is put together of pieces with kinks, as softplus is of max(x, 0) and log1p(exp(-|x|))."""
    tame: bool = False
    """Whether it is smooth, and its derivative finite where the function is, as JAX computes both."""


@dataclasses.dataclass(frozen=True)
class Function:
    """A function that a rule is made of. Functions with the same key are the same function."""

    key: Hashable
    """All that tells two functions apart."""
    label: str
    """The name to show."""
    fn: Callable[..., jax.Array] = dataclasses.field(compare=False)
    """The function itself, of what moves and then of constants. It must take float32 and float64."""
    traits: Traits = dataclasses.field(default=Traits(), compare=False)


@dataclasses.dataclass(frozen=True)
class Scalar(Primitive):
    r"""Any function of one number: :math:`z = f(x)`, element by element.

    Set: :math:`\{(x, z) : z = f(x)\}`. The projection minimises
    :math:`q(x) = (x - x_0)^2 + w (f(x) - z_0)^2`. A minimiser lies within
    :math:`|x - x_0| \le \sqrt w |f(x_0) - z_0|`, whatever :math:`f` is: there it is searched for.
    Where :math:`f` is infinite or not a number, the point is infinitely far. At a jump either side is on the
    graph, and the output returned says which was meant.

    The inputs are the number and, after it, constants of the function, which do not move.

    Args:
        function: the function, element by element.

    >>> (x,), z = elementary("exp").project((jnp.array(0.0),), jnp.array(3.0))
    >>> round(float(x), 3), round(float(z), 3)
    (0.968, 2.632)
    """

    function: Function

    name: ClassVar[str] = "scalar"
    first_order: ClassVar[bool] = True

    moving = 1

    @property
    def label(self) -> str:
        return self.function.label

    def forward(self, *inputs: jax.Array) -> jax.Array:
        x = inputs[0]
        return self._curve(inputs)(wide(x)).astype(x.dtype)

    def project(self, inputs: Arrays, output: jax.Array, weight: Weight = 1.0) -> Projection:
        still, goal = jnp.zeros_like(inputs[0]), wide(output)
        move, back = self._nearest(inputs, still, goal, None, weight)
        end = (wide(inputs[0]) + move).astype(inputs[0].dtype)
        return (end, *inputs[1:]), (goal + back).astype(output.dtype)

    def displace(
        self, inputs: Arrays, shifts: Arrays, output: jax.Array, shift: jax.Array, weight: Weight = 1.0
    ) -> Projection:
        goal, rise = wide(output) + wide(shift), wide(shift)
        move, back = self._nearest(inputs, shifts[0], goal, rise, weight)
        # No move leads away from infinity, such as that of `where(mask, f(x), -inf)`: there all stays.
        move, back = (jnp.where(jnp.isinf(output), x, y) for x, y in ((0, move), (-rise, back)))
        still = (jnp.zeros_like(c) for c in inputs[1:])
        return (move.astype(inputs[0].dtype), *still), back.astype(output.dtype)

    def _nearest(
        self,
        inputs: Arrays,
        shift: jax.Array,
        goal: jax.Array,
        rise: jax.Array | None,
        weight: jax.typing.ArrayLike,
    ) -> tuple[jax.Array, jax.Array]:
        """The moves of the number, which is shifted from the inputs, and of the output, from its goal.

        ``rise`` is the goal less the value at the inputs, where that is known more accurately.
        """
        f, traits = self._curve(inputs), self.function.traits
        x, dx, w = wide(inputs[0]), wide(shift), weight_like(weight, goal)
        shape = jnp.broadcast_shapes(x.shape, goal.shape, w.shape, *(jnp.shape(c) for c in inputs[1:]))
        x, dx, goal, w = (jnp.broadcast_to(v, shape) for v in (x, dx, goal, w))
        root, start = jnp.sqrt(w), x + dx
        (point, slope, bend), (*_, third) = jax.jvp(lambda v: derivatives(f, v), (x,), (jnp.ones_like(x),))
        residual: Residual = lambda end, _: end - goal  # noqa: E731 - with the digits that values have
        if rise is not None:
            residual = _residual((point, slope, bend, third), x, goal, rise)
        rise = goal - point if rise is None else rise

        def curve(t: jax.Array) -> jax.Array:
            return root * residual(f(start + t), dx + t)

        def slopes(t: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            value, slope, bend = derivatives(f, start + t)
            return root * residual(value, dx + t), root * slope, root * bend

        seeds = jnp.stack([jnp.zeros_like(start), -dx, *(p - start for p in self._seeds(start, goal, w))])
        fine = jnp.finfo(x.dtype).eps
        # How closely to look near the start: a part of the way that a straight line has to go.
        steep, usual = root * slope, 1 + jnp.abs(start)
        step = jnp.abs(root * (slope * dx - rise) / (steep + 1 / steep))
        centres = [(jnp.zeros_like(start), jnp.where(step < usual, step, usual) / 16)]
        for p in (0.0, *traits.points):
            away = p - start
            if traits.period < math.inf:  # to the last digit, however large the number is
                away = p - jnp.arctan2(jnp.sin(start), jnp.cos(start))
                away = away - traits.period * jnp.round(away / traits.period)
            centres.append((away, fine * (abs(p) + jnp.abs(start))))
        if traits.poles:
            centres.append((jnp.minimum(jnp.round(start), 0) - start, fine * jnp.abs(start)))
        move, above = nearest(curve, slopes, seeds, centres, traits.period / 2)
        return move, above / jnp.where(root > 0, root, 1)

    def soft(self, softness: float) -> Callable[..., jax.Array]:  # noqa: ARG002
        """To first order: the goal times the derivative, which is found where the function is evaluated."""
        if self.function.traits.tame:
            return self.forward

        def forwards(*inputs: jax.Array) -> tuple[jax.Array, tuple[jax.Array, Arrays]]:
            x, f = wide(inputs[0]), self._curve(inputs)
            value, slope = jax.jvp(f, (x,), (jnp.ones_like(x),))
            if self.function.traits.pieces:
                slope = _mended(f, x, slope)
            return value.astype(inputs[0].dtype), (finite(slope), inputs[1:])

        def backwards(kept: tuple[jax.Array, Arrays], goal: jax.Array) -> Asked:
            slope, constants = kept
            return ((slope * wide(goal)).astype(goal.dtype), *(None for _ in constants))

        fn = jax.custom_vjp(self.forward)
        fn.defvjp(forwards, backwards)
        return fn

    def _curve(self, inputs: Arrays) -> Callable[[jax.Array], jax.Array]:
        """The function of the number alone."""
        constants = list(map(wide_reals, inputs[1:]))
        return lambda x: self.function.fn(x, *constants)

    def _seeds(self, start: jax.Array, goal: jax.Array, w: jax.Array) -> list[jax.Array]:
        """Points worth a look: the border of the domain, and jumps where they may be best."""
        traits = self.function.traits
        found = [jnp.clip(start, *traits.domain)]
        if traits.steps is not None:
            middle = jnp.round((start + w * goal) / (1 + w) - traits.steps) + traits.steps
            for edge in (middle + i for i in range(-2, 3)):
                beside = 2 * jnp.finfo(start.dtype).eps * (jnp.abs(edge) + jnp.abs(start))
                found += [edge - beside, edge, edge + beside]
        return found


def _mended(f: Callable[[jax.Array], jax.Array], x: jax.Array, slope: jax.Array) -> jax.Array:
    """The derivative of a function of pieces, also where these have kinks that it has not itself.

    There derivatives of the pieces do not add up to that of the function: max(x, 0) + log1p(exp(-abs(x))) has
    the slope 1/2 at 0, and by its pieces 0. What both sides agree on is taken.
    """
    eps = jnp.finfo(x.dtype)
    way = 2 * eps.eps * jnp.abs(x) + jnp.sqrt(eps.tiny)
    below, above = (jax.jvp(f, (x + s,), (jnp.ones_like(x),))[1] for s in (-way, way))
    smooth = jnp.abs(above - below) <= 1e-4 * jnp.abs(above + below)
    return jnp.where(smooth, (below + above) / 2, slope)


Residual: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]
"""How far a value is above a goal, given the way to it."""


def _residual(series: Arrays, x: jax.Array, goal: jax.Array, rise: jax.Array) -> Residual:
    """The residual to the last digit where the way is short.

    The difference of two values loses the digits they share. The first terms of a series do not; they are
    taken where they agree with the difference as far as that is accurate, and what they leave out is lost in
    rounding.

    The series has the value at x, where the way begins, and three derivatives there; ``rise`` is the goal
    less that value, as accurately as it is known.
    """
    point, slope, bend, third = series
    eps = jnp.finfo(x.dtype).eps
    coarse = eps * (jnp.abs(goal) + jnp.abs(slope * x))
    # Of what a function is made of may cancel as much as it is given, as in x (1 + tanh x): that matters to
    # short ways.
    inside, far = eps * jnp.minimum(jnp.abs(x), 8), eps**0.25 * jnp.abs(x)

    def residual(end: jax.Array, way: jax.Array) -> jax.Array:
        bent, rest = way * (bend * way / 2), way * (way * (way * third / 6))
        change = way * slope + bent + rest
        lost, last = coarse + eps * jnp.abs(end), jnp.abs(rest)
        noise = 4 * lost + jnp.where(jnp.abs(way) < far, 4 * inside, 0)
        agree = jnp.abs(change - (end - point)) < noise
        # The next term is about as much smaller than the last as way, or sqrt(rest / change).
        much = lost + 4 * eps * jnp.abs(change)
        part = last / jnp.where(much > 0, much, 1)
        left = (last * jnp.abs(way) < much) & (part * (part * last) <= jnp.abs(change))
        short = agree & left & (jnp.abs(way) < 1)
        return jnp.where(short, change - rise, end - goal)

    return residual


_positive = (0.0, float("inf"))
_TAME = ("asinh", "atan", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "logistic", "sinh", "square", "tanh")

TABLE: dict[str, Traits] = {
    **dict.fromkeys(("abs", "bessel_i0e", "bessel_i1e", "cbrt", "integer_pow", "sign"), Traits()),
    **dict.fromkeys(_TAME, Traits(tame=True)),
    **dict.fromkeys(("acos", "asin", "atanh", "erf_inv"), Traits((-1.0, 1.0), (-1.0, 1.0))),
    **dict.fromkeys(("digamma", "log", "rsqrt", "sqrt"), Traits(_positive)),
    **dict.fromkeys(("ceil", "floor"), Traits(steps=0.0)),
    **dict.fromkeys(("cos", "sin"), Traits(period=2 * math.pi, tame=True)),
    "acosh": Traits((1.0, float("inf")), (1.0,)),
    "lgamma": Traits(_positive, (1.4616321449683622,), poles=True),  # its minimum, between two valleys
    "log1p": Traits((-1.0, float("inf")), (-1.0,)),
    "round": Traits(steps=0.5),
    "tan": Traits(points=(math.pi / 2,), period=math.pi),
}
"""The functions of one number among the primitives of JAX, by name."""


def elementary(name: str, **params: Any) -> Scalar:
    """The rule of a primitive of JAX that is in the `TABLE`.

    Args:
        name: of the primitive.
        params: of its equation; those that are not given are what `jax.lax` makes them.

    >>> elementary("integer_pow", y=3).forward(jnp.array(2.0))
    Array(8., dtype=float32)
    """
    if name not in TABLE:
        raise InputError(f"{name!r} is no function of one number; there are {', '.join(sorted(TABLE))}.")
    given = {k: v for k, v in params.items() if k == "y"}
    [equation] = jax.make_jaxpr(lambda x: getattr(jax.lax, name)(x, **given))(1.0).eqns
    settings = dict(equation.params) | params
    label = f"{name}_{params['y']}" if name == "integer_pow" else name
    key = (name, *sorted(settings.items(), key=lambda item: item[0]))
    primitive = equation.primitive
    return Scalar(Function(key, label, lambda x: primitive.bind(x, **settings), TABLE[name]))
