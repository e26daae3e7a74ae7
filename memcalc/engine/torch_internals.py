"""The private names of PyTorch that the engine uses; each says where it was read.

Among them is the event tree of PyTorch's profiler, which tells the operator of each block.

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
"""PyTorch's own: a program that is followed does not switch the history off."""
DRAWS = (
    *("uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_"),
    *("kaiming_uniform_", "kaiming_normal_", "orthogonal_", "sparse_"),
)
"""Functions of ``torch.nn.init`` that draw weights."""
EVERYTHING = 10**8
"""Entries that the allocator's history may hold: more than any run of a few steps makes."""


def start_history(*, with_lines: bool) -> None:
    """Have the caching allocator write down every block (torch/cuda/memory.py); lines cost time."""
    context = "alloc" if with_lines else None
    _record_history("all", context=context, stacks="python", max_entries=EVERYTHING)


def see_simulated_gpus(patches: Any) -> None:
    """Have PyTorch ask the stub driver which GPUs are seen (torch/cuda/__init__.py).

    It reads ``CUDA_VISIBLE_DEVICES`` itself, and sees no GPU that is one of another machine.
    """
    patches.set(torch.cuda, "_parse_visible_devices", stub.visible)


def keywords_of_call() -> dict[str, Any]:
    """Keywords of the module's call around a global hook, which is told of places alone.

    They are variables of ``Module._call_impl`` (torch/nn/modules/module.py).
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != torch.nn.modules.module.__file__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame.f_locals.get("kwargs") or {} if frame is not None else {}


def go_on_without_lines() -> None:
    """Keep the history, but no more lines; releases that would forget it go on as they are."""
    if "clear_history" in inspect.signature(_record_history).parameters:
        _record_history("all", context=None, max_entries=EVERYTHING)


def stop_history() -> dict[str, Any]:
    """Return the history so far and the segments, and stop the history.

    For lines of code PyTorch asks the compiler for those of code that it generated, and so imports
    it, which takes half a second; where it is not imported it has generated none.
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
    """Return the bytes of a GPU in private pools, such as those of CUDA graphs, by stream."""
    found: dict[int, int] = {}
    for segment in snapshot["segments"]:
        if segment["device"] == device and any(segment.get("segment_pool_id", ())):
            stream = segment["stream"]
            found[stream] = found.get(stream, 0) + segment["total_size"]
    return found


def resume_history(device: int) -> list[dict[str, Any]]:
    """Keep a new history; returns the blocks that are alive, as entries of one."""
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
    """Return the births and deaths of blocks since the process began.

    The stub driver counts them; on a GPU the allocator is asked, which takes eight microseconds.
    """
    moments = _moments()
    return events_in(_C._cuda_memoryStats(device)) if moments is None else int(moments[device])


def events_in(stats: dict[str, Any]) -> int:
    """Return the births and deaths of blocks that an allocator's counters have counted."""
    counted = stats.get("allocation")
    return counted["all"]["allocated"] + counted["all"]["freed"] if counted else 0


@functools.cache
def _moments() -> Any:
    """Return the stub driver's counts of each GPU; ``None``: the driver is NVIDIA's."""
    moments = stub.function("moments", ctypes.POINTER(ctypes.c_uint64))
    return None if moments is None else moments()


class _Arrival(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint64), ("moment", ctypes.c_uint64))


def arrivals() -> list[tuple[int, int]]:
    """Return where something was copied to from the host, and at which moment, in order."""
    arrived = stub.function("arrived", ctypes.c_uint64)
    if arrived is None:
        return []
    kept = stub.function("arrivals", ctypes.POINTER(_Arrival))()
    return [(kept[n].moment, kept[n].address) for n in range(arrived())]


def most_of_others() -> int:
    """Return the most bytes of a GPU that another process over the stub driver has had; 0: none."""
    most = stub.function("others", ctypes.c_uint64)
    return 0 if most is None else int(most())


def set_allocator(settings: str) -> None:
    """Tell the caching allocator what ``PYTORCH_ALLOC_CONF`` says, before it is first used."""
    _memory._set_allocator_settings(settings)


# A build without CUDA has none of these.
raw_alloc: Any = getattr(_C, "_cuda_cudaCachingAllocator_raw_alloc", None)
"""Allocate bytes on a stream, by its handle; returns the address (torch/csrc/cuda/Module.cpp)."""
raw_delete: Any = getattr(_C, "_cuda_cudaCachingAllocator_raw_delete", None)
"""Free an address."""
watch_out_of_memory: Any = getattr(_C, "_cuda_attach_out_of_memory_observer", None)
"""Have a function called with the device, bytes asked for, and bytes in all and free, as a request
fails."""


def retries() -> int:
    """Return how often the allocator emptied its cache to serve a request."""
    return int(_C._cuda_memoryStats(0)["num_alloc_retries"])


