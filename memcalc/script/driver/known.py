"""Values over the stand-in driver, where no kernel runs: the rule of the simulated back-end.

PyTorch's CUDA code runs every operator. What is read of a result is told beside it: numbers that
leave the device are written to the host's copy, and the counts that CUDA code reads to size a
result are handed to the driver, which gives them to the next reader of as many bytes.

Source: aten/src/ATen/native/cuda/Nonzero.cu, ``nonzero_cuda_out_impl``, and
aten/src/ATen/native/IndexingUtils.h, ``expandTensors`` (2.13).
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from memcalc.script import arrivals, backward, decisions, untouched
from memcalc.script.deepspeed_kernels import without_kernels
from memcalc.script.driver import lightning
from memcalc.script.patches import Patches
from memcalc.script.streams import CudaGenerator
from memcalc.trace.operators.composed import is_composed
from memcalc.trace.operators.gradients import LOOKS_FOR_ZEROS, NO_ZEROS
from memcalc.trace.operators.sparse_parts import any_sparse
from memcalc.trace.reads import read_as_zero
from memcalc.trace.reals import CLOSE, FILLED, Calls, RealValues
from memcalc.trace.recipes import UnansweredError
from memcalc.trace.torch_private.beneath import seeing, seen_here, unseen
from memcalc.trace.torch_private.dispatch import by_others, lift_from_host
from memcalc.trace.torch_private.engine import current_node
from memcalc.trace.values import FILLS

_aten = torch.ops.aten
_EQUAL = _aten.equal.default
_SCALAR = _aten._local_scalar_dense.default
_TO_HOST = (_aten._to_copy.default, _aten.copy_.default)
_MOST = 1 << 20
"""Elements of a tensor whose values are worked out when it is copied to the host."""
_COUNTS_MASKS: dict[Any, Callable[[Any], list[tuple[torch.Tensor, int]]]] = {
    _aten.nonzero.default: lambda args: [(args[0], 1)],
    _aten.masked_select.default: lambda args: [(args[1], _times(*args[:2]))],
    _aten.index.Tensor: lambda args: _masks(args[1]),
    _aten.index_put_.default: lambda args: _masks(args[1]),
    _aten.index_put.default: lambda args: _masks(args[1]),
    _aten._index_put_impl_.default: lambda args: _masks(args[1]),
    _aten.masked_scatter_backward.default: lambda args: [(args[1], _times(*args[:2]))],
    _aten._to_sparse.default: lambda args: _dense(args[0]),
    _aten._to_sparse_csr.default: lambda args: _dense(args[0]) * 2,
    _aten._to_sparse_csc.default: lambda args: _dense(args[0]) * 2,
}
"""Operators that read how many places are nonzero, in which of their arguments, and how many times
over."""
_UNIQUE, _BINCOUNT = _aten._unique2.default, _aten.bincount.default
_COUNTS_RESULTS = {
    _UNIQUE,
    _aten.unique_dim.default,
    _aten.unique_consecutive.default,
    _aten.repeat_interleave.Tensor,
}
"""Operators that read how long their first result is, as a number of eight bytes."""
_COUNTS_DISTINCT = {_aten.isin.Tensor_Tensor}
"""Operators that sort both arguments, and read how many different numbers each of them has."""
_COUNT_BYTES = 4
_INDEX_BYTES = 4
_SUMS = _aten._sparse_sum.dim
_CHECKS: dict[Any, tuple[int, ...]] = {
    _aten.repeat_interleave.Tensor: (1,),
    _aten.normal.float_Tensor: (1, 1),
    _aten.normal.Tensor_Tensor: (1, 1),
    _aten.linalg_eig.default: (1,),
    _aten._linalg_eigvals.default: (1,),
    _aten.linalg_eigvals.default: (1,),
    _aten.segment_reduce.default: (1,),
}
"""Operators that read, as numbers of so many bytes, whether their arguments are valid."""
_SPECIAL = frozenset(
    (
        *(_SCALAR, _EQUAL, _UNIQUE, _BINCOUNT, CLOSE, *_TO_HOST, *_COUNTS_MASKS, *_COUNTS_RESULTS),
        *(*_COUNTS_DISTINCT, *_CHECKS, *arrivals.GATHERS, *FILLS, *FILLED),
    )
)
"""Of which there is more to say than what they make."""


def _seen_too(original: Any, thread: threading.Thread) -> None:
    """What a thread of the script runs is followed as well."""
    with seen_here():
        original(thread)


class Known:
    """Follows what a script put on the device, and answers for it."""

    def __init__(self, patches: Patches) -> None:
        self._values = RealValues(_behind)
        self.said: dict[str, None] = {}
        self._met: dict[int, Calls | bool] = {}
        """By the identity of an operator: what tells its calls apart, or that it is composed."""
        self._answer = _answers()
        arrivals.install(patches)
        backward.install(patches)
        without_kernels(patches, self.say)
        patches.wrap(torch.Tensor, "__deepcopy__", self._deepcopy)
        self._patches = patches
        decisions.install(patches, self._values.know, self.say)
        untouched.install(patches, self.say, simulated=False)
        # A program that sets no seed draws the same each time it is asked about.
        torch.cuda.manual_seed_all(CudaGenerator.default_seed)

    def follow_lightning(self, gpus: int, started: Callable[[int, str], None]) -> None:
        """Of the processes that Lightning starts the first runs."""
        lightning.install(self._patches, gpus, started)

    def end(self) -> None:
        """Put back what was replaced, and remove what was kept in place of files."""
        self._patches.undo()
        self.said |= dict.fromkeys(self._values.said())

    def say(self, said: str) -> None:
        """Add to what was assumed."""
        self.said[said] = None

    @contextmanager
    def following(self) -> Iterator[None]:
        """What the script runs inside is followed."""
        self._patches.wrap(threading.Thread, "_bootstrap_inner", _seen_too)
        # torch.tensor() shows how its numbers come to the device.
        lift_from_host(True)
        try:
            with seeing(self._see):
                yield
        finally:
            lift_from_host(False)

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls = self._met.get(id(func))
        if calls is None:
            calls = is_composed(func) or (func not in _SPECIAL and self._values.calls_of(func))
            self._met[id(func)] = calls
        if calls is True:
            return by_others(func, args, kwargs)
        with unseen():
            if calls is False or not calls.silent(args, kwargs):
                return self._run(func, args, kwargs)
            # Most calls of a training.
            out = func(*args, **kwargs)
            if calls.decides(out) and _uses_device((out,)):
                self._values.note(func, args, kwargs, out, deciding=True)
            return out

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is _SCALAR:
            return self._scalar(args[0]) if _on_device(args[0]) else func(*args)
        if func in _COUNTS_MASKS:
            for mask, times in _COUNTS_MASKS[func](args):
                self._announce(_COUNT_BYTES, self._places, mask, times)
        for size in _CHECKS.get(func, ()):
            self._announce(size, _passed)
        if func is _UNIQUE and args[0].dtype is torch.bool:
            self._announce(_COUNT_BYTES, self._places, args[0], 1)
        elif func in _COUNTS_RESULTS:
            self._announce(8, self._length, func, args, kwargs)
        if func is _BINCOUNT and args[0].numel():
            for end in (torch.Tensor.min, torch.Tensor.max):
                self._announce(args[0].element_size(), self._end, end, args[0])
        if func in _COUNTS_DISTINCT:
            for tensor in args[:2]:
                self._announce(8, self._distinct, tensor)
        for tensor in args:
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo:
                summed = args[1] if func is _SUMS else ()
                self._announce(_INDEX_BYTES, _positions, tensor, summed)
        out = func(*args, **kwargs)
        if self._answer is not None:
            self._answer(0, 0)
        if func is CLOSE and _uses_device(args):
            return self._values.run(func, args, kwargs)
        if func is _EQUAL and _uses_device(args):
            return self._equal(args)
        if func in _TO_HOST and self._transferred(func, args, out):
            return out
        if func._schema.is_mutable and any_sparse(args):
            # What is in a sparse tensor is known of its parts alone.
            return out
        if _uses_device(args) or _uses_device(kwargs.values()) or _uses_device((out,)):
            self._values.remember(func, args, kwargs, out)
            if func in arrivals.GATHERS:
                arrivals.arrived(self._values, func, args)
        return out

    def _equal(self, args: tuple[Any, ...]) -> bool:
        """The answer is read beneath, where nothing is known."""
        one, other = args[:2]
        if one.shape != other.shape or getattr(decisions.inverts, "inside", False):
            return False
        try:
            return one is other or bool(self._values.run(_EQUAL, args, {}))
        except UnansweredError:
            return False

    def _deepcopy(self, original: Any, tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        """Storages are copied as bytes; what is known of a tensor goes along."""
        copy = original(tensor, memo)
        if type(copy) is type(tensor):
            self._values.copied(copy, tensor)
        return copy

    def _finds_no_zeros(self) -> bool:
        """The gradient of a product looks for factors of zero."""
        node = current_node()
        if node is None or node.name() not in LOOKS_FOR_ZEROS:
            return False
        self.say(NO_ZEROS)
        return True

    def _scalar(self, tensor: torch.Tensor) -> bool | int | float:
        if self._finds_no_zeros():
            return read_as_zero(tensor.dtype)
        try:
            return self._values.read(tensor)
        except UnansweredError:
            return read_as_zero(tensor.dtype)

    def _transferred(self, func: Any, args: tuple[Any, ...], out: torch.Tensor) -> bool:
        """Whether this was a copy between host and device; what is known goes with it."""
        target, source = args[:2] if func is _TO_HOST[1] else (out, args[0])
        if _on_device(target) == _on_device(source):
            return False
        if torch.strided not in (target.layout, source.layout):
            # Of what is sparse, indices and values go by themselves.
            return True
        if _on_device(target):
            self._values.know(target, source)
            return True
        try:
            value = self._values.whole(source) if source.numel() <= _MOST else None
        except UnansweredError:
            value = None
        if value is not None and value.shape == source.shape:
            target.copy_(value)
        return True

    def _announce(self, size: int, count: Callable[..., int], *of: Any) -> None:
        """Tell the driver what the next reader of so many bytes finds."""
        if self._answer is None:
            return
        try:
            self._answer(size, count(*of))
        except UnansweredError:
            self._answer(size, 0)

    def _places(self, mask: torch.Tensor, times: int) -> int:
        if self._finds_no_zeros():
            return 0
        try:
            return int(self._values.whole(mask).count_nonzero()) * times
        except UnansweredError:
            return mask.numel() * times

    def _end(self, end: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> int:
        return int(end(self._values.whole(tensor)))

    def _distinct(self, tensor: torch.Tensor) -> int:
        return int(self._values.whole(tensor).unique().numel())

    def _length(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        made = self._values.run(func, args, kwargs)
        return int((made[0] if isinstance(made, list | tuple) else made).shape[0])


def _answers() -> Any:
    """The driver's function that is told numbers; ``None``: this is no stand-in driver."""
    try:
        answer = ctypes.CDLL(None).memcalc_answer
    except AttributeError:
        return None
    answer.argtypes, answer.restype = [ctypes.c_size_t, ctypes.c_longlong], None
    return answer


