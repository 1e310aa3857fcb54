"""Streams beside backpropagation with Adam: what they learn from the same samples, and how long a step takes.

mlp: residual layers of 128 units on MNIST, as many as stages, 2,000 updates of 256 samples. gpt: 12 blocks on
the characters of Shakespeare. cnn: 8 residual convolutions on CIFAR-10. time: a step of 8 to 128 stages on
one device beside backpropagation in a scan, and seconds to 97 % on MNIST. model: times of a step on many
accelerators, by `python -m benchmarks scaling`.

Both methods get the same start and batches. The outer optimiser is Adam, or, for gpt and cnn, Muon: then the
matrices of layers move by what is nearest to their momentum among orthogonal ones, and all else by Adam.
All seeds train at once, and many updates are one call. Runs that the file of --out already has are not made
again.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.beside_adam import augmented, images, letters, windows_of
from benchmarks.scaling import Machine, stream_rows
from pjax import optim
from pjax.experiments import data as datasets

SECTIONS = ("mlp", "gpt", "cnn", "time", "model")
MICRO_BATCHES = (1, 4, 8, 16, 32)
POINTS = 5  # how often a run is measured
KEY = ("section", "layers", "stages", "micro batches", "outer", "rate", "updates", "seed")
RATE = 1e-3
OLD = {"outer": "adam", "rate": RATE}  # of rows that do not say it
Batch = tuple[jax.Array, jax.Array]


# --- What is trained ---


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """A chain, its data, and how it is trained."""

    name: str
    layers: int
    start: Callable[[jax.Array], Any]
    first: Callable[[Any, Any], jax.Array]
    layer: Callable[[Any, Any, jax.Array], jax.Array]
    head: Callable[[Any, jax.Array], jax.Array]
    data: Any
    samples: int
    prepare: Callable[[Any, jax.Array, jax.Array], Batch]
    """A batch, from the data, the numbers of its samples, and a key."""
    tests: Callable[[Any], Batch]
    """What to measure with, in parts."""
    batch: int
    updates: int
    outer: dict[str, optax.GradientTransformation]
    """By name; the first of them is tried first."""
    rate: float
    """The highest."""
    accuracy: bool = True
    runs: tuple[tuple[int, int], ...] = ()
    """Stages and micro-batches."""

    @functools.cached_property
    def chain(self) -> optim.Chain:
        def loss(rest: Any, x: jax.Array, batch: Batch) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(self.head(rest, x), batch[1]).mean()

        return optim.Chain(lambda rest, batch: self.first(rest, batch[0]), self.layer, loss)

    def measure(self, data: Any, params: Any) -> jax.Array:
        """Accuracy in percent, or mean loss."""

        def one(batch: Batch) -> jax.Array:
            rest, layers = self.chain.split(params)
            logits = self.head(rest, self.chain.through(rest, layers, self.first(rest, batch[0])))
            if self.accuracy:
                return 100.0 * (logits.argmax(-1) == batch[1]).mean()
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

        return jax.lax.map(one, self.tests(data)).mean()

    def order(self, seed: int) -> np.ndarray:
        """Which samples each batch has."""
        generator = np.random.default_rng(seed)
        epochs = -(-self.updates * self.batch // (self.samples - self.samples % self.batch))
        each = self.samples - self.samples % self.batch
        rows = np.concatenate([generator.permutation(self.samples)[:each] for _ in range(epochs)])
        return rows.reshape(-1, self.batch)[: self.updates].astype(np.int32)


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """A layer norm without an offset."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


def normal(key: jax.Array, *shape: int, scale: float) -> jax.Array:
    return scale * jax.random.normal(key, shape)


