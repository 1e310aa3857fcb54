"""How long a projection step takes and how much memory, beside backprop with SGD and Adam.

Everything runs in one process on synthetic data, so nothing is downloaded. Compilation is timed apart; with
`--fresh` in a process of its own for each method, as in the first run of a program: on a GPU the fastest
products are looked for once in a process, which else counts for the first method alone.
Each measurement is one compiled call of as many steps for every method; methods take turns, so that a
noisy machine hurts them alike, and medians are shown. SGD, Adam and EP take their steps inside one
`lax.scan`; with convolutions only two of them on a CPU, which is slow at that. ResNet-18 and GPT, as one
writes them in Flax, are measured with Adam and EP alone, if `--methods` names no others.
Stored edges ("AP explicit") are so slow that they are timed once, over two steps. "AP bf16" and "DR bf16",
which keep displacements in bfloat16, are measured only if `--methods` names them.
"PyTorch SGD" and "PyTorch Adam" are the same networks in PyTorch, where that is installed and has the same
kind of device. On a GPU one step is a CUDA graph, or else the name of the row ends in "eager"; "temp" is how
much PyTorch has allocated at most in a step, and "compile" how long it takes until steps can be timed.
"""

import abc
import argparse
import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib.util
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import pjax
from pjax import devices
from pjax.experiments import models
from pjax.experiments.learners import mean_cross_entropy
from pjax.graph import fan_out
from pjax.graph import read as tracing

BATCH = 256
MOST_GIB = 6.0
MIB = 2**20
HOME = pathlib.Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Network:
    """Logits from parameters, inputs, and the number of the step where there is dropout."""

    logits: Callable[..., Any]
    aux: bool = False
    """Whether it returns something beside them."""
    drops: bool = False

    def loss(self, cross_entropy: Any, params: Any, x: jax.Array, y: jax.Array, step: Any) -> Any:
        """Of given parameters, as `jax.grad` and `update` take it."""
        found = self.logits(params, x, step) if self.drops else self.logits(params, x)
        if self.aux:
            return cross_entropy(found[0], y), found[1]
        return cross_entropy(found, y)


def _in_flax(kind: str, x: jax.Array, classes: int) -> tuple[Any, Network]:
    """Parameters and network."""
    from benchmarks import networks

    model: Any = networks.ResNet() if kind == "res" else networks.GPT(classes)
    variables = model.init(jax.random.key(0), x[:1], False)
    if kind == "res":

        def normalised(params: Any, x: jax.Array) -> Any:
            return model.apply({**variables, "params": params}, x, True, mutable=["batch_stats"])

        return variables["params"], Network(normalised, aux=True)

    def dropped(params: Any, x: jax.Array, step: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(1), step)
        return model.apply({"params": params}, x, True, rngs={"dropout": key})

    return variables["params"], Network(dropped, drops=True)


def _in_a_scan(inputs: int, width: int, depth: int, classes: int) -> tuple[Any, Network]:
    """Parameters and network: an MLP whose equal layers are one array, and the steps of a scan."""
    keys, scale = jax.random.split(jax.random.key(0), 3), (2 / width) ** 0.5
    params = {
        "in": (2 / inputs) ** 0.5 * jax.random.normal(keys[0], (inputs, width)),
        "w": scale * jax.random.normal(keys[1], (depth - 1, width, width)),
        "b": jnp.zeros((depth - 1, width)),
        "out": scale * jax.random.normal(keys[2], (width, classes)),
    }

    def logits(p: Any, x: jax.Array) -> jax.Array:
        def layer(h: jax.Array, own: Any) -> tuple[jax.Array, None]:
            return jax.nn.relu(h @ own[0] + own[1]), None

        return jax.lax.scan(layer, jax.nn.relu(x @ p["in"]), (p["w"], p["b"]))[0] @ p["out"]

    return params, Network(logits)


