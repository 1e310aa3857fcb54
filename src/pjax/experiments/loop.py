"""The compiled parts of training, the same for every method: many batches in one call, and accuracies.

The data lie on every device; a call gets the rows of its batches, which are computed beforehand from the seed
and the number of the batch alone; batches that come one by one are handed over with it. On several devices
each gets its part of the rows of every batch, and where parameters are divided it has only its part of them
between two batches.
"""

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pjax.checks import check_multiple
from pjax.devices import compiler_options
from pjax.errors import InputError
from pjax.experiments import data, methods, models, own_data, own_model
from pjax.experiments.config import Config
from pjax.experiments.devices import Devices
from pjax.tools.trees import check_fits, named

State = Any
PIECES = 10
"""Into how many calls the steps between two checks are divided, for the progress bar; few are not divided."""
FEW = 1000
EVALUATED = 1000
"""Samples in one call of an evaluation."""


class Loop:
    """A run's network, method and data, with its compiled functions.

    All seeds are in one state, along the first axis of its arrays. They are trained one after another, or
    ``together`` in one program, which is faster where one run alone does not fill the device.
    """

    def __init__(
        self,
        config: Config,
        *,
        together: bool | None = None,
        devices: Devices | None = None,
        dataset: Any = None,
        model: Any = None,
    ) -> None:
        self.dataset = _load(config, dataset)
        self.config = config = _settled(config, self.dataset)
        self.devices = devices or Devices()
        check_multiple("batch_size", config.batch_size, self.devices.count, "devices")
        self.method = config.made_method()
        # A group lies on one device, or its samples would be sent around.
        if (groups := methods.split(config.method)[1].get("groups", 1)) > 1:
            check_multiple("groups", groups, self.devices.count, "devices")
        if self.method.divided and jax.process_count() > 1:
            raise InputError(
                "groups train apart for several batches on the devices of one process; on several processes"
                " sync_every must divide the steps on a batch"
            )
        # A window of text is one input of as many samples as it has characters.
        shape = self.dataset.input_shape
        self.shape = (math.prod(shape),) if config.model == "mlp" else shape
        self.source = model
        """The network as it was given, if it was."""
        self.model = self._made(model)
        cpu = jax.default_backend() == "cpu"
        started = jax.eval_shape(self._start, np.uint32(0))
        convolves = any(leaf.ndim == 4 for leaf in jax.tree.leaves(self.params(started)))
        # One run with convolutions fills a device.
        usual = not (cpu or convolves) and len(config.seeds) > 1
        self.together = usual if together is None else together
        # XLA on CPU is slow at convolutions inside a loop, so backpropagation gets one call per batch there.
        scanned = not (cpu and convolves and self.method.steps_per_batch == 1)
        pieces = PIECES if config.next_check(0) >= FEW else 1
        self.batches_per_call = divisor(self.batches_until_check(0), pieces) if scanned else 1
        self._programs: dict[Any, Any] = {}
        self._stream: tuple[int, Any] | None = None
        self._kept: dict[str, list[Any]] = {}
        self.shapes, self._one = self._shapes(started, (len(config.seeds),)), self._shapes(started, ())
        """Shapes and types of the state of all seeds, and of that of one, and where their arrays lie."""
        self._train_data = self.devices.placed(
            (self.dataset.x_train, self.dataset.y_train), self.devices.everywhere
        )
        self._taken = jax.jit(_taken, out_shardings=_where(self._one))
        self._replaced = jax.jit(_replaced, donate_argnums=0, out_shardings=_where(self.shapes))
        self._choose = jax.jit(_chosen, out_shardings=_where(self.params(self.shapes)))

    def _made(self, source: Any) -> Any:
        """The network: one of ours, or your own, which may be given."""
        config, outputs = self.config, self.dataset.outputs
        if own_model.is_own(config.model):
            if source is None and config.model == own_data.GIVEN:
                raise InputError("the run's model was given from Python: give it again, as model=…")
            x = jax.eval_shape(
                self.see, jax.ShapeDtypeStruct((2, *self.dataset.input_shape), self.dataset.x_train.dtype)
            )
            shape = (2, *self.dataset.y_train.shape[1:]) if self.dataset.classes else (2,)
            if source is not None:
                return own_model.made(source, x, (*shape, outputs), config.model)
            with own_model.explained(config.model):
                return own_model.made(own_model.find(config.model), x, (*shape, outputs), config.model)
        shape = self.dataset.y_train.shape
        if len(shape) > 1 and self.dataset.kind != "text" and self.dataset.classes:
            raise InputError(
                f"{self.dataset.name}: y must hold one class for each row, in one dimension; got {shape} for "
                "the rows to train on: take y.ravel(), or of rows with a single 1 y.argmax(1)"
            )
        return models.make(
            config.model,
            self.method.inputs(self.shape, outputs),
            config.widths,
            outputs,
            skip=config.skip,
            levels=config.levels,
            scale=config.init_scale,
            differentiated=self.method.differentiates,
        )

    # --- Training ---

    def start(self) -> State:
        """The state of all seeds before the first batch."""
        start = jax.jit(self._start, out_shardings=_where(self._one))
        states = [start(np.uint32(seed)) for seed in self.config.seeds]
        stack = functools.partial(jax.tree.map, lambda *leaves: jnp.stack(leaves))
        return jax.jit(stack, out_shardings=_where(self.shapes))(*states)

    def started_from(self, state: State, params: list[Any], where: Path) -> State:
        """A state with other parameters, of each seed, from a folder of another run."""
        like = self.params(self._one)
        check_fits(where, named(params[0]), named(like))
        leaves = [np.stack([named(one)[name] for one in params]) for name in named(like)]
        stacked = jax.tree.unflatten(jax.tree.structure(like), leaves)
        replaced = jax.jit(jax.vmap(self.method.with_params), out_shardings=_where(self.shapes["method"]))
        return {**state, "method": replaced(state["method"], stacked)}

    def _shapes(self, one: State, seeds: tuple[int, ...]) -> State:
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*seeds, *leaf.shape), leaf.dtype), one)
        inner = {
            name: jax.tree.map(lambda _: self.devices.over(len(seeds)), tree)
            if name in self.method.divided
            else self.devices.parts(tree, first=len(seeds))
            for name, tree in shapes["method"].items()
        }
        places = {"method": inner, "key": self.devices.everywhere}
        return jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes, places
        )

    def _start(self, seed: jax.Array) -> State:
        initial, later = jax.random.split(jax.random.key(seed))
        return {"method": self.method.init(self.model, initial), "key": jax.random.key_data(later)}

    def advance(
        self, state: State, batch: int, active: list[int], on_call: Callable[[float, float], None]
    ) -> tuple[State, np.ndarray, float]:
        """Train until the next check.

        Seeds that are active, by place, have seen so many batches; others may be trained too. After each call
        ``on_call`` is told how many steps were made, on average over seeds, and their mean loss. Gives the
        new state, the mean loss of each seed, NaN for those that are not active, and the seconds it took to
        train one of them; where all were trained together, the seconds are NaN.
        """
        losses: dict[int, list[Any]] = {i: [] for i in active}
        seconds = [0.0] * len(active)
        everyone = list(range(len(self.config.seeds)))
        for place, seeds in enumerate([everyone] if self.together else [[i] for i in active]):
            part = state if self.together else self._taken(state, seeds[0])
            for call in self._calls(batch, seeds):
                part, loss, used = self._made_call(part, call, self.together)
                seconds[place] += used
                here = {i: loss[i] if self.together else float(loss) for i in seeds if i in losses}
                for i, value in here.items():
                    losses[i] += [value] * call[1].shape[1]
                on_call(self._steps(call) * len(here) / len(active), float(np.mean(list(here.values()))))
            state = part if self.together else self._replaced(state, part, seeds[0])
        means = np.array([np.mean(losses.get(i, math.nan)) for i in everyone])
        return state, means, math.nan if self.together else float(np.mean(seconds))

    def milliseconds(self, state: State, repeats: int = 5) -> float:
        """Milliseconds per step of one run alone: the median over a few calls."""
        one = self._taken(state, 0)
        used = []
        for call in itertools.islice(self._calls(0, [0]), repeats + 1):
            one, _, seconds = self._made_call(one, call, together=False)
            used.append(seconds / self._steps(call))
        return 1000 * float(np.median(used[1:] or used))

    def _made_call(self, state: State, call: Any, together: bool) -> tuple[State, np.ndarray, float]:
        """The state after a call of `_calls`, of one seed or of all, the mean losses, and the seconds."""
        first, rows, samples = call
        rows = rows if together else rows[0]
        mine = jax.block_until_ready(self.devices.placed(rows, self.devices.over(rows.ndim - 1)))
        arguments = state, mine, first, *samples
        compiled = self._compiled(together, arguments)
        begin = time.perf_counter()
        state, loss = jax.block_until_ready(compiled(*arguments))
        return state, np.asarray(loss), time.perf_counter() - begin

    def _steps(self, call: Any) -> int:
        """How many steps are made in a call."""
        return int(call[1].shape[1]) * self.method.steps_per_batch

    def batches_until_check(self, batch: int) -> int:
        """How many batches come between a batch and the next check."""
        per_batch = self.method.steps_per_batch
        return self.config.next_check(batch * per_batch) // per_batch - batch

    def _calls(self, batch: int, seeds: list[int]) -> Any:
        """The number of the first batch, the rows, of shape (seeds, batches, batch size), and the samples.

        The last call may have fewer batches than the others.
        """
        count, size = self.batches_until_check(batch), self.config.batch_size
        for start in range(batch, batch + count, self.batches_per_call):
            batches = min(self.batches_per_call, batch + count - start)
            if self.dataset.stream is None:
                n, each = len(self.dataset.x_train), (self.config.seeds[i] for i in seeds)
                rows = np.stack([data.batches(seed, start, batches, n, size) for seed in each])
                yield np.int32(start), rows, self._train_data
            else:
                rows = np.arange(batches * size, dtype=np.int32).reshape(1, batches, size)
                yield np.int32(start), rows, self._streamed(start, batches)

    def _streamed(self, start: int, batches: int) -> Any:
        """The samples of batches that come one by one."""
        assert self.dataset.stream is not None
        if self._stream is None or self._stream[0] != start:
            self._stream = start, data.prefetch(self.dataset.stream(start), 2 * self.batches_per_call)
        here = list(itertools.islice(self._stream[1], batches))
        self._stream = start + batches, self._stream[1]
        samples = tuple(jnp.concatenate(part) for part in zip(*here, strict=True))
        return self.devices.placed(samples, self.devices.everywhere)

    def _compiled(self, together: bool, arguments: Any) -> Any:
        """The program of a call. Compiled ahead, so that no time is measured with it."""
        key = together, arguments[1].shape
        if key not in self._programs:
            function = jax.vmap(self._call, in_axes=(0, 0, None, None, None)) if together else self._call
            where = (_where(arguments[0]), self.devices.everywhere)
            options = compiler_options(unroll=False)
            program = jax.jit(function, donate_argnums=0, out_shardings=where, compiler_options=options)
            self._programs[key] = program.lower(*arguments).compile()
        return self._programs[key]

    def _call(
        self, state: State, rows: jax.Array, first: jax.Array, x: jax.Array, y: jax.Array
    ) -> tuple[State, jax.Array]:
        """Train on a few batches; the mean of their losses."""

        def batch(state: State, item: tuple[jax.Array, jax.Array]) -> tuple[State, jax.Array]:
            number, rows = item
            key = jax.random.fold_in(jax.random.wrap_key_data(state["key"]), number)
            inner, loss = self.method.update(self.model, state["method"], self.see(x[rows]), y[rows], key)
            state = {"method": inner, "key": state["key"]}
            if self.devices.shard_parameters:  # else the compiler may gather them once for all batches
                state = jax.lax.with_sharding_constraint(state, _where(self._one))
            return state, loss

        if len(rows) == 1:
            return batch(state, (first, rows[0]))
        state, losses = jax.lax.scan(batch, state, (first + jnp.arange(len(rows)), rows))
        return state, jnp.mean(losses)

    def batch(self) -> tuple[jax.Array, jax.Array]:
        """The first training samples, as the network sees them, and their labels."""
        x, y = (a[: self.config.batch_size] for a in self._train_data)
        return self.see(x), y

    def see(self, x: jax.Array) -> jax.Array:
        """What the network sees of stored inputs."""
        return self.dataset.normalise(x).reshape(len(x), *self.shape)

    # --- Evaluation ---

    def params(self, state: State) -> Any:
        """The parameters of all seeds, or their shapes. They are gone when the state has advanced."""
        return state["method"]["params"]

    def chosen(self, better: list[int], params: Any, others: Any) -> Any:
        """New arrays: the first parameters for some seeds, by place, and the others for the rest."""
        return self._choose(np.isin(np.arange(len(self.config.seeds)), better), params, others)

    def accuracy(self, params: Any, split: str) -> np.ndarray:
        """The accuracy of each seed's parameters in percent, on ``"train"``, ``"val"`` or ``"test"``.

        Where numbers are to be predicted it is the variance that is explained, R², in percent.
        """
        params = self.devices.placed(params, _where(self.params(self.shapes)))
        seeds = range(len(self.config.seeds))
        parts = (
            [params] if self.together else [jax.tree.map(lambda leaf, i=i: leaf[i], params) for i in seeds]
        )
        found: list[Any] = [0] * len(parts)
        for part in self._samples(split):
            found = [count + self._count(params, *part) for count, params in zip(found, parts, strict=True)]
        counts = np.concatenate([np.atleast_1d(count) for count in found])
        y = getattr(self.dataset, f"y_{split}")[: self.config.evaluated]
        return 100 * counts / y.size if self.dataset.classes else explained(counts.astype(np.float64), y)

    def _samples(self, split: str) -> Iterable[Any]:
        """Inputs and labels, call by call, and which of them count. What every check looks at stays there."""
        if split in self._kept:
            return self._kept[split]
        x, y = (getattr(self.dataset, f"{name}_{split}")[: self.config.evaluated] for name in "xy")
        size = min(EVALUATED, len(x)) + -min(EVALUATED, len(x)) % self.devices.count  # can be divided

        def part(i: int) -> Any:
            # The last call has as many samples as the others, some of which do not count.
            places = np.arange(i, i + size)
            rows = np.minimum(places, len(x) - 1)
            return self.devices.placed((x[rows], y[rows], places < len(x)), self.devices.over(0))

        parts = map(part, range(0, len(x), size))
        if split == "train":
            return parts
        return self._kept.setdefault(split, list(parts))

    @functools.cached_property
    def _count(self) -> Any:
        """How many are right, or the sum of squared errors."""

        def one(params: Any, x: jax.Array, y: jax.Array, counts: jax.Array) -> jax.Array:
            outputs = self.method.scores(self.model, params, self.see(x))
            counts = counts.reshape(-1, *(1,) * (y.ndim - 1))
            if not self.dataset.classes:
                return jnp.sum(jnp.where(counts, (outputs - y) ** 2, 0.0))
            return jnp.sum(right(outputs, y) & counts)

        counted = jax.vmap(one, in_axes=(0, None, None, None)) if self.together else one
        return jax.jit(counted, out_shardings=self.devices.everywhere)