def rates(rate: float, updates: int) -> optax.Schedule:
    """A warm-up, and a cosine."""
    return optax.warmup_cosine_decay_schedule(0.0, rate, min(100, updates // 2), updates)


def steady(rate: float, updates: int, matrices: Sequence[str]) -> dict[str, optax.GradientTransformation]:
    """Adam as it is set for transformers, which forgets early gradients soon, and looks ahead; and Muon so.

    A step of Muon is twice as long as Adam's usually are, by its root mean square.
    """
    schedule, product = rates(rate, updates), optax.contrib.MuonDimensionNumbers(-2, -1)

    def products(params: Any) -> Any:
        layers = {name: product if name in matrices else None for name in params["layers"]}
        return {name: layers if name == "layers" else None for name in params}

    muon = optax.contrib.muon(
        schedule,
        beta=0.9,
        adam_b2=0.95,
        muon_weight_dimension_numbers=products,
        consistent_rms=0.4,
    )
    adam = optax.adam(schedule, b2=0.95, nesterov=True)
    return {
        name: optax.chain(optax.clip_by_global_norm(1.0), outer)
        for name, outer in {"adam": adam, "muon": muon}.items()
    }


def residual(first: int, each: int, width: int, depth: int, key: jax.Array) -> Any:
    """Initial parameters of residual layers behind one that reads ``first`` numbers; they read ``each``."""
    a, b, c = jax.random.split(key, 3)
    return {
        "in": normal(a, first, width, scale=first**-0.5),
        "layers": {
            "w": normal(b, depth, each, width, scale=(2 / (each * depth)) ** 0.5),
            "b": jnp.zeros((depth, width)),
        },
        "out": normal(c, width, 10, scale=width**-0.5),
    }


def perceptron(depth: int, options: argparse.Namespace) -> Task:
    """Residual layers on MNIST."""
    width, tiny = (16 if options.tiny else 128), options.tiny
    (x, y), (test_x, test_y) = images("mnist", options)
    mean, scale = np.float32(x.mean()), np.float32(1 / x.std())

    def inputs(x: jax.Array) -> jax.Array:
        return ((x.astype(jnp.float32) - mean) * scale).reshape(*x.shape[:-3], 784)

    parts = 5 if not tiny else 2
    size = len(test_x) // parts * parts
    return Task(
        name="mlp",
        layers=depth,
        start=functools.partial(residual, 784, width, width, depth),
        first=lambda rest, x: x @ rest["in"],
        layer=lambda _, own, x: x + jax.nn.relu(x @ own["w"] + own["b"]),
        head=lambda rest, x: x @ rest["out"],
        data=((x, y), (test_x, test_y)),
        samples=len(x),
        prepare=lambda data, rows, _: (inputs(data[0][0][rows]), data[0][1][rows]),
        tests=lambda data: (
            inputs(data[1][0][:size].reshape(parts, -1, 28, 28, 1)),
            data[1][1][:size].reshape(parts, -1),
        ),
        batch=32 if tiny else 256,
        updates=options.updates or 2000,
        outer={"adam": optax.adam(rates(options.rate, options.updates or 2000))},
        rate=options.rate,
        runs=tuple((depth, m) for m in MICRO_BATCHES),
    )


def transformer(options: argparse.Namespace) -> Task:
    """Blocks of attention on the characters of Shakespeare."""
    text, kinds = letters(options)
    tiny = options.tiny
    context, width, heads, depth = (16, 16, 2, 4) if tiny else (64, 128, 4, 12)

    def start(key: jax.Array) -> Any:
        a, b, c, d, e, f = jax.random.split(key, 6)
        back = 0.02 / (2 * depth) ** 0.5
        return {
            "characters": normal(a, kinds, width, scale=0.02),
            "places": normal(b, context, width, scale=0.02),
            "layers": {
                "norm": jnp.ones((depth, 2, width)),
                "attend": normal(c, depth, width, 3 * width, scale=0.02),
                "mix": normal(d, depth, width, width, scale=back),
                "up": normal(e, depth, width, 4 * width, scale=0.02),
                "down": normal(f, depth, 4 * width, width, scale=back),
            },
            "norm": jnp.ones(width),
        }

    def layer(_: Any, own: Any, x: jax.Array) -> jax.Array:
        batch, length, _ = x.shape
        parts = norm(x, own["norm"][0]) @ own["attend"]
        query, key, value = jnp.split(parts.reshape(batch, length, heads, -1), 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
        past = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(past, scores, -1e9), axis=-1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(batch, length, width)
        x = x + mixed @ own["mix"]
        return x + jax.nn.gelu(norm(x, own["norm"][1]) @ own["up"]) @ own["down"]

    updates = options.updates or 2000
    runs = ((2, 1), (4, 2)) if tiny else ((12, 8), (4, 2), (6, 4), (12, 16), (4, 4), (6, 8), (4, 8), (12, 4))
    return Task(
        name="gpt",
        layers=depth,
        start=start,
        first=lambda rest, x: rest["characters"][x] + rest["places"],
        layer=layer,
        head=lambda rest, x: norm(x, rest["norm"]) @ rest["characters"].T,
        batch=4 if tiny else 64,
        updates=updates,
        outer=steady(options.rate, updates, ("attend", "mix", "up", "down")),
        rate=options.rate,
        runs=runs,
        **windows_of(text, context, 64),
    )


def convolutional(options: argparse.Namespace) -> Task:
    """Residual convolutions on CIFAR-10, each as one product with what its windows see."""
    tiny = options.tiny
    depth, width, side = (4, 8, 16) if tiny else (8, 64, 16)
    (x, y), (test_x, test_y) = images("cifar10", options)
    mean, scale = np.float32(x.mean((0, 1, 2))), np.float32(1 / x.std((0, 1, 2)))

    def convolved(x: jax.Array, w: jax.Array) -> jax.Array:
        high, wide = x.shape[1:3]
        padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        seen = [padded[:, i : i + high, j : j + wide] for i in range(3) for j in range(3)]
        return jnp.concatenate(seen, axis=-1) @ w

    def first(rest: Any, x: jax.Array) -> jax.Array:
        x = convolved(x, rest["in"])
        return x.reshape(len(x), side, 2, side, 2, width).max((2, 4))

    def inputs(x: jax.Array) -> jax.Array:
        return (x.astype(jnp.float32) - mean) * scale

    parts = 2 if tiny else 20
    size = len(test_x) // parts * parts
    updates = options.updates or 2000
    return Task(
        name="cnn",
        layers=depth,
        start=functools.partial(residual, 27, 9 * width, width, depth),
        first=first,
        layer=lambda _, own, x: x + jax.nn.relu(convolved(x, own["w"]) + own["b"]),
        head=lambda rest, x: x.mean((1, 2)) @ rest["out"],
        data=((x, y), (test_x, test_y)),
        samples=len(x),
        prepare=lambda data, rows, key: (inputs(augmented(data[0][0][rows], key)), data[0][1][rows]),
        tests=lambda data: (
            inputs(data[1][0][:size].reshape(parts, -1, 32, 32, 3)),
            data[1][1][:size].reshape(parts, -1),
        ),
        batch=16 if tiny else 256,
        updates=updates,
        outer=steady(options.rate, updates, ("w",)),
        rate=options.rate,
        runs=tuple((depth, m) for m in (4, 8, 2, 16)),
    )


def tasks(name: str, options: argparse.Namespace) -> Iterator[Task]:
    if name == "mlp":
        yield from (perceptron(depth, options) for depth in ((2, 4) if options.tiny else (8, 16, 32)))
    else:
        yield {"gpt": transformer, "cnn": convolutional}[name](options)


# --- How it is trained ---


def method_of(
    task: Task, stages: int, parts: int, outer: optax.GradientTransformation
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """How a method starts, and how it updates parameters and its state; 0 stages: backpropagation."""
    chain = task.chain
    if not stages:

        def step(params: Any, state: Any, batch: Batch) -> Any:
            loss, gradient = jax.value_and_grad(chain)(params, batch)
            steps, state = outer.update(gradient, state, params)
            return optax.apply_updates(params, steps), state, loss

        return lambda params, _: outer.init(params), step
    solver = optim.ExtrapolatedProjections(outer=outer, check=False)
    stream = optim.Streamed(solver, stages=stages, micro_batches=parts)
    return (
        lambda params, batch: stream.init(chain, params, batch=batch),
        lambda params, state, batch: stream.update(chain, params, state, batch=batch),
    )


def compiled(
    task: Task, stages: int, parts: int, seeds: Sequence[int], outer: str = "adam", **options: Any
) -> tuple[Any, ...]:
    """The start of all seeds, a function that makes updates, the seconds it took to compile, the data."""
    init, step = method_of(task, stages, parts, task.outer[outer])
    data = jax.device_put(task.data)
    order = jnp.asarray(np.stack([task.order(seed) for seed in seeds]))
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))

    def begin(key: jax.Array, order: jax.Array, data: Any) -> Any:
        params = task.start(key)
        return params, init(params, task.prepare(data, order[0], key))

    def advance(at: Any, key: jax.Array, order: jax.Array, data: Any, first: Any, last: Any) -> Any:
        def body(number: jax.Array, at: Any) -> Any:
            batch = task.prepare(data, order[number], jax.random.fold_in(key, number))
            params, state, _ = step(*at, batch)
            return params, state

        return jax.lax.fori_loop(first, last, body, at)

    at = jax.jit(jax.vmap(begin, in_axes=(0, 0, None)))(keys, order, data)
    clock = time.perf_counter()
    go = jax.jit(
        jax.vmap(advance, in_axes=(0, 0, 0, None, None, None)), donate_argnums=0, compiler_options=options
    )
    made = go.lower(at, keys, order, data, 0, 1).compile()
    seconds = time.perf_counter() - clock
    return at, lambda at, first, last: made(at, keys, order, data, first, last), seconds, data


def train(task: Task, stages: int, parts: int, outer: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Train all seeds, by a stream or, with 0 stages, by backpropagation: what is known of each."""
    at, advance, compiling, data = compiled(task, stages, parts, seeds, outer)
    measure = jax.jit(jax.vmap(task.measure, in_axes=(None, 0)))
    seconds, curve = 0.0, []
    ends = sorted({max(1, task.updates * i // POINTS) for i in range(1, POINTS + 1)})
    for first, last in zip([0, *ends[:-1]], ends, strict=True):
        clock = time.perf_counter()
        at = jax.block_until_ready(advance(at, first, last))
        seconds += time.perf_counter() - clock
        curve.append(np.asarray(measure(data, at[0])))
    return [
        {
            "section": task.name,
            "layers": task.layers,
            "stages": stages,
            "micro batches": parts,
            "outer": outer,
            "rate": task.rate,
            "updates": task.updates,
            "seed": seed,
            "at": ends,
            "curve": [round(float(values[i]), 4) for values in curve],
            "ms an update": round(1e3 * seconds / task.updates, 3),
            "seeds at once": len(seeds),
            "compile seconds": round(compiling, 1),
            "device": jax.devices()[0].device_kind,
        }
        for i, seed in enumerate(seeds)
    ]


def timed(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Of 8 to 128 stages: the time of a step with 256 samples, and of an update of 256 in micro-batches."""
    for depth in (2, 4) if options.tiny else (8, 16, 32, 64, 128):
        task = perceptron(depth, options)
        times = {}
        for name, stages, parts in (
            ("backprop", 0, 1),
            ("stream", depth, 1),
            ("in parts", depth, depth // 2),
        ):
            at, advance, *_ = compiled(
                task, stages, min(parts, task.batch // 2), [0], **optim.compiler_options()
            )
            at, best, each = advance(at, 0, 2), float("inf"), 4 if options.tiny else 100
            for _ in range(3):
                at = jax.block_until_ready(at)
                clock = time.perf_counter()
                at = jax.block_until_ready(advance(at, 0, each))
                best = min(best, time.perf_counter() - clock)
            times[name] = round(1e3 * best / each, 4)
        yield {
            "section": "time",
            "stages": depth,
            "batch": task.batch,
            **times,
            "device": jax.devices()[0].device_kind,
        }


def seconds_to(goal: float, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """How long methods train until the test accuracy is reached, without compiling and measuring."""
    for depth in (2,) if options.tiny else (8, 16, 32):
        task = perceptron(depth, options)
        measure = jax.jit(jax.vmap(task.measure, in_axes=(None, 0)))
        for stages, parts in ((0, 1), (depth, max(1, depth // 2))):
            at, advance, _, data = compiled(task, stages, parts, [0], **optim.compiler_options())
            at, seconds, done, best = jax.block_until_ready(advance(at, 0, 1)), 0.0, 1, 0.0
            while done < task.updates and best < goal:
                last = min(done + 50, task.updates)
                clock = time.perf_counter()
                at = jax.block_until_ready(advance(at, done, last))
                seconds, done = seconds + time.perf_counter() - clock, last
                best = max(best, float(measure(data, at[0])[0]))
            yield {
                "section": "seconds",
                "layers": depth,
                "stages": stages,
                "micro batches": parts,
                "goal": goal,
                "reached": round(best, 2),
                "updates": done,
                "seconds": round(seconds, 3),
                "device": jax.devices()[0].device_kind,
            }


# --- What is shown ---


def tables(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """All that is known, as tables for a page."""
    for section, rate in dict.fromkeys((row["section"], rate_of(row)) for row in rows if "curve" in row):
        yield from table(section, rate, [r for r in rows if (r["section"], rate_of(r)) == (section, rate)])
    times = [row for row in rows if row["section"] == "time"]
    if times:
        yield "\n| stages | backprop, ms | stream, a step, ms | stream, an update in stages / 2 parts, ms |"
        yield "|---:|---:|---:|---:|"
        for row in times:
            yield f"| {row['stages']} | {row['backprop']:.3f} | {row['stream']:.3f} | {row['in parts']:.3f} |"
    ends = [row for row in rows if row["section"] == "seconds"]
    if ends:
        yield f"\n| layers | method | updates to {ends[0]['goal']:g} % | seconds | reached |"
        yield "|---:|---|---:|---:|---:|"
        for row in ends:
            how = f"stream, {row['micro batches']} micro-batches" if row["stages"] else "backprop"
            took = f"{row['updates']} | {row['seconds']:.2f} | {row['reached']:.2f}"
            yield f"| {row['layers']} | {how} | {took} |"


def rate_of(row: dict[str, Any]) -> float:
    return (OLD | row)["rate"]


def outer_of(row: dict[str, Any]) -> str:
    return (OLD | row)["outer"].capitalize()


def table(section: str, rate: float, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What was learned, over stages and micro-batches: means over seeds, and their spread."""
    measured = "validation loss" if section.startswith("gpt") else "test accuracy, %"
    parts = sorted({row["micro batches"] for row in rows if row["stages"]})
    beside = sorted({"Adam", *(outer_of(row) for row in rows if not row["stages"])})
    yield (
        f"\n{section}, {rows[0]['updates']} updates, rates up to {rate:g}, {measured};"
        " in brackets, batches in flight:\n"
    )
    columns = [f"backprop, {outer}" for outer in beside] + [f"{m} micro-batches" for m in parts]
    yield "| layers in stages | " + " | ".join(columns) + " |"
    yield "|---|" + "---:|" * len(columns)
    kinds = {(row["layers"], row["stages"], outer_of(row)) for row in rows if row["stages"]}
    for layers, stages, outer in sorted(kinds or {(row["layers"], 0, "") for row in rows}):
        mine = [row for row in rows if row["layers"] == layers]
        cells = [mean([r for r in mine if (r["stages"], outer_of(r)) == (0, other)]) for other in beside]
        for m in parts:
            wanted = (stages, m, outer)
            found = [r for r in mine if (r["stages"], r["micro batches"], outer_of(r)) == wanted]
            cells.append(f"{mean(found)} ({2 * stages / m:g})" if found else "")
        name = f"{layers} in {stages}, {outer}" if stages else f"{layers}"
        yield f"| {name} | " + " | ".join(cells) + " |"


def mean(rows: Sequence[dict[str, Any]]) -> str:
    ends = [row["curve"][-1] for row in rows]
    if not ends:
        return ""
    digits = 3 if rows[0]["section"].startswith("gpt") else 2
    spread = f" ± {statistics.stdev(ends):.{digits}f}" if len(ends) > 1 else ""
    return f"{statistics.mean(ends):.{digits}f}{spread}"


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """What was learned over micro-batches, and times over stages."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sections = [s for s in ("mlp", "gpt", "cnn") if any(row["section"] == s for row in rows)]
    times = [row for row in rows if row["section"] == "time"]
    count = len(sections) + bool(times)
    figure, axes = plt.subplots(1, count, figsize=(3.6 * count, 3.2), layout="constrained", squeeze=False)
    for axis, section in zip(axes[0], sections, strict=False):
        mine = [row for row in rows if row["section"] == section and rate_of(row) == RATE]
        for number, (layers, stages, outer) in enumerate(
            sorted({(row["layers"], row["stages"], outer_of(row)) for row in mine if row["stages"]})
        ):
            found: dict[int, list[float]] = {}
            for row in mine:
                if (row["layers"], row["stages"], outer_of(row)) == (layers, stages, outer):
                    found.setdefault(row["micro batches"], []).append(row["curve"][-1])
            places = sorted(found)
            values = [statistics.mean(found[m]) for m in places]
            axis.plot(places, values, "o-", color=f"C{number}", label=f"{stages} stages, {outer}")
            for other, style in (("Adam", ":"), ("Muon", "--")):
                start = (layers, 0, other)
                beside = [r["curve"][-1] for r in mine if (r["layers"], r["stages"], outer_of(r)) == start]
                if beside:
                    color = f"C{number}" if section == "mlp" else "grey"
                    label = f"backprop, {other}" if number == 0 and section != "mlp" else None
                    axis.axhline(
                        statistics.mean(beside), color=color, linestyle=style, linewidth=1, label=label
                    )
        axis.set_xscale("log", base=2)
        measured = "validation loss" if section == "gpt" else "test accuracy, %"
        axis.set(
            title=section if section != "mlp" else "mlp (dotted: backprop, Adam)",
            xlabel="micro-batches",
            ylabel=measured,
        )
        if section == "mlp":  # of which some do not learn at all
            axis.set_ylim(bottom=max(axis.get_ylim()[0], axis.get_ylim()[1] - 12))
        axis.legend(fontsize=8)
    if times:
        axis = axes[0][-1]
        for name, label in (("backprop", "backprop"), ("stream", "stream, a step"), ("in parts", "in parts")):
            axis.loglog(
                [row["stages"] for row in times], [row[name] for row in times], "o-", base=2, label=label
            )
        axis.set(title="256 samples", xlabel="stages", ylabel="ms")
        axis.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def kept(path: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    return [json.loads(text) for text in path.read_text().splitlines() if text] if path.exists() else []


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks streams",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=SECTIONS, nargs="+", default=SECTIONS)
    parser.add_argument("--stages", type=int, nargs="+", help="only so many; 0 is backpropagation")
    parser.add_argument("--micro-batches", type=int, nargs="+", help="only streams with so many")
    parser.add_argument("--outer", choices=("adam", "muon"), nargs="+", help="only these outer optimisers")
    parser.add_argument("--rate", type=float, default=RATE, help="the highest of the outer optimiser")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, help="so many, instead of what is usual for the network")
    parser.add_argument(
        "--data", type=Path, default=datasets.folder(), metavar="DIR", help="folder of the data"
    )
    parser.add_argument("--out", type=Path, default=Path("results/streams.jsonl"), metavar="FILE")
    parser.add_argument("--plot", type=Path, default=Path("results/figures/streams.png"), metavar="FILE.png")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no run is started")
    parser.add_argument("--tiny", action="store_true", help="small networks on made-up data, to try it")
    options = parser.parse_args(arguments)
    end, rows, fine = time.monotonic() + 60 * options.minutes, kept(options.out), True
    options.out.parent.mkdir(parents=True, exist_ok=True)

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")

    for name in (name for name in options.only if name in ("mlp", "gpt", "cnn")):
        for task in tasks(name, options):
            for (stages, parts), outer in itertools.product(((0, 1), *task.runs), task.outer):
                have = {tuple((OLD | row).get(part) for part in KEY) for row in rows}
                wanted = (name, task.layers, stages, parts, outer, task.rate, task.updates)
                seeds = [seed for seed in range(options.seeds) if (*wanted, seed) not in have]
                left_out = (
                    (options.stages is not None and stages not in options.stages)
                    or (options.micro_batches is not None and stages and parts not in options.micro_batches)
                    or (options.outer is not None and outer not in options.outer)
                )
                if left_out or not seeds or time.monotonic() > end:
                    continue
                try:
                    for row in train(task, stages, parts, outer, seeds):
                        add(row)
                except Exception as error:  # whatever it is, the others are to be made
                    print(f"{wanted} failed: {error!r:.500}", flush=True)
                    fine = False
    if "time" in options.only:
        for section, found in (("time", timed(options)), ("seconds", seconds_to(97.0, options))):
            if not any(row["section"] == section for row in rows):
                for row in found:
                    add(row)
                    if time.monotonic() > end:
                        break
    print("\n".join(tables(rows)), flush=True)
    if "model" in options.only:
        print("\n".join(stream_rows(Machine())), flush=True)
    if any(row["section"] in ("mlp", "gpt", "cnn", "time") for row in rows):
        draw(rows, options.plot)
    return int(not fine)
