"""Streams: drained they are sweeps, running they lose nothing, on several devices they are what they are on
one.

Run as a program, with eight CPU devices, it says what streams on several of them do.
"""

import argparse
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import pjax
from benchmarks import scaling, streams
from benchmarks.scaling import collectives, loops
from pjax import optim
from pjax.errors import InputError

WIDTH = 8
CHAIN = optim.Chain(
    first=lambda rest, batch: batch[0] @ rest["in"],
    layer=lambda _, own, x: x + jax.nn.relu(x @ own["w"] + own["b"]),
    last=lambda rest, x, batch: pjax.cross_entropy(x @ rest["out"], batch[1]),
)
BATCH = jax.random.normal(jax.random.key(1), (16, 12)), jnp.arange(16) % 4


def parameters(layers=8):
    a, b, c = jax.random.split(jax.random.key(0), 3)
    return {
        "in": 0.3 * jax.random.normal(a, (12, WIDTH)),
        "out": 0.3 * jax.random.normal(b, (WIDTH, 4)),
        "layers": {
            "w": 0.1 * jax.random.normal(c, (layers, WIDTH, WIDTH)),
            "b": jnp.zeros((layers, WIDTH)),
        },
    }


def sgd(rate=0.1, **options):
    return optim.ExtrapolatedProjections(outer=optax.sgd(rate), **options)


SGD = sgd()  # one object: programs with it are shared


def trained(optimizer, fn, params, batch=BATCH, updates=3):
    is_stream = isinstance(optimizer, optim.Streamed)
    state = optimizer.init(fn, params, batch=batch) if is_stream else optimizer.init(params)
    for _ in range(updates):
        params, state, loss = optimizer.update(fn, params, state, batch=batch)
    return params, state, loss


def furthest(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


# --- What it is ---


@pytest.mark.parametrize(("stages", "parts"), [(1, 1), (2, 4), (8, 1), (8, 4)])
def test_drained_before_each_update_a_stream_is_a_sweep(stages, parts):
    stream = optim.Streamed(SGD, stages=stages, micro_batches=parts, flush=True)
    found, state, loss = trained(stream, CHAIN, parameters())
    right, _, right_loss = trained(optim.Accumulated(SGD, parts), CHAIN, parameters())
    assert furthest(right, parameters()) > 0.01
    assert furthest(found, right) < 1e-6
    assert loss == pytest.approx(float(right_loss), rel=1e-6)
    assert (state.flight.steps == 3 * (parts + 2 * (stages - 1))).all()


def recorded():
    """An outer optimiser that keeps what it is given, and moves nothing."""
    return optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params),
        lambda gradient, _, __=None: (jax.tree.map(jnp.zeros_like, gradient), gradient),
    )


@pytest.mark.parametrize("parts", [1, 4])
def test_where_parameters_stay_a_running_stream_asks_what_a_sweep_asks(parts):
    method = optim.ExtrapolatedProjections(outer=recorded())
    stream = optim.Streamed(method, stages=4, micro_batches=parts)
    _, state, loss = trained(stream, CHAIN, parameters(), updates=8)
    sweep = optim.Accumulated(method, parts)
    _, right, right_loss = trained(sweep, CHAIN, parameters(), updates=1)
    assert furthest(right.outer, jax.tree.map(jnp.zeros_like, right.outer)) > 0.01
    assert furthest(state.outer, right.outer) < 1e-6
    assert loss == pytest.approx(float(right_loss), rel=1e-6)


def test_wishes_are_at_most_twice_as_many_steps_old_as_there_are_stages():
    stream = optim.Streamed(SGD, stages=4, micro_batches=2)
    params, state, loss = trained(stream, CHAIN, parameters(), updates=1)
    assert state.age.tolist() == [-1, -1, -1, -1]
    assert jnp.isnan(loss)
    assert furthest(params, parameters()) == 0
    params, state, loss = trained(stream, CHAIN, parameters(), updates=2)
    assert state.age.tolist() == [-1, -1, -1, 3]
    assert jnp.isfinite(loss)
    moved = np.abs(params["layers"]["w"] - parameters()["layers"]["w"]).max((1, 2)) > 0
    assert moved.tolist() == [False] * 6 + [True] * 2
    *_, state, _ = trained(stream, CHAIN, parameters(), updates=5)
    assert state.age.tolist() == [6, 5, 4, 3]


