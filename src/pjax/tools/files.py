"""Files that are there whole or not at all, and locks: one process at a time has one."""

import contextlib
import errno
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


@contextlib.contextmanager
def replacing(path: Path, temporary: Path | None = None) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of `path` when the block ends well, and vanishes when it does not.

    Args:
        path: the name that the file shall get. Its folder is made if need be.
        temporary: its name until then, on the same file system; by default beside `path`.
    """
    temporary = temporary or path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.filename in (None, str(temporary)):  # a full disk does not say which file it has no room for
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomically(path: str | Path, data: bytes) -> Path:
    """Write a file, which is there whole or not at all."""
    with replacing(Path(path)) as file:
        file.write(data)
    return Path(path)


class Lock:
    """The operating system's lock of a file, which is made when the lock is taken, and removed afterwards.

    A process that dies loses it. Where a file system has no locks everyone gets one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def take(self) -> bool:
        """Whether this process has it now; if not, another one has."""
        # Who had the lock before has removed the file: then this is the lock of a file without a name.
        while _try_lock(file := self.path.open("a+b")):
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    self._file = file
                    with contextlib.suppress(OSError):  # a full disk: the lock holds without a name on it
                        file.truncate(0)
                        file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                        file.flush()
                    return True
            file.close()
        file.close()
        return False

    def give_back(self) -> None:
        """Another may have it now."""
        assert self._file is not None
        with contextlib.suppress(OSError):  # Windows does not remove a file that is open
            self.path.unlink()
        self._file.close()
        self._file = None

    def holder(self) -> str:
        """The process that has it, in words."""
        try:
            return self.path.read_text(encoding="utf-8").strip() or "another process"
        except (OSError, ValueError):  # Windows does not read what is locked
            return "another process"


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in _NO_LOCKS
        return True
