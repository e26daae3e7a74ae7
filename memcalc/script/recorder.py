"""Sees every operator of a script: on the simulated GPU, on the host, and between the two."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from memcalc.children.breadcrumbs import Breadcrumbs
from memcalc.records.trace import Component
from memcalc.script import arrivals, decisions, endings, place, placed, sparse_copies, transfers
from memcalc.script.draws import Draws, is_random
from memcalc.script.fills import filled
from memcalc.script.gpu import GpuMemory
from memcalc.script.labels import HOST_COPY
from memcalc.script.refused import REFUSED
from memcalc.script.streams import drawn_by, generator_of
from memcalc.trace.calls import Operator, holds_others, on_device
from memcalc.trace.full import without_frames
from memcalc.trace.operators import attention
from memcalc.trace.operators.refused_sizes import check_copy
from memcalc.trace.operators.sparse_parts import has_parts, is_compressed, parts
from memcalc.trace.reads import compared_with_zeros, read_as_zero
from memcalc.trace.reals import RealValues
from memcalc.trace.recipes import UnansweredError
from memcalc.trace.recorder import TraceRecorder
from memcalc.trace.scratch.kernels import KernelMemory
from memcalc.trace.torch_private.dispatch import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    without_dispatch,
)

_aten = torch.ops.aten
_ASKS_DEVICE = torch.ops.prim.device.default
_READ = torch.ops.aten._local_scalar_dense.default
_READS = (
    "values read from the GPU (at {}) are worked out from the whole numbers and small tensors of "
    "real ones that the script put there, with zeros in place of all others"
)
_WEIGHTS_READ = "weights on the host (at {}) are read as zeros (--weights reads the real ones)"
_CAPTURING = "CUDA error: operation not permitted when stream is capturing"
_NESTED = (
    "nn.TransformerEncoder evaluates with its padding: nested tensors, which leave it out and take "
    "less, are not simulated (enable_nested_tensor=False keeps it on a GPU too)"
)
_PINNED = "_simulated_as_pinned"
"""Attribute of tensors that were asked for in pinned host memory: DDP's reducer insists on it."""
_SHOWN = 6
"""Lines of a script that are named."""


