"""The process between memcalc and a command: it ends all that the command started.

``python keeper.py OWNER FOLDER STATUS COMMAND...``; ``command.py`` starts it, in a process group of
its own that neither Ctrl-C nor a signal to memcalc's group reaches. When its owner is gone, however
that died, the kernel says so (``PR_SET_PDEATHSIG``): it ends the command and removes
FOLDER. Processes that the command leaves behind become its children (``PR_SET_CHILD_SUBREAPER``),
and end too. Where there is a Python file ``then.py`` in FOLDER when all have ended, it is run.
STATUS is a descriptor for the error number of a command that cannot be started.

A keeper keeps a second one, which keeps the command: when either is killed, the other does this.

It imports only what starts in a few milliseconds.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

THEN, LATE = "then.py", "late"
"""What is run when a command has ended, and what it is told where that was a while ago."""
_PDEATHSIG, _SUBREAPER = 1, 36
_GONE = signal.SIGUSR1
"""The kernel's signal that the owner is gone, where SIGTERM is the owner's own."""
_prctl = ctypes.CDLL(None).prctl


class _ToldToEndError(BaseException):
    """The owner is gone, or wants no more of the command."""


def main(owner: int, folder: str, status: int, *command: str) -> NoReturn:
    """Run a command and end as it ends; end it with its owner."""
    group = os.getpgid(owner)

    def become_command(keeper: int) -> NoReturn:
        _become(command, keeper, group, status)

    def keep_command(keeper: int) -> NoReturn:
        _keep(keeper, folder, status, become_command)

    _keep(owner, folder, status, keep_command)


def _keep(owner: int, folder: str, status: int, become: Callable[[int], NoReturn]) -> NoReturn:
    """Fork a child, which is told who forked it, and end as it ends; end it with the owner."""
    _prctl(_SUBREAPER, 1)
    try:
        for number in (signal.SIGTERM, _GONE):
            signal.signal(number, _end)
        own, started = os.getpid(), os.fork()
        if not started:
            become(own)
        os.close(status)
        _prctl(_PDEATHSIG, _GONE)
        if os.getppid() != owner:
            raise _ToldToEndError(_GONE)
        ended, is_gone = None, False
        while ended is None:
            pid, found = os.waitpid(-1, 0)
            ended = found if pid == started else None
        code = os.waitstatus_to_exitcode(ended)
    except _ToldToEndError as told:
        code, is_gone = 1, told.args == (_GONE,)
    for number in (signal.SIGTERM, _GONE):
        signal.signal(number, signal.SIG_IGN)
    _end_children()
    done = run_then(folder)
    # While the last threads of the owner die it still is the parent.
    if done and folder and (is_gone or os.getppid() != owner):
        remove(folder)
    _end_like(code)


def _end(told: int, _: object) -> NoReturn:
    for number in (signal.SIGTERM, _GONE):
        signal.signal(number, signal.SIG_IGN)
    raise _ToldToEndError(told)


def _become(command: tuple[str, ...], keeper: int, group: int, status: int) -> NoReturn:
    """Be the command, in the group of the owner; the kernel kills it when the keeper is killed."""
    try:
        os.setpgid(0, group)
        # Python ignores the latter two.
        for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.set_inheritable(status, False)
        _prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == keeper:
            os.execvp(command[0], command)
    except OSError as error:
        os.write(status, str(error.errno).encode())
    finally:
        os._exit(1)


def _end_children() -> None:
    """Kill all children; theirs become children of this process, until there are none."""
    while found := _children():
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    found, own = [], str(os.getpid())
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                _, parent = file.read().rpartition(b")")[2].split()[:2]
                if parent.decode() == own:
                    found.append(int(name))
    return found


def run_then(folder: str, *arguments: str) -> bool:
    """Run what is to be done in a folder when a command has ended, once; returns False if it fails.

    What is in the folder is needed then.
    """
    path = os.path.join(folder, THEN)
    if folder and os.path.exists(path):
        runs = [sys.executable, path, *arguments]
        if os.waitpid(os.spawnv(os.P_NOWAIT, sys.executable, runs), 0)[1]:
            return False
        os.unlink(path)
    return True


def _end_like(code: int) -> NoReturn:
    """End with an exit code, or by the signal that it stands for."""
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def remove(folder: str) -> None:
    """Remove a folder; the kernel leaves some in it that their owner cannot look into."""
    import shutil

    for path, folders, _ in os.walk(folder):
        for name in folders:
            if not os.path.islink(os.path.join(path, name)):
                with contextlib.suppress(OSError):
                    os.chmod(os.path.join(path, name), 0o700)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
