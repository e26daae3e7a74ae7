"""bitsandbytes: its own host code for CUDA runs, over a library that does nothing.

What CUDA allocates is decided in ``bitsandbytes/backends/cuda/ops.py``, in Python: so those very
functions run on fake tensors, with every function of the C library inert. Read in 0.50.2.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import torch

from memcalc.script.patches import Patches
from memcalc.script.recorder import ScriptRecorder

Kernel = Callable[..., Any]
_managed: list[mmap.mmap] = []


class _Function:
    """A C function that does nothing and accepts every declaration."""

    argtypes: Any = None
    restype: Any = None

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any) -> int:
        if self.name != "cget_managed_ptr":
            return 0
        # Managed memory: pages of the host, there when they are touched.
        room = mmap.mmap(-1, max(1, int(args[0].value)))
        _managed.append(room)
        return ctypes.addressof(ctypes.c_char.from_buffer(room))


class _Library:
    """Stands for libbitsandbytes_cuda."""

    def __init__(self) -> None:
        self._functions: dict[str, _Function] = {}

    def __getattr__(self, name: str) -> _Function:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._functions.setdefault(name, _Function(name))

    __getitem__ = __getattr__


def install(patches: Patches, recorder: ScriptRecorder) -> None:
    """Be there before bitsandbytes loads its library and registers its kernels."""
    kernels: dict[str, dict[str, Kernel]] = {}

    def library(original: Any, loader: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        if "libbitsandbytes_cuda" in str(name):
            return _Library()
        return original(loader, name, *args, **kwargs)

    def register(original: Any, op: Any, devices: Any, func: Any = None, **kwargs: Any) -> Any:
        if not str(op).startswith("bitsandbytes::"):
            return original(op, devices, func, **kwargs)
        names = (devices,) if isinstance(devices, str) else tuple(devices or ("default",))

        def keep(kernel: Kernel) -> Any:
            kernels.setdefault(str(op), {}).update(dict.fromkeys(names, kernel))
            return original(op, devices, kernel, **kwargs)

        return keep if func is None else keep(func)

    def kernel(func: Any) -> Kernel | None:
        schema = func._schema
        known = kernels.get(".".join(filter(None, (schema.name, schema.overload_name))), {})
        return known.get("cuda") or known.get("default")

    patches.wrap(ctypes.LibraryLoader, "LoadLibrary", library)
    patches.wrap(torch.library, "register_kernel", register)
    recorder.kernels_of["bitsandbytes"] = kernel
