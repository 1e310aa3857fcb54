"""What is done differently on some devices."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint


def several() -> bool:
    """Whether there are several devices, among which arrays may be divided."""
    return jax.device_count() > 1


def on_one_device(*args: Any, default: Callable[..., Any], **variants: Callable[..., Any] | None) -> Any:
    """A function of the arguments, with faster variants for some kinds of device: ``cpu=`` or ``cuda=``.

    Where there are several devices the default is used: arrays may be divided among them, and a variant that
    is fast on one device would make several exchange data.
    """
    known = {name: fn for name, fn in variants.items() if fn is not None}
    if several() or not known:
        return default(*args)
    return by_platform(*args, default=default, **known)


def by_platform(*args: Any, default: Callable[..., Any], **variants: Callable[..., Any]) -> Any:
    """A function of the arguments, with variants for some kinds of device.

    Where there are only CPUs, variants for other devices are not traced, which would take long.
    """
    if compiles_each_kernel() and not ANYWHERE:
        return variants.get("cpu", default)(*args)
    return jax.lax.platform_dependent(*args, default=default, **variants)


ANYWHERE = False
"""Whether programs include variants and kernels for kinds of devices that are not here. Slow; for tests."""


KERNELS = {"convolution", "edges", "maximum", "multiplier", "recurrence"}
"""The files of `pjax.rules.kernels` that are used; what they gain is in the docs, page on speed."""


def has_kernels(name: str) -> bool:
    """Whether the hand-written kernels in a file of `pjax.rules.kernels` are used on the devices here.

    They are for NVIDIA GPUs of the Hopper generation; others have less fast memory, or other product units.
    """
    if name not in KERNELS:
        return False
    versions = [getattr(d, "compute_capability", "") for d in jax.devices() if d.platform == "gpu"]
    return all(str(version).startswith("9.") for version in versions) if versions else ANYWHERE


def chooses_orders() -> bool:
    """Whether the compiler chooses the order of axes in memory, except of what a loop carries."""
    return jax.default_backend() != "cpu"


def separate_arrays() -> bool:
    """Whether several large arrays are faster than one stack of them, to which parts would be copied."""
    return jax.default_backend() == "gpu" and not several()


def end_kernel(x: jax.Array) -> jax.Array:
    """The same array; on a GPU a kernel ends here, and what follows reads the array from memory.

    For arrays that are summed next, or are sums: there a kernel that sums and does more is often slower than
    two kernels, and each kernel that reads a small array would otherwise compute it again.
    """
    return by_platform(x, cuda=jax.lax.optimization_barrier, default=lambda x: x)


def in_rows(x: jax.Array) -> jax.Array:
    """The same array; on a GPU its last axis lies contiguously in memory.

    A chain of reductions over the last axis is then one kernel. The compiler chooses other orders where the
    array comes out of one that is wide in another axis.
    """
    in_order = Layout(tuple(range(x.ndim)))
    return by_platform(x, cuda=lambda x: with_layout_constraint(x, in_order), default=lambda x: x)


def compiles_each_kernel() -> bool:
    """Whether the number of kernels is most of the time that a program takes to compile: on a CPU."""
    return jax.default_backend() == "cpu"


def in_each_step(x: jax.Array, constant: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same arrays; on a CPU, what follows from the constant is found in each step of a loop.

    What is found with a few operations would else be computed before the loop, and kept: more arrays, and
    kernels that must be compiled.
    """
    if not compiles_each_kernel():
        return x, constant
    return tuple(jax.lax.optimization_barrier((x, constant)))


def sum_apart(x: jax.Array) -> jax.Array:
    """The sums over the last axis, in a kernel that does nothing else, unless writing takes too long."""
    return end_kernel((end_kernel(x) if x.size <= 2**20 else x).sum(-1))


def sum_in_parts(x: jax.Array) -> jax.Array:
    """The sums over the last axis, where it is not the last in memory: on a GPU, of some parts of it first.

    A GPU sums columns with few threads each.
    """
    parts = divisor(x.shape[-1], x.shape[-1] // 32)
    if parts == 1:
        return sum_apart(x)
    return end_kernel(x.reshape(*x.shape[:-1], parts, -1).sum(-1)).sum(-1)


def rows(x: jax.Array) -> list[jax.Array]:
    """The parts of an array along its first axis.

    On CPU they are read at places that the compiler does not know. It then makes one kernel for all of them,
    and not one for each, which would be much of the time that it takes.
    """
    if len(x) < 8:
        return list(x)

    def unknown(x: jax.Array) -> list[jax.Array]:
        never = x.ravel()[0] > jnp.inf
        places = jax.lax.cond(
            never,
            lambda: [jnp.int32(0) for _ in range(len(x))],
            lambda: [jnp.int32(i) for i in range(len(x))],
        )
        origin = [jnp.int32(0)] * (x.ndim - 1)
        return [jax.lax.dynamic_slice(x, (i, *origin), (1, *x.shape[1:]))[0] for i in places]

    return on_one_device(x, cpu=unknown, default=list)


def divisor(n: int, most: int) -> int:
    """The largest divisor up to some number; 1 where there is no other."""
    return next((d for d in range(most, 1, -1) if n % d == 0), 1)


def power_of_two(n: int) -> int:
    """The least power of two that is not less, as kernels want sizes."""
    return 1 << (n - 1).bit_length()


def compiler_options(*, unroll: bool = True) -> dict[str, str | bool | int]:
    """What to compile loops over steps with: ``jax.jit(train, compiler_options=compiler_options())``.

    On a GPU, kernels that do not depend on each other then run side by side, and a loop is handed over as a
    whole: a step of a small network takes about half the time. The results are the same. On other devices,
    and on several, there are no options.

    Args:
        unroll: whether to write two steps of every loop out, so that the state need not be copied between
            them: a tenth less again, for a longer compilation. With convolutions XLA may log an internal
            error on the way, which has no consequences.

    >>> import jax
    >>> jax.jit(lambda x: x + 1, compiler_options=compiler_options())(1)
    Array(2, dtype=int32, weak_type=True)
    """
    if jax.default_backend() != "gpu" or several():
        return {}
    options: dict[str, str | bool | int] = {
        "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
        "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,"
        "WHILE,CONDITIONAL",
    }
    if unroll:
        options["xla_gpu_enable_while_loop_unrolling"] = "WHILE_LOOP_UNROLLING_DOUBLE_BUFFER"
    return options
