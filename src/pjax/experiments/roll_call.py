"""Processes that wait for each other before they begin, and know which of them are missing.

JAX's own wait ends every process on the spot, and does not say who has not come. So before it the first
process takes JAX's port for a while: every other one connects, says its number, and is told again and again
who is missing, until nobody is. Then the port is JAX's. A process that dies while it waits closes its
connection, and is missing again.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from pjax.errors import InputError, PjaxError
from pjax.experiments.results import parse

_EVERY = 0.5
"""Seconds between two messages about who is missing."""
_SILENT = 5.0
"""Seconds after which a process that says nothing is not waited for."""


class MissingError(PjaxError):
    """Some processes have not come."""


def names(processes: Sequence[int | str]) -> str:
    """Processes in words.

    >>> names([2]), names([0, 3])
    ('process 2', 'processes 0, 3')
    """
    return f"process{'es' if len(processes) > 1 else ''} {', '.join(map(str, processes))}"


def meet(coordinator: str, processes: int, process: int, seconds: float) -> None:
    """Wait until all processes have called this; if not all do, an error says which ones are missing.

    Args:
        coordinator: address and port of the first process.
        processes: how many there are.
        process: which one this is, from 0.
        seconds: how long to wait.
    """
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


# --- The first process ---


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


# --- The others ---


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
