"""A lock beside a file, so that two programs do not write it in turns; the kernel frees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from memcalc.errors import UsageError
from memcalc.files.plain import reason


@contextlib.contextmanager
def held(path: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock of a file that is going to be written, or say that another program does.

    The lock dies with its process; the file that carries it is removed when it is let go.

    Args:
        path: the file; through a link it is the same one.
        patience: seconds to wait for another program.

    Raises:
        UsageError: another program writes there, or the folder cannot be written.
    """
    if os.path.isdir(path):
        raise UsageError(f"Cannot write {path}: it is a folder; name a file in it.")
    try:
        real = os.path.realpath(path)
        beside = os.path.join(os.path.dirname(real), f".{os.path.basename(real)[:200]}.lock")
        descriptor = _take(beside, path, time.monotonic() + patience)
    except (OSError, ValueError) as error:
        if not os.path.exists(path) or not os.access(path, os.W_OK):
            raise UsageError(f"Cannot write {path}: {reason(error)}.") from None
        # A file that can be written in a folder that cannot: there is no place for a lock.
        descriptor = None
    try:
        yield
    finally:
        if descriptor is not None:
            # Removed while held: who opened it meanwhile sees that it is not the file any more.
            with contextlib.suppress(OSError):
                os.unlink(beside)
            os.close(descriptor)


def _take(beside: str, path: Path, deadline: float) -> int:
    while True:
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(descriptor, beside):
                return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise UsageError(
                    f"Another memcalc is writing {path}: wait for it, or name another file."
                ) from None
            time.sleep(0.02)
        except OSError:
            # A file system without locks cannot keep two programs apart; writing still works.
            return descriptor
        os.close(descriptor)


def _is_still(descriptor: int, beside: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(beside))
    except FileNotFoundError:
        return False
