"""Contractions: many dot products between the slots of two arrays (matmul, einsum, convolution).

Each output scalar is the dot product of K slots of the first input and K slots of the second. Written
out, that is an array of shape ``(*out, K)`` for either input: the edges. A contraction knows how to
write them out (`expand`), and how to do without:

- `pair(x, y)`       the dot products themselves; `pairs` sums those of several x and y;
- `reduce(i, q)`     for each output, the sum over its K slots of a quantity q of input i;
- `scatter(i, c)`    the transpose of `reduce`: for each scalar of input i, the sum of c over its readers;
- `pull(i, y, c)`    the transpose of `pair` in input i: for each scalar, the sum of c·(its partner in y).
"""

import abc
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from pjax.devices import on_one_device
from pjax.rules.arithmetic import TINY
from pjax.rules.base import Arrays, Moves, Place, Rule, Shifts, answering
from pjax.rules.dot import Dot, Multiplier, Pair, multiplier, spheres, sum_and_difference, times_visible


@dataclasses.dataclass(frozen=True)
class Contraction(Rule):
    """A bilinear operation made of dot products of equal length."""

    name: ClassVar[str] = "dot"
    many_edges: ClassVar[bool] = True
    shapes: tuple[tuple[int, ...], ...]
    """The shapes of both inputs."""
    dtypes: tuple[Any, ...]
    result: Any = dataclasses.field(default=None, kw_only=True)
    """The type of the output, as the program says; None: that of the inputs."""
    precision: Any = dataclasses.field(default=None, kw_only=True)

    def pair(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """The dot products, of shape `out`."""
        return self.pairs((x, y))

    forward = pair

    @abc.abstractmethod
    def pairs(self, *terms: Pair) -> jax.Array:
        """The sum of the dot products of several pairs."""

    operation: ClassVar[Callable[..., jax.Array]]
    """The function of JAX that `pair` is."""

    @property
    @abc.abstractmethod
    def settings(self) -> tuple[Any, ...]:
        """The arguments of `operation` behind its arrays."""

    def _plain(self, x: jax.Array, y: jax.Array, *settings: Any, result: Any = jnp.float32) -> jax.Array:
        """`pair` as the operation, in a type or in that of the inputs, if this is wider.

        With settings other than its own, it finds something else.
        """
        dtype = jnp.result_type(x, y)
        wider = jnp.promote_types(dtype, dtype if result is None else result)
        kinds = {"precision": self.precision, "preferred_element_type": wider}
        given = settings or self.settings
        return type(self).operation(x.astype(dtype), y.astype(dtype), *given, **kinds)

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """K, the number of slots in one dot product."""

    @abc.abstractmethod
    def reduce(self, i: int, q: jax.Array) -> jax.Array:
        """The sum of q over the slots of each output; of a shape that broadcasts to `out`."""

    def soft(self, softness: float) -> Callable[..., jax.Array]:  # noqa: ARG002
        """To first order, by `pull`. Products of short numbers have short transposes, as in the program."""
        dtype = jnp.promote_types(*self.dtypes)
        if dtype != jnp.promote_types(dtype, jnp.float32):
            return functools.partial(self._plain, result=self.result)

        def ask(inputs: Arrays, goal: jax.Array) -> Arrays:
            return self.pull(0, inputs[1], goal), self.pull(1, inputs[0], goal)

        return answering(self.pair, ask, keep_output=False)

    @property
    @functools.cache  # noqa: B019 - for all that are equal, as those of equal layers
    def out(self) -> tuple[int, ...]:
        x, y = (jax.ShapeDtypeStruct(s, t) for s, t in zip(self.shapes, self.dtypes, strict=True))
        return jax.eval_shape(self._plain, x, y).shape

    @abc.abstractmethod
    def scatter(self, i: int, c: jax.Array) -> jax.Array:
        """The transpose of `reduce`; of a shape that broadcasts to that of input i."""

    def pull(self, i: int, partner: jax.Array, c: jax.Array) -> jax.Array:
        """The transpose of `pair` in input i, at the given other input."""
        pair = (lambda x: self._plain(x, partner)) if i == 0 else (lambda y: self._plain(partner, y))
        return transposed(pair, self.shapes[i], c)

    def solver(self, weight: Any, *arrays: jax.Array) -> Callable[..., Sequence[jax.Array]] | None:  # noqa: ARG002
        """A kernel that finds the multipliers together with their sums; None where there is none for this.

        It returns `Multiplier.other`, where the outputs then are, and for each scalar of either input the sum
        of `Multiplier.along` over its readers: see `scatter`. ``arrays`` are what it will be given.
        """
        return None

    def gather(self, i: int, edges: jax.Array) -> jax.Array:
        """The transpose of `expand`: for each scalar of input i, the sum over its edges."""
        return transposed(functools.partial(self.expand, i), self.shapes[i], edges)

    def align(self, i: int, x: jax.Array, edges: jax.Array) -> jax.Array:
        """For each output, the dot product of its slots of input i with its edges."""
        return (self.expand(i, x) * edges).sum(-1)

    @functools.cached_property
    def edges(self) -> int:
        """The number of edges of each input."""
        return math.prod(self.out) * self.length

    def entering(self, i: int, shape: tuple[int, ...]) -> int:  # noqa: ARG002
        return self.edges

    def lengths(self, inputs: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        return tuple(self.reduce(i, jnp.square(x)) for i, x in enumerate(inputs))

    def balance(
        self, inputs: Sequence[jax.Array], axis: int | None = None
    ) -> tuple[tuple[jax.Array | None, ...], jax.Array | None]:
        """By s and 1/s with s² = |y| / |x| of typical lengths.

        A factor that is nearly zero, such as weights that start there, is taken for larger: it must move.

        A factor that all members of a stack share cannot be multiplied by the number of each. There all
        variables are multiplied by s, or 1/s, once more, so that it stays what it is: the other one is
        multiplied by s², or 1/s², and so is the output.
        """
        squares = self.lengths(inputs)
        mean_x, mean_y = (
            jnp.mean(q, tuple(d for d in range(q.ndim) if d != axis), keepdims=axis is not None)
            for q in squares
        )
        least = TINY + 1e-6 * jnp.maximum(mean_x, mean_y)
        square = jnp.sqrt(jnp.maximum(mean_y, least) / jnp.maximum(mean_x, least))
        scale = jnp.sqrt(square)
        if axis is None:
            return (scale, 1 / scale), None

        def of_members(i: int, numbers: jax.Array) -> jax.Array:
            """Numbers for the members, which lie along the first axis of input i."""
            return numbers.reshape(-1, *(1 for _ in inputs[i].shape[1:]))

        shared = [q.shape[axis] == 1 for q in squares]
        if shared[0]:
            return (None, of_members(1, 1 / square)), 1 / square
        if shared[1]:
            return (of_members(0, square), None), square
        return (of_members(0, scale), of_members(1, 1 / scale)), None

    # --- The projection ---

    def change(self, at: Place, shifts: Shifts) -> jax.Array:
        (x, y), (dx, dy) = at.inputs, shifts
        terms = [] if dx is None else [(dx, y if dy is None else y + dy)]
        return self.pairs(*terms, *([] if dy is None else [(x, dy)]))

    def norm(self, at: Place, i: int, shift: jax.Array | None) -> jax.Array:
        """For each output, the squared length of its slots of input i after a shift."""
        if shift is None:
            return at.lengths[i]
        if at.lengths:
            # The sum of the two need not be written out: next to a constant, nothing else asks for it.
            return jnp.maximum(at.lengths[i] + self.reduce(i, shift * (2 * at.inputs[i] + shift)), 0)
        return self.reduce(i, jnp.square(at.inputs[i] + shift))

    def solve(self, at: Place, plus: jax.Array, minus: jax.Array, residual: jax.Array) -> Multiplier:
        """The multipliers of the dot products; zero where nobody reads the output."""
        return multiplier(plus, minus, _where_read(at, residual), at.weight)

    def solve_fixed(self, at: Place, residual: jax.Array) -> jax.Array:
        """The multipliers of the dot products with a fixed vector."""
        assert at.fixed is not None
        return _where_read(at, residual) / (at.lengths[at.fixed] + 1 / at.weight)

    def move_edges(self, at: Place, shifts: Arrays, goal: jax.Array | None) -> tuple[Arrays, jax.Array]:
        written = tuple(self.expand(i, x) for i, x in enumerate(at.inputs))
        return Dot().move_edges(dataclasses.replace(at, inputs=written), shifts, goal)

    def move(self, at: Place, shifts: Shifts, goal: jax.Array | None) -> Moves:
        assert goal is not None
        drift = self.change(at, shifts)
        if at.fixed is not None:
            return self._move_fixed(at, at.fixed, goal - drift)
        x, y = (a if s is None else a + s for a, s in zip(at.inputs, shifts, strict=True))
        sides = (x, y), (y, x)
        norms = self.norm(at, 0, shifts[0]), self.norm(at, 1, shifts[1])
        moving = [i for i, shift in enumerate(shifts) if shift is not None]

        def squares_of_both() -> Pair:
            return sum_and_difference(norms[0] + norms[1], at.point + drift)

        plus, minus = squares_of_both()
        m = self.solve(at, plus, minus, goal - drift)

        def scattered(along: Callable[[int], jax.Array]) -> list[jax.Array]:
            return [self.scatter(i, along(i)) for i in moving]

        def with_spheres(_: jax.Array) -> list[jax.Array]:
            both = m.both_along(self.length) if len(moving) == 2 else None
            return [m.other, m.lam, *scattered(lambda i: both[i] if both else m.along(i, self.length))]

        def looking(own: jax.Array) -> list[jax.Array]:
            """Like `with_spheres`, by the sums of one array where there is no sphere, as nearly always."""

            def on_spheres() -> list[jax.Array]:
                found = spheres(*squares_of_both(), _where_read(at, goal - drift), at.weight)
                return scattered(lambda i: found.add(i, self.length))

            sums = scattered(lambda _: own)
            nothing = [jnp.zeros_like(s) for s in sums]
            more = jax.lax.cond(jnp.min(own, initial=0) < 0, on_spheres, lambda: nothing)
            return [m.other, m.lam, *map(jnp.add, sums, more)]

        solve = self.solver(at.weight, drift, goal, *norms) if at.read is None else None

        def in_one_kernel(_: jax.Array) -> list[jax.Array]:
            assert solve is not None
            other, reached, *own = solve(drift, at.point, goal, *norms)
            return [other, reached, *(own[i] for i in moving)]

        # The answer is the multipliers, or from the kernel, where the outputs are: it has what was asked.
        other, answer, *sums = on_one_device(
            m.own,
            cpu=looking if self.windowed else None,  # other devices would have to wait for the answer
            cuda=in_one_kernel if solve else None,
            default=with_spheres,
        )
        inputs: list[jax.Array | None] = [None, None]
        for i, own in zip(moving, sums, strict=True):
            this, partner = sides[i]
            inputs[i] = times_visible(own, this) + self.pull(i, partner, other)

        def squares(i: int, whole: bool) -> jax.Array:
            # Of own * this + other * partner. Without spheres, which hardly ever are there.
            this, partner = sides[i]
            mine, theirs, both = m.own**2, m.other**2, 2 * m.own * m.other
            if whole:
                return mine * norms[i] + both * (plus - minus) / 4 + theirs * norms[1 - i]
            crossed = this * self.pull(i, partner, both) + self.pull(i, partner**2, theirs)
            return jnp.maximum(self.scatter(i, mine) * this**2 + crossed, 0)

        def reach(asked: jax.Array) -> jax.Array:
            return on_one_device(
                asked,
                answer,
                cuda=(lambda _, reached: reached) if solve else None,
                default=lambda asked, lam: asked - lam / at.weight,
            )

        output = -(m.lam if solve else answer) / at.weight
        return Moves(tuple(inputs), output, m.squared(plus, minus), squares, reach)

    def _move_fixed(self, at: Place, fixed: int, residual: jax.Array) -> Moves:
        """With one input fixed the constraint is a hyperplane."""
        moving, held = 1 - fixed, at.inputs[fixed]
        lam = self.solve_fixed(at, residual)
        total = self.pull(moving, held, lam)
        squared = lam**2 * at.lengths[fixed]

        def squares(i: int, whole: bool) -> jax.Array:
            return squared if whole else self.pull(i, held**2, lam**2)

        inputs = (total, None) if moving == 0 else (None, total)
        return Moves(inputs, -lam / at.weight, squared, squares)


def _where_read(at: Place, residual: jax.Array) -> jax.Array:
    """An output that nobody reads asks for nothing."""
    return residual if at.read is None else jnp.where(at.read, residual, 0)


def transposed(fn: Callable[[jax.Array], jax.Array], shape: tuple[int, ...], c: jax.Array) -> jax.Array:
    """The transpose of a linear function of arrays of a shape, at c."""
    (x,) = jax.linear_transpose(fn, jax.ShapeDtypeStruct(shape, c.dtype))(c)
    return x


def added(pair: Callable[[jax.Array, jax.Array], jax.Array], *terms: Pair) -> jax.Array:
    """The sum of what a function makes of several pairs."""
    return functools.reduce(operator.add, (pair(x, y) for x, y in terms))