def test_what_is_under_way_is_in_the_state_so_that_going_on_is_bit_for_bit(tmp_path):
    stream = optim.Streamed(optim.ExtrapolatedProjections(), stages=4, micro_batches=2)
    params, state, _ = trained(stream, CHAIN, parameters(), updates=5)
    leaves, treedef = jax.tree.flatten((params, state))
    np.savez(tmp_path / "checkpoint.npz", *leaves)
    later = optim.Streamed(optim.ExtrapolatedProjections(), stages=4, micro_batches=2)
    with np.load(tmp_path / "checkpoint.npz") as file:
        again = jax.tree.unflatten(treedef, [jnp.asarray(file[name]) for name in file.files])
    for _ in range(3):
        params, state, loss = stream.update(CHAIN, params, state, batch=BATCH)
        *again, other = later.update(CHAIN, *again, batch=BATCH)
    assert loss == other
    assert furthest((params, state), again) == 0
    # What was under way matters: without it, it goes on differently.
    alone, *_ = trained(later, CHAIN, params, updates=1)
    assert furthest(alone, later.update(CHAIN, params, state, batch=BATCH)[0]) > 1e-5


@pytest.mark.parametrize("predict", [True, False])
def test_it_learns(predict):
    stream = optim.Streamed(
        optim.ExtrapolatedProjections(learning_rate=0.003), stages=8, micro_batches=4, predict=predict
    )
    x = jax.random.normal(jax.random.key(3), (64, 12))
    *_, before = trained(stream, CHAIN, parameters(), (x, jnp.argmax(x[:, :4], 1)), updates=5)
    *_, after = trained(stream, CHAIN, parameters(), (x, jnp.argmax(x[:, :4], 1)), updates=80)
    assert after < 0.3 * before


def test_a_prediction_is_where_parameters_will_be_when_a_micro_batch_leaves():
    """With parameters that move evenly, all of a micro-batch is seen at one point."""
    drift = jax.tree.map(lambda x: jnp.full_like(x, 0.01), parameters())
    outer = optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params), lambda gradient, *_: (drift, gradient)
    )
    stream = optim.Streamed(optim.ExtrapolatedProjections(outer=outer), stages=4, micro_batches=1)
    params, state, _ = trained(stream, CHAIN, parameters(), updates=12)
    # The wish that came to the first stage last is that of a whole sweep at the parameters of that step.
    sweep = optim.ExtrapolatedProjections(outer=recorded())
    last = jax.tree.map(lambda x, d: x - d, params, drift)
    _, right, _ = trained(sweep, CHAIN, last, updates=1)
    assert furthest(state.outer["in"], right.outer["in"]) < 1e-5
    np.testing.assert_allclose(state.outer["layers"]["w"][:2], right.outer["layers"]["w"][:2], atol=1e-5)


def test_shared_parameters_and_wires_that_are_no_numbers():
    chain = optim.Chain(
        first=lambda rest, batch: (rest["embed"][batch[0]], jnp.zeros((), jnp.int32)),
        layer=lambda rest, own, wires: (
            jnp.tanh(wires[0] @ rest["shared"] + own[wires[1] * 0]),
            wires[1] + 1,
        ),
        last=lambda rest, wires, batch: pjax.cross_entropy(wires[0] @ rest["embed"].T, batch[1]),
    )
    params = {
        "embed": 0.5 * jax.random.normal(jax.random.key(0), (5, 6)),
        "shared": 0.5 * jax.random.normal(jax.random.key(1), (6, 6)),
        "layers": jnp.zeros((4, 1, 6)),
    }
    batch = jnp.arange(8) % 5, (jnp.arange(8) + 1) % 5
    found, *_ = trained(optim.Streamed(SGD, stages=2, micro_batches=2, flush=True), chain, params, batch)
    right, *_ = trained(optim.Accumulated(SGD, 2), chain, params, batch)
    assert furthest(right, params) > 0.01
    assert furthest(found, right) < 1e-6


