"""Processes that a script starts by multiprocessing: they have no simulated GPU.

One that asks for the GPU ends with a code of its own. Where it was sent nothing by which the
script could talk to it, and the script has left the GPU alone, its work is done in the script's
process once the script waits for it: the first such process is simulated, as of ``mp.spawn``. Any
other ends the run: the script would wait for its answer, or a pool start another one, for ever.
Tensors without memory cannot be sent, which ends the run too. Only the standard library is
imported here: this is what a spawned process begins with.
"""

from __future__ import annotations

import _thread
import functools
import multiprocessing.process
import multiprocessing.spawn
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.spawn import spawn_main
from pathlib import Path
from typing import Any, NoReturn, Protocol

from memcalc.script.patches import Patches

REFUSED = (
    "A process that the script starts by multiprocessing asks for the GPU, or is sent "
    "weights or what the GPU has made, and only the script's own process has a simulated one: let "
    "that do the work, or measure it with memcalc run on a GPU."
)
_CODE = 117
_SIGNAL = signal.SIGRTMAX - 3
_ROOT = str(Path(__file__).parents[2])
_BEGINS = "from multiprocessing.spawn import spawn_main"
_INSTEAD = f"import sys; sys.path.append({_ROOT!r}); from {__name__} import begin as spawn_main"


_PLAIN = (str, bytes, int, float, complex, type(None), os.PathLike)
"""What a process can be sent that it cannot be talked to by, beside containers of that."""
_WORK = "_target", "_args", "_kwargs"
"""Attributes of a process that say what it does."""
_DEPTH = 6
"""Of containers in containers; what lies deeper is not looked at."""
_heard = threading.Event()
"""The script's thread has been told, or there is no script any more."""
_telling = threading.Lock()
_PATIENCE = 0.1
"""Seconds that it has to hear of it."""


class AskedElsewhere(BaseException):
    """Raised in the script, wherever it waits; says what to do instead, if not ``REFUSED``."""


class Memory(Protocol):
    """The simulated GPU's."""

    events: list[int]
    begins: Callable[[], None] | None


def begin(**given: Any) -> None:
    """What such a process runs: what multiprocessing runs, but for the GPU."""

    def without_gpu(module: Any) -> None:
        module.is_available, module.device_count = lambda: True, lambda: 1
        _leave_where_asked(module)

    def without_group(module: Any) -> None:
        join = module.init_process_group

        @functools.wraps(join)
        def instead(backend: Any = None, *args: Any, **kwargs: Any) -> None:
            if "nccl" in str(backend).lower():
                os._exit(_CODE)
            join(backend, *args, **kwargs)

        module.init_process_group = instead

    patches = Patches()
    patches.when_imported("torch.cuda", without_gpu)
    patches.when_imported("torch.distributed", without_group)
    spawn_main(**given)


def _leave_where_asked(module: Any) -> None:
    """Where ``torch.cuda`` is asked for the GPU, the process ends."""
    for name in ("_lazy_init", "set_device", "Stream", "Event"):
        setattr(module, name, lambda *args, **kwargs: os._exit(_CODE))


