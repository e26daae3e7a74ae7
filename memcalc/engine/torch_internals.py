"""Wraps the private names of PyTorch that the engine uses, each with its source.

It also reads the event tree of PyTorch's profiler, which has the operator of each block.

Read in PyTorch 2.2 to 2.14.
"""

import ctypes
import functools
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import torch

from memcalc.engine.stub import load as stub
from memcalc.records.levels import Levels

_memory: Any = torch.cuda.memory
_C: Any = torch._C
_record_history, _snapshot = _memory._record_memory_history, _memory._snapshot
"""PyTorch's original functions: a followed program calls patched ones, and keeps the history on."""
DRAWS = (
    *("uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_"),
    *("kaiming_uniform_", "kaiming_normal_", "orthogonal_", "sparse_"),
)
"""Functions of ``torch.nn.init`` that draw weights."""
EVERYTHING = 10**8
"""The most entries of the allocator's history: more than any run of a few steps makes."""


def start_history(*, with_lines: bool) -> None:
    """Start the caching allocator's history (torch/cuda/memory.py).

    ``with_lines``: also record the Python frames of each allocation, which takes time.
    """
    context = "alloc" if with_lines else None
    _record_history("all", context=context, stacks="python", max_entries=EVERYTHING)


def see_simulated_gpus(patches: Any) -> None:
    """Make PyTorch get the visible GPUs from the stub driver (torch/cuda/__init__.py).

    PyTorch itself reads ``CUDA_VISIBLE_DEVICES``, and would not see GPUs of a simulated machine.
    """
    patches.set(torch.cuda, "_parse_visible_devices", stub.visible)


def keywords_of_call() -> dict[str, Any]:
    """Return the keyword arguments of the module call around a global hook, or an empty dict.

    PyTorch passes only positional arguments to the hook. The keywords are local variables of
    ``Module._call_impl`` (torch/nn/modules/module.py).
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != torch.nn.modules.module.__file__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame.f_locals.get("kwargs") or {} if frame is not None else {}


def stop_lines() -> None:
    """Stop recording lines of code in the history, if this release keeps the history then."""
    if "clear_history" in inspect.signature(_record_history).parameters:
        _record_history("all", context=None, max_entries=EVERYTHING)


def stop_history() -> dict[str, Any]:
    """Return the snapshot of history and segments, and stop the history.

    PyTorch imports the compiler to find lines of generated code, which takes half a second. If the
    compiler is not imported, no code was generated, so that import is prevented.
    """
    compiled = "torch._inductor" in sys.modules
    if not compiled:
        vars(torch)["_inductor"] = None
    try:
        snapshot: dict[str, Any] = _snapshot()
    finally:
        if not compiled:
            del vars(torch)["_inductor"]
    _record_history(None)
    return snapshot


def private_pools(snapshot: dict[str, Any], device: int) -> dict[int, int]:
    """Return a GPU's bytes in private pools, such as pools of CUDA graphs, by stream."""
    found: dict[int, int] = {}
    for segment in snapshot["segments"]:
        if segment["device"] == device and any(segment.get("segment_pool_id", ())):
            stream = segment["stream"]
            found[stream] = found.get(stream, 0) + segment["total_size"]
    return found


def resume_history(device: int) -> list[dict[str, Any]]:
    """Start a new history; return the living blocks as entries of a history."""
    living = []
    for segment in _memory._snapshot()["segments"]:
        address = segment["address"]
        for block in segment["blocks"] if segment["device"] == device else ():
            if block["state"] == "active_allocated":
                size, stream = block["requested_size"], segment["stream"]
                living.append({"action": "alloc", "addr": address, "size": size, "stream": stream})
            address += block["size"]
    start_history(with_lines=False)
    return living


def events_so_far(device: int) -> int:
    """Return the number of allocations and frees since the process began.

    The stub driver counts them; on a real GPU PyTorch's counters are read in eight microseconds.
    """
    moments = _moments()
    return events_in(_C._cuda_memoryStats(device)) if moments is None else int(moments[device])


def events_in(stats: dict[str, Any]) -> int:
    """Return the number of allocations and frees in an allocator's counters."""
    counted = stats.get("allocation")
    return counted["all"]["allocated"] + counted["all"]["freed"] if counted else 0


@functools.cache
def _moments() -> Any:
    """Return the stub driver's event count of each GPU, or None with NVIDIA's driver."""
    moments = stub.function("moments", ctypes.POINTER(ctypes.c_uint64))
    return None if moments is None else moments()


class _Arrival(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint64), ("moment", ctypes.c_uint64))


def arrivals() -> list[tuple[int, int]]:
    """Return the moment and address of each copy from the host, in order."""
    arrived = stub.function("arrived", ctypes.c_uint64)
    if arrived is None:
        return []
    kept = stub.function("arrivals", ctypes.POINTER(_Arrival))()
    return [(kept[n].moment, kept[n].address) for n in range(arrived())]


