"""The state of ``torch.jit.trace``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from memcalc.trace.torch_private.names import ask

_state: Callable[[], Any] = ask("torch._C:_get_tracing_state")
_set_state: Callable[[Any], None] = ask("torch._C:_set_tracing_state")
_included: Callable[[], Any] = ask("torch._C:_dispatch_tls_local_include_set")
_excluded: Callable[[], Any] = ask("torch._C:_dispatch_tls_local_exclude_set")
_Keys: Any = ask("torch._C:_ForceDispatchKeyGuard")
_TRACER = ask("torch._C:_dispatch_key_parse")("Tracer")


@contextmanager
def untraced() -> Iterator[None]:
    """Below the tracer: nothing is traced, and sizes that are asked for are numbers.

    There its dispatch key is excluded, and nobody may begin to trace. Source:
    aten/src/ATen/TracerMode.h, ``set_dispatch_enabled`` (2.11 and 2.13).
    """
    state = _state()
    _set(None)
    try:
        yield
    finally:
        _set(state)


def _set(state: Any) -> None:
    with _Keys(_included(), _excluded().remove(_TRACER)):
        _set_state(state)
