"""Functions of JAX, one by one: what soft sweeps ask of their inputs beside `jax.grad`.

Each stands alone between its parameters and a squared error near its value. Functions of `jax.numpy`,
`jax.nn`, `jax.lax`, `jax.scipy`, `jax.random` and `jax.image`, at points where they are smooth. The moves of
one update with `optax.sgd(1)` are to be the gradient; projections are to leave numbers that are finite. Rows
are printed where that is not so, and where a function is refused; the last lines count. What `jax.grad` does
not differentiate may be refused. The exit status says whether every function that it does is asked so.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.cluster.vq
import jax.scipy.signal
import jax.scipy.sparse.linalg
import jax.scipy.spatial.transform
import numpy as np
import optax
from jax import lax
from jax.experimental.ode import odeint

import pjax
from pjax import optim

CLOSE = 1e-3
"""How far moves may be from gradients, of their length."""
WRONG = {"refused", "not as gradients", "not finite by projections"}
TOGETHER = 15
"""Functions between which compiled programs are forgotten: a process may hold so many."""

V = jnp.array([0.3, -0.7, 1.2, 0.45, -0.2, 0.9])
U = jnp.array([0.31, 0.62, 0.15, 0.45, 0.81, 0.27])
M, C = (jnp.asarray(np.random.default_rng(seed).normal(size=(4, 4)), jnp.float32) for seed in (0, 1))
S = M @ M.T + 4 * jnp.eye(4)
"""Positive definite."""
GROUPS = jnp.array([0, 0, 1, 1, 2, 2])
KEY = jax.random.key(0)
NHWC = ("NHWC", "HWIO", "NHWC")

BY_NAME: tuple[tuple[Any, str, tuple[jax.Array, ...]], ...] = (
    (
        jnp,
        "arccos arcsin arctan arcsinh arctanh cbrt cosh deg2rad exp exp2 expm1 fabs i0 log log10 log1p log2 "
        "nan_to_num negative positive rad2deg reciprocal sin sinc sinh sqrt square tan tanh absolute conj "
        "real",
        (U,),
    ),
    (jnp, "arccosh", (U + 1.2,)),
    (
        jnp,
        "add subtract multiply divide arctan2 fmax fmin fmod hypot logaddexp logaddexp2 copysign mod maximum "
        "minimum convolve correlate outer inner kron vdot",
        (U + 0.2, V[::-1]),
    ),
    (jnp, "power float_power", (U + 0.2, U)),
    (jnp, "cross", (V[:3], U[:3])),
    (
        jnp,
        "cumprod cumsum nancumprod nancumsum nanmax nanmin nanmean nanmedian nanprod nanstd nansum nanvar "
        "ptp prod std var median mean diff ediff1d gradient diag diagflat flip unwrap trapezoid poly max min "
        "sort vander polyder polyint",
        (V,),
    ),
    (jnp, "corrcoef cov trace tril triu rot90 transpose ravel", (M,)),
    (jnp, "matvec", (M, V[:4])),
    (jnp, "vecdot polymul polyadd", (V, U)),
    (jnp.linalg, "det inv pinv svd qr matrix_norm svdvals cond", (M,)),
    (jnp.linalg, "cholesky eigh eigvalsh slogdet", (S,)),
    (jnp.linalg, "solve", (M, V[:4])),
    (jnp.linalg, "vector_norm", (V,)),
    (
        jax.nn,
        "celu elu gelu glu hard_sigmoid hard_silu hard_tanh leaky_relu log_sigmoid log_softmax logmeanexp "
        "logsumexp mish relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid "
        "squareplus standardize tanh",
        (V,),
    ),
    (jax.nn, "log1mexp", (U,)),
    (
        jax.scipy.special,
        "digamma entr erf erfc erfinv exp1 expi expit gamma gammaln i0 i0e i1 i1e log_ndtr logit ndtr ndtri "
        "spence",
        (U,),
    ),
    (
        jax.scipy.special,
        "beta betaln gammainc gammaincc kl_div poch rel_entr xlog1py xlogy",
        (U + 0.2, U[::-1]),
    ),
    (jax.scipy.linalg, "expm toeplitz det lu", (0.3 * M,)),
    (jnp.fft, "fft ifft rfft irfft hfft fftshift", (V,)),
    (jnp.fft, "fft2 ifft2 rfft2 irfft2", (M,)),
    (lax, "cummax cummin cumlogsumexp rsqrt logistic lgamma", (U,)),
)
"""A module, functions of it, and what they are given."""

CASES: dict[str, tuple[Callable[..., Any], Sequence[jax.Array]]] = {
    "interp, at x": (lambda x: jnp.interp(x, jnp.arange(4.0) / 3, jnp.array([1.0, 3, 2, 5])), [U]),
    "interp, of values": (lambda f: jnp.interp(U, jnp.arange(6.0) / 5, f), [V]),
    "quantile": (lambda x: jnp.quantile(x, 0.37), [V]),
    "nanpercentile": (lambda x: jnp.nanpercentile(x, 37), [V]),
    "polyval": (lambda p: jnp.polyval(p, jnp.array([0.5, 1.5])), [V]),
    "polyval, at x": (lambda x: jnp.polyval(jnp.array([1.0, 2, 3]), x), [V]),
    "polyfit": (lambda y: jnp.polyfit(jnp.arange(6.0), y, 2), [V]),
    "piecewise": (lambda x: jnp.piecewise(x, [x < 0, x >= 0], [lambda x: -x, lambda x: x**2]), [V]),
    "select": (lambda x: jnp.select([x < 0, x < 0.5], [x * 2, x**3], x), [V]),
    "insert": (lambda x: jnp.insert(x, 2, x[0] * 2), [V]),
    "delete": (lambda x: jnp.delete(x, 2), [V]),
    "fill_diagonal": (lambda m: jnp.fill_diagonal(m, 2 * m[0], inplace=False), [M]),
    "put_along_axis": (lambda x: jnp.put_along_axis(x, jnp.array([1]), x[:1] * 3, 0, inplace=False), [V]),
    "histogram, of weights": (lambda w: jnp.histogram(jnp.arange(6.0), weights=w, bins=3)[0], [V]),
    "bincount, of weights": (lambda w: jnp.bincount(GROUPS, weights=w, length=3), [V]),
    "apply_along_axis": (lambda m: jnp.apply_along_axis(lambda r: jnp.cumsum(r**2), 0, m), [M]),
    "vectorize": (jnp.vectorize(lambda a, b: a * b + jnp.sin(a)), [V, U]),
    "argmax, as an index": (lambda x: x[jnp.argmax(x)], [V]),
    "partition": (lambda x: jnp.partition(x, 2), [V]),
    "lexsort": (lambda x: x[jnp.lexsort((x,))], [V]),
    "divmod": (lambda x: jnp.divmod(x, 0.4)[1], [V]),
    "modf": (lambda x: jnp.modf(3 * x)[0], [V]),
    "frexp": (lambda x: jnp.frexp(x)[0], [V]),
    "ldexp": (lambda x: jnp.ldexp(x, 2), [V]),
    "einsum": (lambda a, b: jnp.einsum("ij,kj,j->ik", a, b, V[:4]), [M, C]),
    "lstsq": (lambda a, b: jnp.linalg.lstsq(a, b)[0], [M, V[:4]]),
    "matrix_power": (lambda m: jnp.linalg.matrix_power(m, 3), [M]),
    "multi_dot": (lambda a, b: jnp.linalg.multi_dot([a, b, C]), [M, S]),
    "norm, nuclear": (lambda m: jnp.linalg.norm(m, "nuc"), [M]),
    "norm, spectral": (lambda m: jnp.linalg.norm(m, 2), [M]),
    "norm, of order 3": (lambda v: jnp.linalg.norm(v, 3), [V]),
    "norm, infinite": (lambda v: jnp.linalg.norm(v, jnp.inf), [V]),
    "tensorinv": (lambda m: jnp.linalg.tensorinv(m.reshape(2, 2, 4), ind=2), [M]),
    "gelu, exact": (lambda x: jax.nn.gelu(x, approximate=False), [V]),
    "dot_product_attention": (
        lambda *qkv: jax.nn.dot_product_attention(*(x.reshape(1, 2, 2, 4) for x in qkv)),
        [M, S / 4, C],
    ),
    "betainc": (lambda x: jax.scipy.special.betainc(1.3, 2.1, x), [U]),
    "zeta": (lambda x: jax.scipy.special.zeta(x + 1.3, 0.7), [U]),
    "polygamma": (lambda x: jax.scipy.special.polygamma(1, x), [U]),
    "expn": (lambda x: jax.scipy.special.expn(2, x), [U]),
    "hyp1f1": (lambda x: jax.scipy.special.hyp1f1(1.0, 2.0, x), [U]),
    "multigammaln": (lambda x: jax.scipy.special.multigammaln(x + 3, 2), [U]),
    "cho_solve": (lambda s, b: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(s), b), [S, V[:4]]),
    "lu_solve": (lambda m, b: jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor(m), b), [M, V[:4]]),
    "solve_triangular": (jax.scipy.linalg.solve_triangular, [S, V[:4]]),
    "block_diag": (jax.scipy.linalg.block_diag, [M[:2, :2], V[:2, None]]),
    "custom_linear_solve": (
        lambda b: lax.custom_linear_solve(
            lambda x: S @ x, b, lambda _, b: jnp.linalg.solve(S, b), symmetric=True
        ),
        [V[:4]],
    ),
    "custom_root": (lambda a: _cube_root(a[0]), [U + 1]),
    "cg": (lambda b: jax.scipy.sparse.linalg.cg(lambda x: S @ x, b)[0], [V[:4]]),
    "gmres": (lambda b: jax.scipy.sparse.linalg.gmres(lambda x: S @ x, b)[0], [V[:4]]),
    "approx_max_k": (lambda x: lax.approx_max_k(x, 2)[0], [V]),
    "cumprod, reversed": (lambda x: lax.cumprod(x, reverse=True), [V]),
    "reduce, by sums": (lambda x: lax.reduce(x, 0.0, lax.add, (0,)), [V]),
    "reduce, by products": (lambda x: lax.reduce(x, 1.0, lax.mul, (0,)), [V]),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 8, 10), [V]),
    "rem": (lambda x: lax.rem(x, jnp.float32(0.4)), [V]),
    "sort_key_val": (lambda a, b: lax.sort_key_val(a, b)[1], [V, U]),
    "pad": (lambda x, p: lax.pad(x, p[0], [(1, 2, 1)]), [V, U]),
    "pad, by less than none": (lambda x: lax.pad(x, jnp.float32(0), [(-1, 2, 0)]), [V]),
    "at, max": (lambda x: x.at[jnp.array([0, 2])].max(x[1] * 3), [V]),
    "at, min": (lambda x: x.at[jnp.array([0, 2])].min(x[1]), [V]),
    "at, apply": (lambda x: x.at[jnp.array([0, 2])].apply(jnp.sin), [V]),
    "at, multiply": (lambda x: x.at[jnp.array([0, 2])].multiply(x[1], unique_indices=True), [V]),
    "segment_sum": (lambda x: jax.ops.segment_sum(x, GROUPS, 3), [V]),
    "segment_max": (lambda x: jax.ops.segment_max(x, GROUPS, 3), [V]),
    "associative_scan": (lambda x: lax.associative_scan(jnp.multiply, x), [V]),
    "associative_scan, affine": (lambda *xs: lax.associative_scan(_composed, xs)[1], [V, U]),
    "map": (lambda x: lax.map(lambda a: jnp.sin(a) * a, x), [V]),
    "switch": (lambda x: lax.switch(1, [jnp.sin, jnp.cos], x), [V]),
    "fori_loop": (lambda x: lax.fori_loop(0, 3, lambda _, a: jnp.sin(a) + a / 2, x), [V]),
    "checkpoint": (jax.checkpoint(lambda x: jnp.sin(x) ** 2), [V]),
    "jvp, inside": (lambda x: jax.jvp(jnp.sin, (x,), (x,))[1], [V]),
    "grad, inside": (lambda x: jax.grad(lambda y: (y**3).sum())(x), [V]),
    "hessian, inside": (lambda x: jax.hessian(lambda y: (y**4).sum())(x), [V]),
    "ragged_dot": (lambda a, b: lax.ragged_dot(a, b.reshape(2, 4, 2), jnp.array([2, 2])), [M, S]),
    "conv_transpose": (
        lambda x, w: lax.conv_transpose(x.reshape(1, 4, 4, 1), w.reshape(2, 2, 1, 4), (2, 2), "SAME"),
        [M, S],
    ),
    "convolution, in groups": (
        lambda x, w: _convolved(x.reshape(1, 2, 2, 4), w.reshape(2, 2, 1, 4), feature_group_count=4),
        [M, S],
    ),
    "convolution, dilated": (
        lambda x, w: _convolved(x.reshape(1, 4, 4, 1), w.reshape(2, 2, 1, 4), rhs_dilation=(2, 1)),
        [M, S],
    ),
    "convolution, of groups of samples": (
        lambda x, w: _convolved(x.reshape(2, 2, 4, 1), w.reshape(2, 2, 1, 4), batch_group_count=2),
        [M, S],
    ),
    "patches": (
        lambda x: lax.conv_general_dilated_patches(x.reshape(1, 1, 4, 4), (2, 2), (1, 1), "SAME"),
        [M],
    ),
    "reduce_window, maxima": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "SAME"), [M]),
    "reduce_window, sums": (lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (2, 1), "SAME"), [M]),
    "resize": (lambda x: jax.image.resize(x, (6, 6), "bilinear"), [M]),
    "resize, cubic": (lambda x: jax.image.resize(x, (3, 6), "cubic"), [M]),
    "map_coordinates": (
        lambda x, c: jax.scipy.ndimage.map_coordinates(x, [c[:3] * 3, c[3:] * 3], order=1),
        [M, U],
    ),
    "scale_and_translate": (
        lambda x: jax.image.scale_and_translate(x, (5, 5), (0, 1), V[2:4] + 1, U[:2], "linear"),
        [M],
    ),
    "norm.logpdf": (jax.scipy.stats.norm.logpdf, [V]),
    "beta.logpdf": (lambda x: jax.scipy.stats.beta.logpdf(x, 2.0, 3.0), [U]),
    "t.logpdf": (lambda x: jax.scipy.stats.t.logpdf(x, 3.0), [V]),
    "gamma.cdf": (lambda x: jax.scipy.stats.gamma.cdf(x, 2.0), [U]),
    "gaussian_kde": (lambda x: jax.scipy.stats.gaussian_kde(x)(jnp.array([0.0, 0.5])), [V]),
    "poisson.logpmf": (lambda r: jax.scipy.stats.poisson.logpmf(2, r), [U]),
    "multivariate_normal.logpdf": (
        lambda m: jax.scipy.stats.multivariate_normal.logpdf(V[:4], m, S),
        [U[:4]],
    ),
    "dirichlet.logpdf": (lambda a: jax.scipy.stats.dirichlet.logpdf(jax.nn.softmax(V), a), [U + 1]),
    "truncnorm.logpdf": (lambda x: jax.scipy.stats.truncnorm.logpdf(x, -1.0, 1.0), [U]),
    "random.gamma": (lambda a: jax.random.gamma(KEY, a), [U + 1]),
    "random.beta": (lambda a: jax.random.beta(KEY, a, 2.0), [U + 1]),
    "random.dirichlet": (lambda a: jax.random.dirichlet(KEY, a), [U + 1]),
    "random.t": (lambda a: jax.random.t(KEY, a), [U + 2]),
    "convolve2d": (lambda a, b: jax.scipy.signal.convolve2d(a, b, "same"), [M, C[:2, :2]]),
    "fftconvolve": (jax.scipy.signal.fftconvolve, [V, U]),
    "stft": (lambda a: jnp.abs(jax.scipy.signal.stft(jnp.tile(a, 4), nperseg=8)[2]), [V]),
    "detrend": (jax.scipy.signal.detrend, [V]),
    "vq": (lambda a: jax.scipy.cluster.vq.vq(a.reshape(3, 2), V.reshape(3, 2) * 2)[1], [V]),
    "RegularGridInterpolator": (lambda f: _on_a_grid(f)(jnp.array([[1.2, 2.3], [0.1, 0.7]])), [M]),
    "dct": (jax.scipy.fft.dct, [V]),
    "Rotation": (lambda q: jax.scipy.spatial.transform.Rotation.from_quat(q).as_matrix(), [V[:4]]),
    "odeint": (lambda y: odeint(lambda y, _: -y, y, jnp.array([0.0, 0.5])), [V[:3]]),
    "while_loop": (lambda x: lax.while_loop(lambda y: y[0] < 2, lambda y: y + 1, x), [V]),
    "nextafter": (jnp.nextafter, [V, U]),
    "schur": (jax.scipy.linalg.schur, [M]),
}


def _cube_root(a: jax.Array) -> jax.Array:
    def solve(f: Callable[[Any], Any], x: Any) -> Any:
        return lax.fori_loop(0, 25, lambda _, x: x - f(x) / jax.grad(f)(x), x)

    return jnp.asarray(lax.custom_root(lambda x: x**3 - a, 1.0, solve, lambda g, y: y / g(1.0)))


def _composed(f: Any, g: Any) -> Any:
    return f[0] * g[0], f[1] * g[0] + g[1]


def _convolved(x: jax.Array, w: jax.Array, **options: Any) -> jax.Array:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC, **options)


def _on_a_grid(values: jax.Array) -> Any:
    axis = jnp.arange(4.0)
    return jax.scipy.interpolate.RegularGridInterpolator((axis, axis), values)


def cases() -> Iterator[tuple[str, Callable[..., Any], list[jax.Array]]]:
    """Names, functions, and the parameters that they are given."""
    for module, names, given in BY_NAME:
        for name in names.split():
            yield f"{module.__name__.removeprefix('jax.')}.{name}", getattr(module, name), list(given)
    for name, (fn, given) in CASES.items():
        yield name, fn, list(given)


def real(results: Any) -> jax.Array:
    """All numbers of results that are real or complex."""
    leaves = [x for x in jax.tree.leaves(results) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.concatenate([jnp.ravel(part) for x in leaves for part in _parts(x)])


def _parts(x: jax.Array) -> tuple[jax.Array, ...]:
    return (x.real, x.imag) if jnp.iscomplexobj(x) else (x,)


def found(fn: Callable[..., Any], params: list[jax.Array]) -> tuple[str, str]:
    """What comes of a function, in short and in more words."""
    out = real(fn(*params))
    goal = out + 0.01 * jnp.asarray(np.random.default_rng(3).normal(size=out.shape), out.dtype)

    def loss(params: list[jax.Array]) -> jax.Array:
        return jnp.sum((real(fn(*params)) - goal) ** 2)

    try:
        gradient = jax.jit(jax.grad(loss))(params)  # as rounded as what is asked
    except Exception as error:  # whatever JAX says of what it does not differentiate
        gradient, reason = None, repr(error)
    optimizer = optim.ExtrapolatedProjections(outer=optax.sgd(1.0))
    try:
        new, _, _ = optimizer.update(loss, params, optimizer.init(params))
    except pjax.PjaxError as error:
        if gradient is None:
            return "refused, as by jax.grad", reason
        return "refused", str(error)
    if gradient is None:
        return "asked, where jax.grad fails", reason
    pairs = [(old - moved, slope) for old, moved, slope in zip(params, new, gradient, strict=True)]
    apart = sum(float(jnp.sum((a - b) ** 2)) for a, b in pairs) ** 0.5
    length = sum(float(jnp.sum(b**2)) for _, b in pairs) ** 0.5
    if not apart <= CLOSE * length + 1e-6:
        return "not as gradients", f"{apart:.2g} from a gradient of length {length:.2g}"
    try:
        after, _ = optim.AlternatingProjections(steps_per_update=5).update(loss, params)
    except pjax.PjaxError as error:
        return "as gradients; projections refuse", str(error)
    if not all(bool(jnp.isfinite(x).all()) for x in after):
        return "not finite by projections", ""
    return "as gradients", ""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks functions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="functions whose name contains this")
    options = parser.parse_args(arguments)
    jax.config.update("jax_disable_most_optimizations", True)  # much to compile, little to compute
    counts: dict[str, int] = {}
    chosen = [case for case in cases() if options.only in case[0]]
    if not chosen:
        parser.error(f"no function has {options.only!r} in its name")
    for i, (name, fn, params) in enumerate(chosen):
        if i % TOGETHER == 0:
            jax.clear_caches()
        short, more = found(fn, params)
        counts[short] = counts.get(short, 0) + 1
        if short != "as gradients":
            print(f"{name}: {short}. {' '.join(more.split()):.200}", flush=True)
    for short, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:4} {short}")
    return 1 if WRONG & set(counts) else 0
