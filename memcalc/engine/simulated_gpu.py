"""The simulated GPU: the properties that the stub driver reports."""

import contextlib
import os
import platform
from collections.abc import Iterator

from memcalc.catalog import nccl
from memcalc.catalog.gpus import Gpu, Target, architectures
from memcalc.engine.stub import load as stub
from memcalc.errors import EstimateError
from memcalc.files import cache
from memcalc.records.replay import UNLIMITED
from memcalc.units import GIB

MEMORY = 80 * GIB
"""Bytes of the card where no GPU is named, an A100."""
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
"""Caches that a run may fill by a clock or a device: here they are the simulated GPU's own."""


def insert(gpu: Gpu | None, target: Target, *, room: int = UNLIMITED) -> None:
    """Let this process see this GPU (``None``: an A100), before CUDA begins.

    ``room``: bytes that allocations may take of it; by default nothing is ever full, so that a run
    tells what it needs.
    """
    os.environ.update(settings(gpu, target, room=room))
    stub.reload()


def resize(memory: int, room: int) -> None:
    """Let the card of this process be of another size, before CUDA begins.

    ``room``: as for ``insert``; where it is less, something else holds the rest.
    """
    sizes = {"MEMORY": memory, "ROOM": room, "OUTSIDE": max(memory - room, 0)}
    os.environ.update({f"MEMCALC_STUB_{name}": str(size) for name, size in sizes.items()})
    stub.reload()


@contextlib.contextmanager
def asked_without_cuda(target: Target) -> Iterator[None]:
    """Answer what packages ask of the GPU as they are imported, and do not begin CUDA for it.

    PyTorch keeps what the driver says of a GPU for the life of a process, and the process that
    prepares programs prepares them for several GPUs. bitsandbytes 0.50 asks as it is imported.
    """
    import torch

    from memcalc.engine.patches import Patches

    with Patches() as patches:
        patches.set(torch.cuda, "get_device_capability", lambda device=None: target.capability)
        yield


def check(target: Target) -> None:
    """See that PyTorch works with the card that was inserted.

    Raises:
        EstimateError: PyTorch has no kernels for the card.
        AnotherGpuError: CUDA had begun with another card.
    """
    if (refusal := without_kernels()) is not None:
        raise EstimateError(refusal)
    check_imports(target, begins=True)


class AnotherGpuError(EstimateError):
    """What was imported in this process began CUDA with another card than the plan's."""

    def __init__(self) -> None:
        """Say so; whoever can start another process does not hand this on."""
        super().__init__(
            "A module that this model imports initialized CUDA before its GPU was known: ask about "
            "it in a fresh Python."
        )


def check_imports(target: Target, *, begins: bool = False) -> None:
    """See that no import has begun CUDA with another card; ``begins``: begin it if none has.

    PyTorch keeps a card's properties for the life of a process and of its forks; torchao 0.18 has
    them read as it is imported.

    Raises:
        AnotherGpuError: one has.
    """
    import torch

    if not begins and not torch.cuda.is_initialized():
        return
    found = torch.cuda.get_device_properties(0)
    seen = (found.major, found.minor), found.multi_processor_count
    if seen != (target.capability, target.multiprocessors):
        raise AnotherGpuError


def without_kernels() -> str | None:
    """Why the PyTorch of this process cannot run on the card that was inserted, with one that can.

    The rule is that of ``_check_cubins`` in torch/cuda/__init__.py, which warns.
    """
    import torch

    major, minor = divmod(int(os.environ["MEMCALC_STUB_CAPABILITY"]), 10)
    built = [int(code[3:].rstrip("af")) for code in torch.cuda.get_arch_list() if code[:3] == "sm_"]
    if not built or any(code // 10 == major and code <= 10 * major + minor for code in built):
        return None
    told = ", ".join(f"{code // 10}.{code % 10}" for code in built)
    return (
        f"PyTorch {torch.__version__} has no kernels for GPUs of compute capability "
        f"{major}.{minor}; it has them for {told}. {_with_kernels((major, minor))}"
    )


def _with_kernels(capability: tuple[int, int]) -> str:
    """What to type for a PyTorch that has kernels for a card.

    Source: ``torch.cuda.get_arch_list()`` of PyPI's wheels of 2.4 to 2.14 for x86-64.
    """
    if platform.machine() != "x86_64":
        return "Name a release that has them with --torch."
    if capability >= (10, 0):
        return "Type --torch 2.8, the oldest on PyPI that does, or a newer one."
    newest = "2.7" if capability < (7, 0) else "2.10"
    return f"Type --torch {newest}, the newest on PyPI that does."


def settings(gpu: Gpu | None, target: Target, *, room: int = UNLIMITED) -> dict[str, str]:
    """What ``insert`` sets in the environment."""
    name, memory = _A100 if gpu is None else (gpu.driver_name, gpu.memory)
    architecture = architectures()[target.capability]
    told = {
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
        **{f"MEMCALC_STUB_{key}": str(value) for key, value in told.items()},
        **_own_caches(target),
    }


def _own_caches(target: Target) -> dict[str, str]:
    major, minor = target.capability
    try:
        kept = cache.folder().absolute()
    except OSError as error:
        # Others could foresee a folder among temporary ones, and put code into it.
        raise EstimateError(f"Nothing can be compiled: {error.strerror}.") from None
    folder = kept / "compiled" / f"sm{major}{minor}"
    with contextlib.suppress(OSError):
        # PyTorch makes no folder that is named to it, and warns (jit_utils.cpp, 2.14).
        (folder / CACHES["PYTORCH_KERNEL_CACHE_PATH"]).mkdir(parents=True, exist_ok=True)
    return {name: str(folder / inside) for name, inside in CACHES.items()}
