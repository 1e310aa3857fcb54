"""A progress meter that can be called from compiled programs."""

import sys
import threading
import time
from typing import Any, Self, TextIO

import jax

from pjax.checks import check_whole
from pjax.optim.callback import call_when
from pjax.tools.drawing.names import clock

_REDRAWN = 0.1  # seconds between two drawings of the line
_PRINTED = 5.0  # between two lines, where a line cannot be drawn again
_WIDTH = 24


class Progress:
    """A progress meter that works in Python loops, inside `jit`, and as the callback of `pjax.solve`.

    On a terminal and in a notebook it is a line that is drawn again; elsewhere, as in a log, a line every few
    seconds. It is written to standard error.

    Args:
        total: how many steps there will be, if that is known.
        name: written before it.
        every: after how many steps a compiled program calls it, beside the first and the last. A call takes
            a fraction of a millisecond.
        show: False makes it do nothing: the compiled program is the same as without it.
        stream: where to write to.

    >>> import io
    >>> with Progress(total=1000, name="train", every=250, stream=io.StringIO()) as meter:
    ...     @jax.jit
    ...     def train(x):
    ...         def step(k, x):
    ...             x = 0.99 * x
    ...             meter(k + 1, x)
    ...             return x
    ...         return jax.lax.fori_loop(0, 1000, step, x)
    ...     _ = train(1.0)
    >>> meter.step, round(meter.value, 6)
    (1000, 4.3e-05)
    """

    def __init__(
        self,
        total: int | None = None,
        *,
        name: str = "",
        every: int = 10,
        show: bool = True,
        stream: TextIO | None = None,
    ) -> None:
        check_whole("total", 1 if total is None else total)
        check_whole("every", every)
        self._total, self._name, self._show = total, name, show
        self._stream = sys.stderr if stream is None else stream
        # Whether a line can be drawn again: on a terminal, and in a notebook.
        self._redraws = self._stream.isatty() or "ipykernel" in sys.modules
        self.every = every
        """After how many steps a compiled program calls it."""
        self._lock = threading.Lock()  # programs call from threads of their own
        self._start: float | None = None
        self._drawn = 0.0
        self._width = 0
        self._shown = -1
        self.step = 0
        """The last step it was told of."""
        self.value = float("nan")
        """The value of that step."""

    def __call__(self, step: Any, value: Any) -> None:
        """Tell the meter of a step: in Python, or inside `jit`, `lax.scan` and the like.

        Args:
            step: how many steps were made.
            value: what to show beside it, such as the loss.
        """
        if not self._show:
            return
        if isinstance(step, jax.core.Tracer) or isinstance(value, jax.core.Tracer):
            due = self.every == 1 or (step % self.every == 0) | (step == 1) | (step == (self._total or 1))
            call_when(due, self._tell, step, value)
        else:
            self._tell(step, value)

    def _tell(self, step: Any, value: Any) -> None:
        now = time.perf_counter()
        with self._lock:
            if self._start is None or int(step) < self.step:  # the first call, or another run
                self._start, self._first = now, int(step)
            self.step, self.value = int(step), float(value)
            wait = _REDRAWN if self._redraws else _PRINTED
            if now - self._drawn >= wait or self.step == self._total:
                self._drawn = now
                self._draw("" if self._redraws else "\n")

    def _draw(self, end: str) -> None:
        line, self._shown = self._line(), self.step
        if self._redraws:
            line = "\r" + line.ljust(self._width)
            self._width = len(line) - 1
        self._stream.write(line + end)
        self._stream.flush()

    def _line(self) -> str:
        assert self._start is not None
        steps, seconds = self.step - self._first, time.perf_counter() - self._start
        parts = [self._name] if self._name else []
        if self._total is None:
            parts.append(f"step {self.step:,}")
        else:
            full = round(_WIDTH * min(self.step / self._total, 1))
            parts += ["█" * full + "░" * (_WIDTH - full), f"{self.step:,}/{self._total:,}"]
        parts.append(f"{self.value:.3g}")
        if steps > 0:
            parts.append(f"{1000 * seconds / steps:.3g} ms/step")
            if self._total is not None and self.step < self._total:
                parts.append(f"{clock(seconds / steps * (self._total - self.step))} left")
        return "  ".join([*parts, clock(seconds)])

    def close(self) -> None:
        """Wait for what is still under way, and end the line."""
        if not self._show:
            return
        jax.effects_barrier()
        with self._lock:
            if self._start is not None and (self._redraws or self._shown != self.step):
                self._draw("\n")
            self._start, self._width = None, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


progress = Progress
"""Short for `Progress`: ``with progress(total=1000) as meter``."""