@dataclasses.dataclass(frozen=True)
class Case:
    """A network and the shape of its data."""

    name: str
    shape: tuple[int, ...]
    classes: int
    widths: tuple[int, ...]
    skip: bool = False
    steps: int = 200
    batch: int = BATCH
    on: tuple[str, ...] = ("cpu", "gpu", "tpu")
    """The kinds of devices on which it is run."""
    methods: tuple[str, ...] | None = None
    """Those that are measured by default; None: all."""

    @property
    def kind(self) -> str:
        if self.name.startswith(("ResNet", "GPT")):
            return self.name[:3].lower()
        if self.name.endswith("in a scan"):
            return "scan"
        return "cnn" if len(self.shape) == 3 else "rnn" if self.name.startswith("Shakespeare") else "mlp"

    @property
    def convolutional(self) -> bool:
        return self.kind in ("cnn", "res")

    @property
    def slow(self) -> bool:
        """Whether a step of backprop is more than ten times slower inside a loop than outside."""
        return self.convolutional and jax.default_backend() == "cpu"

    def make(self) -> tuple[Any, jax.Array, jax.Array, Network]:
        """Parameters, inputs, labels, and the network."""
        rng = np.random.default_rng(0)
        shape = (self.batch, *self.shape)
        y = jnp.asarray(rng.integers(self.classes, size=self.batch), jnp.int32)
        if self.kind in ("rnn", "gpt"):
            x, y = (jnp.asarray(rng.integers(self.classes, size=shape), jnp.int32) for _ in range(2))
        else:
            x = jnp.asarray(rng.uniform(size=shape), jnp.float32)
        if self.kind in ("res", "gpt"):
            params, network = _in_flax(self.kind, x, self.classes)
            return params, x, y, network
        if self.kind == "scan":
            params, network = _in_a_scan(*self.shape, self.widths[0], len(self.widths), self.classes)
            return params, x, y, network
        model = models.make(self.kind, self.shape, self.widths, self.classes, skip=self.skip)
        return model.init(jax.random.key(0)), x, y, Network(model.apply)


CASES = (
    Case("MNIST MLP 1x128", (784,), 10, (128,)),
    Case("MNIST MLP 4x128", (784,), 10, (128,) * 4),
    Case("CIFAR MLP 1x256", (3072,), 10, (256,)),
    Case("HIGGS MLP 1x256", (28,), 2, (256,)),
    Case("MNIST CNN 4x16+skip", (28, 28, 1), 10, (16,) * 4, skip=True, steps=10),
    Case("MNIST CNN 4x16", (28, 28, 1), 10, (16,) * 4, steps=50, batch=64, on=("cpu",)),
    Case("Shakespeare RNN 1x256", (64,), 65, (256,), steps=20, batch=16, on=("cpu",)),
    Case("Shakespeare RNN 1x256", (64,), 65, (256,), steps=50, on=("gpu", "tpu")),
    *(Case(f"MLP {depth}x16, 1 sample", (16,), 10, (16,) * depth, batch=1) for depth in (4, 64)),
    *(Case(f"MNIST MLP {depth}x128", (784,), 10, (128,) * depth, steps=100) for depth in (8, 12, 64)),
    *(Case(f"MLP {depth}x128 in a scan", (784,), 10, (128,) * depth, steps=100) for depth in (8, 64)),
    Case("ResNet-18", (32, 32, 3), 10, (), steps=20, methods=("Adam", "EP"), on=("gpu", "tpu")),
    Case("ResNet-18", (32, 32, 3), 10, (), steps=1, batch=16, methods=("Adam", "EP"), on=("cpu",)),
    Case("GPT 6x384", (256,), 65, (), steps=20, batch=64, methods=("Adam", "EP"), on=("gpu", "tpu")),
    Case("GPT 6x384", (256,), 65, (), steps=2, batch=1, methods=("Adam", "EP"), on=("cpu",)),
)

MLPS = ("MNIST MLP 1x128", "MNIST MLP 4x128", "CIFAR MLP 1x256", "HIGGS MLP 1x256")
OTHERS = ("MNIST MLP 12x128", "MNIST MLP 64x128", "MNIST CNN 4x16+skip", "Shakespeare RNN 1x256")
FLAX = ("ResNet-18", "GPT 6x384")


FIGURES = {
    "step_ms": ("time per step", "ms"),
    "temp_mib": ("temporary memory", "MiB"),
    "compile_s": ("compilation", "s"),
}