@pytest.mark.parametrize(("make", "scale"), [(streams.transformer, 8), (streams.convolutional, 1)])
def test_a_running_stream_of_blocks_asks_for_the_gradient(make, scale):
    task = make(argparse.Namespace(tiny=True, updates=4, rate=1e-3, data=None))
    params = jax.tree.map(lambda x: scale * x if x.ndim > 1 else x, task.start(jax.random.key(0)))
    batch = jax.tree.map(jnp.asarray, task.prepare(task.data, jnp.arange(4), jax.random.key(1)))
    stream = optim.Streamed(optim.ExtrapolatedProjections(outer=recorded()), stages=4, micro_batches=2)
    _, state, _ = trained(stream, task.chain, params, batch, updates=6)
    found, right = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
        for tree in (state.outer, jax.jit(jax.grad(task.chain))(params, batch))
    )
    assert found @ right / np.sqrt((found @ found) * (right @ right)) > 0.99999


# --- Chains that are found ---


def layers_in_a_loop(params, batch):
    """As one writes them: a list of layers, with a mask that each computes anew."""
    x = jnp.tanh(batch[0] @ params["in"])
    for own in params["blocks"]:
        y = jax.nn.relu(x @ own["w"] + own["b"])
        x = x + jnp.where(jnp.arange(WIDTH) > 0, y, 0) * params["scale"]
    return pjax.cross_entropy(x @ params["in"].T @ params["out"], batch[1])


def layers_in_a_scan(params, batch):
    x = batch[0] @ params["in"]
    x, _ = jax.lax.scan(lambda x, own: (x + jax.nn.relu(x @ own["w"] + own["b"]), None), x, params["layers"])
    return pjax.cross_entropy(x @ params["out"], batch[1])


def layers_in_a_scan_from_the_last(params, batch):
    x, layers = batch[0] @ params["in"], params["layers"]

    def layer(x, own):
        return x + jax.nn.relu(x @ own["w"] + own["b"]), None

    return pjax.cross_entropy(jax.lax.scan(layer, x, layers, reverse=True)[0] @ params["out"], batch[1])


def time(params, batch):
    """A recurrent network whose every state counts; its steps share their weights."""
    x = params["in"][batch[0]].swapaxes(0, 1)

    def step(h, x):
        h = jnp.tanh(h @ params["w"] + x)
        return h, h

    _, states = jax.lax.scan(step, jnp.zeros(x.shape[1:]), x)
    return pjax.cross_entropy(states.swapaxes(0, 1) @ params["out"], batch[1])


def cases():
    params = parameters()
    rows = [jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(8)]
    blocks = {"in": params["in"], "out": jnp.ones((12, 4)), "blocks": rows, "scale": jnp.float32(0.5)}
    text = jax.random.randint(jax.random.key(5), (16, 8), 0, 12)
    shared = {"in": params["in"], "w": params["layers"]["w"][0], "out": params["out"]}
    return {
        "blocks": (layers_in_a_loop, blocks, BATCH),
        "scan": (layers_in_a_scan, params, BATCH),
        "reversed": (layers_in_a_scan_from_the_last, params, BATCH),
        "time": (time, shared, (text, text % 4)),
    }


@pytest.mark.parametrize("name", ["blocks", "scan", "reversed", "time"])
def test_layers_blocks_and_time_steps_are_found(name):
    fn, params, batch = cases()[name]
    found, state, _ = trained(
        optim.Streamed(SGD, stages=4, micro_batches=2, flush=True), fn, params, batch, updates=2
    )
    right, *_ = trained(optim.Accumulated(SGD, 2), fn, params, batch, updates=2)
    assert furthest(right, params) > 0.01
    assert furthest(found, right) < 2e-6
    assert state.age.tolist() == [6, 5, 4, 3]


def test_blocks_with_other_arrays_inside_are_other_blocks():
    """Blocks whose stated derivatives call jitted functions that capture something."""

    def turned(matrix):
        inner = jax.jit(lambda x: jnp.tanh(x @ matrix))
        fn = jax.custom_jvp(lambda x: inner(x))
        fn.defjvp(lambda values, moves: jax.jvp(inner, values, moves))
        return fn

    blocks = [turned(m) for m in (jnp.eye(WIDTH), -2 * jnp.eye(WIDTH)) for _ in range(4)]
    params = {"in": parameters()["in"], "out": parameters()["out"], "w": list(parameters()["layers"]["w"])}

    def loss(params, batch):
        x = batch[0] @ params["in"]
        for block, w in zip(blocks, params["w"], strict=True):
            x = x + block(x @ w)
        return pjax.cross_entropy(x @ params["out"], batch[1])

    found, *_ = trained(optim.Streamed(SGD, stages=2, micro_batches=2, flush=True), loss, params, updates=2)
    right, *_ = trained(optim.Accumulated(SGD, 2), loss, params, updates=2)
    assert furthest(right, params) > 0.01
    assert furthest(found, right) < 2e-6


