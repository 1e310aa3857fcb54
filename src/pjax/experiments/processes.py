"""Processes that train together, and are told when one of them does not come, or dies.

When one of several processes dies the others cannot go on: they wait for it in the middle of a sum. JAX hears
that it is gone, or that it has not come, and ends them on the spot, from C++, so that Python cannot say
anything any more. So the command starts itself once more as a child that trains, and waits; when that has
ended it says what happened.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import jax

from pjax.errors import InputError
from pjax.experiments import endings
from pjax.experiments.endings import LOST

START_SECONDS = 45
"""How long processes wait for each other to start."""
END_SECONDS = 30
"""How long processes wait for each other to end."""
_FATAL = "JAX distributed service detected fatal errors"


# --- Meeting ---


def connect(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    timeout: int = 20,
) -> None:
    """Make this one of several processes; the others must do so within `START_SECONDS`.

    Args:
        coordinator: address and port of the first process; the others must reach it.
        processes: how many there are.
        process: which one this is, from 0.
        timeout: after how many seconds a process that is not heard of is taken for dead.

    Where the first three are not given, the cluster is asked, as `jax.distributed.initialize` does. If not
    all processes come, or one of them dies, JAX ends the others.
    """
    check(coordinator, processes, process)
    # JAX itself would listen on all addresses of this machine.
    listen = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", coordinator)
    if process == 0 and listen is not None:
        _check_port(listen)
    # Programs that run at the same time could exchange their messages in another order elsewhere.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            coordinator_bind_address=listen,
            initialization_timeout=START_SECONDS,
            heartbeat_timeout_seconds=timeout,
            shutdown_timeout_seconds=END_SECONDS,
        )
    except ValueError as error:
        raise InputError(
            f"no cluster was found ({error}): give --coordinator HOST:PORT, --processes N and --process I"
        ) from error


def _check_port(address: str) -> None:
    """Refuse an address on which the first process cannot listen: JAX would crash."""
    host, _, port = address.rpartition(":")
    try:
        (family, *_, place), *_ = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        socket.create_server(place[:2], family=family).close()
    except OSError as error:
        raise InputError(
            f"process 0 cannot listen on {address} ({error.strerror}): choose another port for "
            "--coordinator, or where this machine does not know that address set "
            "JAX_COORDINATOR_BIND_ADDRESS=0.0.0.0:PORT"
        ) from None


def check(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Refuse settings of `connect` that do not go together."""
    if coordinator is None or processes is None or process is None:
        given = {"coordinator": coordinator, "processes": processes, "process": process}
        missing = [name for name, value in given.items() if value is None]
        if len(missing) < len(given):
            raise InputError(f"give all of {', '.join(given)}, or none; {missing[0]} is missing")
        return
    host, _, port = coordinator.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise InputError(f"coordinator must be HOST:PORT, as 10.0.0.1:1234, got {coordinator!r}")
    if processes < 1:
        raise InputError(f"processes must be at least 1, got {processes}")
    if not 0 <= process < processes:
        raise InputError(f"process must be from 0 to {processes - 1}, the last of {processes}; got {process}")


# --- Watching ---


def watch(command: list[str], resume: str) -> int:
    """Run a command that uses `joined`; its exit code, or `LOST` and how to resume."""
    with _interrupts_held():
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    assert child.stderr is not None

    def interrupt(*_: object) -> None:
        if sys.platform != "win32":  # where a console tells all of its processes
            child.send_signal(signal.SIGINT)  # JAX keeps SIGTERM from processes that it connects

    # The child has something to say. From a terminal it hears of it twice, which is once.
    signal.set_wakeup_fd(-1)
    for number in endings.SIGNALS:
        signal.signal(number, interrupt)
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
    if said or code == -signal.SIGABRT:  # where the library that carries messages was the first to notice
        sys.stderr.write(explain("".join(said), resume) + "\n")
        return LOST
    if code == -signal.SIGINT:  # before it could say anything
        sys.stderr.write("\ninterrupted\n")
        return endings.INTERRUPTED
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
    who = f"process {dead[0]} has" if len(dead) == 1 else f"processes {', '.join(dead)} have"
    return f"error: {who} died, and this one ends too. Go on from the last checkpoint with: {resume}"


@contextlib.contextmanager
def joined(timeout: int, **others: Any) -> Iterator[None]:
    """A block in which this process, which is watched, is one of several; see `connect`.

    After an error it ends without waiting for the others, which need not have it.
    """
    threading.Thread(target=_end_with_watcher, daemon=True).start()
    try:
        connect(timeout=timeout, **others)
        yield
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