@dataclasses.dataclass(frozen=True)
class Goal:
    """A limit on a figure of the table, as it is or next to that of another method or network."""

    case: str
    method: str
    figure: str
    limit: float
    beside: str = ""
    """The other method."""
    against: str = ""
    """The other network."""
    device: str = ""
    """Of which the name must contain this."""

    def said(self, found: dict[tuple[str, str], dict[str, Any]], device: str) -> str:
        """What is measured next to it; nothing where it was not."""
        case, method = self.against or self.case, self.beside or self.method
        if self.device not in device or (self.case, self.method) not in found or (case, method) not in found:
            return ""
        value, (what, unit) = found[self.case, self.method][self.figure], FIGURES[self.figure]
        if self.beside or self.against:
            value, unit = (
                value / max(found[case, method][self.figure], 1e-9),
                f"x {self.beside or self.against}",
            )
        verdict = "yes" if value <= self.limit else "NO"
        return (
            f"{self.case:<22} {self.method:<3} {what:<17}"
            f" goal ≤ {self.limit:>6g} {unit:<18} measured {value:>8.2f}   {verdict}"
        )


GOALS = (
    *(Goal(case, "EP", "step_ms", 1.15, "Adam", device="H200") for case in (*MLPS, *OTHERS, *FLAX)),
    *(Goal(case, "EP", "step_ms", 1.2, "Adam", device="cpu") for case in MLPS),
    *(Goal(case, "EP", "step_ms", 1.3, "Adam", device="cpu") for case in OTHERS[2:]),
    *(Goal(case, "AP", "step_ms", 1.1, "SGD", device="H200") for case in MLPS),
    *(Goal(case, "DR", "step_ms", 1.6, "SGD", device="H200") for case in MLPS),
    *(
        Goal(case, method, "compile_s", limit, "Adam")
        for case in (*MLPS, *OTHERS, *FLAX)
        for method, limit in (("EP", 2), ("AP", 3), ("DR", 4))
    ),
    Goal("MNIST MLP 64x128", "EP", "compile_s", 1.3, against="MNIST MLP 8x128"),
    *(
        Goal("MLP 64x128 in a scan", method, "compile_s", 1.3, against="MLP 8x128 in a scan")
        for method in ("EP", "AP", "DR")
    ),
    *(Goal(case, "EP", "temp_mib", 1.3, "Adam") for case in (*MLPS, *OTHERS, *FLAX)),
    *(Goal(case, "AP", "temp_mib", 3, "SGD") for case in MLPS),
    *(Goal(case, "DR", "temp_mib", 16, "SGD") for case in MLPS),
    *(
        Goal(case, method, "step_ms", limit, device=device)
        for device, case, *limits in (
            ("H200", "MNIST CNN 4x16+skip", 0.8, 2.0),
            ("H200", "Shakespeare RNN 1x256", 1.0, 3.0),
            ("cpu", "MNIST CNN 4x16", 60, 150),
            ("cpu", "Shakespeare RNN 1x256", 60, 150),
        )
        for method, limit in zip(("AP", "DR"), limits, strict=True)
    ),
)

IN_TORCH = {"PyTorch SGD": "SGD", "PyTorch Adam": "Adam"}
METHODS = (
    *("SGD", "SGD no loop", "Adam", "EP", "AP", "CP", "DR", "AP explicit", "AP bf16", "DR bf16"),
    *IN_TORCH,
)

Update = Callable[[Any, jax.Array, jax.Array], Any]


def backprop(network: Network, optimiser: Any, steps: int, loop: bool = True) -> Update:
    """Backprop with an optax optimiser, all steps in one scan; without a loop, just one."""

    def update(params: Any, x: jax.Array, y: jax.Array) -> Any:
        def step(carry: Any, number: Any) -> tuple[Any, Any]:
            params, state = carry
            loss = functools.partial(network.loss, mean_cross_entropy)
            value, slope = jax.value_and_grad(loss, has_aux=network.aux)(params, x, y, number)
            moves, state = optimiser.update(slope, state, params)
            return (jax.tree.map(jnp.add, params, moves), state), value

        start = params, optimiser.init(params)
        return jax.lax.scan(step, start, jnp.arange(steps)) if loop else step(start, 0)

    return update


