"""Writing files so that they are complete or unchanged, and by one process at a time."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from placeto.errors import PlacetoError

_NO_LOCKS = errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP  # errors of a file system without locks


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` when the block ends: a crash leaves the old file.

    The temporary file has the same suffix. Temporary files of `path` that killed processes have left are removed. If
    `path` is a symbolic link, the file that it leads to is replaced. A device or a pipe is written to directly.

    Raises:
        OSError: the file can't be written; its `filename` is `path`.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        with _named(path):
            yield target
        return
    temporary = target.with_name(f"{_hidden(target)}.{os.getpid()}{target.suffix}")
    try:
        with _named(path):
            _sweep(target)
            yield temporary
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def _named(path: str | Path) -> Iterator[None]:
    """Raise an OSError of the block again, with this path as its `filename`."""
    try:
        yield
    except OSError as problem:
        if problem.errno is None:
            raise
        raise OSError(problem.errno, problem.strerror, str(path)) from None  # the class follows from the number


def write_text(text: str, path: str | Path) -> None:
    """Write a text file in UTF-8; the old file stays until the new one is complete."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Lock a file or folder for the block: no other process can lock it. This process can lock it again inside.

    The lock is held on a file of its own, beside the file or inside the folder. The lock ends at the latest when the
    process ends, even if it is killed.

    Raises:
        PlacetoError: another process has the lock.
        OSError: the lock file can't be made.
    """
    target = Path(os.path.realpath(path))
    file = target / ".lock" if target.is_dir() else target.with_name(f"{_hidden(target)}.lock")
    lock = FileLock(file, blocking=False, thread_local=False, is_singleton=True, fallback_to_soft=False)
    again = lock.is_locked
    try:
        lock.acquire()
    except Timeout:
        holder = _text(file) or "another process"
        raise PlacetoError(f"{path}: {holder} is writing to it; wait until that ends, or choose another file") from None
    except OSError as problem:
        if problem.errno not in _NO_LOCKS:
            raise
    try:
        if not again:
            with suppress(OSError):  # a full disk: the lock holds, but doesn't name its process
                file.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        if not again:
            file.unlink(missing_ok=True)  # before it is unlocked: a process that has it open then sees that it is gone
        lock.release()


def _text(file: Path) -> str:
    """The beginning of a file; "" if it can't be read."""
    with suppress(OSError), file.open(errors="replace") as stream:
        return stream.read(200)
    return ""


def _hidden(target: Path) -> str:
    """The beginning of the names of a target's lock and temporary files, cut so that they aren't too long."""
    return f".{target.name[:200]}"


def _sweep(target: Path) -> None:
    """Remove a target's temporary files whose processes no longer run."""
    unfinished = re.compile(rf"{re.escape(_hidden(target))}\.(\d{{1,9}})(\.\w+)?")
    for entry in os.scandir(target.parent):
        if (match := unfinished.fullmatch(entry.name)) and not _alive(int(match[1])):
            with suppress(OSError):  # another process was quicker
                os.unlink(entry)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user
        return True
    return True
