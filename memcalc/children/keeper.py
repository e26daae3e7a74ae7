"""The process between memcalc and a command: it ends all that the command started.

``python keeper.py OWNER GROUP FOLDER STATUS COMMAND...``; ``command.py`` starts it, in a process
group that neither Ctrl-C nor a signal to memcalc's group reaches. When its owner is
gone, however that died, the kernel says so (``PR_SET_PDEATHSIG``): it ends the command. Processes
that the command leaves behind become its children (``PR_SET_CHILD_SUBREAPER``), and end too. Where
there is a Python file ``then.py`` in FOLDER when all have ended, it is run. GROUP is the process
group of the command, STATUS a descriptor for the error number of one that cannot be started.

A keeper keeps a second one, which keeps the command: when either is killed, the other does this.

``python keeper.py FOLDER`` removes the folder when its owner and all keepers are gone: each holds
a lock on it.

``python keeper.py OWNER MARK`` asks all processes with a mark (``NAME=value``) in their environment
to end when its owner is gone.

It imports only what starts in a few milliseconds.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Collection
from typing import NoReturn

THEN, LATE = "then.py", "late"
"""What is run when a command has ended, and what it is told where that was a while ago."""
_PDEATHSIG, _SUBREAPER = 1, 36
_WAITS_FOR = {signal.SIGTERM, signal.SIGCHLD}
_prctl = ctypes.CDLL(None).prctl


def lock(folder: str | os.PathLike[str], how: int = fcntl.LOCK_SH) -> int:
    """Lock a folder against removal until the returned descriptor is closed.

    Raises:
        OSError: it is gone, or being removed.
    """
    number = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(number, how)
    except BaseException:
        os.close(number)
        raise
    return number


def keep(owner: int, group: int, folder: str, status: int, *command: str) -> NoReturn:
    """Run a command and exit with its code; end it if its owner, the parent process, dies."""
    if folder:
        lock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)  # Until this process ends.
    # Signals wait until they are asked for: none comes between two lines.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITS_FOR)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # How the second keeper is ended, who is not to be cut off, and the command.
    for ends in (signal.SIGTERM, signal.SIGKILL):
        adopt_orphans()
        _prctl(_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != owner:
            os._exit(1)
        owner, started = os.getpid(), os.fork()
        if started:
            os.close(status)
            _exit_with_child(started, ends, folder)
    _exec_command(command, owner, group, status)


def _exit_with_child(started: int, ends: signal.Signals, folder: str) -> NoReturn:
    """Wait for a child and exit with its code; pass SIGTERM on to it as the signal ``ends``."""
    ended = None
    while ended is None:
        if signal.sigwait(_WAITS_FOR) == signal.SIGTERM:
            os.kill(started, ends)
        ended = _reap(started)
    end_children()
    run_then(folder)
    _exit_with_code(os.waitstatus_to_exitcode(ended))


def _reap(awaited: int) -> int | None:
    """Wait for all children that have ended; return the status of one of them, or None."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found = ended[1] if ended[0] == awaited else found
    return found


def _exec_command(command: tuple[str, ...], keeper: int, group: int, status: int) -> NoReturn:
    """Replace this process by a command, which the kernel kills when its keeper dies."""
    try:
        os.setpgid(0, group)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITS_FOR)
        # Python ignores them.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.set_inheritable(status, False)
        _prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == keeper:
            os.execvp(command[0], command)
    except OSError as error:
        os.write(status, str(error.errno).encode())
    finally:
        os._exit(1)


def adopt_orphans() -> None:
    """Let processes below this one become its children, and not init's, when their parents end."""
    _prctl(_SUBREAPER, 1)


def end_children(spared: Collection[int] = ()) -> None:
    """Kill all children but the spared, and then theirs, which become children of this process."""
    while found := list_children() - {*spared}:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def list_children() -> set[int]:
    """Return the process IDs of this process's children, also of those that have ended."""
    found, own = set(), str(os.getpid())
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                _, parent = file.read().rpartition(b")")[2].split()[:2]
                if parent.decode() == own:
                    found.add(int(name))
    return found


def run_then(folder: str, *arguments: str) -> bool:
    """Run the file ``then.py`` of a folder, if there is one; return False if it fails.

    It needs the other files of the folder.
    """
    path = os.path.join(folder, THEN)
    if folder and os.path.exists(path):
        runs = [sys.executable, path, *arguments]
        if os.waitpid(os.spawnv(os.P_NOWAIT, sys.executable, runs), 0)[1]:
            return False
        os.unlink(path)
    return True


def _exit_with_code(code: int) -> NoReturn:
    """Exit with a code, or kill this process by the signal of a negative code."""
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def remove(folder: str) -> None:
    """Delete a folder with all in it, also folders that their owner cannot read."""
    import shutil

    for path, folders, _ in os.walk(folder):
        for name in folders:
            at = os.path.join(path, name)
            with contextlib.suppress(OSError):
                os.unlink(at) if os.path.islink(at) else os.chmod(at, 0o700)
    # With one folder open at a time: this process may open few.
    for path, _, files in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            for name in files:
                os.unlink(os.path.join(path, name))
            os.rmdir(path)
    # Where paths are too long for that.
    shutil.rmtree(folder, ignore_errors=True)


def remove_ownerless(folder: str) -> None:
    """Wait until no process has a lock on a folder, run its ``then.py``, and delete it."""
    number = lock(folder, fcntl.LOCK_EX)
    if run_then(folder):
        remove(folder)
    os.close(number)


def end_marked(owner: int, mark: str) -> None:
    """Wait until the owner is gone, and send SIGTERM to all processes with a mark."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITS_FOR)
    _prctl(_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == owner:
        signal.sigwait({signal.SIGTERM})
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if mark.encode() in file.read().split(b"\0"):
                os.kill(int(name), signal.SIGTERM)


if __name__ == "__main__":
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        if len(sys.argv) == 2:
            remove_ownerless(sys.argv[1])
        elif len(sys.argv) == 3:
            end_marked(int(sys.argv[1]), sys.argv[2])
        else:
            keep(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
    sys.exit(1)