class Started:
    """What the script has started, in that order, and which of it ran here.

    Args:
        memory: of the GPU that the script has.
        say: told which process runs here.
    """

    def __init__(self, memory: Memory, say: Callable[[str], None]) -> None:
        self._memory, self._say = memory, say
        self._all: dict[BaseProcess, tuple[Any, ...]] = {}
        """With its function and what that is given, which a started one forgets."""
        self._ran = False

    def start(self, original: Any, process: BaseProcess) -> None:
        """Start it, and hear of it if it asks for the GPU."""
        self._all[process] = tuple(getattr(process, name, None) for name in _WORK)
        original(process)
        popen: Any = getattr(process, "_popen", None)
        if getattr(popen, "method", "") == "spawn" and not self._can_run(process):
            # No thread of the script's: those have the GPU, and are shown to it.
            _thread.start_new_thread(_watch, (popen.pid,))

    def run_forked(self, original: Any, process: BaseProcess, *args: Any, **kwargs: Any) -> Any:
        """Nobody would see what a copy of this process puts on its GPU."""
        if getattr(process, "_parent_pid", None) != os.getpid() and self._can_run(process):
            self._memory.begins = functools.partial(os._exit, _CODE)
            _leave_where_asked(sys.modules["torch.cuda"])
        return original(process, *args, **kwargs)

    def join(self, original: Any, process: BaseProcess, timeout: Any = None) -> None:
        """Wait for it; if it asked for the GPU, it runs now, unless one has before."""
        original(process, timeout)
        popen: Any = getattr(process, "_popen", None)
        if popen is None or popen.returncode != _CODE or process not in self._all:
            return
        if not self._ran and not self._can_run(process):
            # A pool waits in a thread, which may have seen the end before whoever watches for it.
            _refuse()
        popen.returncode = 0 if self._ran else self._here(process)

    def end(self) -> None:
        """The script's last line is done: Python waits for what is no daemon."""
        for process in self._all:
            if not process.daemon and not getattr(process, "_closed", False):
                process.join()

    def _here(self, process: BaseProcess) -> int:
        self._ran = True
        work = self._all[process]
        alike = sum(other[0] is work[0] for other in self._all.values())
        for name, value in zip(_WORK, work, strict=True):
            setattr(process, name, value)
        self._say(f"of {alike} processes that the script starts for the GPU the first runs, here")
        try:
            process.run()
        except SystemExit as error:
            return error.code if isinstance(error.code, int) else int(error.code is not None)
        except Exception:
            traceback.print_exc()
            return 1
        return 0

    def _can_run(self, process: BaseProcess) -> bool:
        return not self._memory.events and _is_plain(self._all.get(process, (None,))[1:])


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Nothing in it waits for another process, as queues, pipes and events do."""
    if isinstance(value, _PLAIN) or type(value).__module__ == "torch":
        return True
    inside = getattr(value, "__dict__", None)
    if isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    elif isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(inside, dict) and "multiprocessing" not in type(value).__module__:
        parts = list(inside.values())
    else:
        return False
    return depth < _DEPTH and all(_is_plain(part, depth + 1) for part in parts)


def install(patches: Patches, without_memory: type, started: Started) -> None:
    """Look after processes that the script starts from now on.

    Args:
        patches: what is changed.
        without_memory: tensors that no process can be sent.
        started: is told of all.
    """

    def line(original: Any, **given: Any) -> list[str]:
        # The path of Python is made of bytes.
        words = map(os.fsdecode, original(**given))
        return [word.replace(_BEGINS, _INSTEAD) for word in words]

    def reduced(_: Any, value: Any) -> Any:
        if isinstance(value, without_memory):
            _refuse()
        return NotImplemented

    if threading.current_thread() is threading.main_thread():
        _heard.clear()
        before = signal.signal(_SIGNAL, _asked)

        def undo() -> None:
            _heard.set()
            signal.signal(_SIGNAL, before)

        patches.also(undo)
        # A warm process imported multiprocessing elsewhere; a path of the script starts there.
        patches.set(multiprocessing.process, "ORIGINAL_DIR", os.getcwd())
        patches.set(ForkingPickler, "reducer_override", reduced)
        patches.wrap(multiprocessing.spawn, "get_command_line", line)
        patches.wrap(BaseProcess, "start", started.start)
        patches.wrap(BaseProcess, "join", started.join)
        patches.wrap(BaseProcess, "_bootstrap", started.run_forked)


def _asked(*_: Any) -> NoReturn:
    _heard.set()
    raise AskedElsewhere


def _refuse() -> NoReturn:
    """End the run, in whichever thread this is."""
    _tell_main()
    raise AskedElsewhere


def _tell_main() -> None:
    """In a thread, such as the one in which a queue pickles, nobody would hear of it."""
    main = threading.main_thread()
    if main.ident is None or main is threading.current_thread():
        return
    with _telling:
        while not _heard.is_set():
            # One that comes as a call is about to wait does not wake it.
            signal.pthread_kill(main.ident, _SIGNAL)
            _heard.wait(_PATIENCE)


def _watch(process: int) -> None:
    """Wait for its end, and leave it to be waited for."""
    try:
        ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return
    if ended is not None and ended.si_code == os.CLD_EXITED and ended.si_status == _CODE:
        _tell_main()
