"""A lock beside a file, so that two programs do not write it in turns; the kernel frees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from memcalc.errors import UsageError


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock of a file that is going to be written, or say that another program does.

    The lock dies with its process; the file that carries it is removed when it is let go.

    Raises:
        UsageError: another program writes there, or the folder cannot be written.
    """
    if path.is_dir():
        raise UsageError(f"Cannot write {path}: it is a folder; name a file in it.")
    beside = path.with_name(f".{path.name}.lock")
    descriptor = _take(beside, path)
    try:
        yield
    finally:
        # Removed while held: who opened it meanwhile sees that it is not the file any more.
        with contextlib.suppress(OSError):
            os.unlink(beside)
        os.close(descriptor)


def _take(beside: Path, path: Path) -> int:
    while True:
        try:
            descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"Cannot write {path}: {error.strerror}.") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UsageError(
                f"Another memcalc is writing {path}: wait for it, or name another file."
            ) from None
        except OSError:
            # A file system without locks cannot keep two programs apart; writing still works.
            return descriptor
        if _is_still(descriptor, beside):
            return descriptor
        os.close(descriptor)


def _is_still(descriptor: int, beside: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(beside))
    except FileNotFoundError:
        return False
