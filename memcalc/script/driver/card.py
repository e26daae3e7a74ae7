"""The cards that the stand-in driver was told of, for those who ask NVML of it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from memcalc.script import nvml
from memcalc.script.patches import Patches


def install(patches: Patches, say: Callable[[str], None]) -> None:
    """Let ``pynvml`` find them: PyTorch's own C++ code finds a library in place of NVML."""
    driver = ctypes.CDLL("libcuda.so.1")
    for function in (driver.memcalc_free, driver.memcalc_total, driver.memcalc_used):
        function.restype = ctypes.c_uint64
    total = int(driver.memcalc_total())

    def free(index: int) -> int:
        # Before it first uses a GPU a process has no context there.
        return int(driver.memcalc_free(index)) if driver.memcalc_used(index) else total

    capability = divmod(int(os.environ["MEMCALC_DRIVER_CAPABILITY"]), 10)
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    card = nvml.Card(
        name=os.environ.get("MEMCALC_DRIVER_NAME", ""),
        capability=capability,
        total=total,
        kept=int(os.environ.get("MEMCALC_DRIVER_KEPT", "0")),
        free=free,
        cuda=version.value,
        gpus=int(os.environ.get("MEMCALC_DRIVER_DEVICES", "1")),
    )
    nvml.install(patches, card, say)
