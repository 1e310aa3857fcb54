"""Processes that train together: they meet, know who is missing, and are told when one of them dies.

JAX's own wait ends every process on the spot, and does not say who has not come. So before it the first
process takes JAX's port for a while: every other one connects, says its number, and is told again and again
who is missing, until nobody is. Then the port is JAX's. A process that dies while it waits closes its
connection, and is missing again.

When one of several processes dies later, the others cannot go on: they wait for it in the middle of a sum.
JAX hears that it is gone and ends them on the spot, from C++, so that Python cannot say anything any more. So
the command starts itself once more as a child that trains, and waits; when that has ended it says what
happened.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from pjax.errors import InputError, PjaxError
from pjax.experiments import endings
from pjax.experiments.endings import LOST
from pjax.tools.trees import parse

START_SECONDS = 45
"""How long processes wait for each other to start."""
END_SECONDS = 30
"""How long processes wait for each other to end."""
_EVERY = 0.5
"""Seconds between two messages about who is missing."""
_SILENT = 5.0
"""Seconds after which a process that says nothing is not waited for."""
_FATAL = "JAX distributed service detected fatal errors"


# --- Meeting ---


class MissingError(PjaxError):
    """Some processes have not come."""


def names(processes: Sequence[int | str]) -> str:
    """Processes in words.

    >>> names([2]), names([0, 3])
    ('process 2', 'processes 0, 3')
    """
    return f"process{'es' if len(processes) > 1 else ''} {', '.join(map(str, processes))}"


def meet(coordinator: str, processes: int, process: int, seconds: float) -> None:
    """Wait until all processes have called this; if not all do, an error says which ones are missing."""
    until = time.monotonic() + seconds
    if process == 0:
        missing = _call(_pair(bind_address(coordinator)), processes, until)
    else:
        told = _answer(_pair(coordinator), {"process": process, "processes": processes}, until)
        if "error" in told:
            raise InputError(told["error"])
        missing = told["missing"]
        if not missing:
            time.sleep(_EVERY / 2)  # until JAX listens; it would try again only after a second
    if missing:
        raise MissingError(
            f"{names(missing)} of {processes} did not come within {seconds:.0f} seconds, or died. Start "
            "every --process from 0, with the same --processes and --coordinator, whose port must be open"
        )


def bind_address(coordinator: str) -> str:
    """Where the first process listens: as JAX, which can be told another place than where it is reached."""
    return os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", coordinator)


def _pair(address: str) -> tuple[str, int]:
    """
    >>> _pair("[::1]:1234")
    ('::1', 1234)
    """
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _call(address: tuple[str, int], processes: int, until: float) -> list[int]:
    """Wait for the others; those that are missing in the end."""
    here: dict[int, socket.socket] = {}
    missing = list(range(1, processes))
    with contextlib.ExitStack() as open_sockets:
        listener = open_sockets.enter_context(_listen(address))
        listener.settimeout(_EVERY)
        told = 0.0
        while missing and time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                connection = open_sockets.enter_context(listener.accept()[0])
                _admit(connection, here, processes)
            here = {process: connection for process, connection in here.items() if not _is_gone(connection)}
            missing = [process for process in range(1, processes) if process not in here]
            if time.monotonic() - told >= _EVERY:
                told = time.monotonic()
                for connection in here.values():
                    _tell(connection, {"missing": missing, "over": False})
        for connection in here.values():
            _tell(connection, {"missing": missing, "over": True})
        for connection in here.values():  # whoever closes first keeps the port for a while: not this one
            with contextlib.suppress(OSError):
                connection.recv(1)
    return missing


def _listen(address: tuple[str, int]) -> socket.socket:
    host, port = address
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, dualstack_ipv6=both)
    except OSError as error:
        raise InputError(
            f"process 0 cannot listen on port {port} of {host} ({error.strerror}): choose another for "
            f"--coordinator, or where this machine does not know that address set "
            f"JAX_COORDINATOR_BIND_ADDRESS=0.0.0.0:{port}"
        ) from None


def _admit(connection: socket.socket, here: dict[int, socket.socket], processes: int) -> None:
    """Hear who it is; what comes from somebody else is ignored."""
    connection.settimeout(_SILENT)
    try:
        said = parse(connection.makefile("rb").readline(200))
        process, count = said["process"], said["processes"]
    except (OSError, ValueError, LookupError, TypeError):
        process = count = None
    if type(process) is not int or type(count) is not int or not 0 < process < count:
        connection.close()
        return
    if count != processes:
        _tell(
            connection, {"error": f"process 0 waits for {processes} processes, process {process} for {count}"}
        )
    elif process in here and not _is_gone(here[process]):
        _tell(connection, {"error": f"there are two processes with --process {process}"})
    else:
        here[process] = connection


def _is_gone(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(_SILENT)


def _tell(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")


def _answer(address: tuple[str, int], who: dict[str, int], until: float) -> dict[str, Any]:
    """Say who this is, and wait for the others; the last that is heard of them."""
    while time.monotonic() < until:
        # Process 0 may not be there yet, or not any more, or somebody else may be: try again.
        with (
            contextlib.suppress(OSError, ValueError, TypeError, KeyError),
            socket.create_connection(address, _SILENT) as connection,
        ):
            _tell(connection, who)
            for line in connection.makefile("rb"):
                told: dict[str, Any] = parse(line)
                if "error" in told or told["over"] or time.monotonic() >= until:
                    return told
        time.sleep(_EVERY / 5)
    return {"missing": [0]}


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

    Where the first three are not given, the cluster is asked, as `jax.distributed.initialize` does. Where
    they are, an error names the processes that do not come, see `meet`.
    """
    check(coordinator, processes, process)
    if coordinator is not None and processes is not None and process is not None:
        meet(coordinator, processes, process, START_SECONDS)
    # Programs that run at the same time could exchange their messages in another order elsewhere.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        jax.distributed.initialize(
            coordinator,
            processes,
            process,
            coordinator_bind_address=None if coordinator is None else bind_address(coordinator),
            initialization_timeout=START_SECONDS,
            heartbeat_timeout_seconds=timeout,
            shutdown_timeout_seconds=END_SECONDS,
        )
    except ValueError as error:
        raise InputError(
            f"no cluster was found ({error}): give --coordinator HOST:PORT, --processes N and --process I"
        ) from error


def check(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Refuse settings of `connect` that do not go together."""
    if coordinator is None and processes is None and process is None:
        return
    if coordinator is None or processes is None or process is None:
        given = {"coordinator": coordinator, "processes": processes, "process": process}
        missing = next(name for name, value in given.items() if value is None)
        raise InputError(f"give all of coordinator, processes and process, or none; {missing} is missing")
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