def peak_of_other_processes() -> int:
    """Return the peak bytes that other processes over the stub driver held of a GPU, or 0."""
    most = stub.function("others", ctypes.c_uint64)
    return 0 if most is None else int(most())


def set_allocator(settings: str) -> None:
    """Apply settings like ``PYTORCH_ALLOC_CONF`` to the caching allocator, before its first use."""
    _memory._set_allocator_settings(settings)


# A build without CUDA has none of these.
raw_alloc: Any = getattr(_C, "_cuda_cudaCachingAllocator_raw_alloc", None)
"""Allocate bytes on a stream, by its handle; returns the address (torch/csrc/cuda/Module.cpp)."""
raw_delete: Any = getattr(_C, "_cuda_cudaCachingAllocator_raw_delete", None)
"""Free an address."""
watch_out_of_memory: Any = getattr(_C, "_cuda_attach_out_of_memory_observer", None)
"""Register a function to call when a request fails, with the device and the requested, total and
free bytes."""


def retries() -> int:
    """Return how often the allocator emptied its cache to serve a request."""
    return int(_C._cuda_memoryStats(0)["num_alloc_retries"])


def levels(kind: str = "current") -> Levels:
    """Return the first GPU's requested, allocated, active and reserved bytes, or their peaks."""
    return levels_in(_C._cuda_memoryStats(0), kind)


def levels_in(stats: Any, kind: str) -> Levels:
    """Return the levels in a GPU's counters; ``kind``: current or peak."""
    rungs = Levels.__struct_fields__
    return Levels(**{rung: stats[f"{rung}_bytes"]["all"][kind] for rung in rungs})


def use_one_thread() -> None:
    """Set PyTorch to one thread on the host, so that parallel runs do not slow each other."""
    torch.set_num_threads(1)


def allow_cuda_after_fork() -> None:
    """Permit CUDA over the stub driver in a forked process.

    Forks do not break the stub driver. PyTorch refuses CUDA if the parent asked for the number of
    GPUs (torch/cuda/__init__.py).
    """
    torch.cuda._is_in_bad_fork = lambda: False


def profiler_events(profiler: Any) -> Any:
    """Return the event tree of a finished ``torch.profiler.profile``."""
    return profiler.profiler.kineto_results.experimental_event_tree()


