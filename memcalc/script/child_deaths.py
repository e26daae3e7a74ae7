"""Reports child processes of a script that a signal ended, and ends a script that waits for one.

On a GPU, too, a script would wait for a dead child without end; here it ends after seconds.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import connection, process
from typing import Any

import torch

from memcalc.children.child import show
from memcalc.children.exit_reason import ending, oom_kills
from memcalc.engine import source_lines
from memcalc.engine import torch_internals as internals
from memcalc.engine.patches import Patches

_PATIENCE = 5.0
"""Seconds that the script may stand still at one instruction after a child was killed: a traceback
of its own, or a join, comes sooner."""
_POLLING = 120.0
"""Seconds without work for the GPU after which a script that moves is taken to poll the child."""
_END = signal.SIGUSR2
"""Tells the main thread, wherever it waits, that it waits without end."""


class ChildDeathError(BaseException):
    """The script waits for a child that a signal has ended; no script catches this by accident."""


class ChildDeaths:
    """Watches the children of this process."""

    def __init__(self) -> None:
        self._own = os.getpid()
        self._kills = oom_kills()
        self._sent: set[int] = set()
        """Children that the script itself sent a signal."""
        self._told: set[int] = set()
        self._started: dict[int, str] = {}
        """Lines that started a child, by its number."""

    def install(self, patches: Patches) -> None:
        """Patch process starts, waits and kills to report children that a signal ended."""
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(_END) is signal.SIG_DFL:
            signal.signal(_END, _raise_child_death)
            patches.also(lambda: signal.signal(_END, signal.SIG_DFL))
        patches.wrap(process.BaseProcess, "start", self._start)
        patches.wrap(os, "waitpid", self._waitpid)
        patches.wrap(os, "kill", self._kill)
        patches.wrap(subprocess.Popen, "_handle_exitstatus", self._handle_exit)

    def _start(self, original: Any, child: Any) -> None:
        """Start a child process, and watch it in a thread."""
        line = source_lines.find_line()
        original(child)
        if os.getpid() == self._own and child.pid is not None:
            self._started[child.pid] = line
            threading.Thread(target=self._watch, args=(child,), daemon=True).start()

    def _kill(self, original: Any, pid: int, number: int) -> None:
        """Send a signal, and note that the script itself sent it."""
        if number:
            self._sent.add(pid)
        original(pid, number)

    def _waitpid(self, original: Any, pid: int, options: int) -> tuple[int, int]:
        found: tuple[int, int] = original(pid, options)
        if found[0] and os.WIFSIGNALED(found[1]):
            self._report_death(found[0], os.WTERMSIG(found[1]))
        return found

    def _handle_exit(
        self, original: Any, child: Any, status: int, *args: Any, **kwargs: Any
    ) -> None:
        original(child, status, *args, **kwargs)
        if os.WIFSIGNALED(status):
            self._report_death(child.pid, os.WTERMSIG(status))

    def _watch(self, child: Any) -> None:
        """Wait for a child's end; if it was killed and the script waits for it, end the script."""
        connection.wait([child.sentinel])
        try:
            # The script itself is to find how the child ended: it stays to be waited for.
            seen = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return  # The script was told already, or another process started it.
        if seen is None or seen.si_code not in (os.CLD_KILLED, os.CLD_DUMPED):
            return
        if self._report_death(child.pid, seen.si_status) and _is_stuck():
            show("memcalc: the script waits for it and is ended.\n")
            signal.pthread_kill(threading.main_thread().ident or 0, _END)

    def _report_death(self, pid: int, number: int) -> bool:
        """Print that a signal ended a child; return False if the script itself sent it."""
        if pid in self._sent or pid in self._told or os.getpid() != self._own:
            return False
        self._told.add(pid)
        line = self._started.get(pid)
        name = f"process {pid} that the script started{f' at {line}' if line else ''}"
        show(f"memcalc: {ending(name, -number, kills=self._kills)}\n")
        return True


def end_children() -> None:
    """Kill the multiprocessing children that the script left running."""
    for child in multiprocessing.active_children():
        child.kill()


def _is_stuck() -> bool:
    """Watch the main thread; return True once it stands still or only polls, False if it ends."""
    main = threading.main_thread()
    here = begun = time.monotonic()
    before = worked = None
    while main.is_alive():
        frame = sys._current_frames().get(main.ident or 0)
        now, work = (frame, frame and frame.f_lasti), _count_allocations()
        here = here if now == before else time.monotonic()
        begun = begun if work == worked else time.monotonic()
        before, worked = now, work
        if time.monotonic() > min(here + _PATIENCE, begun + _POLLING):
            return True
        time.sleep(_PATIENCE / 10)
    return False


def _count_allocations() -> int:
    """Return the number of allocations and frees on all GPUs so far."""
    return sum(map(internals.events_so_far, range(torch.cuda.device_count())))


def _raise_child_death(*_: Any) -> None:
    raise ChildDeathError
