"""Convolutions: `lax.conv_general_dilated`."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import sequential_vmap

from pjax.devices import end_kernel, has_kernels, on_one_device
from pjax.rules.arithmetic import condensed
from pjax.rules.contraction import Contraction, added, transposed
from pjax.rules.dot import Pair
from pjax.rules.kernels import multiplier as solve_kernel
from pjax.rules.kernels.convolution import Correlation, correlate, pull_kernel
from pjax.rules.windows import box, windows


@dataclasses.dataclass(frozen=True)
class Convolution(Contraction):
    """`lax.conv_general_dilated`, without batch groups. Its settings are those of the equation."""

    name: ClassVar[str] = "conv"
    operation = staticmethod(lax.conv_general_dilated)
    windowed: ClassVar[bool] = True
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    input_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]
    """Batch, feature and spatial axes of the input; output feature, input feature and spatial axes of
    the kernel; batch, feature and spatial axes of the output."""
    groups: int = 1

    def pairs(self, *terms: Pair) -> jax.Array:
        shape = self._fitting(*itertools.chain(*terms)) if len(terms) <= 2 else None

        def on_cuda(*terms: Pair) -> jax.Array:
            assert shape is not None
            return correlate(shape, *((x, self._kernel(y)) for x, y in terms))

        return on_one_device(
            *terms,
            cpu=sequential_vmap(lambda *terms: added(self._pair_on_cpu, *self._joined(*terms))),
            cuda=on_cuda if shape else None,
            default=lambda *terms: added(self._plain, *self._joined(*terms)),
        )

    def pull(self, i: int, partner: jax.Array, c: jax.Array) -> jax.Array:
        plain = functools.partial(super().pull, i)
        if self.groups > 1 or 0 in self.out:
            return plain(partner, c)
        shape = self._fitting(partner, c, transposed=i == 0)

        def on_cuda(partner: jax.Array, c: jax.Array) -> jax.Array:
            assert shape is not None
            if i == 0:
                return correlate(shape, (c, self._kernel(partner)), backwards=True)
            out, depth, *taps = self.axes[1]
            return _put(pull_kernel(shape, partner, c), (*taps, depth, out))

        return on_one_device(
            partner,
            c,
            cpu=sequential_vmap(self._pull_input_on_cpu if i == 0 else self._pull_kernel_on_cpu),
            cuda=on_cuda if shape else None,
            default=plain,
        )

    def _joined(self, *terms: Pair) -> tuple[Pair, ...]:
        """Several pairs as one of more channels, which is faster than several convolutions."""
        if self.groups > 1 or len(terms) == 1:
            return terms
        xs, ys = zip(*terms, strict=True)
        return ((jnp.concatenate(xs, self.axes[0][1]), jnp.concatenate(ys, self.axes[1][1])),)

    @functools.cached_property
    def settings(self) -> tuple[Any, ...]:
        gaps = self.strides, self.padding, self.input_dilation, self.kernel_dilation
        return *gaps, lax.ConvDimensionNumbers(*self.axes), self.groups

    # --- On CPU ---
    #
    # The compiler has fast convolutions there for one order of axes: (batch, *spatial, feature) with a kernel
    # (*spatial, in, out). It brings others into that order, but not inside loops, where it is 20 to 50 times
    # slower without. So here they come in that order. Nor is a convolution with groups fast, which is what
    # `vmap` over both inputs makes of one: those go one after the other.

    def _pair_on_cpu(self, x: jax.Array, y: jax.Array) -> jax.Array:
        x, gaps = x.transpose(_feature_last(self.axes[0])), self.settings[:4]
        found = self._plain(x, self._kernel(y), *gaps, _rows_first(x.ndim), self.groups)
        return _put(found, _feature_last(self.axes[2]))

    def _pull_input_on_cpu(self, kernel: jax.Array, c: jax.Array) -> jax.Array:
        """Scatter as correlation with the flipped kernel."""
        kernel = self._kernel(kernel)
        kernel = lax.rev(kernel, range(kernel.ndim - 2)).swapaxes(-1, -2)
        c = c.transpose(_feature_last(self.axes[2]))
        padding = [(k - 1 - lo, n - m + lo) for n, k, m, (lo, _) in self._spans()]
        gaps = self.input_dilation, padding, self.strides, self.kernel_dilation
        x = self._plain(c, kernel, *gaps, _rows_first(c.ndim))
        return _put(x, _feature_last(self.axes[0]))

    def _pull_kernel_on_cpu(self, x: jax.Array, c: jax.Array) -> jax.Array:
        """Correlation with batch and channels in each other's place."""
        (batch, feature, *spatial), (b, f, *s) = self.axes[0], self.axes[2]
        x, c = x.transpose(feature, *spatial, batch), c.transpose(*s, b, f)
        padding = [(lo, k + m - 1 - n - lo) for n, k, m, (lo, _) in self._spans()]
        gaps = self.kernel_dilation, padding, self.input_dilation, self.strides
        kernel = self._plain(x, c, *gaps, _rows_first(x.ndim))
        out, depth, *taps = self.axes[1]
        return _put(kernel, (depth, *taps, out))

    # --- On NVIDIA GPUs ---

    def _fitting(self, *arrays: jax.Array, transposed: bool = False) -> Correlation | None:
        """What this correlates, or its transpose, if there are kernels for that and for these arrays."""
        shape = self._correlation.transposed if self._correlation and transposed else self._correlation
        precision = self.precision or jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
        fits = (
            shape is not None
            and shape.fits
            and all(x.dtype == jnp.float32 for x in arrays)
            and precision in (None, "default", lax.Precision.DEFAULT, (lax.Precision.DEFAULT,) * 2)
            and has_kernels("convolution")
        )
        return shape if fits else None

    @functools.cached_property
    def _correlation(self) -> Correlation | None:
        """This convolution of images with their channels last; None for others."""
        rows, ones = (0, 3, 1, 2), (1, 1)
        settings = self.strides, self.input_dilation, self.kernel_dilation, (self.axes[0], self.axes[2])
        if settings != (ones, ones, ones, (rows, rows)) or self.groups > 1:
            return None
        features, channels, height, width = self._kernel_sizes
        (top, _), (left, _) = self.padding
        batch, *image, _ = self.shapes[0]
        _, *out, _ = self.out
        return Correlation(
            batch, (image[0], image[1]), (height, width), (top, left), (out[0], out[1]), channels, features
        )

    def solver(self, weight: Any, *arrays: jax.Array) -> Callable[..., Sequence[jax.Array]] | None:
        rows = self.axes[2] == (0, len(self.out) - 1, *range(1, len(self.out) - 1))
        known = rows and self.groups == 1 and has_kernels("multiplier")
        if not (known and solve_kernel.fits(self.out, weight, *arrays)):
            return None

        def solve(drift: jax.Array, point: jax.Array, goal: jax.Array, *norms: jax.Array) -> list[jax.Array]:
            moved, at, asked = (a.reshape(-1, self.out[-1]) for a in (drift, point, goal))
            lengths = norms[0].ravel(), norms[1].ravel()
            *each, rows, columns = solve_kernel.solve(moved, at, asked, lengths, self.length, weight)
            places = rows.reshape(self.out[0], 1, *self.out[1:-1])
            return [*(a.reshape(self.out) for a in each), self.spread(0, places), self.spread(1, columns)]

        return solve

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

    @functools.cached_property
    def _kernel_sizes(self) -> tuple[int, ...]:
        """Output features, input features and taps."""
        return tuple(self.shapes[1][d] for d in self.axes[1])

    @functools.cached_property
    def length(self) -> int:
        return math.prod(self._kernel_sizes[1:])

    def expand(self, i: int, x: jax.Array) -> jax.Array:
        features, depth, *taps = self._kernel_sizes
        shape = [self.out[d] for d in self.axes[2]]  # batch, feature, *spatial
        if i == 0:
            x = windows(self._spread(x.transpose(self.axes[0])), *self._window())
            x = x.reshape(shape[0], self.groups, 1, depth, *shape[2:], math.prod(taps))
            x = jnp.moveaxis(x, 3, -2)  # batch, group, 1, *spatial, depth, taps
            x = jnp.broadcast_to(x, (*x.shape[:2], features // self.groups, *x.shape[3:]))
            x = x.reshape(*shape, self.length)
        else:
            x = x.transpose(self.axes[1]).reshape(1, features, *(1 for _ in taps), self.length)
        return _put(jnp.broadcast_to(x, (*shape, self.length)), (*self.axes[2], len(shape)))

    def reduce(self, i: int, q: jax.Array) -> jax.Array:
        if i == 1:
            total = q.transpose(self.axes[1]).reshape(q.shape[self.axes[1][0]], -1).sum(-1)
            return _put(end_kernel(total).reshape(1, -1, *(1 for _ in self.strides)), self.axes[2])
        summed = end_kernel(self._per_group(q, self.axes[0]))
        boxed = end_kernel(
            on_one_device(summed, cpu=self._box_on_cpu if self._by_ones else None, default=self._box)
        )
        if self.groups > 1:
            boxed = jnp.repeat(boxed, self._kernel_sizes[0] // self.groups, 1)
        return _put(boxed, self.axes[2])

    def scatter(self, i: int, c: jax.Array) -> jax.Array:
        c = end_kernel(c)
        if i == 0:
            return self.spread(0, self._per_group(c, self.axes[2]))
        batch, _, *spatial = self.axes[2]
        return self.spread(1, c.sum((batch, *spatial)))

    def spread(self, i: int, sums: jax.Array) -> jax.Array:
        """What `scatter` gives, for an input given the sums over all outputs at one place.

        Those are for the first over the features of each group, of axes (batch, group, *spatial), and for the
        second over all but the features.
        """
        if i == 1:
            return _put(sums.reshape(-1, *(1 for _ in (0, *self.strides))), self.axes[1])
        x = on_one_device(sums, cpu=self._unbox_on_cpu if self._by_ones else None, default=self._unbox)
        if self.groups > 1:
            x = jnp.repeat(x, self._kernel_sizes[1], 1)
        return _put(x, self.axes[0])

    def count(self, i: int) -> int | np.ndarray:
        batch, features, *places = (self.out[d] for d in self.axes[2])
        if i == 1:
            return condensed(np.full((1,) * len(self.out), batch * math.prod(places), np.float32))
        each = np.full((1, 1), features // self.groups * min(batch, 1), np.float32)
        for d, number, stride, gap, inner, (before, _) in zip(
            range(2, len(self.out)), places, self.strides, self.input_dilation, self.kernel_dilation,
            self.padding, strict=True,
        ):  # fmt: skip
            size, taps = self.shapes[0][self.axes[0][d]], self._kernel_sizes[d]
            read = np.add.outer(np.arange(number) * stride, np.arange(taps) * inner) - before
            inside = read[(read >= 0) & (read < size * gap) & (read % gap == 0)] // gap
            each = np.multiply.outer(each, np.bincount(inside, minlength=size).astype(np.float32))
        return condensed(each.transpose(np.argsort(self.axes[0])))

    def _per_group(self, x: jax.Array, axes: Sequence[int]) -> jax.Array:
        """The sums over the features of each group, of axes (batch, group, *spatial)."""
        x = x.transpose(axes)
        return x.reshape(x.shape[0], self.groups, x.shape[1] // self.groups, *x.shape[2:]).sum(2)

    def _box(self, x: jax.Array) -> jax.Array:
        """The sums over the windows of an input of axes (batch, group, *spatial)."""
        return box(self._spread(x), *self._window())

    def _unbox(self, sums: jax.Array) -> jax.Array:
        """The transpose of `_box`."""
        batch, _, *spatial = (self.shapes[0][d] for d in self.axes[0])
        return transposed(self._box, (batch, self.groups, *spatial), sums)

    # On CPU both are convolutions with ones, of one channel: no kernels that must be compiled.

    @property
    def _by_ones(self) -> bool:
        return self.groups == 1 and 0 not in self.out

    def _box_on_cpu(self, x: jax.Array) -> jax.Array:
        return self._with_ones(x, self.strides, self.padding, self.input_dilation)

    def _unbox_on_cpu(self, sums: jax.Array) -> jax.Array:
        around = [(k - 1 - lo, n - m + lo) for n, k, m, (lo, _) in self._spans()]
        return self._with_ones(sums, self.input_dilation, around, self.strides)

    def _with_ones(self, x: jax.Array, *gaps: Any) -> jax.Array:
        ones = jnp.ones((*self._kernel_sizes[2:], 1, 1), x.dtype)
        settings = *gaps, self.kernel_dilation, _rows_first(x.ndim)
        return jnp.moveaxis(self._plain(jnp.moveaxis(x, 1, -1), ones, *settings), -1, 1)

    def _spread(self, x: jax.Array) -> jax.Array:
        """An input of axes (batch, feature, *spatial) with the gaps of its dilation."""
        gaps = [(0, 0, d - 1) for d in self.input_dilation]
        return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *gaps])

    def _window(self) -> tuple[Any, ...]:
        """The window, strides, padding and dilation of a kernel over (batch, feature, *spatial)."""
        padding = ((0, 0), (0, 0), *self.padding)
        return (1, 1, *self._kernel_sizes[2:]), (1, 1, *self.strides), padding, (1, 1, *self.kernel_dilation)


def convolve_images(x: jax.Array, kernel: jax.Array, padding: Sequence[tuple[int, int]]) -> jax.Array:
    """A convolution with stride 1 whose derivatives, too, are computed as those of projections are.

    Args:
        x: images of shape ``(..., height, width, channels)``.
        kernel: of shape ``(height, width, channels, features)``.
        padding: zeros before and after, along each axis.

    >>> convolve_images(jnp.ones((2, 5, 5, 1)), jnp.ones((3, 3, 1, 4)), [(1, 1), (1, 1)]).shape
    (2, 5, 5, 4)
    """
    images = x.reshape(-1, *x.shape[-3:])
    ones = (1, 1)
    rule = Convolution(
        shapes=(images.shape, kernel.shape),
        dtypes=(x.dtype, kernel.dtype),
        strides=ones,
        padding=tuple(padding),
        input_dilation=ones,
        kernel_dilation=ones,
        axes=tuple(map(tuple, _rows_first(4))),
    )
    out = rule.soft(0.0)(images, kernel)
    return out.reshape(*x.shape[:-3], *out.shape[1:])


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
