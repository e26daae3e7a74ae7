"""All calls of NVML, NVIDIA's library behind nvidia-smi.

Every call of the driver passes through ``query``, which turns an error into one sentence.
"""

import functools
from collections.abc import Iterator
from typing import Any

import msgspec

from memcalc.errors import MemcalcError
from memcalc.records.measurement import GpuProcess


class NvmlError(MemcalcError):
    """A failed reading of NVML; ``kind`` names the cause in one word."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


_CAUSES = {
    3: ("unsupported", "this GPU does not support that reading"),
    4: ("permission", "the driver does not allow this user that reading"),
    6: ("missing", "there is no such GPU"),
    9: ("no driver", "the NVIDIA driver is not loaded: install it, or start the machine again"),
    12: ("no driver", "there is no NVIDIA driver here (libnvidia-ml.so.1 is not found)"),
    13: ("old driver", "this driver does not know that reading: a newer one does"),
    15: ("lost", "the GPU has fallen off the bus: the machine must be started again"),
    16: ("lost", "the GPU needs a reset before it can be used again"),
    18: (
        "mismatch",
        "driver and library versions differ, as after an update of the driver: "
        "start the machine again",
    ),
    25: ("old driver", "this driver does not know that version of the reading"),
    28: ("missing", "there is no GPU here"),
}
"""Source: ``nvmlReturn_t`` in nvml.h, as nvidia-ml-py 13.615 has it."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a card, in bytes; ``nvidia-smi -q -d MEMORY``."""

    total: int
    used: int
    """Without the driver's own in ``v2``, with it in ``v1``; the two are never subtracted."""
    driver_reserved: int | None
    version: str


def query(name: str, *arguments: Any) -> Any:
    """Call one function of NVML by its name.

    Raises:
        NvmlError: it fails, or driver or binding do not have it.
    """
    binding = _binding()
    try:
        return getattr(binding, name)(*arguments)
    except binding.NVMLError as error:
        code = getattr(error, "value", 999)
        unknown = ("unknown", f"the driver answers {name} with error {code}")
        kind, sentence = _CAUSES.get(code, unknown)
        raise NvmlError(kind, f"NVML: {sentence}.") from None
    except (AttributeError, UnicodeDecodeError, binding.NVMLLibraryMismatchError):
        raise NvmlError(
            "binding", f"nvidia-ml-py cannot call {name}: pip install -U nvidia-ml-py."
        ) from None


@functools.cache
def _binding() -> Any:
    """Import pynvml, or raise what to install."""
    try:
        import pynvml
    except ImportError:
        raise NvmlError("binding", "NVML needs nvidia-ml-py: pip install nvidia-ml-py.") from None
    if not hasattr(pynvml, "nvmlMemory_v2"):
        raise NvmlError(
            "binding",
            "Another package than NVIDIA's answers to pynvml: "
            "pip uninstall pynvml, then pip install -U nvidia-ml-py.",
        )
    return pynvml


class Card:
    """A GPU, or a MIG slice of a GPU."""

    def __init__(self, handle: Any, *, mig: bool = False) -> None:
        self._handle = handle
        self.uuid: str = query("nvmlDeviceGetUUID", handle)
        self.name: str = query("nvmlDeviceGetName", handle)
        self.mig = mig
        self.mig_enabled = not mig and _has_mig_slices(handle)
        """True for a GPU that is cut into MIG slices: its figures cover several programs."""
        self._version: str | None = None

    def read_memory(self) -> Memory:
        """Read the card's memory, always by the same version: 2 if the driver has it, else 1.

        Raises:
            NvmlError: the reading failed.
        """
        found = None
        if self._version != "v1":
            try:
                found = query("nvmlDeviceGetMemoryInfo", self._handle, _binding().nvmlMemory_v2)
            except NvmlError as error:
                if error.kind != "old driver" or self._version == "v2":
                    raise
        self._version = "v1" if found is None else "v2"
        reserved = None if found is None else found.reserved
        found = query("nvmlDeviceGetMemoryInfo", self._handle) if found is None else found
        return Memory(
            total=found.total,
            used=found.used,
            driver_reserved=reserved,
            version=self._version,
        )

    def list_processes(self) -> list[GpuProcess]:
        """Return the processes that compute on the card, with their memory.

        Raises:
            NvmlError: the reading failed.
        """
        try:
            listed = query("nvmlDeviceGetComputeRunningProcesses_v3", self._handle)
        except NvmlError as error:
            if error.kind != "old driver":
                raise
            listed = query("nvmlDeviceGetComputeRunningProcesses_v2", self._handle)
        total = self.read_memory().total
        return [
            GpuProcess(
                pid=item.pid,
                name=_read_process_name(item.pid),
                # What is not available is a figure larger than any card, as is one of a driver that
                # lays the answer out differently.
                bytes=None if (item.usedGpuMemory or 0) > total else item.usedGpuMemory,
            )
            for item in listed
            if item.pid
        ]


def _read_process_name(pid: int) -> str:
    try:
        return str(query("nvmlSystemGetProcessName", pid)).rsplit("/", 1)[-1] or "unknown"
    except NvmlError:
        return "unknown"


def _has_mig_slices(handle: Any) -> bool:
    try:
        current, _ = query("nvmlDeviceGetMigMode", handle)
    except NvmlError:
        return False
    return bool(current)


class Nvml:
    """An open connection to the driver."""

    def __init__(self) -> None:
        """Connect.

        Raises:
            NvmlError: there is no driver, or it does not answer.
        """
        query("nvmlInit")
        self.driver: str = query("nvmlSystemGetDriverVersion")

    def close(self) -> None:
        """Close the connection to the driver; a failure is ignored."""
        try:
            query("nvmlShutdown")
        except NvmlError:
            return

    def list_cards(self) -> list[Card]:
        """Return all GPUs in the driver's order, each followed by its MIG slices.

        Raises:
            NvmlError: a card cannot be opened.
        """
        found: list[Card] = []
        for index in range(query("nvmlDeviceGetCount")):
            handle = query("nvmlDeviceGetHandleByIndex", index)
            card = Card(handle)
            found.append(card)
            if card.mig_enabled:
                found += _open_mig_slices(handle)
        return found


def _open_mig_slices(handle: Any) -> Iterator[Card]:
    for index in range(query("nvmlDeviceGetMaxMigDeviceCount", handle)):
        try:
            yield Card(query("nvmlDeviceGetMigDeviceHandleByIndex", handle, index), mig=True)
        except NvmlError as error:
            if error.kind != "missing":
                raise
