"""What a script asks of NVIDIA's libraries, and which of them it would rather have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memcalc.script import place
from memcalc.script.patches import Patches

_CUDNN = 92_000
"""The version of cuDNN that PyTorch 2.13 brings along: 9.20.0."""
_TRIED = 10
"""How many of its engines ``torch.backends.cudnn.benchmark`` tries, unless told otherwise."""
_PLANS = 4096
"""How many plans of cuFFT PyTorch keeps (aten/src/ATen/native/cuda/CuFFTPlanCache.h, 2.13)."""


def install(patches: Patches, say: Callable[[str], None]) -> None:
    """Let the libraries be there.

    Args:
        patches: what is changed.
        say: told of choices that change nothing here.
    """
    for library in ("linalg", "blas"):
        prefer = held(f"_{{}}_{library}_preferred_backend", _default(library))
        for name, function in prefer.items():
            patches.set(torch._C, name, function)

        def told(original: Any, wanted: Any) -> None:
            say(place.named("of each library for linear algebra PyTorch's own choice runs"))
            original(wanted)

        patches.wrap(torch._C, f"_set_{library}_preferred_backend", told)
    _keep_plans(patches)
    patches.set(torch._C, "_has_cudnn", True)
    patches.set(torch.backends.cudnn, "_init", lambda: True)
    patches.set(torch.backends.cudnn, "version", lambda: _CUDNN)
    for name, function in held("_cuda_{}_cudnn_benchmark_limit", _TRIED).items():
        patches.set(torch._C, name, function)


def _keep_plans(patches: Patches) -> None:
    plans = vars(torch.backends.cuda.cuFFTPlanCache)
    for name, value in (("size", 0), ("max_size", _PLANS)):
        patches.set(plans[name], "getter", lambda *_, value=value: value)
        patches.set(plans[name], "setter", lambda *_: None)
    patches.set(torch, "_cufft_clear_plan_cache", lambda *_: None)


def held(name: str, value: Any) -> dict[str, Callable[..., Any]]:
    """A setting's two functions; nothing comes of it.

    Args:
        name: of both, with ``{}`` in place of ``get`` and ``set``.
        value: that it has at first.
    """
    values = [value]

    def put(wanted: Any) -> None:
        values[:] = [wanted]

    return {name.format("get"): lambda: values[0], name.format("set"): put}


def _default(library: str) -> Any:
    return getattr(torch._C, f"_get_{library}_preferred_backend")()
