"""A server on the loopback interface that serves a few files, and misbehaves as it is told."""

import contextlib
import http.server
import os
import re
import socket
import struct
import threading
from collections.abc import Iterator


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`, by name. Each request takes the first of `faults`, if there is one.

    Faults: ``("status", code)``; ``("drop", n)`` closes the connection after n bytes, ``("reset", n)`` breaks
    it; ``("stall", n)`` goes silent after n bytes; ``("redirect", name)``; ``("no length", n)`` sends n bytes
    without saying how many they are; ``("length", text)`` says this Content-Length; ``("to", url)`` redirects
    to any address; ``("mute", None)`` says nothing at all; ``("hang up", None)`` breaks it before that.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.faults: list[tuple[str, object]] = []
        self.requests: list[tuple[str, str | None]] = []
        self.knows_ranges = True
        self.stopped = threading.Event()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def ranges(self) -> list[str | None]:
        """What was asked for, request by request; ``None`` for all."""
        return [wanted for _, wanted in self.requests]

    def handle_error(self, request, client_address) -> None:
        """Clients that have gone away are no news."""


class Handler(http.server.BaseHTTPRequestHandler):
    timeout = 10
    server: Server

    def log_message(self, format, *args) -> None:
        pass

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        wanted = self.headers["Range"]
        self.server.requests.append((name, wanted))
        kind, value = self.server.faults.pop(0) if self.server.faults else ("", None)
        if kind == "mute":
            self.server.stopped.wait(10)
            return
        if kind == "hang up":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
            return
        if kind == "status" or name not in self.server.files:
            self.send_error(value if kind == "status" else 404)
            return
        if kind in ("redirect", "to"):
            self.send_response(302)
            self.send_header("Location", self.server.url(value) if kind == "redirect" else value)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = self.server.files[name]
        start = self.start(wanted)
        if start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if kind != "no length":
            self.send_header("Content-Length", value if kind == "length" else str(len(body) - start))
        self.end_headers()
        rest = body[start:]
        self.wfile.write(rest[:value] if kind in ("drop", "reset", "stall", "no length") else rest)
        self.wfile.flush()
        if kind == "stall":
            self.server.stopped.wait(10)
        if kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def start(self, wanted: str | None) -> int:
        """Where to begin."""
        if wanted is None or not self.server.knows_ranges:
            return 0
        return int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
