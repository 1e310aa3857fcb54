"""Sets: that their projections give the nearest point, compared with a search among members."""

from collections.abc import Sequence

import jax
import numpy as np

from pjax.checks import check_name, check_whole
from pjax.errors import InputError
from pjax.sets import Constrain, Set
from pjax.testing import report
from pjax.testing.report import Report, Witness


def check_set(into: Set, shape: Sequence[int], *, samples: int = 256, dtype: str = "float64") -> Report:
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
        dtype: the type in which the set projects.

    Raises:
        AssertionError: naming the property, the point, and by how much it fails.

    >>> from pjax.sets import Ball
    >>> check_set(Ball(2.0), (3,), samples=16).points
    16
    """
    check_name("dtype", dtype, report.TOLERANCE)
    check_whole("samples", samples)
    if not isinstance(into, Set):
        raise InputError(f"check_set: expected a set of pjax.sets, such as Ball(2.0); got {into!r:.120}")
    lengths = np.atleast_1d(shape).tolist()
    shape = tuple(check_whole("check_set: each length of the shape", length) for length in lengths)
    if len(shape) < into.core:
        raise InputError(f"check_set: a member of {into!r:.120} has {into.core} axes; got the shape {shape}")
    rng = np.random.default_rng(0)
    ones = [1] * len(shape)
    first, second = (a.astype(dtype) for a in report.drawn_inputs(rng, samples, (shape, shape)))
    extreme = np.resize([0.0, 1e-9, 1e9, 1.0], (16, *ones)) * rng.choice([-1, 1], (16, *shape))
    first, second = (np.concatenate([a, extreme.astype(dtype)]) for a in (first, second))
    weight = report.drawn_weights(rng, len(first)).astype(dtype).reshape(-1, *ones)
    with jax.enable_x64(dtype == "float64"):
        whole = into.fitted(first.shape, first.shape[: first.ndim - into.core], dtype)
        arrays, structure = jax.tree.flatten(whole)
        rule = Constrain(type(into), structure)
        member = jax.jit(rule.forward)

        def nearest(x: np.ndarray) -> np.ndarray:
            return np.asarray(member(x, *arrays))

        (end, *_), output = jax.jit(rule.project)(
            (first, *arrays), second, np.broadcast_to(weight, first.shape)
        )
        end, output = np.asarray(end), np.asarray(output)
        again = nearest(end)
        gap = np.asarray(jax.jit(jax.vmap(rule.forward))(first, *arrays)) - nearest(first)
        middle = (first + weight * second) / (1 + weight)
        tried = [nearest(y) for y in _other_points(rng, middle, end)]

    def norm(a: np.ndarray) -> np.ndarray:
        return np.linalg.norm(a.astype(np.float64).reshape(len(a), -1), axis=-1)

    def cost(x: np.ndarray) -> np.ndarray:
        return norm(x.astype(np.float64) - first) ** 2 + factor * norm(x.astype(np.float64) - second) ** 2

    def describe(row: int) -> str:
        return f"{report.brief(first[row])} and {report.brief(second[row])}, weight {factor[row]:g}"

    factor = weight.reshape(-1).astype(np.float64)
    witness = Witness(type(into).__name__, describe)
    witness.kept(first, end)
    # What one unit of rounding in every number can change.
    unit = np.finfo(dtype).eps * (norm(first) + norm(second) + norm(end)) + 1e-300
    offset, drift, apart = (norm(a) / unit for a in (end - output, again - end, gap))
    witness.demand("vmap equals one call", apart <= report.ROUNDINGS, apart)
    found, best = cost(end), np.min([cost(y) for y in tried], axis=0)
    excess = report.relative_excess(found, best, report.ROUNDINGS * unit * np.sqrt(1 + factor))
    return witness.report(excess, offset, drift, report.TOLERANCE[dtype])._replace(points=samples)


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