def right(outputs: Any, y: Any) -> Any:
    """Which predictions are the labels; scores that are NaN predict nothing.

    >>> right(np.array([[1.0, 2.0], [np.nan, np.nan]]), np.array([1, 0])).tolist()
    [True, False]
    """
    return (outputs.argmax(-1) == y) & ~(outputs != outputs).any(-1)


def explained(errors: Any, y: np.ndarray) -> np.ndarray:
    """The variance of numbers that is explained, R² in percent, given sums of squared errors.

    >>> explained(np.array([0.0, 1.0]), np.array([[1.0], [3.0]])).tolist()
    [100.0, 50.0]
    """
    about = float(np.sum((y - y.mean(0)) ** 2, dtype=np.float64))
    worst = 1e6  # that of parameters which are not finite
    return np.maximum(np.nan_to_num(100 * (1 - errors / max(about, 1e-30)), nan=-worst), -worst)


def _load(config: Config, given: Any) -> data.Dataset:
    """The data of a run, by name, from a file, or given from Python."""
    if isinstance(given, data.Dataset):
        if given.form is None:
            raise InputError(f'{given.name} is a data set with a name: say Config(data="{given.name}", …)')
        return given
    if given is None and config.data == own_data.GIVEN:
        raise InputError("the run's data were given from Python: give them again, as data=…")
    if given is None and not own_data.is_own(config.data):
        return data.load(config.data, sequence_length=config.sequence_length or 1)
    return own_data.load(config.data if given is None else given, **config.own_data_options())


