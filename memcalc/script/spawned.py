"""Processes that a script starts by multiprocessing's ``spawn``: new Pythons without a GPU.

One that asks for the GPU would fail, and the script wait for its answer, or a pool start another
one, for ever. So it ends with a code of its own, and the run with it. Tensors without memory cannot
be sent there, which ends the run too. Only the standard library is imported here: this is what such
a process begins with.
"""

from __future__ import annotations

import _thread
import functools
import multiprocessing.process
import multiprocessing.spawn
import os
import signal
import threading
from multiprocessing.reduction import ForkingPickler
from multiprocessing.spawn import spawn_main
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from memcalc.script.patches import Patches

REFUSED = (
    "A process that the script starts by multiprocessing (spawn) asks for the GPU, or is sent "
    "weights or what the GPU has made, and only the script's own process has a simulated one: let "
    "that do the work, or measure it with memcalc run on a GPU."
)
_CODE = 117
_SIGNAL = signal.SIGRTMAX - 3
_ROOT = str(Path(__file__).parents[2])
_BEGINS = "from multiprocessing.spawn import spawn_main"
_INSTEAD = f"import sys; sys.path.append({_ROOT!r}); from {__name__} import begin as spawn_main"


class AskedElsewhere(BaseException):
    """Raised in the script, wherever it waits; says what to do instead, if not ``REFUSED``."""


def begin(**given: Any) -> None:
    """What such a process runs: what multiprocessing runs, but for the GPU."""

    def without_gpu(module: ModuleType) -> None:
        module._lazy_init = functools.partial(os._exit, _CODE)  # type: ignore[attr-defined]

    Patches().when_imported("torch.cuda", without_gpu)
    spawn_main(**given)


def install(patches: Patches, without_memory: type) -> None:
    """Look after processes that the script starts from now on.

    Args:
        patches: what is changed.
        without_memory: tensors that no process can be sent.
    """

    def line(original: Any, **given: Any) -> list[str]:
        # The path of Python is made of bytes.
        words = map(os.fsdecode, original(**given))
        return [word.replace(_BEGINS, _INSTEAD) for word in words]

    def reduced(_: Any, value: Any) -> Any:
        if isinstance(value, without_memory):
            _tell_main()
            raise AskedElsewhere
        return NotImplemented

    def start(original: Any, process: Any) -> None:
        original(process)
        popen: Any = getattr(process, "_popen", None)
        if getattr(popen, "method", "") == "spawn":
            # No thread of the script's: those have the GPU, and are shown to it.
            _thread.start_new_thread(_watch, (popen.pid,))

    if threading.current_thread() is threading.main_thread():
        before = signal.signal(_SIGNAL, _asked)

        def undo() -> None:
            signal.signal(_SIGNAL, before)

        patches.also(undo)
        patches.set(ForkingPickler, "reducer_override", reduced)
        patches.wrap(multiprocessing.spawn, "get_command_line", line)
        patches.wrap(multiprocessing.process.BaseProcess, "start", start)


def _asked(*_: Any) -> NoReturn:
    raise AskedElsewhere


def _tell_main() -> None:
    """In a thread, such as the one in which a queue pickles, nobody would hear of it."""
    main = threading.main_thread()
    if main.ident is not None and main is not threading.current_thread():
        signal.pthread_kill(main.ident, _SIGNAL)


def _watch(process: int) -> None:
    """Wait for its end, and leave it to be waited for."""
    try:
        ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return
    if ended is not None and ended.si_code == os.CLD_EXITED and ended.si_status == _CODE:
        _tell_main()
