"""Extrapolated projections beside backpropagation, on networks and data as they are usually trained.

Both methods get the same start, batches, dropout masks and augmentation, and the same function of the
parameters; both hand what they find to the same AdamW with the same rates. Only the source of the "gradient"
differs: `jax.grad`, or `pjax.optim.ExtrapolatedProjections`. How well the two agree in the first update is
printed as a cosine.

mlp: 128 residual layers of 128 units on MNIST, 10 epochs, test accuracy. vgg: VGG-5 on CIFAR-10, 20 epochs
with random crops and flips, test accuracy. resnet: ResNet-18 with BatchNorm, likewise. gpt: 6 layers, 6
heads, 384 wide, dropout 0.2, context 256, on the characters of Shakespeare, 3000 batches, validation loss.

Data are on the device as a whole, and many updates are one call. Runs that the file of --out already has are
not made again.
"""

import argparse
import dataclasses
import functools
import io
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import networks
from pjax import optim
from pjax.errors import DataError, InputError
from pjax.experiments import data as datasets

MODELS = ("mlp", "vgg", "gpt", "resnet")
METHODS = ("Adam", "EP")
POINTS = 6  # how often a run is measured
SETTINGS = ("model", "updates", "dtype", "parameters")  # runs that differ in one are not to be compared
Batch = tuple[jax.Array, jax.Array]