class ScriptRecorder(TraceRecorder):
    """The recorder of a script: tensors that it keeps on the host are real, and run for real.

    Weights on the host are fake too: nobody asked for their values.
    """

    def __init__(
        self, kernels: KernelMemory, memory: GpuMemory, breadcrumbs: Breadcrumbs | None = None
    ) -> None:
        super().__init__(kernels, breadcrumbs, ledger=memory)
        self._values = RealValues(self._behind)
        self._generator: Any = None
        """What the operator at work draws with; ``None``: the device's own."""
        self.memory = memory
        self.over = False
        """The run has ended; threads that go on are no part of it."""
        self.last_thread: int | None = None
        """The one that ends the process; all others stay where they are."""
        self.uncounted: dict[str, None] = {}
        """What the script used whose memory is not known."""
        self.real_weights = False
        """Weights on the host hold their numbers."""
        self.draws = Draws(self.assume)
        self._reads: dict[str, None] = {}
        self._weights_read: dict[str, None] = {}
        self._own: dict[Any, Callable[..., Any]] = {
            _aten._to_copy.default: self._to_copy,
            _aten.copy_.default: self._copy,
            _aten.item.default: self._item,
            _aten.is_nonzero.default: self._is_nonzero,
            _aten.equal.default: self._equal,
            _aten.nonzero.default: self._nonzero,
            _aten._nested_tensor_from_mask_left_aligned.default: self._not_nested,
            _aten.is_pinned.default: lambda tensor, *_, **__: hasattr(tensor, _PINNED),
            **{func: functools.partial(self._refuse, func) for func in REFUSED},
            _aten._pin_memory.default: lambda tensor, *_, **__: tensor,
        }

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is _ASKS_DEVICE:
            return args[0].fake_device
        if func is _READ and type(args[0]) is torch.Tensor:
            # A number of the host, such as the steps that an optimizer counts.
            with without_dispatch():
                return func(*args)
        try:
            if not self.memory.shared:
                return super().__torch_dispatch__(func, types, args, kwargs)
            with self.memory.lock:
                self.memory.bury()
                if self.over:
                    return func(*args, **(kwargs or {}))
                if self.last_thread in (None, threading.get_ident()):
                    if self.memory.several:
                        return self._on_its_device(func, types, args, kwargs or {})
                    return super().__torch_dispatch__(func, types, args, kwargs)
        except torch.OutOfMemoryError as error:
            del args, kwargs
            raise without_frames(error) from None
        return endings.halt()

    def _on_its_device(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An operator runs on the device that it names, or that of its first tensor on one."""
        gpus, named = self.memory.gpus, kwargs.get("device")
        index = placed.first_device((named,) if named is not None else args)
        if index is None:
            index = gpus.current()
            if named is not None and torch.device(named).type == "cuda":
                # What is kept of like calls is kept of this device.
                kwargs = {**kwargs, "device": torch.device("cuda", index)}
        return gpus.on(index, super().__torch_dispatch__, func, types, args, kwargs)

    def _special(self, func: Any) -> bool:
        return func in self._own or super()._special(func)

    def _run(
        self, operator: Operator, key: Any, types: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        func = operator.func
        own = self._own.get(func)
        if own is not None and not holds_others(types):
            out = own(*args, **kwargs)
            if out is not NotImplemented:
                return out
        elif func is _aten.scaled_dot_product_attention.default:
            # Without autograd's keys (inference mode) it comes here before it is taken apart.
            with self:
                return attention.run(*args, **kwargs)
        generator = kwargs.get("generator")
        if generator is not None:
            kwargs = drawn_by(kwargs, "cuda" if on_device(args, kwargs) else "cpu")
        if kwargs.get("device") is not None:
            self._check(torch.device(kwargs["device"]))
        before, self._generator = self._generator, generator
        try:
            out = super()._run(operator, key, types, args, kwargs)
        finally:
            self._generator = before
        if func in arrivals.GATHERS:
            arrivals.arrived(self._values, func, args)
        return out

    def _on_host(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_fake(args) or is_fake(kwargs.values()):
            if func is _aten._local_scalar_dense.default:
                self._weights_read[place.line() or self._place()] = None
                return read_as_zero(args[0].dtype)
            self.draws.skipped(func, args, kwargs)
            with without_dispatch():
                real = filled(func, args, kwargs)
            try:
                return func(*args, **kwargs) if real is None else real
            except (DataDependentOutputException, DynamicOutputShapeException):
                self._weights_read[place.line() or self._place()] = None
                return self._values.run(func, args, kwargs)
        if is_random(func):
            self.draws.settle()
        pinned = kwargs.get("pin_memory")
        if pinned:
            kwargs = {**kwargs, "pin_memory": False}
        with without_dispatch():
            out = func(*args, **kwargs)
        if pinned and isinstance(out, torch.Tensor):
            setattr(out, _PINNED, True)
        return out

    def _check(self, device: torch.device) -> None:
        if device.type == "cuda" and device.index:
            self.memory.gpus.own(device.index)

    # ---------------------------------------------------------------- host and device

    def _to_copy(self, tensor: torch.Tensor, **options: Any) -> Any:
        wanted = options.get("device")
        if wanted is None:
            return NotImplemented
        wanted = torch.device(wanted)
        self._check(wanted)
        dtype = options.get("dtype") or tensor.dtype
        if wanted.type == "cpu" and _on_cuda(tensor):
            if has_parts(tensor):
                down = functools.partial(self._to_copy, device="cpu")
                return sparse_copies.to_host(tensor, dtype, down, self)
            if isinstance(tensor, torch.nn.Parameter) and not self.real_weights:
                # Nobody looks into weights that move, and there may be many.
                return NotImplemented
            with self:
                target = transfers.like(tensor, dtype, options.get("memory_format"), "meta")
                transfers.staging(target, tensor, blocking=not options.get("non_blocking"))
            with without_dispatch():
                return transfers.laid_like(target, self.read_whole(tensor, dtype))
        if wanted.type == "cuda":
            _has_data(tensor)
        if wanted.type != "cuda" or tensor.device.type != "cpu":
            return NotImplemented
        if tensor.layout is not torch.strided:
            waits = not options.get("non_blocking")
            up = functools.partial(self._to_copy, device="cuda", non_blocking=not waits)
            return sparse_copies.to_device(tensor, dtype, up, self)
        with self:
            out = transfers.like(tensor, dtype, options.get("memory_format"))
            number = self.memory.number_of(out)
            if number is not None:
                entry = self.memory.entries[number]
                entry.op = HOST_COPY
                if is_fake((tensor,)):
                    # Of the host's tensors weights alone are fake: a copy that no one calls (EMA).
                    entry.component, entry.guessed = Component.WEIGHTS, True
            transfers.staging(out, tensor, blocking=not options.get("non_blocking"))
        self._values.know(out, tensor)
        return out

    def _copy(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
        there, here = _on_cuda(target), _on_cuda(source)
        if there == here:
            return NotImplemented
        _has_data(source)
        check_copy(target, source)
        if is_compressed(target) and is_compressed(source):
            for part, other in zip(parts(target), parts(source), strict=True):
                self._copy(part, other, non_blocking)
            return target
        with self:
            transfers.staging(target, source, blocking=not non_blocking)
        if there:
            self._values.know(target, source)
        elif not is_fake((target,)) and not (non_blocking and self.memory.pools.capturing):
            value = self.read_whole(source, target.dtype)
            with without_dispatch():
                target.copy_(value)
        return target

    def read_whole(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor of the device as one of the host."""
        self._note_read()
        value = None
        if tensor.numel() <= transfers.WORTH_READING and not compared_with_zeros():
            try:
                value = self._values.whole(tensor)
            except UnansweredError:
                value = None
        with without_dispatch():
            if value is None or value.shape != tensor.shape:
                value = torch.zeros(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")
            return value.to(dtype or tensor.dtype)

    def used(self, tensor: torch.Tensor, stream: Any) -> None:
        """``Tensor.record_stream``."""
        if _on_cuda(tensor):
            self.memory.used_by(tensor, getattr(stream, "stream_id", 0))

    # ---------------------------------------------------------------- values

    def know(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """A tensor of the device is taken to hold what one of the host holds."""
        self._values.know(tensor, host)

    def _behind(self, generator: Any, device: torch.device) -> tuple[int, int] | None:
        """Where the generator is that has just drawn for the operator at work."""
        if self.memory.pools.capturing:
            return None
        handed = generator or self._generator
        own = generator_of(handed) if handed is not None else None
        generators: Any = torch.cuda.default_generators
        behind: tuple[int, int] = (own or generators[device.index or 0]).drew()
        return behind

    def _item(self, tensor: torch.Tensor) -> Any:
        return self._read(tensor) if is_fake((tensor,)) else NotImplemented

    def _is_nonzero(self, tensor: torch.Tensor) -> Any:
        return bool(self._read(tensor)) if is_fake((tensor,)) else NotImplemented

    def _equal(self, one: torch.Tensor, other: torch.Tensor) -> Any:
        if not is_fake((one, other)):
            return NotImplemented
        if one.shape != other.shape or not one.numel():
            return one.shape == other.shape
        if getattr(decisions.inverts, "inside", False):
            return False
        # Source: aten/src/ATen/native/cuda/Equal.cpp, ``cuda_equal``.
        if one is other:
            return True
        with self:
            same = one.eq(other).all()
        return bool(self._read(same))

    def _nonzero(self, tensor: torch.Tensor) -> Any:
        """As many places as the known values have; of unknown ones all, as in every trace."""
        if not _on_cuda(tensor):
            return NotImplemented
        if compared_with_zeros():
            known = torch.zeros(0, tensor.dim(), dtype=torch.long, device="cpu")
        else:
            try:
                with without_dispatch():
                    known = self._values.whole(tensor).nonzero()
            except UnansweredError:
                return NotImplemented
        self._note_read()
        out = self._found(tensor, len(known))
        self._values.know(out, known)
        return out

    def _not_nested(self, tensor: torch.Tensor, mask: torch.Tensor) -> bool:
        """``nn.TransformerEncoder`` asks whether padding may be left out by nested tensors."""
        self.assume(_NESTED)
        return False

    def _refuse(self, func: Any, *args: Any, **_: Any) -> Any:
        refusal = "" if self.target is None else REFUSED[func](self.target.capability, *args)
        if refusal:
            raise RuntimeError(refusal)
        return NotImplemented

    def said_of_reads(self) -> tuple[str, ...]:
        """By which rule values were read, and where."""
        said = ((_READS, self._reads), (_WEIGHTS_READ, self._weights_read))
        rules = (rule.format(_listed(lines)) for rule, lines in said if lines)
        return (*rules, *self.said_of_values())

    @property
    def read_at(self) -> str:
        """Where values of the device were read; empty: nowhere."""
        return _listed(self._reads)

    def _note_read(self) -> None:
        if self.memory.pools.capturing:
            raise torch.AcceleratorError(_CAPTURING)
        self._reads[place.line() or self._place()] = None


def _listed(lines: Iterable[str]) -> str:
    """The first lines of a script that are named, and how many more there are."""
    first, more = list(lines)[:_SHOWN], len(list(lines)) - _SHOWN
    return ", ".join([*first, *([f"{more} more places"] if more > 0 else [])])


def is_fake(values: Any) -> bool:
    """Some of these, or of the lists among them, are fake tensors."""
    for value in values:
        if isinstance(value, FakeTensor):
            return True
        if isinstance(value, list | tuple) and is_fake(value):
            return True
    return False


def _on_cuda(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda"


def _has_data(tensor: torch.Tensor) -> None:
    """Source: aten/src/ATen/native/Copy.cpp, ``copy_impl`` (2.13)."""
    if tensor.device.type == "meta":
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
