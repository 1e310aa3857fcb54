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
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import sequential_vmap

from pjax.devices import divisor, end_kernel, has_kernels, on_one_device, sum_in_parts
from pjax.graph.wires import condensed
from pjax.rules.kernels import multiplier as solve_kernel
from pjax.rules.kernels.convolution import Correlation, correlate, pull_kernel
from pjax.rules.windows import box, windows


class Found(NamedTuple):
    """What the projection of a contraction comes to: see `pjax.rules.dot.Multiplier`."""

    other: jax.Array
    reached: jax.Array
    """Where the outputs then are."""
    own: tuple[jax.Array, jax.Array]
    """For each scalar of either input, the sum of `Multiplier.along` over its readers: see `scatter`."""


@dataclasses.dataclass(frozen=True)
class Contraction(abc.ABC):
    """A bilinear operation made of dot products of equal length."""

    name: ClassVar[str] = "dot"
    moving: ClassVar[int | None] = None
    windowed: ClassVar[bool] = False
    """Whether its sums are over windows, which cost more than a pass over the output."""
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[Any, Any]

    def pair(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """The dot products, of shape `out`."""
        return self.pairs((x, y))

    @abc.abstractmethod
    def pairs(self, *terms: tuple[jax.Array, jax.Array]) -> jax.Array:
        """The sum of the dot products of several pairs."""

    @abc.abstractmethod
    def _plain(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """`pair` as one operation of the compiler."""

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """K, the number of slots in one dot product."""

    @abc.abstractmethod
    def expand(self, i: int, x: jax.Array) -> jax.Array:
        """Input i written out: shape ``(*out, K)``. A layout."""

    @abc.abstractmethod
    def reduce(self, i: int, q: jax.Array) -> jax.Array:
        """The sum of q over the slots of each output; of a shape that broadcasts to `out`."""

    def forward(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return self.pair(x, y)

    def ask(
        self,
        inputs: tuple[jax.Array, ...],
        output: jax.Array,  # noqa: ARG002
        goal: jax.Array,
        softness: float,  # noqa: ARG002
    ) -> tuple[jax.Array, ...]:
        """What a soft sweep asks of the factors: see `pjax.engines.soft`."""
        x, y = inputs
        return self.pull(0, y, goal), self.pull(1, x, goal)

    @functools.cached_property
    def out(self) -> tuple[int, ...]:
        x, y = (jax.ShapeDtypeStruct(s, t) for s, t in zip(self.shapes, self.dtypes, strict=True))
        return jax.eval_shape(self._plain, x, y).shape

    @abc.abstractmethod
    def scatter(self, i: int, c: jax.Array) -> jax.Array:
        """The transpose of `reduce`; of a shape that broadcasts to that of input i."""

    def count(self, i: int) -> int | np.ndarray:
        """How many outputs read each scalar of input i; an array need not have all axes in full."""
        with jax.ensure_compile_time_eval():
            return condensed(np.asarray(self.scatter(i, jnp.ones(self.out, jnp.float32))))

    def pull(self, i: int, partner: jax.Array, c: jax.Array) -> jax.Array:
        """The transpose of `pair` in input i, at the given other input."""
        aval = jax.ShapeDtypeStruct(self.shapes[i], c.dtype)
        pair = (lambda x: self._plain(x, partner)) if i == 0 else (lambda y: self._plain(partner, y))
        (x,) = jax.linear_transpose(pair, aval)(c)
        return x

    def solver(self, weight: Any, *arrays: jax.Array) -> Callable[..., "Found"] | None:  # noqa: ARG002
        """A kernel that finds the multipliers together with their sums; None where there is none for this.

        Args:
            weight: of the outputs.
            arrays: what it will be given, in any order.
        """
        return None

    def gather(self, i: int, edges: jax.Array) -> jax.Array:
        """The transpose of `expand`: for each scalar of input i, the sum over its edges."""
        aval = jax.ShapeDtypeStruct(self.shapes[i], edges.dtype)
        (x,) = jax.linear_transpose(lambda x: self.expand(i, x), aval)(edges)
        return x

    def align(self, i: int, x: jax.Array, edges: jax.Array) -> jax.Array:
        """For each output, the dot product of its slots of input i with its edges."""
        return (self.expand(i, x) * edges).sum(-1)

    @property
    def edges(self) -> int:
        """The number of edges of each input."""
        return math.prod(self.out) * self.length


@dataclasses.dataclass(frozen=True)
class DotGeneral(Contraction):
    """`lax.dot_general`."""

    contract: tuple[tuple[int, ...], tuple[int, ...]]
    batch: tuple[tuple[int, ...], tuple[int, ...]]
    precision: Any = None

    def pairs(self, *terms: tuple[jax.Array, jax.Array]) -> jax.Array:
        def by_edges(*terms: Any) -> jax.Array:
            """One kernel that adds, where those that multiply matrices would take longer to start."""
            return _added(self._products, *terms).sum(-1)

        in_parts = functools.partial(_added, self._in_parts) if self._parts > 1 else None
        return on_one_device(
            *terms,
            cuda=by_edges if self.edges <= 2**20 else in_parts,
            default=functools.partial(_added, self._plain),
        )

    def _plain(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return _dot(x, y, (self.contract, self.batch), self.precision)

    def _products(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """The products before they are summed."""
        dtype = jnp.promote_types(jnp.result_type(x, y), jnp.float32)
        return self.expand(0, x).astype(dtype) * self.expand(1, y).astype(dtype)

    @functools.cached_property
    def _parts(self) -> int:
        """In how many parts a GPU sums products that are long and few: it has work for all its cores then.

        The compiler does that by itself, but first copies to a multiple of some power of two what is not one.
        """
        if self.batch != ((), ()) or [len(s) for s in self.shapes] != [2, 2]:
            return 1
        if self.length % 256 == 0 or self.length % 16 or math.prod(self.out) > 2**17:
            return 1
        return divisor(self.length // 16, self.length // 64)

    def _in_parts(self, x: jax.Array, y: jax.Array) -> jax.Array:
        (a,), (b,) = self.contract
        x, y = (z.reshape(*z.shape[:d], self._parts, -1, *z.shape[d + 1 :]) for z, d in ((x, a), (y, b)))
        return _dot(x, y, (((a + 1,), (b + 1,)), ((a,), (b,))), self.precision).sum(0)

    @functools.cached_property
    def free(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        first, second = (
            tuple(d for d in range(len(self.shapes[i])) if d not in self.contract[i] + self.batch[i])
            for i in (0, 1)
        )
        return first, second

    @property
    def length(self) -> int:
        return math.prod(self.shapes[0][d] for d in self.contract[0])

    def rows(self, i: int, x: jax.Array) -> jax.Array:
        """Input i as the rows that dot products are made of: shape ``(batch, free, K)``."""
        x = x.transpose(self.batch[i] + self.free[i] + self.contract[i])
        return x.reshape(math.prod(x.shape[: len(self.batch[i])]), -1, self.length)

    def expand(self, i: int, x: jax.Array) -> jax.Array:
        ones = [1] * len(self.free[1 - i])
        batch = [x.shape[d] for d in self.batch[i]]
        free = [x.shape[d] for d in self.free[i]]
        x = x.transpose(self.batch[i] + self.free[i] + self.contract[i])
        x = x.reshape(*batch, *(ones if i else free), *(free if i else ones), self.length)
        return jnp.broadcast_to(x, (*self.out, self.length))

    def align(self, i: int, x: jax.Array, edges: jax.Array) -> jax.Array:
        n, counts = len(self.batch[0]), (len(self.free[0]), len(self.free[1]))
        shape = [x.shape[d] for d in self.batch[i] + self.free[i]]
        x = x.transpose(self.batch[i] + self.free[i] + self.contract[i]).reshape(*shape, self.length)
        start = n if i == 0 else n + counts[0]
        mine = (*range(n), *range(start, start + counts[i]))
        dims = (((x.ndim - 1,), (edges.ndim - 1,)), (tuple(range(x.ndim - 1)), mine))
        out = lax.dot_general(x, edges, dims, precision=self.precision)
        if i == 1:  # batch, free of y, free of x
            out = jnp.moveaxis(out, range(n, n + counts[1]), range(n + counts[0], n + counts[0] + counts[1]))
        return out

    def reduce(self, i: int, q: jax.Array) -> jax.Array:
        ones = [1] * len(self.free[1 - i])
        batch = [q.shape[d] for d in self.batch[i]]
        free = [q.shape[d] for d in self.free[i]]
        parts = 1 if self.contract[i][-1] == q.ndim - 1 else divisor(self.length, self.length // 32)
        q = q.transpose(self.batch[i] + self.free[i] + self.contract[i]).reshape(*batch, *free, self.length)
        if parts > 1:
            total = sum_in_parts(q, parts)
        elif q.size <= 2**20:
            total = end_kernel(end_kernel(q).sum(-1))
        else:  # writing more takes longer than it saves
            total = end_kernel(q.sum(-1))
        return total.reshape(*batch, *(ones if i else free), *(free if i else ones))

    def scatter(self, i: int, c: jax.Array) -> jax.Array:
        n, counts = len(self.batch[0]), (len(self.free[0]), len(self.free[1]))
        first = n + counts[0] if i == 0 else n
        axes = tuple(range(first, first + counts[1 - i]))
        mine = self.batch[i] + self.free[i]
        shape = [size if d in mine else 1 for d, size in enumerate(self.shapes[i])]
        return end_kernel(c).sum(axes).transpose(np.argsort(mine)).reshape(shape)

    def count(self, i: int) -> int:
        return math.prod(self.shapes[1 - i][d] for d in self.free[1 - i])


def _added(pair: Callable[[jax.Array, jax.Array], jax.Array], *terms: tuple[Any, Any]) -> jax.Array:
    """The sum of what a function makes of several pairs."""
    return functools.reduce(operator.add, (pair(x, y) for x, y in terms))


def _dot(x: jax.Array, y: jax.Array, axes: lax.DotDimensionNumbers, precision: Any) -> jax.Array:
    dtype = jnp.result_type(x, y)
    return lax.dot_general(
        x.astype(dtype),
        y.astype(dtype),
        axes,
        precision=precision,
        preferred_element_type=jnp.promote_types(dtype, jnp.float32),
    )


@dataclasses.dataclass(frozen=True)
class Convolution(Contraction):
    """`lax.conv_general_dilated`, without batch groups. Its settings are those of the equation."""

    windowed: ClassVar[bool] = True
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    input_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]
    axes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    """Batch, feature and spatial axes of the input; output feature, input feature and spatial axes of
    the kernel; batch, feature and spatial axes of the output."""
    groups: int = 1
    precision: Any = None

    def pairs(self, *terms: tuple[jax.Array, jax.Array]) -> jax.Array:
        def plain(*terms: tuple[jax.Array, jax.Array]) -> jax.Array:
            return _added(self._plain, *self._joined(*terms))

        return on_one_device(
            *terms,
            cpu=sequential_vmap(lambda *terms: self._pairs_on_cpu(*self._joined(*terms))),
            cuda=self._pairs_on_cuda
            if len(terms) <= 2 and self._has_kernels(*itertools.chain(*terms))
            else None,
            default=plain,
        )

    def pull(self, i: int, partner: jax.Array, c: jax.Array) -> jax.Array:
        plain = functools.partial(super().pull, i)
        if self.groups > 1 or 0 in self.out:
            return plain(partner, c)
        on_cpu = self._pull_input_on_cpu if i == 0 else self._pull_kernel_on_cpu
        on_cuda = self._pull_input_on_cuda if i == 0 else self._pull_kernel_on_cuda
        return on_one_device(
            partner,
            c,
            cpu=sequential_vmap(on_cpu),
            cuda=on_cuda if self._has_kernels(partner, c, transposed=i == 0) else None,
            default=plain,
        )

    def _joined(self, *terms: tuple[jax.Array, jax.Array]) -> tuple[tuple[jax.Array, jax.Array], ...]:
        """Several pairs as one of more channels, which is faster than several convolutions."""
        if self.groups > 1 or len(terms) == 1:
            return terms
        xs, ys = zip(*terms, strict=True)
        return ((jnp.concatenate(xs, self.axes[0][1]), jnp.concatenate(ys, self.axes[1][1])),)

    def _plain(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return _convolve(
            x, y, self.strides, self.padding, self.input_dilation, self.kernel_dilation,
            lax.ConvDimensionNumbers(*self.axes), self.groups, self.precision,
        )  # fmt: skip

    # --- On CPU ---
    #
    # The compiler has fast convolutions there for one order of axes: (batch, *spatial, feature) with a kernel
    # (*spatial, in, out). It brings others into that order, but not inside loops, where it is 20 to 50 times
    # slower without. So here they come in that order. Nor is a convolution with groups fast, which is what
    # `vmap` over both inputs makes of one: those go one after the other.

    def _pairs_on_cpu(self, *terms: tuple[jax.Array, jax.Array]) -> jax.Array:
        settings = (self.strides, self.padding, self.input_dilation, self.kernel_dilation)
        parts = (
            _convolve(
                self._rows(x), self._kernel(y), *settings, _rows_first(x.ndim), self.groups, self.precision
            )
            for x, y in terms
        )
        return _put(functools.reduce(operator.add, parts), _feature_last(self.axes[2]))

    def _pull_input_on_cpu(self, kernel: jax.Array, c: jax.Array) -> jax.Array:
        """Scatter as correlation with the flipped kernel."""
        kernel = self._kernel(kernel)
        kernel = lax.rev(kernel, range(kernel.ndim - 2)).swapaxes(-1, -2)
        c = c.transpose(_feature_last(self.axes[2]))
        padding = [(k - 1 - lo, n - m + lo) for n, k, m, (lo, _) in self._spans()]
        x = _convolve(
            c, kernel, self.input_dilation, padding, self.strides, self.kernel_dilation,
            _rows_first(c.ndim), 1, self.precision,
        )  # fmt: skip
        return _put(x, _feature_last(self.axes[0]))

    def _pull_kernel_on_cpu(self, x: jax.Array, c: jax.Array) -> jax.Array:
        """Correlation with batch and channels in each other's place."""
        (batch, feature, *spatial), (b, f, *s) = self.axes[0], self.axes[2]
        x, c = x.transpose(feature, *spatial, batch), c.transpose(*s, b, f)
        padding = [(lo, k + m - 1 - n - lo) for n, k, m, (lo, _) in self._spans()]
        kernel = _convolve(
            x, c, self.kernel_dilation, padding, self.input_dilation, self.strides,
            _rows_first(x.ndim), 1, self.precision,
        )  # fmt: skip
        out, depth, *taps = self.axes[1]
        return _put(kernel, (depth, *taps, out))

    # --- On NVIDIA GPUs ---

    def _has_kernels(self, *arrays: jax.Array, transposed: bool = False) -> bool:
        """Whether there are kernels for this, and for these arrays."""
        shape = self._correlation
        precision = self.precision or jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
        return (
            shape is not None
            and (shape.transposed if transposed else shape).fits
            and all(x.dtype == jnp.float32 for x in arrays)
            and precision in (None, "default", lax.Precision.DEFAULT, (lax.Precision.DEFAULT,) * 2)
            and has_kernels()
        )

    @functools.cached_property
    def _correlation(self) -> Correlation | None:
        """This convolution of images with their channels last; None for others."""
        rows, ones = (0, 3, 1, 2), (1, 1)
        settings = self.strides, self.input_dilation, self.kernel_dilation, (self.axes[0], self.axes[2])
        if settings != (ones, ones, ones, (rows, rows)) or self.groups > 1:
            return None
        features, channels, height, width = (self.shapes[1][d] for d in self.axes[1])
        (top, _), (left, _) = self.padding
        batch, *image, _ = self.shapes[0]
        _, *out, _ = self.out
        return Correlation(
            batch, (image[0], image[1]), (height, width), (top, left), (out[0], out[1]), channels, features
        )

    def _pairs_on_cuda(self, *terms: tuple[jax.Array, jax.Array]) -> jax.Array:
        assert self._correlation is not None
        return correlate(self._correlation, *((x, self._kernel(y)) for x, y in terms))

    def _pull_input_on_cuda(self, kernel: jax.Array, c: jax.Array) -> jax.Array:
        assert self._correlation is not None
        return correlate(self._correlation.transposed, (c, self._kernel(kernel)), backwards=True)

    def _pull_kernel_on_cuda(self, x: jax.Array, c: jax.Array) -> jax.Array:
        assert self._correlation is not None
        out, depth, *taps = self.axes[1]
        return _put(pull_kernel(self._correlation, x, c), (*taps, depth, out))

    def solver(self, weight: Any, *arrays: jax.Array) -> Callable[..., "Found"] | None:
        rows = self.axes[2] == (0, len(self.out) - 1, *range(1, len(self.out) - 1))
        if not (rows and self.groups == 1 and has_kernels() and solve_kernel.fits(self.out, weight, *arrays)):
            return None

        def solve(drift: jax.Array, point: jax.Array, goal: jax.Array, *norms: jax.Array) -> Found:
            moved, at, asked = (a.reshape(-1, self.out[-1]) for a in (drift, point, goal))
            lengths = norms[0].ravel(), norms[1].ravel()
            found = solve_kernel.solve(moved, at, asked, lengths, self.length, weight)
            places = found.rows.reshape(self.out[0], 1, *self.out[1:-1])
            own = self.spread(0, places), self.spread(1, found.columns)
            return Found(found.other.reshape(self.out), found.reached.reshape(self.out), own)

        return solve

    def _rows(self, x: jax.Array) -> jax.Array:
        return x.transpose(_feature_last(self.axes[0]))

    def _kernel(self, y: jax.Array) -> jax.Array:
        out, depth, *taps = self.axes[1]
        return y.transpose(*taps, depth, out)

    def _spans(self) -> list[tuple[int, int, int, tuple[int, int]]]:
        """For each spatial axis, how far input, kernel and output reach with their gaps, and the padding."""

        def reach(i: int, gaps: tuple[int, ...]) -> list[int]:
            shape = self.out if i == 2 else self.shapes[i]
            return [(shape[d] - 1) * gap + 1 for d, gap in zip(self.axes[i][2:], gaps, strict=True)]

        spans = reach(0, self.input_dilation), reach(1, self.kernel_dilation), reach(2, self.strides)
        return list(zip(*spans, self.padding, strict=True))

    @property
    def length(self) -> int:
        return math.prod(self.shapes[1]) // self.shapes[1][self.axes[1][0]]

    def _to_output_order(self, x: jax.Array) -> jax.Array:
        """From (batch, feature, *spatial, …) to the output's order of axes."""
        rest = x.ndim - len(self.axes[2])
        order = [self.axes[2].index(d) for d in range(len(self.axes[2]))]
        return x.transpose(*order, *(len(order) + r for r in range(rest)))

    def expand(self, i: int, x: jax.Array) -> jax.Array:
        taps = [self.shapes[1][d] for d in self.axes[1][2:]]
        features, depth = self.shapes[1][self.axes[1][0]], self.shapes[1][self.axes[1][1]]
        shape = [self.out[d] for d in self.axes[2]]  # batch, feature, *spatial
        if i == 0:
            x = windows(self._spread(x.transpose(self.axes[0])), *self._window())
            x = x.reshape(shape[0], self.groups, 1, depth, *shape[2:], math.prod(taps))
            x = jnp.moveaxis(x, 3, -2)  # batch, group, 1, *spatial, depth, taps
            x = jnp.broadcast_to(x, (*x.shape[:2], features // self.groups, *x.shape[3:]))
            x = x.reshape(*shape, self.length)
        else:
            x = x.transpose(self.axes[1]).reshape(1, features, *(1 for _ in taps), self.length)
        return self._to_output_order(jnp.broadcast_to(x, (*shape, self.length)))

    def reduce(self, i: int, q: jax.Array) -> jax.Array:
        if i == 1:
            total = q.transpose(self.axes[1]).reshape(q.shape[self.axes[1][0]], -1).sum(-1)
            return _put(end_kernel(total).reshape(1, -1, *(1 for _ in self.strides)), self.axes[2])
        boxed = end_kernel(self._box(end_kernel(self._per_group(q, self.axes[0]))))
        if self.groups > 1:
            boxed = jnp.repeat(boxed, self.shapes[1][self.axes[1][0]] // self.groups, 1)
        return _put(boxed, self.axes[2])

    def scatter(self, i: int, c: jax.Array) -> jax.Array:
        c = end_kernel(c)
        if i == 0:
            return self.spread(0, self._per_group(c, self.axes[2]))
        batch, _, *spatial = self.axes[2]
        return self.spread(1, c.sum((batch, *spatial)))

    def spread(self, i: int, sums: jax.Array) -> jax.Array:
        """What `scatter` gives, for an input given the sums over all outputs at one place.

        Args:
            i: which input.
            sums: for the first, over the features of each group, of axes (batch, group, *spatial); for the
                second, over all but the features.
        """
        if i == 1:
            return _put(sums.reshape(-1, *(1 for _ in (0, *self.strides))), self.axes[1])
        batch, _, *spatial = (self.shapes[0][d] for d in self.axes[0])
        aval = jax.ShapeDtypeStruct((batch, self.groups, *spatial), sums.dtype)
        (x,) = jax.linear_transpose(self._box, aval)(sums)
        if self.groups > 1:
            x = jnp.repeat(x, self.shapes[1][self.axes[1][1]], 1)
        return _put(x, self.axes[0])

    def _per_group(self, x: jax.Array, axes: Sequence[int]) -> jax.Array:
        """The sums over the features of each group, of axes (batch, group, *spatial)."""
        x = x.transpose(axes)
        return x.reshape(x.shape[0], self.groups, x.shape[1] // self.groups, *x.shape[2:]).sum(2)

    def _box(self, x: jax.Array) -> jax.Array:
        """The sums over the windows of an input of axes (batch, group, *spatial)."""
        return box(self._spread(x), *self._window())

    def _spread(self, x: jax.Array) -> jax.Array:
        """An input of axes (batch, feature, *spatial) with the gaps of its dilation."""
        gaps = [(0, 0, d - 1) for d in self.input_dilation]
        return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *gaps])

    def _window(self) -> tuple[Any, ...]:
        """The window, strides, padding and dilation of a kernel over (batch, feature, *spatial)."""
        taps = (self.shapes[1][d] for d in self.axes[1][2:])
        padding = ((0, 0), (0, 0), *self.padding)
        return (1, 1, *taps), (1, 1, *self.strides), padding, (1, 1, *self.kernel_dilation)


def _convolve(
    x: jax.Array,
    y: jax.Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    input_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
    axes: lax.ConvDimensionNumbers,
    groups: int,
    precision: Any,
) -> jax.Array:
    dtype = jnp.result_type(x, y)
    return lax.conv_general_dilated(
        x.astype(dtype),
        y.astype(dtype),
        strides,
        padding,
        lhs_dilation=input_dilation,
        rhs_dilation=kernel_dilation,
        dimension_numbers=axes,
        feature_group_count=groups,
        precision=precision,
        preferred_element_type=jnp.promote_types(dtype, jnp.float32),
    )


def _rows_first(ndim: int) -> lax.ConvDimensionNumbers:
    """Axes (batch, *spatial, feature) of input and output, (*spatial, in, out) of the kernel."""
    rows = (0, ndim - 1, *range(1, ndim - 1))
    return lax.ConvDimensionNumbers(rows, (ndim - 1, ndim - 2, *range(ndim - 2)), rows)


def _feature_last(axes: Sequence[int]) -> tuple[int, ...]:
    """(batch, *spatial, feature) from (batch, feature, *spatial)."""
    batch, feature, *spatial = axes
    return batch, *spatial, feature


def _put(x: jax.Array, axes: Sequence[int]) -> jax.Array:
    """The inverse of ``transpose(axes)``."""
    return x.transpose(np.argsort(axes))
