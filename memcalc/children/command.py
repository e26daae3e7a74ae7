"""Runs a command of which no process outlives memcalc, and a folder that goes with it."""

import atexit
import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from memcalc.children import keeper
from memcalc.files import cache

_SETTLES = 60.0
"""Seconds within which a new folder is locked."""
_ROOM = 64 << 20
"""Bytes that must be free in the cache: an answer, and what an overlay holds of changed files."""
_WORK = "MEMCALC_WORK"
"""Variable with the folder that children use in place of a cache that takes no files."""
UNLOADABLE = re.compile(r"[ :;]")
"""Signs that separate the paths of ``LD_PRELOAD`` and ``LD_LIBRARY_PATH``."""
_POLLS = 0.01
"""Seconds between looks at a process that is about to end."""


def start(
    command: Sequence[str], folder: Path | None = None, **options: Any
) -> subprocess.Popen[Any]:
    """Start a command under a keeper that ends all its processes when this process ends.

    Args:
        command: what to run.
        folder: is in ``vanishing``, and stays until all processes of the command have ended.
        **options: of ``subprocess.Popen``.

    Raises:
        OSError: it cannot be started.
    """
    told, status = os.pipe()
    with open(told, "rb") as reads:
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", keeper.__file__),
                    *map(str, (os.getpid(), os.getpgrp(), folder or "", status)),
                    *command,
                ],
                pass_fds=[status],
                process_group=0,
                **options,
            )
        finally:
            os.close(status)
        try:
            failed = reads.read()
        except BaseException:
            end(process)
            raise
    if failed:
        process.communicate()
        raise OSError(int(failed), os.strerror(int(failed)), command[0])
    return process


def end(process: subprocess.Popen[Any]) -> None:
    """Terminate a command that ``start`` started, and wait until all its processes have ended."""
    process.terminate()
    # After Ctrl-C a process that is left as a context is not waited for.
    process.wait()
    _await_keepers(process)


def _await_keepers(process: subprocess.Popen[Any]) -> None:
    """Wait until no process is left in the process group of a command's keepers."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.killpg(process.pid, 0)
            time.sleep(_POLLS)


def run(
    command: Sequence[str], folder: Path | None = None, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end and return its exit code and output; arguments as for ``start``.

    Raises:
        subprocess.TimeoutExpired: it took more seconds than ``timeout``, and was ended.
    """
    with start(command, folder, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            end(process)
            raise
    _await_keepers(process)
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


@contextlib.contextmanager
def vanishing(folder: Path) -> Iterator[None]:
    """Let another process remove a folder if this process dies in the context."""
    lock = keeper.lock(folder)
    try:
        with subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        ) as removes:
            try:
                yield
            finally:
                removes.kill()
    finally:
        os.close(lock)


@contextlib.contextmanager
def own_folder(*, in_cache: bool = True) -> Iterator[Path]:
    """Yield a new folder for one run and remove it afterwards, and folders of killed runs.

    ``in_cache=False``: a temporary folder, whose path is short enough for sockets.
    """
    folder = _make_folder() if in_cache else Path(tempfile.mkdtemp(prefix="memcalc-"))
    try:
        with vanishing(folder):
            try:
                yield folder
            finally:
                # Of a keeper that was killed.
                if keeper.run_then(str(folder)):
                    keeper.remove(str(folder))
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()  # Nothing of it could be started.


def work_folder() -> Path:
    """Return the cache folder, or a temporary one of this process if nothing can be loaded there.

    Its children use the same folder, which goes with this process.
    """
    if os.environ.get(_WORK):
        return Path(os.environ[_WORK])
    with contextlib.suppress(OSError):
        kept = cache.folder().absolute()
        kept.mkdir(parents=True, exist_ok=True)
        if os.access(kept, os.W_OK | os.X_OK) and not UNLOADABLE.search(str(kept)):
            return kept
    folder = _temporary.enter_context(own_folder(in_cache=False))
    os.environ[_WORK] = str(folder)
    return folder


def _remove_work_folder(owner: int, getpid: Callable[[], int] = os.getpid) -> None:
    """Remove the temporary work folder at the end of its process, not of a fork.

    ``getpid``: as it was before a script replaced it.
    """
    if getpid() == owner:
        _temporary.close()


_temporary = contextlib.ExitStack()
atexit.register(_remove_work_folder, os.getpid())


def _make_folder() -> Path:
    """Make a run's folder in the cache, or in the temporary folder if the cache has no room."""
    try:
        runs = cache.folder().absolute() / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        _remove_stale_folders(runs)
        if _free(runs) < min(_ROOM, _free(tempfile.gettempdir())):
            raise OSError
        return Path(tempfile.mkdtemp(dir=runs))
    except OSError:
        return Path(tempfile.mkdtemp(prefix="memcalc-"))


def _free(folder: Path | str) -> int:
    """Return the free bytes of the disk that a folder is on."""
    return shutil.disk_usage(folder).free


def _remove_stale_folders(runs: Path) -> None:
    """Remove the folders of runs whose process is gone, as after a loss of power."""
    for folder in runs.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _SETTLES:
                lock = keeper.lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                try:
                    if keeper.run_then(str(folder), keeper.LATE):
                        keeper.remove(str(folder))
                finally:
                    os.close(lock)
