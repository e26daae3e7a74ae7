"""Which code of a program is followed for the values that it reads back: each thread by itself."""

import functools
import threading
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memcalc.engine.patches import Patches

_C: Any = torch._C
VALUES, COUNTS = "Fake", "TESTING_ONLY_GenericMode"
"""Dispatch keys: of operators that are followed outside of backward, and always."""

_BEFORE = "followed_before"
"""Attribute of a mode of fake tensors: how its thread was followed, for each time it is entered."""


def install(patches: Patches) -> None:
    """Follow this thread and those that the program starts; in backward, its Python code."""
    follow(True)

    def begin(original: Any, thread: threading.Thread) -> None:
        follow(True)
        original(thread)

    patches.wrap(threading.Thread, "_bootstrap_inner", begin)
    # Threads of autograd's engine follow as much as the one that calls it.
    around = functools.partial(_followed, False)
    if hasattr(torch.autograd.graph, "_engine_run_backward"):
        patches.wrap(torch.autograd.graph, "_engine_run_backward", around, (torch.autograd,))
    else:  # PyTorch before 2.3
        patches.wrap(torch.autograd, "backward", around)
        patches.wrap(torch.autograd, "grad", around)
    # Code of the program that autograd calls decides by values as any other does.
    around = functools.partial(_followed, True)
    patches.wrap(torch.autograd.function.BackwardCFunction, "apply", around)
    patches.when_imported("torch.utils.checkpoint", lambda module: _recomputed(patches, module))
    for owner, names in _HOOKS.items():
        for name in names:
            patches.wrap(owner, name, _hooked)
    # A compiler's tensors have no memory, and no numbers.
    patches.wrap(FakeTensorMode, "__enter__", _enter_fake_mode)
    patches.wrap(FakeTensorMode, "__exit__", _leave_fake_mode)


@functools.cache
def key(name: str) -> Any:
    """A dispatch key of PyTorch's."""
    return _C._dispatch_key_parse(name)


@functools.cache
def keys() -> Any:
    """Return the set of both keys."""
    return _C.DispatchKeySet(key(VALUES)) | _C.DispatchKeySet(key(COUNTS))


@functools.cache
def pass_through(name: str) -> Any:
    """Let operators that nobody follows pass a key, for good: threads outlive what is followed.

    Python's exit takes away what a ``torch.library.Library`` registers.
    """
    library = _C._dispatch_library("IMPL", "_", "")
    library.fallback_fallthrough(name)
    return library


def follow(wanted: bool) -> None:
    """Follow operators in this thread, or only those that read how large their result is."""
    _C._dispatch_tls_set_dispatch_key_included(key(COUNTS), True)
    _C._dispatch_tls_set_dispatch_key_included(key(VALUES), wanted)


def stop() -> None:
    """Follow no operator in this thread."""
    for name in (VALUES, COUNTS):
        _C._dispatch_tls_set_dispatch_key_included(key(name), False)


def _followed(wanted: bool, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function, followed or not; then this thread is followed as before."""
    before = _C._dispatch_tls_is_dispatch_key_included(key(VALUES))
    follow(wanted)
    try:
        return original(*args, **kwargs)
    finally:
        follow(before)


def _enter_fake_mode(original: Any, mode: Any) -> Any:
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


def _hooked(original: Any, owner: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
    return original(owner, functools.partial(_followed, True, hook), *args, **kwargs)


def _recomputed(patches: Patches, checkpoint: Any) -> None:
    """A forward that is run again decides as it did before."""

    def made(original: Any, frame: Any, run_again: Any, *args: Any, **kwargs: Any) -> None:
        original(frame, functools.partial(_followed, True, run_again), *args, **kwargs)

    patches.wrap(checkpoint._CheckpointFrame, "__init__", made)
