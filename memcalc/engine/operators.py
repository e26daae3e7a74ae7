"""The operator that allocated each block, from the event tree of PyTorch's profiler."""

from __future__ import annotations

from typing import Any

import msgspec

from memcalc.engine import torch_internals as internals

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
_COMPILED = ("## Call CompiledFxGraph", "CompiledFunction", "Torch-Compiled Region")
"""What ``torch.compile`` made: many kernels, and what they hand on to each other."""
_ALLOCATION, _OPERATOR = internals.event_kinds()
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


def blocks(profiler: Any, device: str = "cuda") -> list[Block]:
    """The blocks of a device that were born while the profiler ran, in order of birth."""
    changes: list[tuple[int, int, int, _Frame]] = []
    reads: list[tuple[int, int, str]] | None = [] if profiler.record_shapes else None
    _visit(internals.profiler_events(profiler), _Frame("", 0, ""), device, changes, reads)
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
                block.dtype = block.dtype or dtype
                break
    return found


def _visit(
    events: Any,
    frame: _Frame,
    device: str,
    changes: list[tuple[int, int, int, _Frame]],
    reads: list[tuple[int, int, str]] | None,
) -> None:
    for event in events:
        kind, children = event.tag, event.children
        if kind == _ALLOCATION:
            fields = event.extra_fields
            if fields.device.type == device:
                changes.append((event.start_time_ns, fields.ptr, fields.alloc_size, frame))
            continue
        # Of operators that ask for nothing there are most, and a look at each takes as long as a
        # step.
        if not children and reads is None:
            continue
        inner = frame
        if kind == _OPERATOR:
            name = event.name
            for tensor in event.extra_fields.inputs if reads is not None else ():
                key = getattr(tensor, "storage_data_ptr", None)
                if key is not None:
                    dtype = str(tensor.dtype).removeprefix("torch.")
                    reads.append((event.start_time_ns, key, dtype))
            if name.startswith(_NODE):
                inner = _Frame(frame.op, frame.end, name.removeprefix(_NODE))
            elif name.startswith(_COMPILED):
                inner = _Frame("compiled code", 0, frame.node)
            elif not (frame.op and name.startswith(_MAKERS)):
                inner = _Frame(name.rpartition("::")[2], event.end_time_ns, frame.node)
        _visit(children, inner, device, changes, reads)
