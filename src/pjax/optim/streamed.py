"""Streams: all layers of a network work in every step, each on another part of the data."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from pjax.checks import check_whole
from pjax.engines.stream import Flight, Parameters, Stream, Totals
from pjax.errors import InputError
from pjax.graph import read as tracing
from pjax.graph.chain import Chain, chain_of
from pjax.optim.extrapolated_projections import ExtrapolatedProjections
from pjax.optim.solver import samples, stepped

P = TypeVar("P")
Function: TypeAlias = Callable[[Any, Any], Any]


class StreamState(NamedTuple):
    """What a stream carries from update to update: a pytree of arrays, so that checkpoints hold it all."""

    updates: jax.Array
    """How many updates were made."""
    outer: Any
    """The state of the outer optimiser."""
    velocity: Any
    """By how much each parameter moves in a step, by the last update."""
    flight: Flight
    """What is under way, with an axis first for devices among which samples are divided."""

    @property
    def age(self) -> jax.Array:
        """For each stage, how many steps ago the micro-batch entered whose wish came last.

        At most ``2 * (stages - 1)``; -1 where none has come yet.
        """
        return self.flight.age[0]


@dataclasses.dataclass(frozen=True)
class Streamed:
    """A method whose stages all work at once, on micro-batches that stream through them.

    In every step each stage evaluates what the stage below handed over in the step before, and in the same
    step projects backwards an older micro-batch, with the wish that came from above. No stage waits for
    another, and only wires between neighbours move. After `micro_batches` steps the outer optimiser moves the
    parameters, by the wishes that arrived in these steps. See `pjax.engines.stream`, and the page on streams.

    Args:
        method: an `ExtrapolatedProjections`: how stages project, and the outer optimiser.
        stages: how many; a divisor of the number of layers.
        micro_batches: into how many a batch is divided, along the first axis of its arrays. The fewer there
            are, the older wishes are when they arrive. MLPs learn worse with fewer than half as many as there
            are stages; others need more, unless the outer optimiser is Muon (see the page on streams).
        flush: whether nothing is left under way when parameters move, as in a synchronous pipeline. Then an
            update is that of ``Accumulated(method, micro_batches)``, and stages wait for each other.
        predict: whether stages work with predicted parameters: those at which a micro-batch will leave the
            stream, if they go on moving as in the last update. Otherwise with those of each step.
        sharding: over which axis of a mesh stages are divided, and over which samples, if they are:
            ``NamedSharding(mesh, PartitionSpec("stages"))``, or ``PartitionSpec("stages", "samples")``.

    >>> import jax, jax.numpy as jnp, pjax
    >>> chain = Chain(
    ...     first=lambda rest, batch: batch[0],
    ...     layer=lambda rest, own, x: x + 0.1 * jax.nn.relu(x @ own),
    ...     last=lambda rest, x, batch: pjax.squared_error(x, batch[1]),
    ... )
    >>> params = {"layers": jax.random.normal(jax.random.key(0), (4, 2, 2))}
    >>> batch = jnp.ones((8, 2)), 2 * jnp.ones((8, 2))
    >>> optimizer = Streamed(ExtrapolatedProjections(learning_rate=0.1), stages=4, micro_batches=2)
    >>> state = optimizer.init(chain, params, batch=batch)
    >>> for _ in range(50):
    ...     params, state, loss = optimizer.update(chain, params, state, batch=batch)
    >>> bool(loss < 0.01), state.age.tolist()
    (True, [6, 5, 4, 3])
    """

    method: ExtrapolatedProjections
    _: dataclasses.KW_ONLY
    stages: int
    micro_batches: int
    flush: bool = False
    predict: bool = True
    sharding: NamedSharding | None = None

    def __post_init__(self) -> None:
        check_whole("stages", self.stages)
        check_whole("micro_batches", self.micro_batches)
        if not isinstance(self.method, ExtrapolatedProjections):
            raise InputError(
                "a stream projects with soft sweeps: give it an ExtrapolatedProjections, got"
                f" {self.method!r:.120}"
            )
        if self.method.steps_per_update != 1:
            raise InputError("a stream makes one sweep on each batch: leave steps_per_update at 1")
        if self.sharding is not None and self.stages % self._devices:
            raise InputError(
                f"{self.stages} stages cannot be divided over {self._devices} devices: take a multiple"
            )

    # --- What users call ---

    def init(self, fn: Function, params: Any, *, batch: Any) -> StreamState:
        """The state before the first update: nothing is under way.

        Args:
            fn: what `update` will be given.
            params: likewise.
            batch: likewise; only its shapes count.
        """
        tracing.check_parameters(params)
        return _init(self, fn, params, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch))

    def update(
        self, fn: Function, params: P, state: StreamState, *, batch: Any
    ) -> tuple[P, StreamState, jax.Array]:
        """Let the micro-batches of a batch enter the stream, one in each step, and move the parameters.

        Args:
            fn: a `Chain`, or a function of parameters and a batch in which layers are found: the steps of a
                `lax.scan`, over layers or over time, or equal blocks. Captured arrays are constants of the
                compiled update: it must be the same function every time.
            params: its parameters.
            state: what `init` or the last update returned.
            batch: a pytree of arrays with samples along their first axes.

        Returns:
            The new parameters, the new state, and the mean loss of the micro-batches that came to the end of
            the chain; NaN as long as none has.
        """
        if not isinstance(state, StreamState):
            raise InputError(
                "the state must be what optimizer.init(fn, params, batch=batch) or the last update returned,"
                f" got {type(state).__name__}"
            )
        tracing.check_parameters(params)
        return _update(self, fn, params, state, batch)

    def place(self, fn: Function, params: P, *, batch: Any = None) -> P:
        """Parameters on the devices of `sharding`: stacks of layers each on its own, the rest on all of them.

        Args:
            fn: what `update` will be given.
            params: likewise.
            batch: likewise, where layers are to be found.
        """
        if self.sharding is None:
            return params
        mesh = self.sharding.mesh
        chain = chain_of(fn, params, batch)
        rest, layers = chain.split(params)
        divided, copied = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (self._axes[:1], ()))
        return chain.join(jax.device_put(rest, copied), jax.device_put(layers, divided))

    # --- What they do ---

    @property
    def _axes(self) -> tuple[str | None, str | None]:
        """The mesh axes over which stages and samples are divided; None where they are not."""
        if self.sharding is None:
            return None, None
        names = (*self.sharding.spec, None)[:2]
        if not isinstance(names[0], str) or len(self.sharding.spec) > 2:
            raise InputError(
                "sharding names the axis of stages, and that of samples: NamedSharding(mesh,"
                f" PartitionSpec('stages', 'samples')); got {self.sharding.spec}"
            )
        return names

    def _size(self, axis: str | None) -> int:
        return 1 if axis is None or self.sharding is None else self.sharding.mesh.shape[axis]

    @property
    def _devices(self) -> int:
        return self._size(self._axes[0])

    def _stream(self, chain: Chain, params: Any) -> Stream:
        number = chain.number(params)
        if number % self.stages:
            raise InputError(
                f"{number} layers cannot be divided into {self.stages} equal stages: take a divisor"
            )
        method, each = self.method, number // self.stages
        return Stream(chain, self.stages, each, method.softness, method.reach, self._axes[0], self._devices)

    def _parts(self, batch: Any) -> Any:
        """The micro-batches along the second axis; the first is for devices over which each is divided."""
        groups = self._size(self._axes[1])
        size = samples(batch)
        if not size or size % (groups * self.micro_batches):
            raise InputError(
                f"a batch of {size} samples cannot be divided into {self.micro_batches} equal micro-batches"
                + (f" for each of {groups} devices" if groups > 1 else "")
            )
        shape = (self.micro_batches, groups, size // (groups * self.micro_batches))
        return jax.tree.map(lambda x: jnp.swapaxes(x.reshape(*shape, *x.shape[1:]), 0, 1), batch)

    def _totals(self, chain: Chain, params: Any, state: StreamState, batch: Any) -> tuple[Totals, Flight]:
        stream, (axis, samples) = self._stream(chain, params), self._axes

        def staged(tree: Any) -> Parameters:
            rest, layers = chain.split(tree)
            return Parameters(
                rest, jax.tree.map(lambda x: x.reshape(self.stages, stream.each, *x.shape[1:]), layers)
            )

        given = staged(params), staged(state.velocity), state.flight, self._parts(batch)

        def run(params: Any, velocity: Any, flight: Flight, micros: Any) -> tuple[Totals, Flight]:
            flight, micros = jax.tree.map(lambda x: x[0], (flight, micros))
            known = velocity if self.predict and not self.flush else None  # drained, nothing moves meanwhile
            totals, flight = stream.run(params, known, flight, micros, self.flush)
            if axis is not None:  # once in an update: what the ends and shared parameters are asked
                sums = jax.lax.psum((totals.rest, totals.loss, totals.losses), axis)
                totals = Totals(sums[0], totals.layers, *sums[1:])
            if samples is not None:
                totals = jax.lax.pmean(totals, samples)
            return totals, jax.tree.map(lambda x: x[None], flight)

        if self.sharding is not None:
            spec: Any = PartitionSpec
            staged_at = Parameters(spec(), spec(axis))
            fields = dict.fromkeys(Flight._fields, spec(samples, axis))
            flight_at = Flight(**fields | dict.fromkeys(("steps", "entered", "batches"), spec(samples)))
            run = jax.shard_map(
                run,
                mesh=self.sharding.mesh,
                in_specs=(staged_at, staged_at, flight_at, spec(samples)),
                out_specs=(Totals(*staged_at, spec(), spec()), flight_at),
                check_vma=False,  # ends work on one device alone
            )
        return run(*given)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _init(streamed: Streamed, fn: Any, params: Any, batch: Any) -> StreamState:
    micro = jax.tree.map(lambda x: x[0, 0], streamed._parts(batch))
    chain = chain_of(fn, params, micro)
    flight = streamed._stream(chain, params).empty(*chain.split(params), micro)
    groups = streamed._size(streamed._axes[1])
    flight = jax.tree.map(lambda x: jnp.broadcast_to(x, (groups, *x.shape)), flight)
    still = jax.tree.map(jnp.zeros_like, params)
    return StreamState(jnp.zeros((), jnp.int32), streamed.method.outer_optimizer.init(params), still, flight)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _update(
    streamed: Streamed, fn: Any, params: Any, state: StreamState, batch: Any
) -> tuple[Any, StreamState, jax.Array]:
    chain = chain_of(fn, params, jax.tree.map(lambda x: x[0, 0], streamed._parts(batch)))
    totals, flight = streamed._totals(chain, params, state, batch)
    loss = totals.loss / totals.losses
    _, layers = chain.split(params)
    asked = jax.tree.map(lambda m, x: m.reshape(x.shape), totals.layers, layers)
    gradient = jax.tree.map(
        lambda move, x: (-move / streamed.micro_batches).astype(jnp.result_type(x)),
        chain.join(totals.rest, asked),
        params,
    )
    new, updates, outer = stepped(streamed.method.outer_optimizer, gradient, state.outer, params, loss)
    velocity = jax.tree.map(lambda update: update / streamed.micro_batches, updates)
    return new, StreamState(state.updates + 1, outer, velocity, flight), loss
