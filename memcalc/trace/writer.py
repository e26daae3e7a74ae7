"""Writes down what an operator made, and what its kernel took beside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from memcalc.kernels import blas
from memcalc.kernels.formulas import KernelCall
from memcalc.trace import device
from memcalc.trace.handles import Handles
from memcalc.trace.ledger import Ledger
from memcalc.trace.scratch.algebra import asks_cublas
from memcalc.trace.scratch.kernels import KernelMemory
from memcalc.trace.scratch.readers import (
    AMID,
    DROPOUT,
    EFFICIENT,
    FLASH,
    FLASH_DRAWS,
    FLASH_SEEDED_SINCE,
    OUTPUT_ORDER,
    SEEDED,
    SEEDED_SINCE,
)
from memcalc.trace.scratch.shapes import is_empty
from memcalc.trace.scratch.step import PROBES
from memcalc.trace.streams import current_device


class Writer:
    """Enters outputs, scratch and workspaces in a ledger, in the order CUDA takes them."""

    def __init__(self, ledger: Ledger, kernels: KernelMemory | None) -> None:
        """Write to a ledger.

        Args:
            ledger: of the run.
            kernels: says what a kernel takes beside its outputs; ``None`` leaves that out.
        """
        self.ledger = ledger
        self._kernels = kernels
        self._taken: set[tuple[str, int, int, int]] = set()
        """What is there once and for all: of a handle, on a stream, of a device."""
        self._handles = Handles()
        self._workspaces: dict[int, int] = {}
        """Storages that cuBLAS' handles keep, and the streams they are for."""

    def write(
        self, name: str, args: tuple[Any, ...], out: Any, node: Any, call: KernelCall | None
    ) -> None:
        """Write down a call of an operator.

        Args:
            name: of the operator.
            args: what it was given.
            out: what it made.
            node: of the graph that runs; ``None``: outside of backward.
            call: what its kernel takes beside; ``None``: nothing.
        """
        if isinstance(out, torch.Tensor) and out._is_zerotensor():
            # What forward-mode differentiation knows to be zero has no memory, nor have its views.
            self.ledger.nowhere(out)
            return
        if name in PROBES:
            self._probe(name)
        if call is not None:
            self._track_with_scratch(out, name, node, call, args)
        else:
            self.track(out, name, node, args)
            if self._asks_cublas(name, args):
                self._workspace(name, args, out, node)

    def take(self, call: KernelCall, node: Any) -> None:
        """Take what a kernel needs, and give it back."""
        if self._kernels is not None:
            before, after = self._kernels.transient(call)
            self.ledger.play((*before, *after), [], call.name, node)

    @contextlib.contextmanager
    def holding(self, call: KernelCall, node: Any) -> Iterator[None]:
        """A kernel holds what it needs as long as the context lasts."""
        taken: list[int] = []
        if self._kernels is not None:
            before, _ = self._kernels.transient(call)
            self.ledger.play(before, taken, call.name, node)
        try:
            yield
        finally:
            for number in taken:
                self.ledger.log(~number)

    def keep(self, call: KernelCall) -> None:
        """Take what a library takes once in a process and keeps."""
        once = (call.name, 0, 0, current_device())
        if self._kernels is not None and once not in self._taken:
            self._taken.add(once)
            self.ledger.play(self._kernels.persistent(call), [], call.name, None)

    def track(self, out: Any, name: str, node: Any, args: tuple[Any, ...]) -> None:
        """The outputs alone."""
        if isinstance(out, torch.Tensor):
            if out.device.type == device.NAME:
                self.ledger.birth(out, name, node)
        elif isinstance(out, list | tuple):
            order = self._order(name, args)
            items = out if order is None else [out[index] for index in order]
            self._track_each(items, name, node, self._sources(args, len(items)))

    def _track_each(self, items: Sequence[Any], name: str, node: Any, sources: Any = None) -> None:
        for index, item in enumerate(items):
            if sources is not None:
                self.ledger.follow([sources[index]])
            self.track(item, name, node, ())

    def _parted(self, out: Any, name: str, args: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        """Outputs made before a kernel takes what it needs, and those made then."""
        order = self._order(name, args) or range(len(out))
        items = [out[index] for index in order]
        return items[: AMID[name]], items[AMID[name] :]

    def _order(self, name: str, args: tuple[Any, ...]) -> tuple[int, ...] | None:
        """In which an operator's outputs are taken, and which; ``None``: all as they come."""
        if name == EFFICIENT and self._kernels is not None and self._kernels.torch >= SEEDED_SINCE:
            return SEEDED if not any(args[DROPOUT : DROPOUT + 1]) else OUTPUT_ORDER[name]
        if name == FLASH and self._is_before(FLASH_SEEDED_SINCE):
            return 0, 1
        if name == FLASH and any(args[3:4]):
            return FLASH_DRAWS
        return OUTPUT_ORDER.get(name)

    def _is_before(self, version: tuple[int, int]) -> bool:
        return self._kernels is not None and self._kernels.torch < version

    def _sources(self, args: tuple[Any, ...], count: int) -> Any:
        """The list of tensors that a foreach operator maps to its list of outputs, if it does."""
        if not self.ledger.by_parameter or not args:
            return None
        first = args[0]
        return first if isinstance(first, list | tuple) and len(first) == count else None

    def _track_with_scratch(
        self, out: Any, name: str, node: Any, call: KernelCall, args: tuple[Any, ...]
    ) -> None:
        """Interleave a kernel's own allocations with its outputs."""
        assert self._kernels is not None
        before, after = self._kernels.transient(call)
        taken: list[int] = []
        # What serves the tensors of all layers belongs to no repetition of one.
        listed = self.ledger.by_parameter and bool(args) and isinstance(args[0], list | tuple)
        if listed:
            self.ledger.leave_repetition()
        try:
            self.ledger.play(before, taken, name, node)
            if name in AMID:
                first, others = self._parted(out, name, args)
                self._track_each(first, name, node)
                self.ledger.play(after, taken, name, node)
                self._track_each(others, name, node)
                return
            self.track(out, name, node, args)
            if listed:
                self.ledger.leave_repetition()
            if self._is_outer(name, args, out, node):
                return
            if self._asks_cublas(name, args):
                # The handle is asked for when the operands are copied, and they are not yet let go.
                held = next((at for at, word in enumerate(after) if word < 0), len(after))
                self.ledger.play(after[:held], taken, name, node)
                self._workspace(name, args, out, node)
                after = after[held:]
            self.ledger.play(after, taken, name, node)
        finally:
            for number in taken:
                if number >= 0:
                    self.ledger.log(~number)

    def _asks_cublas(self, name: str, args: tuple[Any, ...]) -> bool:
        if name in blas.PRODUCTS:
            return True
        # What linear algebra does where each product takes a workspace of its own is not recorded.
        kept = self._kernels is not None and blas.is_kept(self._kernels.torch)
        return kept and asks_cublas(name, args)

    def _workspace(self, name: str, args: tuple[Any, ...], out: Any, node: Any) -> None:
        """Take cuBLAS' workspace at the first product of a thread on a stream, after the output.

        Source: aten/src/ATen/cuda/CublasHandlePool.cpp (2.13), ``getCurrentCUDABlasHandle``: one a
        handle, of which each thread has its own, and stream. Or each product takes one for itself
        (``memcalc.kernels.blas``), with a bias cuBLASLt's alone.
        """
        if self._kernels is None or is_empty(args) or self._is_outer(name, args, out, node):
            return
        bias = name == "addmm" and self._adds_by_lt(args, out)
        if not blas.is_kept(self._kernels.torch):
            # Of ``addbmm`` one after the other, for each of its products.
            for _ in range(args[1].shape[0] if name == "addbmm" else 1):
                self.take(KernelCall("cublaslt" if bias else "cublas"), node)
            return
        device = current_device()
        handle, stream = self._handles.of(device), self.ledger.streams.of(node)
        kept = bias and blas.is_lt_kept(self._kernels.torch)
        for library in ("cublas", "cublaslt") if kept else ("cublas",):
            if (library, handle, stream, device) not in self._taken:
                self._taken.add((library, handle, stream, device))
                script = self._kernels.persistent(KernelCall(library))
                taken: list[int] = []
                self.ledger.play(script, taken, f"{library} workspace", node)
                self._workspaces |= {number: stream for number in taken if number >= 0}
        if bias and not kept:
            self.take(KernelCall("cublaslt"), node)

    def _is_outer(self, name: str, args: tuple[Any, ...], out: Any, node: Any) -> bool:
        """It is a batch of columns and rows, which PyTorch may multiply as they lie."""
        # Into what there was before it is cuBLAS that writes.
        if name != "bmm" or self.ledger.maker_of(out, node) != name:
            return False
        assert self._kernels is not None
        left, right = args[:2]
        if left.dtype.is_complex:
            return False
        return not blas.multiplies(tuple(left.shape), tuple(right.shape), self._kernels.torch)

    def _adds_by_lt(self, args: tuple[Any, ...], out: Any) -> bool:
        assert self._kernels is not None
        added, right = args[0], args[2]
        if not blas.is_kept(self._kernels.torch) and out is added:
            return False
        return blas.is_lt(
            tuple(added.shape),
            added.stride(),
            tuple(right.shape),
            added.element_size(),
            self._kernels.torch,
        )

    def clear_workspaces(self, stream: int | None = None) -> None:
        """Give cuBLAS' workspaces back, or those of one stream; the next product takes one anew."""
        cleared = [n for n, held in self._workspaces.items() if stream in (None, held)]
        for number in cleared:
            self.ledger.log(~number)
            del self._workspaces[number]
        self._taken = {
            (name, handle, held, place)
            for name, handle, held, place in self._taken
            if not name.startswith("cublas") or stream not in (None, held)
        }

    def _probe(self, name: str) -> None:
        """Take and give back what an operator does the first time that one of its kind runs."""
        everywhere = ("probe", 0, 0, 0)
        if self._kernels is not None and everywhere not in self._taken:
            self._taken.add(everywhere)
            self.ledger.play(PROBES[name], [], name, None)
