"""Download a file: resumable, verified, and never half finished under its own name."""

import contextlib
import errno
import hashlib
import http.client
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TypeAlias

from pjax.errors import DownloadError
from pjax.experiments._lock import Lock
from pjax.experiments.results import parse

Progress: TypeAlias = Callable[[int, int | None, str], None]
"""Called with the bytes done, the bytes there are (``None``: not known), and what is being done."""

_BLOCK = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT}


def fetch(
    urls: Sequence[str],
    target: Path,
    *,
    sha256: str,
    size: int | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
    tries: int = 4,
    pause: float = 1.0,
) -> Path:
    """Download a file to `target`, unless it is there already.

    What arrives goes to ``target.part``, and takes the name `target` once it is whole and its digest is
    right. A `.part` of an earlier run is continued, if the server still has the same file.

    Args:
        urls: addresses of the same file, tried in turn.
        target: where the file belongs. Its folder is made if need be.
        sha256: the digest of the file, in hexadecimal.
        size: its length in bytes, where known; another length is refused before anything is downloaded.
        progress: see `Progress`.
        timeout: seconds to wait for a connection, and for each block.
        tries: how often to try an address in a row without getting further.
        pause: seconds before the second try, doubled before each further one.

    Raises:
        DownloadError: says which address, what went wrong, and what to do.
    """
    with _local(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_file():
            if _digest(target).hexdigest() == sha256:
                return target
            target.unlink()
    reasons = []
    for url in urls:
        try:
            part = _Part(target, url)
            _download(url, part, size, progress, timeout, tries, pause)
            part.finish(sha256)
        except _AddressError as failure:
            reasons.append(f"{url}: {failure}")
        else:
            return target
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
        with _local(path):
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


@contextlib.contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of `path` when the block ends well, and vanishes when it does not.

    Args:
        path: the name that the file shall get.
        temporary: its name until then, on the same file system; by default beside `path`.

    Raises:
        DownloadError: the disk is full, or the folder cannot be written to.
    """
    temporary = temporary or path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _local(path):
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class _AddressError(Exception):
    """This address does not give the file. Another may."""


class _AttemptError(Exception):
    """This attempt has failed. Another may succeed, from the beginning if what there was is gone."""

    def __init__(self, reason: str, gone: bool = False) -> None:
        super().__init__(reason)
        self.gone = gone


@dataclass(frozen=True)
class _Version:
    """What a server says of the file it sends: as long as this stays the same, so does the file."""

    url: str
    etag: str | None
    modified: str | None
    total: int | None

    def continued_by(self, answer: "_Version") -> bool:
        """Whether an answer with the rest of a file is of this version. It need not repeat the date."""
        modified = self.modified if answer.modified is None else answer.modified
        return answer.total is not None and self == replace(answer, modified=modified)


class _Part:
    """The beginning of a file, the digest of it, and what file it is the beginning of."""

    def __init__(self, target: Path, url: str) -> None:
        self.target = target
        self.path = target.with_name(target.name + ".part")
        self.note = target.with_name(target.name + ".part.json")
        self.version = self._read_note(url)
        with _local(self.path):
            known = self.version is not None and self.path.is_file()
            self.length = self.path.stat().st_size if known else 0
            self.digest = _digest(self.path) if known else hashlib.sha256()

    def _read_note(self, url: str) -> _Version | None:
        try:
            version = _Version(**parse(self.note.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None  # not written, or not whole: what the beginning belongs to is not known
        return version if version.url == url and isinstance(version.total, int) else None

    def restart(self, version: _Version) -> None:
        """Drop what there is: the beginning of this version is to come."""
        self.discard()
        self.version = version
        with replacing(self.note) as file:
            file.write(json.dumps(asdict(version)).encode())

    def discard(self) -> None:
        with _local(self.path):
            self.path.unlink(missing_ok=True)
            self.note.unlink(missing_ok=True)
        self.version, self.length, self.digest = None, 0, hashlib.sha256()

    def append(self, file: IO[bytes], block: bytes) -> None:
        with _local(self.path):
            file.write(block)
        self.digest.update(block)
        self.length += len(block)

    def finish(self, sha256: str) -> None:
        """Give the file its name, if it is the right one."""
        got = self.digest.hexdigest()
        if got != sha256:
            self.discard()
            raise _AddressError(
                f"the file is not the expected one: its SHA-256 is {got}, expected {sha256}; it was removed"
            )
        with _local(self.target):
            with self.path.open("ab") as file:
                os.fsync(file.fileno())
            self.path.replace(self.target)
            self.note.unlink(missing_ok=True)


def _download(
    url: str,
    part: _Part,
    size: int | None,
    progress: Progress | None,
    timeout: float,
    tries: int,
    pause: float,
) -> None:
    """Try until the part is whole. Only an attempt that gets further than all before it is not counted."""
    failures, furthest = 0, part.length
    while True:
        try:
            _attempt(url, part, size, progress, timeout)
            return
        except _AttemptError as dropped:
            if dropped.gone:
                part.discard()
            failures = 1 if part.length > furthest else failures + 1
            furthest = max(furthest, part.length)
            if failures >= tries:
                raise _AddressError(f"{dropped} ({tries} tries)" if tries > 1 else str(dropped)) from dropped
            time.sleep(min(60.0, pause * 2 ** (failures - 1)))


def _attempt(url: str, part: _Part, size: int | None, progress: Progress | None, timeout: float) -> None:
    """One request, for what is missing."""
    total = part.version.total if part.version is not None else None
    if total is not None and part.length == total:
        return
    if total is not None and part.length > total:
        part.discard()
    with _remote(timeout):
        response = urllib.request.urlopen(_request(url, part), timeout=timeout)
    with response:
        _receive(url, response, part, size, progress, timeout)


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
    except (OSError, http.client.HTTPException) as error:
        raise _AttemptError(_reason(getattr(error, "reason", error), timeout)) from error
    except ValueError as error:  # it sends on to what is no address
        raise _AddressError(f"the server answered nonsense: {error}") from error


def _request(url: str, part: _Part) -> urllib.request.Request:
    request = urllib.request.Request(url, headers={"User-Agent": "pjax"})
    if part.length and part.version is not None and part.version.total is not None:
        request.add_header("Range", f"bytes={part.length}-")
        # A server that knows this sends the whole file if it has changed. A weak tag is not allowed here.
        etag = part.version.etag
        same = etag if etag is not None and not etag.startswith("W/") else part.version.modified
        if same is not None:
            request.add_header("If-Range", same)
    return request


def _receive(
    url: str,
    response: http.client.HTTPResponse,
    part: _Part,
    size: int | None,
    progress: Progress | None,
    timeout: float,
) -> None:
    headers = response.headers
    continues = response.status == 206
    total = _total_of_range(headers.get("Content-Range"), part.length) if continues else _length(headers)
    version = _Version(url, headers.get("ETag"), headers.get("Last-Modified"), total)
    if continues and not (part.version is not None and part.version.continued_by(version)):
        raise _AttemptError(
            "the file has changed on the server since its beginning was downloaded", gone=True
        )
    if size is not None and total is not None and total != size:
        raise _AddressError(f"the server offers {total} bytes, expected {size}: this is not the file")
    if not continues:
        part.restart(version)
    end = size if total is None else total
    if end is not None:
        check_space(part.path.parent, end - part.length)
    with _local(part.path):
        file = part.path.open("ab")
    with _closing(file, part.path):
        while end is None or part.length < end:
            if progress is not None:
                progress(part.length, end, part.target.name)
            with _remote(timeout):
                block = response.read1(_BLOCK if end is None else min(_BLOCK, end - part.length))
            if not block:
                break
            part.append(file, block)
    if progress is not None:
        progress(part.length, end, part.target.name)
    if end is not None and part.length < end:
        raise _AttemptError(f"the connection ended after {part.length} of {end} bytes")


def _length(headers: http.client.HTTPMessage) -> int | None:
    text = headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _total_of_range(text: str | None, start: int) -> int | None:
    """The length of the whole file, if this is the range from `start` to its end."""
    if text is None or not text.startswith("bytes "):
        return None
    span, _, total = text.removeprefix("bytes ").partition("/")
    first, _, last = span.partition("-")
    if not (all(number.strip().isdecimal() for number in (first, last, total))):
        return None
    return int(total) if int(first) == start and int(last) == int(total) - 1 else None


def _reason(error: object, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} seconds"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended too early"
    return str(error) or type(error).__name__


def _digest(path: Path) -> "hashlib._Hash":
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")


def check_space(folder: Path, needed: int) -> None:
    """Raise a `DownloadError` if the disk has less than this many bytes left."""
    with _local(folder):
        free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{folder} has {free:,} bytes left, {needed:,} are needed: free some space, or set PJAX_DATA to a"
            " folder on another disk"
        )


@contextlib.contextmanager
def _closing(file: IO[bytes], path: Path) -> Iterator[None]:
    """Close the file, which writes what is left in its buffer: the disk may be full then as well."""
    try:
        yield
    finally:
        with _local(path):
            file.close()


@contextlib.contextmanager
def _local(path: Path) -> Iterator[None]:
    """Errors of this machine's disk, in words. They end the download: no other address would help."""
    try:
        yield
    except DownloadError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise DownloadError(
                f"the disk is full: {path} could not be written. Free some space, or set PJAX_DATA to a"
                " folder on another disk, and try again: what has arrived is kept"
            ) from error
        raise DownloadError(
            f"{path} could not be written: {error.strerror or error}. Set PJAX_DATA to a folder that you may"
            " write to"
        ) from error