def test_a_function_without_layers():
    stream = optim.Streamed(SGD, stages=2, micro_batches=2)
    with pytest.raises(InputError, match="no chain was found"):
        stream.init(lambda p, b: ((b[0] @ p) ** 2).mean(), jnp.ones((12, 4)), batch=BATCH)


# --- What it refuses ---


def test_bad_options():
    method = SGD
    with pytest.raises(InputError, match="stages must be a whole number"):
        optim.Streamed(method, stages=0, micro_batches=1)
    with pytest.raises(InputError, match="give it an ExtrapolatedProjections"):
        optim.Streamed(optim.DouglasRachford(), stages=2, micro_batches=1)
    with pytest.raises(InputError, match="leave steps_per_update at 1"):
        optim.Streamed(sgd(steps_per_update=2), stages=2, micro_batches=1)
    one = jax.make_mesh((1,), ("stages",), axis_types=(AxisType.Auto,))
    with pytest.raises(InputError, match="names the axis of stages"):
        optim.Streamed(method, stages=2, micro_batches=1, sharding=NamedSharding(one, PartitionSpec()))


@pytest.mark.parametrize(
    ("stages", "parts", "change", "words"),
    [
        (3, 2, {}, "8 layers cannot be divided into 3 equal stages"),
        (4, 3, {}, "16 samples cannot be divided into 3 equal micro-batches"),
        (4, 2, {"layers": ()}, "'layers' are those of all layers"),
        (4, 2, {"layers": {"w": jnp.zeros((8, 2, 2)), "b": jnp.zeros((4, 2))}}, "agree in the length"),
        (
            4,
            2,
            {"layers": {"w": jnp.zeros((8, 8, 8)), "b": jnp.zeros((8, 1, 1, 8))}},
            "what the next one takes",
        ),
    ],
)
def test_bad_chains(stages, parts, change, words):
    stream = optim.Streamed(SGD, stages=stages, micro_batches=parts)
    with pytest.raises(InputError, match=words):
        stream.init(CHAIN, parameters() | change, batch=BATCH)


def test_the_state_of_another_optimiser():
    stream = optim.Streamed(SGD, stages=2, micro_batches=2)
    with pytest.raises(InputError, match=r"optimizer\.init"):
        stream.update(CHAIN, parameters(), sgd().init(parameters()), batch=BATCH)


# --- The benchmark ---


def test_the_benchmark_runs_and_makes_nothing_twice(tmp_path, capsys):
    out, plot = tmp_path / "runs.jsonl", tmp_path / "plot.png"
    arguments = ["--tiny", "--updates", "2", "--seeds", "2", "--only", "gpt", "model", "--stages", "0", "2"]
    arguments += ["--outer", "muon", "--out", str(out), "--plot", str(plot)]
    assert streams.main(arguments) == 0
    shown = capsys.readouterr().out
    rows = streams.kept(out)
    assert [(row["stages"], row["seed"]) for row in rows] == [(0, 0), (0, 1), (2, 0), (2, 1)]
    # Both begin alike: a stream moves nothing before its first wish has come.
    assert rows[0]["curve"][0] == pytest.approx(rows[2]["curve"][0], abs=0.01)
    assert "| 4 in 2, Muon |" in shown
    assert "| GPT 64x4096, T=1024, batch 1,024 | 1,024 |" in shown
    assert plot.stat().st_size > 1000
    assert streams.main(arguments) == 0
    assert streams.kept(out) == rows


