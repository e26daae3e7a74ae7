"""A lock of a file, so that two programs do not write it at once.

It lies in the cache: a process that is killed leaves nothing beside a user's file.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from memcalc.errors import UsageError
from memcalc.files import artifact, cache


@contextlib.contextmanager
def hold(path: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Hold a lock on a file inside the block, or raise UsageError if another program does.

    The lock dies with its process; the file that carries it is removed when it is let go.

    Raises:
        UsageError: another program writes there, or there is no such folder.
    """
    from filelock import FileLock, Timeout

    if os.path.isdir(path):
        raise UsageError(f"Cannot write {path}: it is a folder; name a file in it.")
    artifact.check_place(path)
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    with contextlib.ExitStack() as stack:
        try:
            beside = cache.folder() / f".{name}.lock"
            beside.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(beside, timeout=patience, poll_interval=0.02)
            stack.enter_context(lock)
            # Removed while held: who opened it meanwhile sees that it is not the file any more.
            stack.callback(beside.unlink, missing_ok=True)
        except Timeout:
            raise UsageError(
                f"Another memcalc is writing {path}: wait for it, or name another file."
            ) from None
        except (OSError, NotImplementedError):
            pass  # The cache cannot be written, or knows no locks.
        yield