def sweeps(network: Network, solver: pjax.optim.Solver, steps: int) -> Update:
    """As many updates of a solver in one scan."""

    def update(params: Any, x: jax.Array, y: jax.Array) -> Any:
        def step(carry: Any, number: Any) -> tuple[Any, Any]:
            def loss(params: Any) -> Any:
                return network.loss(pjax.cross_entropy, params, x, y, number)

            *carry, value = solver.update(loss, *carry, has_aux=network.aux)
            return tuple(carry), value

        return jax.lax.scan(step, (params, solver.init(params)), jnp.arange(steps))

    return update


def projections(network: Network, solver: pjax.optim.Solver) -> Update:
    """One update of a solver."""

    def update(params: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            return network.loss(pjax.cross_entropy, params, x, y, 0)

        return solver.update(loss, params, solver.init(params), has_aux=network.aux)

    return update


def edge_gib(network: Network, params: Any, x: jax.Array, y: jax.Array) -> float:
    """About what stored edges need: the state, the next state, and one array between."""
    graph = tracing.build(tracing.read(lambda p: network.loss(pjax.cross_entropy, p, x, y, 0), params))
    edges = sum(fan_out.entering(node, i) for node in graph.nodes for i in range(len(node.wires)))
    return 3 * 4 * edges / 2**30


class Timed(abc.ABC):
    """One method on one network: made ready once, timed many times."""

    compile_s: float
    temp_mib: float

    def __init__(self, name: str, steps: int) -> None:
        self.name = name
        self.steps = steps
        self.seconds: list[float] = []

    @abc.abstractmethod
    def call(self) -> None:
        """All steps, to their end."""

    def run(self) -> float:
        start = time.perf_counter()
        self.call()
        return time.perf_counter() - start

    @property
    def step_ms(self) -> float:
        return 1e3 * statistics.median(self.seconds) / self.steps


class Measured(Timed):
    """A method in JAX."""

    def __init__(
        self, name: str, update: Update, steps: int, arguments: tuple[Any, ...], plain: bool = False
    ) -> None:
        super().__init__(name, steps)
        self.arguments = arguments
        start, processor = time.perf_counter(), time.process_time()
        # The same for all methods.
        options = None if plain else pjax.optim.compiler_options()
        self.compiled = jax.jit(update, compiler_options=options).lower(*arguments).compile()
        self.compile_s = time.perf_counter() - start
        self.processor_s = time.process_time() - processor
        self.temp_mib = math.nan
        with contextlib.suppress(RuntimeError):  # some programs with these options are not analysed
            self.temp_mib = self.compiled.memory_analysis().temp_size_in_bytes / MIB

    def call(self) -> None:
        jax.block_until_ready(self.compiled(*self.arguments))


class MeasuredInTorch(Timed):
    """An optimiser in PyTorch."""

    def __init__(self, name: str, case: Case, steps: int, arguments: tuple[Any, ...]) -> None:
        from benchmarks import in_torch

        super().__init__(name, steps)
        start = time.perf_counter()
        platform = jax.devices()[0].platform
        self.training = in_torch.Training(
            case.kind, *arguments, IN_TORCH[name], skip=case.skip, platform=platform
        )
        self.compile_s = time.perf_counter() - start
        self.temp_mib = self.training.temp_mib
        if platform == "gpu" and self.training.graph is None:
            self.name += " eager"

    def call(self) -> None:
        self.training.run(self.steps)


def compiled_alone(case: Case, names: Iterable[str], options: argparse.Namespace) -> dict[str, float]:
    """Seconds to compile each method in a process that has compiled nothing before."""
    command = [sys.executable, "-m", "benchmarks", "speed", *["--plain"] * options.plain]
    command += ["--without", *options.without] if options.without else []
    # This process may hold most of a GPU's memory.
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    def seconds(name: str) -> float:
        arguments = [*command, "--compile", case.name, name]
        done = subprocess.run(
            arguments, cwd=HOME, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        return float(done.stdout.split()[-1])

    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 4)) as pool:
        return dict(zip(names, pool.map(seconds, names), strict=True))


