"""Decides in each thread whether operators are followed for the values that a program reads."""

import functools
import threading
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memcalc.engine.patches import Patches

_C: Any = torch._C
VALUES, COUNTS = "Fake", "TESTING_ONLY_GenericMode"
"""Dispatch keys of operators that are followed outside of backward, and always."""

_BEFORE = "followed_before"
"""Attribute of a mode of fake tensors: how its thread was followed, for each time it is entered."""


def install(patches: Patches) -> None:
    """Follow this thread and new threads of the program; in backward, only its Python code."""
    follow(True)

    def begin(original: Any, thread: threading.Thread) -> None:
        follow(True)
        original(thread)

    patches.wrap(threading.Thread, "_bootstrap_inner", begin)
    # Threads of autograd's engine take over the setting of the calling thread.
    around = functools.partial(_call_following, False)
    if hasattr(torch.autograd.graph, "_engine_run_backward"):
        patches.wrap(torch.autograd.graph, "_engine_run_backward", around, (torch.autograd,))
    else:  # PyTorch before 2.3
        patches.wrap(torch.autograd, "backward", around)
        patches.wrap(torch.autograd, "grad", around)
    # The program's own code that autograd calls may decide by values.
    around = functools.partial(_call_following, True)
    patches.wrap(torch.autograd.function.BackwardCFunction, "apply", around)
    patches.when_imported("torch.utils.checkpoint", lambda module: _wrap_recompute(patches, module))
    for owner, names in _HOOKS.items():
        for name in names:
            patches.wrap(owner, name, _wrap_hook)
    # Jagged tensors are split by lengths that they read, in backward as well.
    jagged = "torch.nested._internal.nested_tensor"
    patches.wrap_later(jagged, "NestedTensor.__torch_dispatch__", around)
    # A compiler's tensors have no memory, and no numbers.
    patches.wrap(FakeTensorMode, "__enter__", _enter_fake_mode)
    patches.wrap(FakeTensorMode, "__exit__", _leave_fake_mode)


@functools.cache
def key(name: str) -> Any:
    """Return PyTorch's dispatch key of this name."""
    return _C._dispatch_key_parse(name)


@functools.cache
def keys() -> Any:
    """Return the set of the two dispatch keys at which operators are followed."""
    return _C.DispatchKeySet(key(VALUES)) | _C.DispatchKeySet(key(COUNTS))


@functools.cache
def pass_through(name: str) -> Any:
    """Make operators without an implementation pass through a key, permanently.

    Threads may outlive the followed run, and a ``torch.library.Library`` would end with Python.
    """
    library = _C._dispatch_library("IMPL", "_", "")
    library.fallback_fallthrough(name)
    return library


def follow(wanted: bool) -> None:
    """Follow all operators in this thread, or only those whose result's size depends on values."""
    _C._dispatch_tls_set_dispatch_key_included(key(COUNTS), True)
    _C._dispatch_tls_set_dispatch_key_included(key(VALUES), wanted)


def stop() -> None:
    """Stop to follow operators in this thread."""
    for name in (VALUES, COUNTS):
        _C._dispatch_tls_set_dispatch_key_included(key(name), False)


def _call_following(wanted: bool, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function with operators followed or not, then restore the thread's setting."""
    before = _C._dispatch_tls_is_dispatch_key_included(key(VALUES))
    follow(wanted)
    try:
        return original(*args, **kwargs)
    finally:
        follow(before)


def _enter_fake_mode(original: Any, mode: Any) -> Any:
    """Enter a fake tensor mode, in which operators are not followed."""
    before = _C._dispatch_tls_is_dispatch_key_included(key(VALUES))
    vars(mode).setdefault(_BEFORE, []).append(before)
    follow(False)
    return original(mode)


def _leave_fake_mode(original: Any, mode: Any, *error: Any) -> None:
    original(mode, *error)
    if before := vars(mode).get(_BEFORE):
        follow(before.pop())


_HOOKS: dict[type, tuple[str, ...]] = {
    torch.Tensor: ("register_hook", "register_post_accumulate_grad_hook"),
    torch.nn.Module: ("register_full_backward_hook", "register_full_backward_pre_hook"),
}
"""Methods that take a function for autograd to call in backward."""


def _wrap_hook(original: Any, owner: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
    """Register a hook of backward in which operators are followed."""
    return original(owner, functools.partial(_call_following, True, hook), *args, **kwargs)


def _wrap_recompute(patches: Patches, checkpoint: Any) -> None:
    """Follow the forward that checkpointing recomputes, so that it decides as the first one."""

    def init_frame(original: Any, frame: Any, run_again: Any, *args: Any, **kwargs: Any) -> None:
        original(frame, functools.partial(_call_following, True, run_again), *args, **kwargs)

    patches.wrap(checkpoint._CheckpointFrame, "__init__", init_frame)
