"""Convolutions of images as kernels for NVIDIA GPUs.

They are for small kernels, stride 1 and few channels, where `lax.conv_general_dilated` takes most of its
time for copies. Images are arrays ``(batch, height, width, channels)``, so that what lies under a row of a
kernel is one stretch of memory. A program multiplies a tile of such stretches with a matrix of weights;
products are in TF32.

Stretches are a little longer than a row of a kernel, and serve several neighbouring places; the matrix then
has the weights once for each of them. That is less to read for as many products.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pjax.devices import power_of_two
from pjax.rules.dot import Pair
from pjax.rules.kernels.parts import call, dot, load, numbers, program_id, share, store


@dataclasses.dataclass(frozen=True)
class Correlation:
    """What is correlated: images with kernels ``(height, width, channels, features)``, with stride 1."""

    batch: int
    image: tuple[int, int]
    kernel: tuple[int, int]
    before: tuple[int, int]
    """Zeros above and to the left of an image; fewer than none are pixels left out."""
    out: tuple[int, int]
    channels: int
    features: int

    @property
    def transposed(self) -> "Correlation":
        """The correlation that finds the images' side from the output's, with kernels read backwards."""
        (lo, left), (height, width) = self.before, self.kernel
        return dataclasses.replace(
            self,
            image=self.out,
            before=(height - 1 - lo, width - 1 - left),
            out=self.image,
            channels=self.features,
            features=self.channels,
        )

    @property
    def fits(self) -> bool:
        """Whether the kernels are for it: those sizes for which they were found to be faster."""
        sizes = [self.batch * math.prod(self.image) * self.channels]
        sizes += [self.batch * math.prod(self.out) * self.features]
        return (
            min(*sizes, *self.kernel) > 0
            and 2**19 <= max(sizes) < 2**31
            and (self.few or (self.channels == 16 and max(self.kernel) <= 3))
            and (self.features == 16 or (self.few and self.features == 32))
        )

    @property
    def few(self) -> bool:
        """Whether there are so few channels that all that lies under a kernel is one row of a tile."""
        return self.channels < 4 and self.window <= 32

    @property
    def window(self) -> int:
        """The numbers under a kernel."""
        return math.prod(self.kernel) * self.channels

    @property
    def groups(self) -> int:
        """How many stretches there are in a row of the output."""
        return -(-self.out[1] // _TOGETHER)

    @property
    def stretch(self) -> int:
        """The numbers in a stretch."""
        return (_TOGETHER + self.kernel[1] - 1) * self.channels


@functools.partial(jax.jit, static_argnames=("shape", "backwards"))
def correlate(shape: Correlation, *terms: Pair, backwards: bool = False) -> jax.Array:
    """The sum of the correlations of several pairs of images and kernels.

    ``backwards``: whether kernels are those of the transposed correlation, of axes ``(height, width,
    features, channels)``, and read from their end.
    """
    find = _correlate_few_channels if shape.few else _correlate
    out = find(shape, backwards, *(a.reshape(-1) for term in terms for a in term))
    return out.reshape(shape.batch, *shape.out, shape.features)


@functools.partial(jax.jit, static_argnames="shape")
def pull_kernel(shape: Correlation, x: jax.Array, c: jax.Array) -> jax.Array:
    """The transpose of `correlate` in the kernel, at images x and a c like the output."""
    find = _pull_kernel_few_channels if shape.few else _pull_kernel
    return find(shape, x.reshape(-1), c.reshape(-1))


# --- Several channels ---

_TOGETHER = 2  # neighbouring places that share a stretch
_PLACES = 64  # rows of a tile
_ROWS = 7  # of images that a program goes through
_PROGRAMS = 256  # at most, that each find a sum
_WARPS = 4


def _correlate(shape: Correlation, backwards: bool, *arrays: jax.Array) -> jax.Array:
    """Each program walks down some rows of the images; what it reads of one goes to several of the output."""
    height, _ = shape.kernel
    wide = _TOGETHER * shape.features

    def kernel(*refs: Any) -> None:
        *terms, out = refs
        images, kernels = terms[::2], terms[1::2]
        tile = _Tile(shape, program_id())
        top = program_id(1) * _ROWS
        weights = [
            [_weights(shape, backwards, ref, i, part) for i in range(height)]
            for ref in kernels
            for part in _parts(shape.stretch)
        ]

        def row(r: Any) -> tuple[jax.Array, ...]:
            return tile.stretches(images, top + r - shape.before[0])

        def walk(r: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            read, sums = carry
            ahead = row(r + 1)
            sums = jnp.zeros((_PLACES, wide), jnp.float32), *sums
            for x, rows in zip(read, weights, strict=True):
                sums = tuple(a + dot(x, w) for a, w in zip(sums, rows, strict=True))
            tile.store(out, top + r - (height - 1), sums[-1], r >= height - 1)
            return ahead, sums[:-1]

        none = tuple(jnp.zeros((_PLACES, wide), jnp.float32) for _ in range(height - 1))
        lax.fori_loop(0, _ROWS + height - 1, walk, (row(0), none))

    size = shape.batch * math.prod(shape.out) * shape.features
    grid = math.ceil(shape.batch * shape.groups / _PLACES), math.ceil(shape.out[0] / _ROWS)
    return call(kernel, "correlate", [size], grid, _WARPS)(*arrays)[0]


class _Tile:
    """Some groups of neighbouring places: where they are read and written in the first row of an image."""

    def __init__(self, shape: Correlation, block: Any) -> None:
        self.shape = shape
        group = block * _PLACES + numbers(_PLACES)
        exists = (group < shape.batch * shape.groups)[:, None]
        image, first = group // shape.groups, group % shape.groups * _TOGETHER
        self.read = []
        for begin, size in _parts(shape.stretch):
            slot = begin + numbers(size)
            column = first[:, None] + (slot // shape.channels - shape.before[1])[None, :]
            start = (image * math.prod(shape.image) + first - shape.before[1]) * shape.channels
            inside = exists & (column >= 0) & (column < shape.image[1])
            self.read.append((start[:, None] + slot[None, :], inside))
        slot = numbers(_TOGETHER * shape.features)
        start = (image * math.prod(shape.out) + first) * shape.features
        self.places = start[:, None] + slot[None, :]
        self.exists = exists & (first[:, None] + (slot // shape.features)[None, :] < shape.out[1])

    def stretches(self, images: Sequence[Any], row: Any) -> tuple[jax.Array, ...]:
        """The stretches in a row of several arrays of images, in parts."""
        height, width = self.shape.image
        ok = (row >= 0) & (row < height)
        shift = row * (width * self.shape.channels)
        return tuple(load(ref, index + shift, inside & ok) for ref in images for index, inside in self.read)

    def load(self, ref: Any, row: Any) -> jax.Array:
        """A row of an array like the output."""
        return load(ref, *self._row(row))

    def store(self, ref: Any, row: Any, values: jax.Array, where: Any) -> None:
        index, exists = self._row(row)
        store(ref, index, values, exists & where)

    def _row(self, row: Any) -> tuple[jax.Array, jax.Array]:
        height, width = self.shape.out
        shift = row * (width * self.shape.features)
        return self.places + shift, self.exists & (row >= 0) & (row < height)


def _weights(shape: Correlation, backwards: bool, ref: Any, i: int, part: tuple[int, int]) -> jax.Array:
    """Row i of a kernel as a matrix, from part of a stretch to the features of the places that share it."""
    height, width = shape.kernel
    begin, size = part
    slot, end = begin + numbers(size)[:, None], numbers(_TOGETHER * shape.features)[None, :]
    j = slot // shape.channels - end // shape.features
    channel, feature = slot % shape.channels, end % shape.features
    if backwards:
        index = ((height - i) * width - 1 - j) * shape.channels * shape.features
        index += feature * shape.channels + channel
    else:
        index = ((i * width + j) * shape.channels + channel) * shape.features + feature
    return load(ref, index, (j >= 0) & (j < width))


def _pull_kernel(shape: Correlation, x: jax.Array, c: jax.Array) -> jax.Array:
    """Each program walks down some rows of the images; what the programs find is added up afterwards."""
    height, width = shape.kernel
    wide, parts = _TOGETHER * shape.features, _parts(shape.stretch)
    slots = sum(size for _, size in parts)
    bands = math.ceil(shape.image[0] / _ROWS)
    items = math.ceil(shape.batch * shape.groups / _PLACES) * bands
    programs = min(items, _PROGRAMS)

    def kernel(x_ref: Any, c_ref: Any, out: Any) -> None:
        def add(item: Any, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            tile = _Tile(shape, item // bands)
            top = item % bands * _ROWS
            for r in range(_ROWS):
                read = tile.stretches([x_ref], top + r)
                given = [tile.load(c_ref, top + r + shape.before[0] - i) for i in range(height)]
                products = [dot(x, c, transposed=True) for c in given for x in read]
                sums = tuple(a + b for a, b in zip(sums, products, strict=True))
            return sums

        sums = tuple(jnp.zeros((size, wide), jnp.float32) for _ in range(height) for _, size in parts)
        for k, found in enumerate(share(items, programs, add, sums)):
            i, (begin, size) = k // len(parts), parts[k % len(parts)]
            slot = ((program_id() * height + i) * slots + begin + numbers(size)) * wide
            store(out, slot[:, None] + numbers(wide)[None, :], found)

    found = call(kernel, "pull_kernel", [programs * height * slots * wide], (programs,), _WARPS)(x, c)
    total = found[0].reshape(programs, height, slots, wide).sum(0)[:, : shape.stretch]
    total = total.reshape(height, -1, shape.channels, _TOGETHER, shape.features)
    return functools.reduce(
        jnp.add, (total[:, place : place + width, :, place] for place in range(_TOGETHER))
    )


def _parts(size: int) -> list[tuple[int, int]]:
    """A stretch in parts of 64, 32 and 16 numbers: where each begins, and its size."""
    parts, begin = [], 0
    while begin < size:
        part = next(p for p in (64, 32, 16) if p <= size - begin)
        parts.append((begin, part))
        begin += part
    return parts


# --- Few channels ---


def _correlate_few_channels(shape: Correlation, backwards: bool, *arrays: jax.Array) -> jax.Array:
    """A row of a tile is all that lies under the kernel at one place."""
    size, wide = shape.window, shape.features
    assert not backwards

    def kernel(*refs: Any) -> None:
        place = program_id() * _PLACES + numbers(_PLACES)
        tap = numbers(_power(size))
        total = jnp.zeros((_PLACES, wide), jnp.float32)
        for t in range(0, len(arrays), 2):
            used = jnp.broadcast_to((tap < size)[:, None], (len(tap), wide))
            weights = load(refs[t + 1], tap[:, None] * wide + numbers(wide)[None, :], used)
            total += dot(_windows(shape, refs[t], place), weights)
        index, exists = _output(shape, place)
        store(refs[-1], index, total, exists)

    places = shape.batch * math.prod(shape.out)
    grid = (math.ceil(places / _PLACES),)
    return call(kernel, "correlate_few_channels", [places * wide], grid, 2)(*arrays)[0]


def _pull_kernel_few_channels(shape: Correlation, x: jax.Array, c: jax.Array) -> jax.Array:
    wide, slots = shape.features, _power(shape.window)
    blocks = math.ceil(shape.batch * math.prod(shape.out) / _PLACES)
    programs = min(blocks, 2 * _PROGRAMS)

    def kernel(x_ref: Any, c_ref: Any, out: Any) -> None:
        def add(block: jax.Array, total: jax.Array) -> jax.Array:
            place = block * _PLACES + numbers(_PLACES)
            given = load(c_ref, *_output(shape, place))
            return total + dot(_windows(shape, x_ref, place), given, transposed=True)

        total = share(blocks, programs, add, jnp.zeros((slots, wide), jnp.float32))
        slot = (program_id() * slots + numbers(slots)) * wide
        store(out, slot[:, None] + numbers(wide)[None, :], total)

    found = call(kernel, "pull_kernel_few_channels", [programs * slots * wide], (programs,), 2)(x, c)
    total = found[0].reshape(programs, slots, wide)[:, : shape.window].sum(0)
    return total.reshape(*shape.kernel, shape.channels, shape.features)


def _windows(shape: Correlation, ref: Any, place: jax.Array) -> jax.Array:
    """For some places of the output, what lies under the kernel."""
    (height, width), (top, left) = shape.image, shape.before
    slot = numbers(_power(shape.window))
    tap, channel = slot // shape.channels, slot % shape.channels
    image = place // math.prod(shape.out)
    row = (place // shape.out[1] % shape.out[0])[:, None] + (tap // shape.kernel[1] - top)[None, :]
    column = (place % shape.out[1])[:, None] + (tap % shape.kernel[1] - left)[None, :]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    inside &= (image < shape.batch)[:, None] & (slot < shape.window)[None, :]
    pixel = (image[:, None] * height + row) * width + column
    return load(ref, pixel * shape.channels + channel[None, :], inside)


def _output(shape: Correlation, place: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where some places lie in the output, and whether there are such."""
    index = place[:, None] * shape.features + numbers(shape.features)[None, :]
    exists = (place < shape.batch * math.prod(shape.out))[:, None]
    return index, jnp.broadcast_to(exists, index.shape)


def _power(size: int) -> int:
    """The least power of two that is not less, and that a product can have."""
    return max(16, power_of_two(size))