def torch_is_here() -> bool:
    """Whether PyTorch is installed, and computes on the kind of device that JAX does."""
    if importlib.util.find_spec("torch") is None:
        return False
    from benchmarks import in_torch

    return in_torch.sees(jax.devices()[0].platform)


def methods_of(
    case: Case,
    network: Network,
    steps: int,
    data: tuple[Any, ...],
    only: Sequence[str] | None,
) -> dict[str, tuple[Update, int]]:
    """All methods of JAX for a network, or some besides SGD, by name: an update, and its steps."""
    fewer = min(steps, 2) if case.slow else steps
    methods: dict[str, tuple[Update, int]] = {
        "SGD": (backprop(network, optax.sgd(0.01), fewer), fewer),
        "Adam": (backprop(network, optax.adam(1e-3), fewer), fewer),
    }
    methods["EP"] = sweeps(network, pjax.optim.ExtrapolatedProjections(check=False), fewer), fewer
    for solver in (
        pjax.optim.AlternatingProjections(steps_per_update=steps),
        pjax.optim.CyclicProjections(steps_per_update=steps),
        pjax.optim.DouglasRachford(steps_per_update=steps),
    ):
        methods[solver.name] = (projections(network, solver), steps)
    if case.convolutional:  # so show what a step costs outside one, too
        methods["SGD no loop"] = (backprop(network, optax.sgd(0.01), 1, loop=False), 1)
    for name, kind in (
        ("AP bf16", pjax.optim.AlternatingProjections),
        ("DR bf16", pjax.optim.DouglasRachford),
    ):
        if name in (only or ()):
            narrow = kind(steps_per_update=steps, state_dtype="bfloat16")
            methods[name] = (projections(network, narrow), steps)
    few = min(steps, 2)  # stored edges are slow: two steps, once
    explicit = pjax.optim.AlternatingProjections(steps_per_update=few, edges="explicit")
    asked = only is None or "AP explicit" in only
    if asked and case.kind == "mlp" and edge_gib(network, *data) <= MOST_GIB:
        methods["AP explicit"] = (projections(network, explicit), few)
    return {name: method for name, method in methods.items() if only is None or name in ("SGD", *only)}


def measure(case: Case, options: argparse.Namespace, only: Sequence[str] | None) -> list[dict[str, Any]]:
    """All methods on one network, or some besides SGD, as rows of the table."""
    *data, network = case.make()
    only = case.methods if only is None else only
    steps, repeats = options.steps or case.steps, min(options.repeats, 1) if case.slow else options.repeats
    methods = methods_of(case, network, steps, tuple(data), only)
    runs: list[Timed] = [
        Measured(name, update, n, tuple(data), options.plain) for name, (update, n) in methods.items()
    ]
    if case.kind in ("mlp", "cnn", "rnn") and torch_is_here():
        asked = [name for name in IN_TORCH if only is None or name in only]
        runs += [MeasuredInTorch(name, case, steps, tuple(data)) for name in asked]
    for run in runs:
        first = run.run()  # not like the others, so it does not count
        if run.name == "AP explicit":
            run.seconds.append(first)
    for _ in range(repeats):
        for run in runs:
            if run.name != "AP explicit":
                run.seconds.append(run.run())
    alone = compiled_alone(case, methods, options) if options.fresh else {}
    base = runs[0]
    rows = [
        {
            "case": case.name,
            "method": run.name,
            "steps": run.steps,
            "runs": len(run.seconds),
            "step_ms": run.step_ms,
            "time_ratio": run.step_ms / base.step_ms,
            "temp_mib": run.temp_mib,
            "temp_ratio": run.temp_mib / base.temp_mib if base.temp_mib else math.nan,
            "compile_s": alone.get(run.name, run.compile_s),
        }
        for run in runs
    ]
    if case.kind == "mlp" and "AP explicit" not in methods and (only is None or "AP explicit" in only):
        rows.append({"case": case.name, "method": "AP explicit", "needs_gib": edge_gib(network, *data)})
    return rows


HEAD = f"{'network':<22} {'method':<12}   ms/step   of SGD   temp MiB   of SGD   compile  runs x steps"


