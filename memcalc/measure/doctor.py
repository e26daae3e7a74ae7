"""Checks what this machine can measure, with advice on how to fix what it cannot."""

import contextlib
import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memcalc.catalog import gpus
from memcalc.errors import UsageError
from memcalc.files import cache
from memcalc.measure.gpu.nvml import Card, Nvml, NvmlError
from memcalc.measure.gpu.sampler import is_wsl
from memcalc.records.measurement import Fact
from memcalc.units import format_bytes
from memcalc.version import find_version

_PACKAGES = (
    ("transformers", "the models", True),
    ("bitsandbytes", "the 8-bit and paged optimizers", True),
    ("nvidia-ml-py", "NVML", True),
    ("peft", "--lora", False),
    ("torchao", "torchao's optimizers", False),
    ("accelerate", "MemoryCallback in transformers' Trainer", False),
)
_PATIENCE = 120


def examine() -> list[Fact]:
    """Return the facts about machine, PyTorch, GPUs, packages and folders, the verdict last."""
    torch = _probe()
    return [
        *_machine_facts(),
        *_torch_facts(torch),
        *_nvml_facts(),
        *_package_facts(),
        *_folder_facts(),
        *_measure_fact(torch),
    ]


def _machine_facts() -> Iterator[Fact]:
    memory = format_bytes(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    yield Fact(
        name="machine",
        value=f"{platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"{os.cpu_count()} processors, {memory} of main memory",
    )
    if is_wsl():
        yield Fact(
            name="WSL",
            value="GPU memory spills into main memory, and NVML gives no memory of processes",
            well=False,
            advice="a run that succeeds may still not fit; measure on plain Linux",
        )
    kind = _container_kind()
    if kind is not None:
        yield Fact(
            name="container",
            value=f"{kind}: NVML lists processes by the numbers of the host, or not at all",
            advice="start the container with --pid=host for NVML's own figure of a process",
        )


def _container_kind() -> str | None:
    """Return the kind of container this process runs in, or None outside of one.

    Source: files that Docker and Podman make, and the names of control groups.
    """
    if os.path.exists("/.dockerenv"):
        return "Docker"
    if os.path.exists("/run/.containerenv"):
        return "Podman"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "Kubernetes"
    with contextlib.suppress(OSError):
        groups = Path("/proc/1/cgroup").read_text(encoding="utf-8", errors="replace")
        return next((w for w in ("docker", "kubepods", "containerd", "lxc") if w in groups), None)
    return None


def _probe() -> dict[str, Any]:
    """Return PyTorch's version and GPUs, read in a child that a broken driver may end."""
    command = [sys.executable, "-m", "memcalc.measure.doctor"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
        found: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"error": f"did not answer in {_PATIENCE} seconds"}
    except ValueError:
        last = done.stderr.strip().rsplit("\n", 1)[-1][:200]
        return {"error": f"ended with exit code {done.returncode}: {last}"}
    return found


def _torch_facts(found: dict[str, Any]) -> Iterator[Fact]:
    if "error" in found:
        advice = "install it again: see pytorch.org/get-started"
        yield Fact(name="PyTorch", value=found["error"], well=False, advice=advice)
        return
    build = f"built for CUDA {found['cuda']}" if found["cuda"] else "built for the CPU only"
    yield Fact(
        name="PyTorch",
        value=f"{found['torch']}, {build}",
        well=found["cuda"] is not None,
        advice="" if found["cuda"] else "for a GPU, install a CUDA build: pytorch.org/get-started",
    )
    if found["cuda"] and not found["available"]:
        seen = "; ".join(found["warnings"]) or "PyTorch sees no GPU"
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
        advice = "CUDA_VISIBLE_DEVICES hides all: unset it" if hidden else "see the driver below"
        yield Fact(name="CUDA", value=seen, well=False, advice=advice)
    for index, gpu in enumerate(found["gpus"]):
        yield Fact(
            name=f"cuda:{index}",
            value=f"{gpu['name']}, {format_bytes(gpu['total'])}, compute capability "
            f"{gpu['capability']}, {_match_catalog(gpu['name'], gpu['total'])}, {gpu['uuid']}",
        )


def _match_catalog(name: str, total: int) -> str:
    """Return a phrase with the catalog's name of a GPU, or with the advice to name one."""
    try:
        return f"estimated as {gpus.find(name, total).name}"
    except UsageError:
        return "not in memcalc's table: estimates need --gpu"


def _nvml_facts() -> Iterator[Fact]:
    try:
        nvml = Nvml()
    except NvmlError as error:
        why = str(error).removeprefix("NVML: ")
        yield Fact(name="NVML", value=why, well=False, advice="without it, no GPU readings")
        return
    yield Fact(name="NVML", value=f"driver {nvml.driver}")
    try:
        for card in nvml.list_cards():
            yield _card_fact(card)
    except NvmlError as error:
        yield Fact(name="NVML", value=str(error), well=False)
    finally:
        nvml.close()


def _card_fact(card: Card) -> Fact:
    words = [card.name, card.uuid]
    if card.mig_enabled:
        words.append("cut into MIG slices")
    try:
        memory = card.read_memory()
        words.append(f"{format_bytes(memory.used)} of {format_bytes(memory.total)} in use")
        words.append(
            f"{format_bytes(memory.driver_reserved)} held by the driver"
            if memory.driver_reserved is not None
            else "the driver's own memory inside that (version 1)"
        )
        users = card.list_processes()
    except NvmlError as error:
        return Fact(name="card", value=", ".join((*words, str(error))), well=False)
    blind = any(user.bytes is None for user in users)
    if users:
        names = ", ".join(f"{user.name} ({user.pid})" for user in users)
        words.append(f"used by {names}" + (", memory of each unknown" if blind else ""))
    advice = "others on the card change what is measured: end them first" if users else ""
    return Fact(name="card", value=", ".join(words), well=not blind, advice=advice)


def _package_facts() -> Iterator[Fact]:
    for package, use, needed in _PACKAGES:
        if (version := find_version(package)) is not None:
            yield Fact(name=package, value=version)
        else:
            advice = f"for {use}: pip install {package}"
            yield Fact(name=package, value="not installed", well=not needed, advice=advice)
    if (version := find_version("pynvml")) is not None:
        yield Fact(
            name="pynvml",
            value=f"{version}, which is not NVIDIA's package",
            well=False,
            advice="pip uninstall pynvml, then pip install -U nvidia-ml-py",
        )


def _folder_facts() -> Iterator[Fact]:
    for name, folder, use in (
        (
            "cache",
            cache.folder(),
            "answers are kept here; $MEMCALC_CACHE and $MEMCALC_CACHE_SIZE change that",
        ),
        ("results", Path.cwd(), "where --output FILE lands unless it names a folder"),
    ):
        place = next((p for p in (folder, *folder.parents) if p.exists()), folder)
        writable = os.access(place, os.W_OK)
        yield Fact(
            name=name,
            value=f"{folder} ({use})" if writable else f"{folder} cannot be written",
            well=writable,
            advice="" if writable else "name another folder",
        )


def _measure_fact(torch: dict[str, Any]) -> Iterator[Fact]:
    works = "error" not in torch
    gpu = works and torch["available"]
    yield Fact(
        name="measure",
        value="memcalc measure works here "
        + ("with --device cuda and --device cpu" if gpu else "only with --device cpu")
        if works
        else "memcalc measure does not work here; memcalc estimate --method analytic does",
        well=works,
    )


def _print_torch_facts() -> None:
    """Print PyTorch's version, GPUs and warnings as JSON; the body of the child process."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = _query_torch()
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    texts = [" ".join(str(warning.message).split())[:300] for warning in caught]
    found["warnings"] = [text for text in texts if "CUDA" in text or "driver" in text]
    json.dump(found, sys.stdout)


def _query_torch() -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"torch": str(torch.__version__), "gpus": []}
    found["cuda"] = torch.version.cuda
    found["available"] = torch.cuda.is_available()
    for index in range(torch.cuda.device_count() if found["available"] else 0):
        properties = torch.cuda.get_device_properties(index)
        found["gpus"].append(
            {
                "name": properties.name,
                "uuid": str(getattr(properties, "uuid", "")),
                "total": properties.total_memory,
                "capability": f"{properties.major}.{properties.minor}",
            }
        )
    return found


if __name__ == "__main__":
    _print_torch_facts()
