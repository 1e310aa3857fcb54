"""Download a file: resumable, verified, and never half finished under its own name.

All files have a digest on record, so what an earlier run has left is continued whoever sent it: a file that
was patched together of two is found out in the end, and downloaded from its beginning.
"""

import contextlib
import dataclasses
import errno
import hashlib
import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from pjax.errors import DownloadError
from pjax.tools.files import Lock

Progress: TypeAlias = Callable[[int, int | None, str], None]
"""Called with the bytes done, the bytes there are (``None``: not known), and what is being done."""

_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True)
class File:
    """A file to download: its addresses, which are tried in turn, its SHA-256, and its length in bytes."""

    urls: tuple[str, ...]
    sha256: str
    size: int

    @property
    def name(self) -> str:
        """Its name: the end of its address."""
        return self.urls[0].rpartition("/")[2]


@contextlib.contextmanager
def locked(path: Path, *, wait: float = 3600.0, progress: Progress = lambda *_: None) -> Iterator[None]:
    """Hold the lock of a file, which is made and removed: only one process at a time gets past it.

    The system drops the lock of a process that dies. Where the file system has no locks there is none: two
    downloads at once then spoil each other's `.part`, which its digest shows.

    Raises:
        DownloadError: another process has held it for `wait` seconds.
    """
    lock, deadline = Lock(path), time.monotonic() + wait
    path.parent.mkdir(parents=True, exist_ok=True)
    while not lock.take():
        if time.monotonic() >= deadline:
            raise DownloadError(f"{lock.holder()} has held {path} for {wait:.0f} seconds: wait, or end it")
        progress(0, None, "waiting for another process that downloads the same")
        time.sleep(0.1)
    try:
        yield
    finally:
        lock.give_back()


class _FailedError(Exception):
    """An attempt has failed. Another may succeed, unless it is final: this address does not give the file."""

    def __init__(self, reason: str, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


@dataclasses.dataclass(frozen=True)
class Download:
    """A download of a file, which goes to ``target.part`` until it is whole and its digest is right.

    Args:
        file: what to download; another length is refused before anything is downloaded.
        target: where the file belongs. Its folder is made if need be.
        progress: see `Progress`.
        timeout: seconds to wait for a connection, and for each block.
        tries: how often to try an address in a row without getting further.
        pause: seconds before the second try, doubled before each further one.
    """

    file: File
    target: Path
    progress: Progress = lambda *_: None
    timeout: float = 30.0
    tries: int = 4
    pause: float = 1.0

    @property
    def part(self) -> Path:
        return self.target.with_name(self.target.name + ".part")

    def fetch(self) -> Path:
        """Get the file, unless it is there already. A `.part` of an earlier run is continued.

        Raises:
            DownloadError: says which address, what went wrong, and what to do.
            OSError: of the disk; see `on_disk`.
        """
        self.target.parent.mkdir(parents=True, exist_ok=True)
        if self.target.is_file():
            if _digest(self.target) == self.file.sha256:
                return self.target
            self.target.unlink()
        reasons = []
        for url in self.file.urls:
            if not (reason := self.run(url)):
                return self.part.replace(self.target)
            reasons.append(f"{url}: {reason}")
        raise DownloadError(
            f"{self.target.name} could not be downloaded. {'; '.join(reasons)}. Check the connection and try"
            " again, which continues what has begun, or fetch the file by other means to"
            f" {self.target} and then try again."
        )

    def run(self, url: str) -> str:
        """Try until all is there, or say why not. Only attempts that get no further than before count."""
        failures, furthest = 0, self.length()
        while True:
            try:
                self.attempt(url)
            except _FailedError as failed:
                failures = 1 if self.length() > furthest else failures + 1
                furthest = max(furthest, self.length())
                if failed.final:
                    return str(failed)
                if failures >= self.tries:
                    return f"{failed} ({self.tries} tries)" if self.tries > 1 else str(failed)
                time.sleep(min(60.0, self.pause * 2 ** (failures - 1)))
            else:
                return ""

    def attempt(self, url: str) -> None:
        """One request, for what is missing; and a look at the whole."""
        if self.length() > self.file.size:
            self.part.unlink()
        start = self.length()
        if start < self.file.size:
            headers = {"User-Agent": "pjax"} | ({"Range": f"bytes={start}-"} if start else {})
            request = urllib.request.Request(url, headers=headers)
            with self.remote():
                response = urllib.request.urlopen(request, timeout=self.timeout)
            with response:
                start = self.receive(response, start)
        if (got := _digest(self.part)) != self.file.sha256:
            self.part.unlink()
            text = f"its SHA-256 is {got}, expected {self.file.sha256}; it was removed"
            raise _FailedError(f"the file is not the expected one: {text}", final=not start)

    def receive(self, response: http.client.HTTPResponse, start: int) -> int:
        """Append what a server sends; from which byte on it was."""
        size = self.file.size
        if response.status != 206:  # it sends the whole
            self.part.unlink(missing_ok=True)
            start = 0
        said = response.headers.get("Content-Length", "")
        if said.isdecimal() and int(said) != size - start:
            self.part.unlink(missing_ok=True)
            text = f"the server offers {said} bytes, expected {size - start}: this is not the file"
            raise _FailedError(text, final=not start)
        check_space(self.part.parent, size - start)
        done = start
        with self.part.open("ab") as file:
            while done < size:
                self.progress(done, size, self.part.stem)
                with self.remote():
                    block = response.read1(min(_BLOCK, size - done))
                if not block:
                    raise _FailedError(f"the connection ended after {done} of {size} bytes")
                file.write(block)
                done += len(block)
            self.progress(done, size, self.part.stem)
            file.flush()
            os.fsync(file.fileno())
        return start

    def length(self) -> int:
        return self.part.stat().st_size if self.part.is_file() else 0

    @contextlib.contextmanager
    def remote(self) -> Iterator[None]:
        """Errors of the server, and of the way to it, as failures of this attempt."""
        try:
            yield
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # it has nothing from there on
                self.part.unlink(missing_ok=True)
            final = error.code not in (408, 416, 425, 429) and error.code < 500
            raise _FailedError(f"the server answered {error.code} {error.reason}", final) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            text = str(reason) or type(reason).__name__
            silent = f"no answer within {self.timeout:g} seconds"
            raise _FailedError(silent if isinstance(reason, TimeoutError) else text) from error
        except ValueError as error:  # it sends on to what is no address
            raise _FailedError(f"the server answered nonsense: {error}", final=True) from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_space(folder: Path, needed: int) -> None:
    """Raise a `DownloadError` if the disk has less than this many bytes left."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{folder} has {free:,} bytes left, {needed:,} are needed: free some space, or set PJAX_DATA to a"
            " folder on another disk"
        )


@contextlib.contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Errors of this machine's disk, in words. They end the download: no other address would help."""
    try:
        yield
    except DownloadError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else error.strerror or error
        raise DownloadError(
            f"{error.filename or path} could not be written: {reason}. Set PJAX_DATA to a folder that you may"
            " write to, on a disk with room, and try again: what has arrived is kept"
        ) from error
