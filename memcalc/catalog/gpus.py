"""The GPUs that memcalc knows (configs/gpus.toml)."""

from __future__ import annotations

import functools
import re
import tomllib
from typing import Any

import msgspec

from memcalc.errors import UsageError, unknown
from memcalc.files.shipped import configs
from memcalc.units import GIB, MIB


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU model. Sizes in bytes."""

    name: str
    memory: int
    """What CUDA offers a process (``cudaMemGetInfo``), or NVML's total where that is not known."""
    nvml_memory: int | None = None
    """What NVML and nvidia-smi report as total."""
    capability: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int
    bandwidth: int | None = None
    """Bytes per second."""
    aliases: tuple[str, ...] = ()
    source: str = ""


@functools.cache
def table() -> tuple[Gpu, ...]:
    """All GPUs, in the order of the file."""
    data = tomllib.loads((configs() / "gpus.toml").read_text(encoding="utf-8"))
    return tuple(_gpu(entry) for entry in data["gpu"])


def find(name: str) -> Gpu:
    """Find a GPU by name, tolerant of case, spaces and dashes.

    Raises:
        UsageError: no such GPU, or several; the closest names are offered.
    """
    by_name = {_plain(alias): gpu for gpu in table() for alias in (gpu.name, *gpu.aliases)}
    wanted = _plain(name)
    if wanted in by_name:
        return by_name[wanted]
    begun = [gpu for gpu in table() if wanted and _plain(gpu.name).startswith(wanted)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        names = ", ".join(gpu.name for gpu in begun)
        raise UsageError(f"There are several GPUs called {name!r}: name one of {names}.")
    raise unknown("GPU", name, [gpu.name for gpu in table()], hint="see memcalc list gpus.")


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())


def _gpu(entry: dict[str, Any]) -> Gpu:
    major, minor = str(entry["capability"]).split(".")
    mib = entry.get("nvml_mib")
    memory = int(entry["memory_gib"] * GIB) if "memory_gib" in entry else entry["nvml_mib"] * MIB
    bandwidth = entry.get("bandwidth_gbs")
    return Gpu(
        name=entry["name"],
        memory=memory,
        nvml_memory=mib * MIB if mib is not None else None,
        capability=(int(major), int(minor)),
        multiprocessors=entry["multiprocessors"],
        threads_per_multiprocessor=entry["threads_per_multiprocessor"],
        bandwidth=int(bandwidth * 1e9) if bandwidth is not None else None,
        aliases=tuple(entry.get("aliases", ())),
        source=entry.get("source", ""),
    )
