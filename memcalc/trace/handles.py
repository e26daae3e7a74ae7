"""cuBLAS' handles: which one a thread has on a device.

A thread that has ended leaves its handle, and the workspaces that it keeps, to the next one that
wants one. Source: aten/src/ATen/cuda/detail/DeviceThreadHandles.h (2.13).
"""

from __future__ import annotations

import threading

_Free = dict[int, list[int]]


class _Held:
    """What a thread has, by device; its handles are free again when it ends."""

    def __init__(self, free: _Free) -> None:
        self.by_device: dict[int, int] = {}
        self._free = free

    def __del__(self) -> None:
        for device, handle in self.by_device.items():
            self._free[device].append(handle)


class Handles:
    """All of a process."""

    def __init__(self) -> None:
        self._free: _Free = {}
        self._made = 0
        self._local = threading.local()

    def of(self, device: int) -> int:
        """The number of this thread's handle on a device."""
        held: _Held | None = getattr(self._local, "held", None)
        if held is None:
            held = self._local.held = _Held(self._free)
        handle = held.by_device.get(device)
        if handle is None:
            free = self._free.setdefault(device, [])
            if not free:
                self._made += 1
                free.append(self._made)
            handle = held.by_device[device] = free.pop()
        return handle