def _settled(config: Config, dataset: data.Dataset) -> Config:
    """A configuration with what only the data can say."""
    if dataset.stream is not None and len(config.seeds) > 1:
        raise InputError("batches that come one by one are for one seed")
    if dataset.form is not None:
        config = dataclasses.replace(config, task=dataset.form.task)
    if not dataset.classes and (methods.split(config.method)[0] in methods.CLASSES_ONLY):
        raise InputError(f"the method {config.method} is for classes, {dataset.name} has numbers to predict")
    if 0 < len(dataset.x_train) < config.batch_size:
        raise InputError(
            f"batch_size must be at most {len(dataset.x_train)}, the number of training samples of "
            f"{config.data}; got {config.batch_size}"
        )
    return config


def divisor(number: int, pieces: int) -> int:
    """The largest divisor that gives at least so many pieces, or one.

    >>> divisor(1000, 10), divisor(20, 10), divisor(7, 10), divisor(7, 1)
    (100, 2, 1, 7)
    """
    return max(d for d in range(1, number + 1) if number % d == 0 and (number // d >= pieces or d == 1))


def _taken(state: State, i: jax.Array) -> State:
    """The state of one seed."""
    return jax.tree.map(lambda leaf: leaf[i], state)


def _replaced(state: State, one: State, i: jax.Array) -> State:
    """A state with that of one seed replaced."""
    return jax.tree.map(lambda leaf, new: leaf.at[i].set(new), state, one)


def _chosen(mask: jax.Array, params: Any, others: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(mask.reshape(-1, *(1,) * (a.ndim - 1)), a, b), params, others)


def _where(shapes: Any) -> Any:
    """Where arrays lie, given their shapes."""
    return jax.tree.map(lambda leaf: leaf.sharding, shapes)
