"""A process that trains together with others, watched by one that does not.

When one of several processes dies, the others cannot go on: they wait for it in the middle of a sum. JAX
hears that it is gone and ends them on the spot, from C++, so that Python cannot say anything any more. So the
command starts itself once more as a child that trains, and waits; when that has ended it says what happened.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator

import jax

from pjax.experiments import endings
from pjax.experiments.devices import END_SECONDS, START_SECONDS, connect
from pjax.experiments.endings import LOST
from pjax.experiments.roll_call import MissingError, names

_FATAL = "JAX distributed service detected fatal errors"


def watch(command: list[str], resume: str) -> int:
    """Run a command that is one of several processes; its exit code, or `LOST`.

    Args:
        command: must use `joined`.
        resume: the command with which to go on.
    """
    with _interrupts_held():
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    assert child.stderr is not None
    # The child has something to say. From a terminal it hears of it twice, which is once.
    endings.pass_on(lambda: _interrupt(child))
    said: list[str] = []
    for line in child.stderr:
        if said or _FATAL in line:
            said.append(line)
        else:
            sys.stderr.write(line)
            sys.stderr.flush()
    try:
        code = child.wait(timeout=2 * END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        code = child.wait()
    if said:
        sys.stderr.write(explain("".join(said), resume) + "\n")
        return LOST
    if code == -signal.SIGINT:  # before it could say anything
        sys.stderr.write("\ninterrupted\n")
        return endings.INTERRUPTED
    if code == -signal.SIGABRT:  # the library that carries messages was the first to notice
        sys.stderr.write(f"error: another process has died. Go on from the last checkpoint with: {resume}\n")
        return LOST
    if code < 0:
        sys.stderr.write(f"error: this process, or one that it waited for, has ended by signal {-code}. ")
        sys.stderr.write(f"Go on from the last checkpoint with: {resume}\n")
        return 128 - code
    return code


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """A block in which interrupts wait. Who is started in it has them wait, too, until it can say goodbye."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _interrupt(child: "subprocess.Popen[str]") -> None:
    if sys.platform != "win32":  # where a console tells all of its processes
        child.send_signal(signal.SIGINT)


def explain(said: str, resume: str) -> str:
    """What to tell the user when JAX has ended a process, given its last words.

    >>> print(explain("… tasks are unhealthy (stopped sending heartbeats):\\n1\\nThe …", "pjax train …"))
    error: process 1 has died, and this one ends too. Go on from the last checkpoint with: pjax train …
    """
    if "RegisterTask" in said:
        return (
            f"error: the processes have not met within {START_SECONDS} seconds. Start all of them, with the "
            "same --coordinator and --processes and with every --process from 0; the port must be open. "
            f"If a run was under way, go on with: {resume}"
        )
    silent = re.search(r"stopped sending heartbeats\):\s*((?:\d+[\s,]+)+)", said)
    dead = re.findall(r"\d+", silent[1]) if silent else ["0"] if "leader task" in said else []
    if not dead:
        return f"{said}error: another process has died. Go on from the last checkpoint with: {resume}"
    who = f"{names(dead)} {'has' if len(dead) == 1 else 'have'}"
    return f"error: {who} died, and this one ends too. Go on from the last checkpoint with: {resume}"


@contextlib.contextmanager
def joined(
    coordinator: str | None, processes: int | None, process: int | None, timeout: int, resume: str
) -> Iterator[None]:
    """A block in which this process, which is watched, is one of several; see `connect`.

    After an error it ends without waiting for the others, which need not have it.
    """
    threading.Thread(target=_end_with_watcher, daemon=True).start()
    try:
        connect(coordinator, processes, process, timeout)
        yield
    except MissingError as error:
        endings.leave(LOST, f"error: {error}. If a run was under way, go on with: {resume}\n")
    except Exception as error:
        if (words := endings.words(error)) is not None:
            time.sleep(2)  # others may have the same error, and should say so before this one is gone
            endings.leave(endings.REFUSED, f"error: {words}\n")
        # What is raised where another process has died depends on who notices first. JAX finds out which one
        # it was, and ends this one.
        said = traceback.format_exc()
        time.sleep(1.5 * timeout)
        endings.leave(1, said)
    jax.distributed.shutdown()


def _end_with_watcher() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(LOST)
