"""bitsandbytes: its own host code for CUDA runs, over a library that does nothing.

What CUDA allocates is decided in ``bitsandbytes/backends/cuda/ops.py``, in Python: so those very
functions run on fake tensors, with every function of the C library inert. Read in 0.50.2.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import mmap
import pkgutil
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from memcalc.errors import EstimateError
from memcalc.kernels.target import Target
from memcalc.trace.torch_private.devices import raw_stream
from memcalc.trace.torch_private.dispatch import without_modes
from memcalc.trace.torch_private.names import replaced

NAMESPACE = "bitsandbytes"
"""Of its operators."""
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


class Library:
    """Stands for its C library."""

    def __init__(self) -> None:
        self._functions: dict[str, _Function] = {}

    def __getattr__(self, name: str) -> _Function:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._functions.setdefault(name, _Function(name))

    __getitem__ = __getattr__


class Kernels:
    """What runs each of its operators on a device.

    Args:
        target: the GPU, which some of its functions choose by.
        place: ``cuda`` or ``cpu``.
    """

    def __init__(self, target: Target, place: str = "cuda") -> None:
        self._target, self._place = target, place

    def __call__(self, func: Any) -> Kernel | None:
        """The function for an operator; ``None``: PyTorch runs it as it is."""
        schema = func._schema
        name = ".".join(filter(None, (schema.name, schema.overload_name)))
        return self._known.get(name)

    @functools.cached_property
    def _known(self) -> dict[str, Kernel]:
        known = {**_defined("default")[1]}
        module, own = _defined(self._place)
        known.update(own)
        if self._place == "cuda":
            gpu = (self._target.multiprocessors, *self._target.capability)
            vars(module).update(
                _gpu_dispatch_props=lambda index: gpu,
                _cuda_device_of=lambda tensor: contextlib.nullcontext(),
                _get_raw_stream=lambda index: 0,
                CUBLAS_Context=_Context,
            )
        return known


class _Context:
    """cuBLASLt's context, which nothing looks into."""

    @staticmethod
    def get_instance() -> Any:
        return SimpleNamespace(get_context=lambda device: 0)


def load() -> None:
    """Import it where it is there, before others do, and let it compile none of its functions.

    It asks for that as it is imported, which brings the whole of PyTorch's compiler along; nothing
    compiled runs on fake tensors.
    """
    if NAMESPACE not in sys.modules and importlib.util.find_spec(NAMESPACE) is not None:
        # Whoever needs it says what is wrong with it.
        with _uncompiled(), contextlib.suppress(Exception):
            importlib.import_module(NAMESPACE)


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    def compile(function: Any = None, **options: Any) -> Any:
        return function if function is not None else lambda given: given

    with replaced(torch, "compile", compile):
        yield


def _defined(backend: str) -> tuple[ModuleType, dict[str, Kernel]]:
    """Run the file of a backend anew, register nothing, and keep what it would register.

    The copy has caches of its own, so what it remembers of one GPU is not told of another.
    """
    operators = importlib.import_module("bitsandbytes._ops")
    extension = importlib.import_module("bitsandbytes.cextension")
    spec = importlib.util.find_spec(f"bitsandbytes.backends.{backend}.ops")
    assert spec is not None
    assert spec.loader is not None
    module, kernels = importlib.util.module_from_spec(spec), dict[str, Kernel]()

    def register(name: str, devices: Any, kernel: Kernel | None = None) -> Any:
        def keep(kernel: Kernel) -> Kernel:
            kernels[name] = kernel
            return kernel

        return keep if kernel is None else keep(kernel)

    with (
        replaced(operators, "register_kernel", register),
        replaced(extension, "lib", Library()),
        raw_stream(),
        _uncompiled(),
    ):
        spec.loader.exec_module(module)
    return module, kernels


@contextlib.contextmanager
def states_read(known: list[torch.Tensor]) -> Iterator[None]:
    """Tell it how weights were quantised, which it reads from a tensor on the device.

    Args:
        known: what those tensors hold, in the order in which they were brought there; is emptied.
    """
    functional = importlib.import_module("bitsandbytes.functional")
    unpack = functional.unpack_tensor_to_dict

    def read(tensor: torch.Tensor) -> Any:
        tensor.cpu()
        held = known.pop(0)
        assert held.shape == tensor.shape
        with without_modes():
            return unpack(held)

    with replaced(functional, "unpack_tensor_to_dict", read):
        yield


def forget() -> None:
    """Leave behind what it keeps for the life of a process: a fresh one has none of it."""
    importlib.import_module("bitsandbytes.functional").name2qmap.clear()


def updates_on_cpu() -> tuple[Callable[..., None], Callable[..., None]]:
    """Its updates on the CPU, of 32-bit and of 8-bit states (read in 0.50.2)."""
    path = "bitsandbytes.backends.cpu.ops"
    try:
        return (
            pkgutil.resolve_name(f"{path}:_optimizer_update_32bit_cpu"),
            pkgutil.resolve_name(f"{path}:_optimizer_update_8bit_blockwise_cpu"),
        )
    except (ImportError, AttributeError):
        raise EstimateError(
            "This bitsandbytes has another update on the CPU than 0.50.2, which was read: "
            "install that one, or leave the CPU out."
        ) from None