def _behind(generator: Any, device: torch.device) -> tuple[int, int] | None:
    if torch.cuda.is_current_stream_capturing():
        # A graph draws when it is replayed, and its generator does not say where it is.
        return None
    own = generator or torch.cuda.default_generators[device.index or 0]
    return own.initial_seed(), own.get_offset()


def _positions(tensor: torch.Tensor, summed: Sequence[int]) -> int:
    """How many differ, where they are made to: all, as in the simulated back-end."""
    gone = {dim % tensor.dim() for dim in summed}
    sides = tensor.shape[: tensor.sparse_dim()]
    return min(tensor._nnz(), math.prod(side for dim, side in enumerate(sides) if dim not in gone))


def _passed() -> int:
    return 1


def _dense(tensor: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
    return [(tensor, 1)] if tensor.layout is torch.strided else []


def _masks(indices: Any) -> list[tuple[torch.Tensor, int]]:
    masks = (torch.bool, torch.uint8)
    return [(one, 1) for one in indices if one is not None and one.dtype in masks]


def _times(tensor: torch.Tensor, mask: torch.Tensor) -> int:
    """How often a mask stands there where it is spread over a tensor."""
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    return int(math.prod(shape) // max(mask.numel(), 1))


def _on_device(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda"


def _uses_device(values: Any) -> bool:
    return any(
        _uses_device(one) if isinstance(one, list | tuple) else _on_device(one) for one in values
    )