def levels(kind: str = "current") -> Levels:
    """Read the counters of the first GPU; ``kind``: ``current`` or ``peak``."""
    stats = _C._cuda_memoryStats(0)
    return Levels(
        requested=stats["requested_bytes"]["all"][kind],
        allocated=stats["allocated_bytes"]["all"][kind],
        active=stats["active_bytes"]["all"][kind],
        reserved=stats["reserved_bytes"]["all"][kind],
    )


def use_one_thread() -> None:
    """Work in one thread on the host, so that runs side by side do not wait for each other's."""
    torch.set_num_threads(1)


def allow_cuda_after_fork() -> None:
    """Let a forked process use CUDA over the stub driver, which keeps nothing that a fork breaks.

    PyTorch refuses where the parent asked for the number of GPUs (torch/cuda/__init__.py).
    """
    torch.cuda._is_in_bad_fork = lambda: False


def profiler_events(profiler: Any) -> Any:
    """Return the tree of everything that a finished ``torch.profiler.profile`` saw."""
    return profiler.profiler.kineto_results.experimental_event_tree()


def behind(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside those of ``torch.func`` (torch/csrc/functorch/init.cpp)."""
    while _C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _C._functorch.get_unwrapped(tensor)
    return tensor


def outer_leaf(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the same; ``None``: it was computed, and a gradient can go back through it."""
    while tensor.grad_fn is None and _C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _C._functorch.get_unwrapped(tensor)
    return tensor if tensor.grad_fn is None else None


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is one of ``torch.func``'s, around another."""
    return bool(_C._functorch.is_functorch_wrapped_tensor(tensor))


def nested_gradients() -> int:
    """Return how many transforms of ``torch.func`` that take gradients are at work."""
    levels = _C._functorch.get_interpreter_stack() or ()
    return sum(one.key() == _C._functorch.TransformType.Grad for one in levels)


def memory_profiler(*, with_dtypes: bool = False) -> Any:
    """Return a quiet profiler of operators and of every block that they ask for."""
    os.environ["KINETO_LOG_LEVEL"] = "99"
    profiler: Any = torch.profiler
    cpu = profiler.ProfilerActivity.CPU
    return profiler.profile(activities=[cpu], profile_memory=True, record_shapes=with_dtypes)


class Allocation(NamedTuple):
    """A block's birth or death on the CPU, as the profiler has it."""

    when: int
    """Nanoseconds."""
    bytes: int
    """Below zero: a death."""
    address: int
    total: int
    """What the allocator holds then, as far as it counts."""
    in_collective: bool
    on_main_thread: bool


_COLLECTIVES = ("c10d::", "gloo:")
"""What names of operators begin with that send and receive."""
_FIRST_THREAD = 1
"""Number that PyTorch gives to the first thread it runs in."""


def cpu_allocations(profiler: Any) -> list[Allocation]:
    """Return the births and deaths of blocks on the CPU, in order."""
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
    """Say what ``torch.compile`` did not compile as one (torch/_dynamo/utils.py).

    Where it was not used, nothing.
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
"""Operators around one that makes the view: it reads the same tensor, and neither asks for any
memory. Where experts run one after the other they are half of all."""
_COMPILED = ("## Call CompiledFxGraph", "CompiledFunction", "Torch-Compiled Region")
"""What ``torch.compile`` made: many kernels, and what they hand on to each other."""
_KINDS: Any = _C._profiler._EventType
_ALLOCATION, _OPERATOR = _KINDS.Allocation, _KINDS.TorchOp
_NODE = "autograd::engine::evaluate_function: "


class Block(msgspec.Struct):
    """A block as the profiler saw it, in order of birth."""

    address: int
    op: str
    """The innermost operator around it, without its namespace."""
    dtype: str = ""
    """Of the tensor that an operator read there first; empty: not read."""
    scratch: bool = False
    """It was given back before the operator that asked for it ended."""
    until: str = ""
    """The node of autograd's graph that was running when it died."""


class _Frame(msgspec.Struct):
    """What runs around an event."""

    op: str
    end: int
    node: str


def blocks_by_operator(profiler: Any, device: str = "cuda") -> list[Block]:
    """Return the blocks of a device that were born while the profiler ran, in order of birth."""
    changes: list[tuple[int, int, int, _Frame]] = []
    reads: list[tuple[int, int, torch.dtype]] | None = [] if profiler.record_shapes else None
    _visit(profiler_events(profiler), _Frame("", 0, ""), device, changes, reads)
    found: list[Block] = []
    alive: dict[int, tuple[Block, int]] = {}
    changes.sort(key=lambda change: change[0])
    spans: dict[int, list[tuple[int, Block]]] = {}
    for moment, address, size, frame in changes:
        if size > 0:
            block = Block(address=address, op=frame.op)
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


def _visit(
    events: Any,
    frame: _Frame,
    device: str,
    changes: list[tuple[int, int, int, _Frame]],
    reads: list[tuple[int, int, torch.dtype]] | None,
) -> None:
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
        # Of operators that ask for nothing there are most, and a look at each takes as long as a
        # step.
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
        _visit(children, inner, device, changes, reads)
