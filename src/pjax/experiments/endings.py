"""How a command ends: with which exit code, and with which last words.

An interrupt must end the process whatever it is doing, and as an exception it does not always: Python hears
of it only between two of its own instructions, not while a network is compiled, which takes a second, or
minutes; it is lost in a function that a garbage collector calls; and Python cannot end in the usual way while
threads of XLA compile, that crashes. So a thread listens, says goodbye, and ends the process at once. What a
run has written stays good, as it does when it is killed.
"""

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from pjax.errors import PjaxError

REFUSED = 2
"""The exit code after an error that the message explains."""
LOST = 3
"""The exit code after another process has died, or has not come."""
DIVERGED = 4
"""The exit code of a run whose loss was not finite."""
INTERRUPTED = 130
"""The exit code after Ctrl-C."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What ends a process with its last words: Ctrl-C, and what `kill` and schedulers of jobs send."""


def words(error: BaseException) -> str | None:
    """What to tell the user about an error, in one line; None if it is not one to be expected.

    >>> words(PermissionError(13, "Permission denied", "runs/a"))
    'runs/a: Permission denied. What was written before is kept'
    >>> words(RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."))[:31]
    'there is not enough memory (Out'
    """
    text = " ".join(str(error).split())
    if isinstance(error, PjaxError):
        return text
    if isinstance(error, OSError) and error.errno != errno.EPIPE:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or text}. What was written before is kept"
    if isinstance(error, MemoryError) or _EXHAUSTED in text or _NO_MEMORY in text:
        what = text[max(text.find(_NO_MEMORY), 0) :].rstrip(".") or "an array could not be made"
        return f"there is not enough memory ({what}): take smaller --widths, or a smaller --batch-size"
    return None


_EXHAUSTED, _NO_MEMORY = "RESOURCE_EXHAUSTED", "Out of memory"


# --- Interrupts ---

_goodbye: list[Callable[[], str]] = []
_clean: list[Callable[[], None]] = []


@contextlib.contextmanager
def saying(goodbye: Callable[[], str]) -> Iterator[None]:
    """A block in which these are the last words of a process that is interrupted."""
    _goodbye.append(goodbye)
    try:
        yield
    finally:
        _goodbye.remove(goodbye)


@contextlib.contextmanager
def cleaning(clean: Callable[[], None]) -> Iterator[None]:
    """A block that ends with a call of a function, also when it is interrupted."""
    _clean.append(clean)
    try:
        yield
    finally:
        _clean.remove(clean)
        clean()


def listen() -> None:
    """From now on an interrupt ends this process."""
    ear, mouth = os.pipe()
    if sys.platform != "win32":
        os.set_blocking(mouth, False)
    signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    for number in SIGNALS:  # to functions of Python, so that it writes into the pipe
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_hear, args=(ear,), daemon=True).start()


def leave(code: int, message: str = "") -> NoReturn:
    """End at once, without waiting for threads of XLA."""
    for stream, text in ((sys.stdout, ""), (sys.stderr, message)):
        with contextlib.suppress(OSError, ValueError):
            stream.write(text)
            stream.flush()
    os._exit(code)


def interrupted(number: int) -> NoReturn:
    """Clean up, say goodbye, and end, after a signal."""
    message = "\ninterrupted"
    with contextlib.suppress(Exception):
        if advice := _goodbye[-1]() if _goodbye else "":
            message += f"; {advice}"
    for clean in reversed(_clean):
        with contextlib.suppress(Exception):
            clean()
    show = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides the cursor
    leave(128 + number, f"{show}{message}\n")


def _hear(ear: int) -> None:
    while (number := os.read(ear, 1)[0]) not in SIGNALS:
        pass
    interrupted(number)
