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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from pjax.errors import DownloadError
from pjax.tools.files import Lock

Progress: TypeAlias = Callable[[int, int | None, str], None]
"""Called with the bytes done, the bytes there are (``None``: not known), and what is being done."""

_BLOCK = 1 << 20


def fetch(
    urls: Sequence[str],
    target: Path,
    *,
    sha256: str,
    size: int,
    progress: Progress | None = None,
    timeout: float = 30.0,
    tries: int = 4,
    pause: float = 1.0,
) -> Path:
    """Download a file to `target`, unless it is there already.

    What arrives goes to ``target.part``, and takes the name `target` once it is whole and its digest is
    right. A `.part` of an earlier run is continued.

    Args:
        urls: addresses of the same file, tried in turn.
        target: where the file belongs. Its folder is made if need be.
        sha256: the digest of the file, in hexadecimal.
        size: its length in bytes; another length is refused before anything is downloaded.
        progress: see `Progress`.
        timeout: seconds to wait for a connection, and for each block.
        tries: how often to try an address in a row without getting further.
        pause: seconds before the second try, doubled before each further one.

    Raises:
        DownloadError: says which address, what went wrong, and what to do.
        OSError: of the disk; see `on_disk`.
    """
    part, show = target.with_name(target.name + ".part"), progress or (lambda *_: None)
    download = _Download(part, sha256, size, show, timeout, tries, pause)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file():
        if _digest(target) == sha256:
            return target
        target.unlink()
    reasons = []
    for url in urls:
        try:
            download.run(url)
        except _AddressError as failure:
            reasons.append(f"{url}: {failure}")
            continue
        return part.replace(target)
    raise DownloadError(
        f"{target.name} could not be downloaded. "
        + "; ".join(reasons)
        + ". Check the connection and try again, which continues what has begun, or fetch the file by other"
        f" means to {target} and then try again."
    )


@contextlib.contextmanager
def locked(path: Path, *, wait: float = 3600.0, progress: Progress | None = None) -> Iterator[None]:
    """Hold the lock of a file, which is made and removed: only one process at a time gets past it.

    The system drops the lock of a process that dies. Where the file system has no locks there is none: two
    downloads at once then spoil each other's `.part`, which its digest shows.

    Raises:
        DownloadError: another process has held it for `wait` seconds.
    """
    lock, deadline = Lock(path), time.monotonic() + wait
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        if lock.take():
            break
        if time.monotonic() >= deadline:
            raise DownloadError(
                f"{lock.holder()} has held {path} for {wait:.0f} seconds: wait for it, or end it"
            )
        if progress is not None:
            progress(0, None, "waiting for another process that downloads the same")
        time.sleep(0.1)
    try:
        yield
    finally:
        lock.give_back()


class _AddressError(Exception):
    """This address does not give the file. Another may."""


class _AttemptError(Exception):
    """This attempt has failed. Another may succeed, from the beginning if what there was is gone."""

    def __init__(self, reason: str, gone: bool = False) -> None:
        super().__init__(reason)
        self.gone = gone


@dataclasses.dataclass(frozen=True)
class _Download:
    """What has arrived of a file, and what it shall be; the arguments are those of `fetch`."""

    part: Path
    sha256: str
    size: int
    progress: Progress
    timeout: float
    tries: int
    pause: float

    def run(self, url: str) -> None:
        """Try until all is there. Only an attempt that gets further than all before it is not counted."""
        failures, furthest = 0, self.length()
        while True:
            try:
                return self.attempt(url)
            except _AttemptError as dropped:
                if dropped.gone:
                    self.part.unlink(missing_ok=True)
                failures = 1 if self.length() > furthest else failures + 1
                furthest = max(furthest, self.length())
                if failures >= self.tries:
                    often = f" ({self.tries} tries)" if self.tries > 1 else ""
                    raise _AddressError(f"{dropped}{often}") from dropped
                time.sleep(min(60.0, self.pause * 2 ** (failures - 1)))

    def attempt(self, url: str) -> None:
        """One request, for what is missing; and a look at the whole."""
        if self.length() > self.size:
            self.part.unlink(missing_ok=True)
        start = self.length()
        if start < self.size:
            headers = {"User-Agent": "pjax"} | ({"Range": f"bytes={start}-"} if start else {})
            request = urllib.request.Request(url, headers=headers)
            with _remote(self.timeout):
                response = urllib.request.urlopen(request, timeout=self.timeout)
            with response:
                start = self.receive(response, start)
        if (got := _digest(self.part)) != self.sha256:
            self.part.unlink()
            text = f"its SHA-256 is {got}, expected {self.sha256}; it was removed"
            raise (_AttemptError if start else _AddressError)(f"the file is not the expected one: {text}")

    def receive(self, response: http.client.HTTPResponse, start: int) -> int:
        """Append what a server sends; from which byte on it was."""
        if response.status == 206:
            if response.headers.get("Content-Range") != f"bytes {start}-{self.size - 1}/{self.size}":
                raise _AttemptError("the server sends another part of the file than was asked for", gone=True)
        else:
            said = response.headers.get("Content-Length", "")
            if said.isdecimal() and int(said) != self.size:
                raise _AddressError(
                    f"the server offers {said} bytes, expected {self.size}: this is not the file"
                )
            self.part.unlink(missing_ok=True)
            start = 0
        check_space(self.part.parent, self.size - start)
        done = start
        with self.part.open("ab") as file:
            while done < self.size:
                self.progress(done, self.size, self.part.stem)
                with _remote(self.timeout):
                    block = response.read1(min(_BLOCK, self.size - done))
                if not block:
                    raise _AttemptError(f"the connection ended after {done} of {self.size} bytes")
                file.write(block)
                done += len(block)
            self.progress(done, self.size, self.part.stem)
            file.flush()
            os.fsync(file.fileno())
        return start

    def length(self) -> int:
        return self.part.stat().st_size if self.part.is_file() else 0


@contextlib.contextmanager
def _remote(timeout: float) -> Iterator[None]:
    """Errors of the server, and of the way to it: this attempt has failed, or this address will not do."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        text = f"the server answered {error.code} {error.reason}"
        if error.code in (408, 416, 425, 429) or error.code >= 500:
            raise _AttemptError(text, gone=error.code == 416) from error
        raise _AddressError(text) from error
    except http.client.IncompleteRead as error:
        raise _AttemptError("the connection ended too early") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise _AttemptError(f"no answer within {timeout:g} seconds") from error
        raise _AttemptError(str(reason) or type(reason).__name__) from error
    except ValueError as error:  # it sends on to what is no address
        raise _AddressError(f"the server answered nonsense: {error}") from error


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
        where = error.filename or path
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DownloadError(
                f"the disk is full: {where} could not be written. Free some space, or set PJAX_DATA to a"
                " folder on another disk, and try again: what has arrived is kept"
            ) from error
        raise DownloadError(
            f"{where} could not be written: {error.strerror or error}. Set PJAX_DATA to a folder that you may"
            " write to"
        ) from error
