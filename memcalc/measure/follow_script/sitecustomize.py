"""Writes what PyTorch's allocator holds, a line a sample: Python imports this as it starts.

It stands alone in its folder, which ``memcalc watch`` puts on the path of the command, and nothing
that goes wrong here reaches the program.
"""

import contextlib
import importlib
import os
import sys
import threading
import time
from typing import Any

_FOLDER = "MEMCALC_FOLLOWED"
_INTERVAL = 0.1
"""Seconds between samples."""


def _write_samples(path: str) -> None:
    """Append a line of optimizer steps, allocated and peak bytes to a file, again and again."""
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    counts = False
    with open(path, "ab", buffering=0) as file:
        while True:
            optimizer: Any = sys.modules.get("torch.optim.optimizer")
            if not counts and hasattr(optimizer, "register_optimizer_step_post_hook"):
                optimizer.register_optimizer_step_post_hook(count)
                counts = True
            cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
            if hasattr(cuda, "is_initialized") and cuda.is_initialized():
                devices = range(cuda.device_count())
                now = sum(cuda.memory_allocated(one) for one in devices)
                peak = sum(cuda.max_memory_allocated(one) for one in devices)
                file.write(f"{steps} {now} {peak}\n".encode())
            time.sleep(_INTERVAL)


def _start_sampling() -> None:
    path = os.path.join(os.environ[_FOLDER], str(os.getpid()))

    def run() -> None:
        with contextlib.suppress(Exception):
            _write_samples(path)

    threading.Thread(target=run, daemon=True).start()


def _import_next() -> None:
    """Import the ``sitecustomize`` that this one hides, if there is one."""
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [one for one in sys.path if os.path.abspath(one or ".") != own]
    this = sys.modules.pop("sitecustomize")
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")
    sys.modules.setdefault("sitecustomize", this)


if _FOLDER in os.environ:
    _import_next()
    _start_sampling()
