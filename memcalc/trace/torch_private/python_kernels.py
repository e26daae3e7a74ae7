"""Kernels that are written in Python, of operators that programs and packages bring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.trace.torch_private.dispatch import has_kernel
from memcalc.trace.torch_private.names import ask

Kernel = Callable[..., Any]
_defined: Any = ask("torch._library.custom_ops:OPDEFS")
"""What ``torch.library.custom_op`` made, by name; each holds its kernels by device."""
_simple: Any = ask("torch._library.simple_registry:singleton")
_OF_CUDA = ("CUDA", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
"""Keys under which CUDA looks for a kernel, the first that has one wins."""
_OWN = frozenset(
    "aten prims prim c10d _c10d_functional _c10d_functional_autograd _dtensor _native _quantized "
    "debug_mode_ops debugprims export fsdp inductor inductor_prims mkl mkldnn mkldnn_prepacked "
    "onednn profiler quantization quantized rngprims sparse static_runtime streams "
    "symm_mem".split()
)
"""Namespaces of PyTorch's own operators."""
_registered: dict[str, dict[str, Kernel]] = {}


def is_brought(func: Any) -> bool:
    """The operator is none of PyTorch's own."""
    return func.namespace not in _OWN


def register(
    original: Kernel,
    library: Any,
    name: Any,
    kernel: Kernel,
    key: str = "",
    *,
    with_keyset: bool = False,
    **more: Any,
) -> None:
    """Remember a kernel, in place of ``torch.library.Library.impl``."""
    original(library, name, kernel, key, with_keyset=with_keyset, **more)
    under = key or getattr(library, "dispatch_key", "")
    if library.ns in _OWN or with_keyset or under not in _OF_CUDA or not callable(kernel):
        return
    own = name.name() if isinstance(name, torch._ops.OpOverload) else str(name)
    full = own if "::" in own else f"{library.ns}::{own}"
    _registered.setdefault(full, {})[under] = kernel


def python_kernel(func: Any, kind: str) -> Kernel | None:
    """What runs an operator on a kind of device (``cuda``, ``cpu``), where that is Python."""
    defined = _defined.get(func.name())
    if defined is not None:
        kernels = defined._backend_fns
        found: Kernel | None = kernels.get(kind) or kernels.get(None)
        return found
    kernels = _registered.get(func.name(), {}) if kind == "cuda" else {}
    return next((kernels[key] for key in _OF_CUDA if key in kernels), None)


def has_fake(func: Any) -> bool:
    """Somebody says what its results are like."""
    if has_kernel(func.name(), "Meta"):
        return True
    entry = _simple.find(func.name())
    return entry.fake_impl.kernel is not None
