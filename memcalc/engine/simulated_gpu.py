"""Sets the properties of the simulated GPU that the stub driver reports."""

import contextlib
import os
import platform
from collections.abc import Callable, Iterator

from memcalc.catalog import nccl
from memcalc.catalog.gpus import Gpu, Target, architectures
from memcalc.children import command
from memcalc.engine.stub import load as stub
from memcalc.errors import EstimateError
from memcalc.files import extras
from memcalc.records.replay import UNLIMITED
from memcalc.units import GIB

MEMORY = 80 * GIB
"""Bytes of the card if no GPU is named: an A100."""
_A100 = ("NVIDIA A100-SXM4-80GB", MEMORY)
CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "PYTORCH_KERNEL_CACHE_PATH": "kernels",
    "CUDA_CACHE_PATH": "cuda",
    "PYTORCH_TUNABLEOP_FILENAME": "tunableop.csv",
    "VLLM_CACHE_ROOT": "vllm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}
"""Caches whose contents may depend on time or the device: a simulated GPU has separate ones."""


def insert(gpu: Gpu | None, target: Target, *, room: int = UNLIMITED) -> None:
    """Set the GPU that this process sees, before CUDA starts; None means an A100.

    ``room``: bytes that allocations may take; unlimited by default, so that a run shows its needs.
    """
    os.environ.update(settings(gpu, target, room=room))
    stub.reload()


def resize(memory: int, room: int) -> None:
    """Change the memory of this process's card, in bytes, before CUDA starts.

    ``room``: bytes that allocations may take; the rest counts as held by others.
    """
    sizes = {"MEMORY": memory, "ROOM": room, "OUTSIDE": max(memory - room, 0)}
    os.environ.update({f"MEMCALC_STUB_{name}": str(size) for name, size in sizes.items()})
    stub.reload()


@contextlib.contextmanager
def answer_without_cuda(target: Target) -> Iterator[None]:
    """Answer queries of the GPU's capability inside the block without starting CUDA.

    PyTorch keeps a GPU's properties for the life of a process, and a process that builds programs
    does so for several GPUs. During their imports bitsandbytes 0.50 queries the capability, and
    torchao 0.18 whether Triton runs on the GPU.
    """
    import torch

    from memcalc.engine.patches import Patches

    with Patches() as patches:
        patches.set(torch.cuda, "get_device_capability", lambda device=None: target.capability)
        patches.wrap_later("torch.utils._triton", "has_triton", _has_triton)
        yield


def _has_triton(original: Callable[[], bool]) -> bool:
    """Return True if Triton runs on the GPU; where CUDA has not started, if it is installed."""
    import torch

    return original() if torch.cuda.is_initialized() else extras.can_import("triton")


def check(target: Target) -> None:
    """Start CUDA, and check that PyTorch works with the inserted card.

    Raises:
        EstimateError: PyTorch has no kernels for the card.
        AnotherGpuError: CUDA had started with another card.
    """
    if (refusal := kernel_refusal()) is not None:
        raise EstimateError(refusal)
    check_imports(target, begins=True)


class AnotherGpuError(EstimateError):
    """An error because an import started CUDA in this process with another card than the plan's."""

    def __init__(self) -> None:
        """Set the message, which the user sees only if no other process can be started."""
        super().__init__(
            "A module that this model imports initialized CUDA before its GPU was known: ask about "
            "it in a fresh Python."
        )


def check_imports(target: Target, *, begins: bool = False) -> None:
    """Check that no import started CUDA with another card; ``begins``: start it if none has.

    PyTorch keeps a card's properties for the life of a process and of its forks; torchao 0.18 reads
    them during its import.

    Raises:
        AnotherGpuError: an import did.
    """
    import torch

    if not begins and not torch.cuda.is_initialized():
        return
    found = torch.cuda.get_device_properties(0)
    seen = (found.major, found.minor), found.multi_processor_count
    if seen != (target.capability, target.multiprocessors):
        raise AnotherGpuError


def kernel_refusal() -> str | None:
    """Return a sentence if this process's PyTorch has no kernels for the inserted card, or None.

    The sentence names a release that has them. The rule is from ``_check_cubins`` in
    torch/cuda/__init__.py, which warns.
    """
    import torch

    major, minor = divmod(int(os.environ["MEMCALC_STUB_CAPABILITY"]), 10)
    built = [int(code[3:].rstrip("af")) for code in torch.cuda.get_arch_list() if code[:3] == "sm_"]
    if not built or any(code // 10 == major and code <= 10 * major + minor for code in built):
        return None
    listed = ", ".join(f"{code // 10}.{code % 10}" for code in built)
    return (
        f"PyTorch {torch.__version__} has no kernels for GPUs of compute capability "
        f"{major}.{minor}; it has them for {listed}. {_kernel_advice((major, minor))}"
    )


def _kernel_advice(capability: tuple[int, int]) -> str:
    """Return a sentence with the option for a PyTorch that has kernels for a card.

    Source: ``torch.cuda.get_arch_list()`` of PyPI's wheels of 2.4 to 2.14 for x86-64.
    """
    if platform.machine() != "x86_64":
        return "Name a release that has them with --torch."
    if capability >= (10, 0):
        return "Type --torch 2.8, the oldest on PyPI that does, or a newer one."
    newest = "2.7" if capability < (7, 0) else "2.10"
    return f"Type --torch {newest}, the newest on PyPI that does."


def settings(gpu: Gpu | None, target: Target, *, room: int = UNLIMITED) -> dict[str, str]:
    """Return the environment variables that ``insert`` sets."""
    name, memory = _A100 if gpu is None else (gpu.driver_name, gpu.memory)
    architecture = architectures()[target.capability]
    properties = {
        "CAPABILITY": 10 * target.capability[0] + target.capability[1],
        "PROCESSORS": target.multiprocessors,
        "THREADS": architecture.threads,
        "SHARED": architecture.shared_memory,
        "SHARED_OF_BLOCK": architecture.shared_memory_of_block,
        "MEMORY": memory,
        "ROOM": room,
        "NAME": name,
        "LINKED": int(gpu is None or gpu.name in nccl.table().links["nvlink"]),
    }
    return {
        **{f"MEMCALC_STUB_{key}": str(value) for key, value in properties.items()},
        **_own_caches(target),
    }


def _own_caches(target: Target) -> dict[str, str]:
    """Return the variables that move compilers' caches to a folder of memcalc's cache."""
    major, minor = target.capability
    # Other users could guess a temporary folder, and put code into it: this one is new.
    folder = command.work_folder() / "compiled" / f"sm{major}{minor}"
    with contextlib.suppress(OSError):
        # PyTorch does not make this folder, and warns (jit_utils.cpp, 2.14).
        (folder / CACHES["PYTORCH_KERNEL_CACHE_PATH"]).mkdir(parents=True, exist_ok=True)
    return {name: str(folder / inside) for name, inside in CACHES.items()}