def line(row: dict[str, Any]) -> str:
    name = f"{row['case']:<22} {row['method']:<12}"
    if "needs_gib" in row:
        return f"{name}   needs {row['needs_gib']:.0f} GiB"
    return (
        f"{name} {row['step_ms']:>9.3f} {row['time_ratio']:>8.2f} {row['temp_mib']:>10.2f}"
        f" {row['temp_ratio']:>8.2f} {row['compile_s']:>7.2f} s {row['runs']:>5} x {row['steps']}"
    )


def argument_parser() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks speed", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="networks whose name contains this")
    parser.add_argument("--steps", type=int, help="steps in one measurement (by default 10 to 200)")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each method")
    parser.add_argument("--methods", metavar="NAME,...", help="some methods besides SGD, such as AP,DR")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="compile by a plain jax.jit, without pjax.optim.compiler_options()",
    )
    parser.add_argument(
        "--without", nargs="*", default=[], choices=sorted(devices.KERNELS), help="leave kernels out"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="compile each method in a process of its own, too"
    )
    parser.add_argument(
        "--compile",
        nargs=2,
        metavar=("NETWORK", "METHOD"),
        help="print how long this takes to compile, also by the processor's account",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser()
    options = parser.parse_args(arguments)
    if options.repeats < 1 or (options.steps is not None and options.steps < 1):
        parser.error("--steps and --repeats must be at least 1")
    devices.KERNELS.difference_update(options.without)
    device = jax.devices()[0]
    here = [c for c in CASES if device.platform in c.on]
    if options.compile:
        name, method = options.compile
        case = next((c for c in here if c.name == name), None)
        if case is None:
            parser.error(f"no network is called {name!r}; there are: {', '.join(c.name for c in here)}")
        if method not in METHODS or method in IN_TORCH:
            parser.error(f"no method of pjax or JAX is called {method!r}; there are: {', '.join(METHODS)}")
        *data, network = case.make()
        update, steps = methods_of(case, network, options.steps or case.steps, tuple(data), [method])[method]
        found = Measured(method, update, steps, tuple(data), options.plain)
        print(f"{found.processor_s:.2f} s of the processor, in seconds: {found.compile_s:.3f}")
        return
    only = None if options.methods is None else options.methods.split(",")
    if unknown := set(only or ()) - set(METHODS):
        parser.error(f"no method is called {unknown.pop()!r}; there are: {', '.join(METHODS)}")
    if {*IN_TORCH} & {*(only or ())} and not torch_is_here():
        parser.error(f"{' and '.join(IN_TORCH)} need PyTorch, with a device of the kind that JAX has")
    cases = [c for c in here if options.only is None or options.only.lower() in c.name.lower()]
    if not cases:
        parser.error(f"no network is called {options.only!r}; there are: {', '.join(c.name for c in here)}")

    print(
        f"jax {jax.__version__}, {device.device_kind} ({device.platform}), {os.cpu_count()} CPU cores,"
        f" batch {BATCH} where not said, float32, medians over the runs"
        + ", plain jax.jit" * options.plain
        + f", without kernels for {', '.join(options.without)}" * bool(options.without)
    )
    print(HEAD)
    rows: list[dict[str, Any]] = []
    for case in cases:
        for row in measure(case, options, only):
            print(line(row), flush=True)
            rows.append(row)
    found = {(r["case"], r["method"]): r for r in rows if "step_ms" in r}
    shallow, deep = (found.get((f"MLP {depth}x16, 1 sample", "AP")) for depth in (4, 64))
    if shallow and deep:
        print(f"\ndepth 64 over depth 4, AP: {deep['step_ms'] / shallow['step_ms']:.2f} x the time")
    print("\ngoals")
    said = (goal.said(found, f"{device.device_kind} {device.platform}") for goal in GOALS)
    print("\n".join(filter(None, said)))
    if options.json:
        about = {"jax": jax.__version__, "device": device.device_kind, "python": platform.python_version()}
        with open(options.json, "w") as file:
            json.dump({**about, "batch": BATCH, "repeats": options.repeats, "rows": rows}, file, indent=1)