def test_the_model_of_many_accelerators():
    machine = scaling.Machine()
    for work, batch in scaling.DEEP:
        for devices in scaling.MANY:
            found = scaling.streamed(work, devices, batch, machine)
            # A pipeline makes three passes of four, and waits for as many steps as there are other stages.
            steps = (found["micro batches"] + found["stages"] - 1) / found["micro batches"]
            assert found["stream"] < found["pipeline"] < steps * found["stream"]


# --- Several devices ---


@pytest.fixture(scope="module")
def report(said_by):
    """What this file says in a process with eight CPU devices."""
    return said_by("tests.test_streams", 8)


def test_stages_on_several_devices_do_what_they_do_on_one(report):
    for name, found in report["cases"].items():
        assert found["moved"] > 1e-2, name
        assert found["off"] < 2e-6, name
    assert set(report["cases"]) == {"2", "4", "8", "4 and 2 for samples", "4, muon"}


def test_in_a_step_only_wires_between_neighbours_cross_and_their_size_does_not_depend_on_depth(report):
    wire = 4 * 4 * WIDTH  # bytes: micro-batches of four samples
    for layers in ("8", "16"):
        # Up what was evaluated, down what is asked of it with its scale.
        assert report["steps"][layers] == {"collective-permute": 2 * wire + 4}, layers


def test_once_in_an_update_the_ends_are_summed_and_parameters_of_layers_never(report):
    ends = 4 * (12 * WIDTH + WIDTH * 4)
    sent = report["updates"]
    assert sent["8"] == sent["16"]
    assert ends <= sent["8"].get("all-reduce", 0) <= ends + 64
    assert set(sent["8"]) == {"all-reduce", "collective-permute"}


def test_with_muon_matrices_of_layers_stay_where_they_are_too(report):
    assert report["updates"]["muon"] == report["updates"]["8"]
    assert report["cases"]["4, muon"]["moved"] > 1e-2


def muon():
    product = optax.contrib.MuonDimensionNumbers(-2, -1)
    where = {"in": None, "out": None, "layers": {"w": product, "b": None}}
    outer = optax.contrib.muon(0.01, consistent_rms=0.2, muon_weight_dimension_numbers=where)
    return optim.ExtrapolatedProjections(outer=outer)


def main():
    assert jax.device_count() == 8
    cases, steps, updates = {}, {}, {}

    def streamed(method, sharding=None):
        return optim.Streamed(method, stages=8, micro_batches=4, sharding=sharding)

    def divided(devices, samples=1):
        shape = (devices, samples)
        mesh = jax.make_mesh(
            shape,
            ("stages", "samples"),
            axis_types=(AxisType.Auto,) * 2,
            devices=jax.devices()[: devices * samples],
        )
        spec = PartitionSpec("stages", "samples") if samples > 1 else PartitionSpec("stages")
        return NamedSharding(mesh, spec)

    # Each program is compiled once: without devices for each method, on four of them for what crosses, too.
    methods = {"sgd": SGD, "muon": muon()}
    alone = {name: trained(streamed(m), CHAIN, parameters(), updates=6)[0] for name, m in methods.items()}
    sizes = {"2": (2,), "4": (4,), "8": (8,), "4 and 2 for samples": (4, 2), "4, muon": (4,)}

    def divided_run(method, shape, layers=8, updates=6):
        """Parameters after updates over devices, and the text of the program."""
        stream = streamed(methods[method], divided(*shape))
        params = stream.place(CHAIN, parameters(layers))
        state = stream.init(CHAIN, params, batch=BATCH)
        update = jax.jit(lambda p, s, b: stream.update(CHAIN, p, s, batch=b))
        for _ in range(updates):
            params, state, _ = update(params, state, BATCH)
        return params, update.lower(params, state, BATCH).compile().as_text()

    texts = {}
    for name, shape in sizes.items():
        method = "muon" if "muon" in name else "sgd"
        found, texts[name] = divided_run(method, shape)
        cases[name] = {"off": furthest(found, alone[method]), "moved": furthest(found, parameters())}
    texts["16"] = divided_run("sgd", (4,), 16, updates=1)[1]
    for name, text in (("8", texts["4"]), ("16", texts["16"]), ("muon", texts["4, muon"])):
        steps[name], updates[name] = collectives(loops(text)), collectives(text)
    print(json.dumps({"cases": cases, "steps": steps, "updates": updates}))


if __name__ == "__main__":
    main()