def unwrap(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside all wrappers of ``torch.func`` (torch/csrc/functorch/init.cpp)."""
    while _C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _C._functorch.get_unwrapped(tensor)
    return tensor


def outer_leaf(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the leaf inside wrappers of ``torch.func``, or None if a tensor was computed."""
    while tensor.grad_fn is None and _C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _C._functorch.get_unwrapped(tensor)
    return tensor if tensor.grad_fn is None else None


def is_functorch_tensor(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is a wrapper of ``torch.func`` around another."""
    return bool(_C._functorch.is_functorch_wrapped_tensor(tensor))


def nested_gradients() -> int:
    """Return the number of active ``torch.func`` transforms that take gradients."""
    levels = _C._functorch.get_interpreter_stack() or ()
    return sum(one.key() == _C._functorch.TransformType.Grad for one in levels)


def memory_profiler(*, with_dtypes: bool = False) -> Any:
    """Return a silent profiler of operators and their allocations on CPU and GPU."""
    os.environ["KINETO_LOG_LEVEL"] = "99"
    profiler: Any = torch.profiler
    cpu = profiler.ProfilerActivity.CPU
    return profiler.profile(activities=[cpu], profile_memory=True, record_shapes=with_dtypes)


class Allocation(NamedTuple):
    """An allocation or free on the CPU, as the profiler records it."""

    when: int
    """Time in nanoseconds."""
    bytes: int
    """Size of the block; negative for a free."""
    address: int
    total: int
    """Bytes that the allocator holds then, in the threads that it counts."""
    in_collective: bool
    on_main_thread: bool


_COLLECTIVES = ("c10d::", "gloo:")
"""Prefixes of operators that send and receive."""
_FIRST_THREAD = 1
"""Number that PyTorch gives to the first thread it runs in."""


def cpu_allocations(profiler: Any) -> list[Allocation]:
    """Return the allocations and frees on the CPU, in order of time."""
    found: list[Allocation] = []
    waiting = [(event, False) for event in profiler_events(profiler)]
    while waiting:
        event, inside = waiting.pop()
        kind, fields = event.typed
        if kind.name == "Allocation" and fields.device.type == "cpu":
            found.append(
                Allocation(
                    when=event.start_time_ns,
                    bytes=fields.alloc_size,
                    address=fields.ptr,
                    total=fields.total_allocated,
                    in_collective=inside,
                    on_main_thread=event.start_tid == _FIRST_THREAD,
                )
            )
        inside = inside or event.name.startswith(_COLLECTIVES)
        waiting.extend((child, inside) for child in event.children)
    return sorted(found, key=lambda one: one[:2])


def graph_breaks() -> Iterator[str]:
    """Yield notes on graph breaks and skipped CUDA graphs of ``torch.compile``.

    Source: torch/_dynamo/utils.py. It yields nothing if the compiler was not used.
    """
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return
    counters = utils.counters
    breaks = [text.partition("\n")[0] for text in counters["graph_break"]]
    if breaks:
        why = "; ".join(breaks[:3])
        yield f"torch.compile leaves graph breaks ({why}): code there runs as it is"
    skipped = counters["inductor"]["cudagraph_skips"]
    if skipped:
        yield f"{skipped} graphs run without CUDA graphs (TORCH_LOGS=perf_hints says why)"


_MAKERS = (
    "aten::empty",
    "aten::full",
    "aten::new_empty",
    "aten::new_zeros",
    "aten::ones",
    "aten::resize_",
    "aten::zeros",
)
"""Operators that make a tensor for the operator around them."""
_VIEWS = {"aten::select", "aten::slice"}
"""Operators that only make a view: neither they nor the operator inside allocates. In models that
loop over experts they are half of all operators."""
_COMPILED = ("## Call CompiledFxGraph", "CompiledFunction", "Torch-Compiled Region")
"""Prefixes of events around code compiled by ``torch.compile``."""
_KINDS: Any = _C._profiler._EventType
_ALLOCATION, _OPERATOR = _KINDS.Allocation, _KINDS.TorchOp
_NODE = "autograd::engine::evaluate_function: "


class ProfiledBlock(msgspec.Struct):
    """A block as the profiler recorded it."""

    address: int
    op: str
    """The innermost operator around its allocation, without namespace."""
    dtype: str = ""
    """The dtype of the first tensor that an operator read there; empty if none did."""
    scratch: bool = False
    """True if it was freed before the end of the operator that allocated it."""
    until: str = ""
    """The node of autograd's graph that ran when it was freed."""


class _Frame(msgspec.Struct):
    """The operator and autograd node around an event."""

    op: str
    end: int
    node: str


def blocks_by_operator(profiler: Any, device: str = "cuda") -> list[ProfiledBlock]:
    """Return the blocks that a device allocated while the profiler ran, in order."""
    changes: list[tuple[int, int, int, _Frame]] = []
    reads: list[tuple[int, int, torch.dtype]] | None = [] if profiler.record_shapes else None
    _collect_changes(profiler_events(profiler), _Frame("", 0, ""), device, changes, reads)
    found: list[ProfiledBlock] = []
    alive: dict[int, tuple[ProfiledBlock, int]] = {}
    changes.sort(key=lambda change: change[0])
    spans: dict[int, list[tuple[int, ProfiledBlock]]] = {}
    for moment, address, size, frame in changes:
        if size > 0:
            block = ProfiledBlock(address=address, op=frame.op)
            alive[address] = block, frame.end
            spans.setdefault(address, []).append((moment, block))
            found.append(block)
        elif address in alive:
            block, end = alive.pop(address)
            block.scratch = moment < end
            block.until = frame.node
    for moment, address, dtype in reads or ():
        for born, block in reversed(spans.get(address, ())):
            if born <= moment:
                block.dtype = block.dtype or str(dtype).removeprefix("torch.")
                break
    return found


def _collect_changes(
    events: Any,
    frame: _Frame,
    device: str,
    changes: list[tuple[int, int, int, _Frame]],
    reads: list[tuple[int, int, torch.dtype]] | None,
) -> None:
    """Append the allocations, frees and reads of an event tree to ``changes`` and ``reads``."""
    for event in events:
        kind, children = event.tag, event.children
        if kind == _ALLOCATION:
            fields = event.extra_fields
            if fields.device.type == device:
                changes.append((event.start_time_ns, fields.ptr, fields.alloc_size, frame))
            continue
        if kind == _OPERATOR and reads is not None:
            for tensor in event.extra_fields.inputs:
                key = getattr(tensor, "storage_data_ptr", None)
                if key is not None:
                    reads.append((event.start_time_ns, key, tensor.dtype))
        # Most operators allocate nothing, and looking at each would take as long as a step.
        if not children:
            continue
        inner = frame
        if kind == _OPERATOR:
            name = event.name
            if name in _VIEWS:
                continue
            if name.startswith(_NODE):
                inner = _Frame(frame.op, frame.end, name.removeprefix(_NODE))
            elif name.startswith(_COMPILED):
                inner = _Frame("compiled code", 0, frame.node)
            elif not (frame.op and name.startswith(_MAKERS)):
                inner = _Frame(name.rpartition("::")[2], event.end_time_ns, frame.node)
        _collect_changes(children, inner, device, changes, reads)
