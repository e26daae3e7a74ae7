"""A lock beside a file, so that two programs do not write it at once."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from memcalc.errors import UsageError
from memcalc.files.untrusted_values import reason


@contextlib.contextmanager
def held(path: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock of a file that is going to be written, or say that another program does.

    The lock dies with its process; the file that carries it is removed when it is let go.

    Raises:
        UsageError: another program writes there, or the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    if os.path.isdir(path):
        raise UsageError(f"Cannot write {path}: it is a folder; name a file in it.")
    lock = None
    try:
        real = os.path.realpath(path)
        # filelock would make a folder that is not there.
        os.stat(os.path.dirname(real))
        beside = os.path.join(os.path.dirname(real), f".{os.path.basename(real)[:200]}.lock")
        lock = FileLock(beside, timeout=patience, poll_interval=0.02)
        lock.acquire()
    except Timeout:
        raise UsageError(
            f"Another memcalc is writing {path}: wait for it, or name another file."
        ) from None
    except (OSError, ValueError, NotImplementedError) as error:
        if not os.path.exists(path) or not os.access(path, os.W_OK):
            raise UsageError(f"Cannot write {path}: {reason(error)}.") from None
        # A file that can be written in a folder that cannot, or that knows no locks.
        lock = None
    try:
        yield
    finally:
        if lock is not None:
            # Removed while held: who opened it meanwhile sees that it is not the file any more.
            with contextlib.suppress(OSError):
                os.unlink(beside)
            lock.release()
