"""Updates on one device and on four: run by test_devices.py in a process with four CPU devices."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import pjax
from benchmarks.scaling import collectives, exchanged, loops
from pjax import optim
from pjax.experiments import models
from pjax.experiments.config import Config, exchanges
from pjax.experiments.devices import Devices
from pjax.experiments.loop import Loop

X = jax.random.normal(jax.random.key(1), (16, 12))
PICTURES = jax.random.normal(jax.random.key(1), (16, 6, 6, 1))
LABELS = jnp.arange(16) % 4
CASES = {
    "mlp AP": (models.MLP(12, (8, 8), 4), X, LABELS, optim.AlternatingProjections(steps_per_update=5)),
    "mlp EP": (models.MLP(12, (8, 8), 4), X, LABELS, optim.ExtrapolatedProjections(outer=optax.sgd(0.1))),
    "cnn AP": (
        models.make("cnn", (6, 6, 1), (4, 4), 4),
        PICTURES,
        LABELS,
        optim.AlternatingProjections(steps_per_update=3),
    ),
    "groups": (
        models.MLP(12, (8, 8), 4),
        X,
        LABELS,
        optim.Groups(optim.AlternatingProjections(steps_per_update=6), 4, sync_every=3),
    ),
}


MESH = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
GRID = jax.make_mesh((2, 2), ("data", "layers"), axis_types=(AxisType.Auto,) * 2)
OWN = {"metric": "balanced", "extrapolate": "tensor"}
LAYERS = {
    "layers": (MESH, PartitionSpec(), PartitionSpec("data"), models.MLP(12, (8,) * 9, 4), {}),
    "deeper": (MESH, PartitionSpec(), PartitionSpec("data"), models.MLP(12, (8,) * 17, 4), {}),
    "both": (GRID, PartitionSpec("data"), PartitionSpec("layers"), models.MLP(12, (8,) * 9, 4), {}),
    "own": (MESH, PartitionSpec(), PartitionSpec("data"), models.MLP(12, (8,) * 9, 4), OWN),
}


TRAINED = (
    "adam:groups=4",
    "ap:steps=6:groups=4:sync_every=2",
    "ap:steps=6:groups=4:sync_every=12",
)


def furthest(one, other) -> float:
    """The largest difference between two trees of arrays."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def main() -> None:
    assert jax.device_count() == 4
    whole, divided = (NamedSharding(MESH, spec) for spec in (PartitionSpec(), PartitionSpec("data")))
    report = {}
    for name, (model, x, y, solver) in CASES.items():
        params = model.init(jax.random.key(0))
        state = solver.init(params)

        def update(params, state, x, y, model=model, solver=solver):
            fn = lambda p, batch: pjax.cross_entropy(model.apply(p, batch[0]), batch[1])  # noqa: E731
            return solver.update(fn, params, state, batch=(x, y))

        alone = jax.jit(update)(params, state, x, y)
        given = (*jax.device_put((params, state), whole), *jax.device_put((x, y), divided))
        compiled = jax.jit(update).lower(*given).compile()
        together = compiled(*given)
        report[name] = {
            "off": furthest(alone, together),
            "moved": furthest(alone[0], params),
            "sent": collectives(compiled.as_text()),
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        }
    layers = {}
    for name, (mesh, samples, members, model, options) in LAYERS.items():
        params = model.init(jax.random.key(0))

        def update(params, x, y, stack, model=model, options=options):
            solver = optim.AlternatingProjections(steps_per_update=5, stack=stack, **options)
            fn = lambda p, batch: pjax.cross_entropy(model.apply(p, batch[0]), batch[1])  # noqa: E731
            return solver.update(fn, params, batch=(x, y))

        alone = jax.jit(update, static_argnums=3)(params, X, LABELS, True)
        given = (
            jax.device_put(params, NamedSharding(mesh, PartitionSpec())),
            *jax.device_put((X, LABELS), NamedSharding(mesh, samples)),
        )
        stack = NamedSharding(mesh, members)
        compiled = jax.jit(update, static_argnums=3).lower(*given, stack).compile()
        layers[name] = {
            "off": furthest(alone, compiled(*given)),
            "moved": furthest(alone[0], params),
            "sent": collectives(loops(compiled.as_text())),
        }
    trained = {}
    for method in TRAINED:
        config = Config(method=method, widths=(8,), batch_size=32, max_steps=24, check_every=24, patience=0)
        loop = Loop(config, devices=Devices(4))
        often, message = exchanges(config)
        loop.milliseconds(loop.start(), repeats=1)
        (program,) = loop._programs.values()
        text = program.as_text()
        trained[method] = {
            "batches": loop.batches_per_call,
            "always": exchanged(text, taken=0),
            "sometimes": exchanged(text) - exchanged(text, taken=0),
            "message": message,
            "per batch": float(often),
        }
    alone, together = (
        one.params(one.advance(one.start(), 0, [0], lambda *_: None)[0]) for one in (Loop(config), loop)
    )
    trained[method] |= {
        "off": furthest(alone, together),
        "moved": furthest(alone, loop.params(loop.start())),
    }
    explicit = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    x = jax.device_put(X, NamedSharding(explicit, PartitionSpec("data")))
    try:
        optim.AlternatingProjections().update(lambda p: pjax.squared_error(x @ p, x), jnp.eye(12))
        refused = ""
    except pjax.InputError as error:
        refused = str(error)
    print(json.dumps({"cases": report, "layers": layers, "trained": trained, "explicit": refused}))


if __name__ == "__main__":
    main()