# --- What is trained ---


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """A network, its data, and how it is trained."""

    name: str
    network: Any
    data: Any
    """Arrays to train on and to measure with. Functions below get them as an argument, not as a constant."""
    samples: int
    """How many there are to draw from."""
    batch: int
    updates: int
    optimizer: optax.GradientTransformation
    prepare: Callable[[Any, jax.Array, jax.Array], Batch]
    """Inputs and targets of a batch, from the data, the numbers of its samples, and a key."""
    tests: Callable[[Any], Batch]
    """Inputs and targets to measure with, in batches."""
    accuracy: bool = True
    """What is measured: the accuracy in percent, or else the mean loss."""
    together: bool = False
    """Whether all seeds train at once: for networks that leave the device idle one by one."""

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """What tells its runs from others: `SETTINGS`."""
        params, _ = jax.eval_shape(self.start, self.data, jax.random.key(0))
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        return dict(zip(SETTINGS, (self.name, self.updates, str(self.network.dtype), size), strict=True))

    def start(self, data: Any, key: jax.Array) -> tuple[Any, Any]:
        """Parameters, and the other variables (the statistics of BatchNorm)."""
        x, _ = self.prepare(data, jnp.zeros(1, jnp.int32), key)
        found = dict(self.network.init({"params": key}, x, train=False))
        return found.pop("params"), found

    def loss(self, params: Any, variables: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, Any]:
        """The function that both methods minimise, and the new variables."""
        x, y = batch
        logits, variables = self.network.apply(
            {"params": params, **variables}, x, train=True, rngs={"dropout": key}, mutable=list(variables)
        )
        return cross_entropy(logits, y).mean(), variables

    def measure(self, data: Any, params: Any, variables: Any) -> jax.Array:
        """The test accuracy in percent, or the validation loss."""

        def one(batch: Batch) -> jax.Array:
            x, y = batch
            logits = self.network.apply({"params": params, **variables}, x, train=False)
            values = 100.0 * (logits.argmax(-1) == y) if self.accuracy else cross_entropy(logits, y)
            return values.mean()

        return jax.lax.map(one, self.tests(data)).mean()

    def order(self, seed: int) -> np.ndarray:
        """Which samples each batch has: all of them once per epoch, but for a rest."""
        generator = np.random.default_rng(seed)
        per_epoch = self.samples // self.batch
        epochs = [generator.permutation(self.samples) for _ in range(-(-self.updates // per_epoch))]
        rows = np.concatenate([epoch[: per_epoch * self.batch] for epoch in epochs])
        return rows.reshape(-1, self.batch)[: self.updates].astype(np.int32)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """For each sample, in float32."""
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels)


def adamw(updates: int, *, peak: float, decay: float, end: float = 0.0, b2: float = 0.999) -> Any:
    """AdamW with a warm-up, a cosine, and gradients of bounded length; matrices and kernels decay."""

    def decays(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: path[-1].key in ("kernel", "embedding"), params
        )

    rates = optax.warmup_cosine_decay_schedule(0.0, peak, max(1, min(100, updates // 10)), updates, end)
    return optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(rates, b2=b2, weight_decay=decay, mask=decays)
    )


def augmented(x: jax.Array, key: jax.Array) -> jax.Array:
    """Pictures, each shifted by up to 4 pixels, half of them mirrored."""
    place, side = jax.random.split(key)
    padded = jnp.pad(x, ((0, 0), (4, 4), (4, 4), (0, 0)))
    corners = jax.random.randint(place, (len(x), 2), 0, 9)
    x = jax.vmap(lambda p, c: jax.lax.dynamic_slice(p, (c[0], c[1], 0), x.shape[1:]))(padded, corners)
    return jnp.where(jax.random.bernoulli(side, shape=(len(x), 1, 1, 1)), x[:, :, ::-1], x)


def pictures(
    name: str,
    network: Any,
    arrays: Any,
    *,
    batch: int,
    epochs: int,
    updates: int | None,
    augment: bool,
    peak: float,
    decay: float,
    together: bool = False,
) -> Task:
    """A network that tells pictures apart."""
    (x, y), (test_x, test_y) = arrays
    axes = (0, 1, 2)
    mean = np.float32(x.mean(axes))
    scale = np.float32(1 / x.std(axes))
    parts = 10
    size = len(test_x) // parts

    def normalised(x: jax.Array) -> jax.Array:
        return (x.astype(jnp.float32) - mean) * scale

    def prepare(data: Any, rows: jax.Array, key: jax.Array) -> Batch:
        x = data[0][0][rows]
        return normalised(augmented(x, key) if augment else x), data[0][1][rows]

    def tests(data: Any) -> Batch:
        x, y = data[1]
        return (
            normalised(x[: parts * size]).reshape(parts, size, *x.shape[1:]),
            y[: parts * size].reshape(parts, size),
        )

    updates = updates or epochs * (len(x) // batch)
    return Task(
        name=name,
        network=network,
        data=((x, y), (test_x, test_y)),
        samples=len(x),
        batch=batch,
        updates=updates,
        optimizer=adamw(updates, peak=peak, decay=decay),
        prepare=prepare,
        tests=tests,
        together=together,
    )


def characters(name: str, network: Any, text: np.ndarray, *, batch: int, updates: int) -> Task:
    """A network that predicts the next character; the last tenth of the text is to validate with."""
    return Task(
        name=name,
        network=network,
        batch=batch,
        updates=updates,
        optimizer=adamw(updates, peak=1e-3, decay=0.1, end=1e-4, b2=0.99),
        **windows_of(text, network.context, 72),
    )


def windows_of(text: np.ndarray, context: int, most: int) -> dict[str, Any]:
    """What a `Task` says of a text: windows of it, of which at most so many are tested with at once."""
    border = len(text) * 9 // 10
    windows = (len(text) - border - 1) // context
    parts = max(1, windows // most)
    size = windows // parts

    def prepare(data: Any, rows: jax.Array, _: jax.Array) -> Batch:
        found = data[0][rows[:, None] + jnp.arange(context + 1)].astype(jnp.int32)
        return found[:, :-1], found[:, 1:]

    def tests(data: Any) -> Batch:
        found = data[1].astype(jnp.int32)
        end, shape = parts * size * context, (parts, size, context)
        return found[:end].reshape(shape), found[1 : end + 1].reshape(shape)

    return {
        "data": (text[:border], text[border:]),
        "samples": border - context,
        "prepare": prepare,
        "tests": tests,
        "accuracy": False,
    }


def task(name: str, options: argparse.Namespace) -> Task:
    """One of the networks, with its data."""
    tiny, dtype = options.tiny, jnp.dtype(options.dtype)
    if name == "gpt":
        text, kinds = letters(options)
        sizes = {"context": 16, "depth": 1, "heads": 2, "width": 32} if tiny else {}
        network = networks.GPT(characters=kinds, dtype=dtype, **sizes)
        return characters(name, network, text, batch=4 if tiny else 64, updates=options.updates or 3000)
    if name == "mlp":
        network = networks.ResidualMLP(**({"depth": 4, "width": 16} if tiny else {}), dtype=dtype)
        return pictures(
            name,
            network,
            images("mnist", options),
            batch=16 if tiny else 256,
            epochs=10,
            updates=options.updates,
            augment=False,
            peak=1e-3,
            decay=0.01,
            together=True,
        )
    small = {"channels": (8, 8, 16), "hidden": 16} if name == "vgg" else {"channels": (8, 16), "blocks": 1}
    kind = networks.VGG if name == "vgg" else networks.ResNet
    network = kind(**(small if tiny else {}), dtype=dtype)
    return pictures(
        name,
        network,
        images("cifar10", options),
        batch=16 if tiny else 256,
        epochs=20,
        updates=options.updates,
        augment=True,
        peak=1e-3,
        decay=0.05,
    )


# --- Its data ---


def images(name: str, options: argparse.Namespace) -> Any:
    """Pictures and labels to train and to test with; made-up ones for --tiny."""
    shape = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}[name]
    if options.tiny:
        generator = np.random.default_rng(0)
        return [
            (generator.integers(256, size=(n, *shape), dtype=np.uint8), generator.integers(10, size=n))
            for n in (64, 20)
        ]
    file, packed = options.data / f"{name}.npz", options.data / f"{name}_jpeg.npz"
    if not file.exists() and not packed.exists():
        raise DataError(f"{file} is missing: pjax data get {name}, or name the folder it is in with --data")
    if file.exists():
        with np.load(file) as found:
            arrays = [(found[f"x_{split}"], found[f"y_{split}"]) for split in ("train", "test")]
    else:
        with np.load(packed) as found:
            arrays = [
                (unpacked(found[f"{split}_jpeg"], found[f"{split}_end"]), found[f"y_{split}"])
                for split in ("train", "test")
            ]
    return [(x.reshape(-1, *shape), y.reshape(-1).astype(np.int32)) for x, y in arrays]


def unpacked(files: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Pictures from JPEG files that lie end to end."""
    from PIL import Image

    found = []
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        with Image.open(io.BytesIO(files[begin:end].tobytes())) as picture:
            found.append(np.asarray(picture.convert("RGB")))
    return np.stack(found)


def letters(options: argparse.Namespace) -> tuple[np.ndarray, int]:
    """The codes of a text, and how many there are; a made-up one for --tiny."""
    if options.tiny:
        return np.random.default_rng(0).integers(20, size=2000).astype(np.uint8), 20
    file = options.data / "shakespeare.txt"
    if not file.exists():
        raise DataError(f"{file} is missing: pjax data get shakespeare, or name its folder with --data")
    kinds, codes = np.unique(np.frombuffer(file.read_bytes(), np.uint8), return_inverse=True)
    return codes.astype(np.uint8), len(kinds)


# --- How it is trained ---


def method_of(task: Task, method: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """How a method starts, and how it updates parameters, variables and its state on a batch."""
    if method == "Adam":

        def step(params: Any, variables: Any, state: Any, batch: Batch, key: jax.Array) -> Any:
            found, gradient = jax.value_and_grad(task.loss, has_aux=True)(params, variables, batch, key)
            steps, state = task.optimizer.update(gradient, state, params)
            return optax.apply_updates(params, steps), found[1], state, found[0]

        return task.optimizer.init, step

    solver = optim.ExtrapolatedProjections(outer=task.optimizer)

    def project(params: Any, variables: Any, state: Any, batch: Batch, key: jax.Array) -> Any:
        params, state, (loss, variables) = solver.update(
            lambda p, b: task.loss(p, variables, b, key), params, state, batch=batch, has_aux=True
        )
        return params, variables, state, loss

    return solver.init, project


class Programs(NamedTuple):
    """What a run calls, compiled for one seed, or for several at once."""

    begin: Callable[..., Any]
    advance: Callable[..., Any]
    measure: Callable[..., Any]
    data: Any
    seconds: float
    """How long `advance` took to compile."""


@functools.cache
def programs(task: Task, method: str, seeds: int) -> Programs:
    """All of them, compiled; for several seeds if they train together."""
    init, step = method_of(task, method)

    def begin(key: jax.Array, data: Any) -> Any:
        params, variables = task.start(data, key)
        return params, variables, init(params)

    def advance(at: Any, order: jax.Array, key: jax.Array, data: Any, first: Any, last: Any) -> Any:
        def body(number: jax.Array, carry: Any) -> Any:
            (params, variables, state), total = carry
            picture_key, dropout_key = jax.random.split(jax.random.fold_in(key, number))
            batch = task.prepare(data, order[number], picture_key)
            params, variables, state, loss = step(params, variables, state, batch, dropout_key)
            return (params, variables, state), total + loss

        at, total = jax.lax.fori_loop(first, last, body, (at, jnp.zeros(())))
        return at, total / (last - first)

    def measure(at: Any, data: Any) -> jax.Array:
        return task.measure(data, at[0], at[1])

    if task.together:
        begin = jax.vmap(begin, in_axes=(0, None))
        advance = jax.vmap(advance, in_axes=(0, 0, 0, None, None, None))
        measure = jax.vmap(measure, in_axes=(0, None))
    data = jax.device_put(task.data)
    order, key = batches(task, range(seeds))
    clock = time.perf_counter()
    at = jax.eval_shape(begin, key, data)
    compiled = jax.jit(advance, donate_argnums=0).lower(at, order, key, data, 0, 1).compile()
    seconds = time.perf_counter() - clock
    return Programs(jax.jit(begin), compiled, jax.jit(measure), data, seconds)


def batches(task: Task, seeds: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """The order of the samples, and a key; with an axis for the seeds if they train together."""
    order = jnp.asarray(np.stack([task.order(seed) for seed in seeds]))
    key = jax.vmap(jax.random.key)(jnp.asarray(seeds))
    return (order, key) if task.together else (order[0], key[0])


def train(task: Task, method: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Train with one seed, or with several together: for each, what is known of it in the end."""
    program = programs(task, method, len(seeds))
    order, key = batches(task, seeds)
    at = program.begin(key, program.data)
    at, _ = program.advance(at, order, key, program.data, 0, 1)
    first = jax.device_get(
        optax.tree.get(at[2], "mu")
    )  # after one step of Adam: a tenth of what it was given
    at, seconds, losses, curve = jax.block_until_ready(at), 0.0, [], []
    ends = sorted({max(2, task.updates * i // POINTS) for i in range(1, POINTS + 1)})
    for begin, end in zip([1, *ends[:-1]], ends, strict=True):
        clock = time.perf_counter()
        at, loss = jax.block_until_ready(program.advance(at, order, key, program.data, begin, end))
        seconds += time.perf_counter() - clock
        losses.append(np.atleast_1d(loss))
        curve.append(np.atleast_1d(program.measure(at, program.data)))
    known = {
        **task.settings,
        "method": method,
        "device": jax.devices()[0].device_kind,
        "at": ends,
        "compile seconds": round(program.seconds, 1),
        "ms per update": round(1e3 * seconds / (task.updates - 1), 2),
        "seeds at once": len(seeds),
    }
    return [
        known
        | {"seed": seed, "losses": _digits(losses, i), "curve": _digits(curve, i)}
        | {"first": jax.tree.map(lambda leaf, i=i: leaf[i], first) if task.together else first}
        for i, seed in enumerate(seeds)
    ]


def _digits(rows: list[np.ndarray], column: int) -> list[float]:
    return [round(float(row[column]), 4) for row in rows]


def cosine(one: Any, other: Any) -> float:
    """Of two trees of arrays."""
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    dots = np.sum([[np.vdot(a, b), np.vdot(a, a), np.vdot(b, b)] for a, b in pairs], axis=0, dtype=np.float64)
    return round(float(dots[0] / np.sqrt(dots[1] * dots[2])), 6)


# --- What is shown ---


def line(run: dict[str, Any]) -> str:
    """A run in words."""
    curve = "  ".join(f"{at}: {value:.4g}" for at, value in zip(run["at"], run["curve"], strict=True))
    together = f" ({run['seeds at once']} seeds at once)" if run["seeds at once"] > 1 else ""
    agreement = f"  cosine of the first update {run['cosine']:.6f}" if "cosine" in run else ""
    return (
        f"{run['model']:7}{run['method']:5} seed {run['seed']}  {curve}"
        f"  training loss {run['losses'][-1]:.4g}"
        f"  compiled in {run['compile seconds']} s, {run['ms per update']} ms per update{together}{agreement}"
    )


def table(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Means over the seeds that both methods have, and their difference."""
    yield "| | measured | seeds | Adam | EP | EP - Adam | cosine | ms, Adam | ms, EP |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for settings in sorted({tuple(run[name] for name in SETTINGS) for run in runs}):
        model, updates, dtype, _ = settings
        by = {
            (run["method"], run["seed"]): run
            for run in runs
            if tuple(run[name] for name in SETTINGS) == settings
        }
        seeds = sorted(seed for method, seed in by if method == "EP" and ("Adam", seed) in by)
        if not seeds:
            continue
        adam, ep = ([by[method, seed] for seed in seeds] for method in METHODS)
        ends = [[run["curve"][-1] for run in found] for found in (adam, ep)]
        apart = [b - a for a, b in zip(*ends, strict=True)]
        spread = f" ± {statistics.stdev(apart):.3f}" if len(apart) > 1 else ""
        low = min((run["cosine"] for run in ep + adam if "cosine" in run), default=float("nan"))
        relative = f" ({statistics.mean(apart) / statistics.mean(ends[0]):+.2%})" if model == "gpt" else ""
        yield (
            f"| {model}, {updates} updates, {dtype}"
            f" | {'validation loss' if model == 'gpt' else 'test accuracy, %'} | {len(seeds)}"
            f" | {statistics.mean(ends[0]):.3f} | {statistics.mean(ends[1]):.3f}"
            f" | {statistics.mean(apart):+.3f}{spread}{relative} | {low:.5f}"
            f" | {min(r['ms per update'] for r in adam):.2f}"
            f" | {min(r['ms per update'] for r in ep):.2f} |"
        )


def draw(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """What was measured over the updates: a panel for each network, a line for each method and seed."""
    import matplotlib.pyplot as plt

    models = sorted({run["model"] for run in runs})
    figure, panels = plt.subplots(
        1, len(models), figsize=(3.2 * len(models), 2.8), layout="constrained", squeeze=False
    )
    for panel, model in zip(panels[0], models, strict=True):
        for run in (run for run in runs if run["model"] == model):
            style = {"Adam": ("tab:gray", "--"), "EP": ("tab:blue", "-")}[run["method"]]
            label = run["method"] if run["seed"] == 0 else None
            panel.plot(run["at"], run["curve"], color=style[0], linestyle=style[1], label=label)
        panel.set(
            title=model, xlabel="updates", ylabel="validation loss" if model == "gpt" else "test accuracy, %"
        )
        panel.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def kept(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The runs of the file of --out."""
    if options.out is None or not options.out.exists():
        return []
    return [json.loads(text) for text in options.out.read_text().splitlines() if text]


def plan(model: Task, seeds: int, done: set[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    """The runs that are not yet done: the first seed by both methods, then the next."""
    groups = [list(range(seeds))] if model.together else [[seed] for seed in range(seeds)]
    pairs = [(method, group) for group in groups for method in METHODS]
    left = [(method, [seed for seed in group if (method, seed) not in done]) for method, group in pairs]
    return [(method, group) for method, group in left if group]


def compare(model: Task, options: argparse.Namespace, runs: list[dict[str, Any]], deadline: float) -> bool:
    """Make the runs of a model and add them to the others; whether all went well."""
    fine, moves = True, dict[int, Any]()
    done = {
        (run["method"], run["seed"])
        for run in runs
        if all(run[name] == value for name, value in model.settings.items())
    }
    for method, seeds in plan(model, options.seeds, done):
        if time.monotonic() > deadline:
            print(f"{model.name:7}{method:5} seeds {seeds}: no time left", flush=True)
            continue
        try:
            found = train(model, method, seeds)
        except Exception as error:  # whatever it is, the others are to be made
            print(f"{model.name:7}{method:5} seeds {seeds} failed: {error!r:.500}", flush=True)
            fine = False
            continue
        for run in found:
            first = run.pop("first")
            if run["seed"] in moves:
                run["cosine"] = cosine(first, moves.pop(run["seed"]))
            else:
                moves[run["seed"]] = first
            runs.append(run)
            print(line(run), flush=True)
            if options.out is not None:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                with options.out.open("a") as file:
                    file.write(json.dumps(run) + "\n")
    programs.cache_clear()  # data and programs of a model are not needed beside those of the next
    return fine


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks beside_adam",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=MODELS, nargs="+", default=MODELS, help="these networks")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--data", type=Path, default=datasets.folder(), metavar="DIR", help="folder of the data"
    )
    parser.add_argument("--updates", type=int, help="so many, instead of what is usual for the network")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of activations")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no run is started")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="JSON lines, one for each run, are added to it"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="curves of the runs of --out; none is made"
    )
    parser.add_argument("--tiny", action="store_true", help="small networks on made-up data, to try it")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or (options.updates is not None and options.updates < 2):
        parser.error("--seeds must be at least 1, --updates at least 2")
    deadline = time.monotonic() + 60 * options.minutes
    runs, fine = kept(options), True
    if options.plot is not None:
        if not runs:
            parser.error("--plot draws runs that were made: name their file with --out")
        draw(runs, options.plot)
        print("\n".join(table(runs)), flush=True)
        return 0
    for name in options.only:
        try:
            model = task(name, options)
        except InputError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            fine = False
            continue
        fine = compare(model, options, runs, deadline) and fine
    print("\n".join(table(runs)), flush=True)
    return int(not fine)
