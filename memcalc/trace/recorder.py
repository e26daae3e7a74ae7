"""Sees every operator on the simulated device, and enters the storages it makes in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.autograd.graph import increment_version

from memcalc.children.breadcrumbs import Breadcrumbs
from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.target import Target
from memcalc.trace import device, memo, outcomes
from memcalc.trace.calls import RESIZES, Operator, holds_others, name_of
from memcalc.trace.engine import (
    IN_PLACE,
    accumulates,
    in_formula,
    in_place,
    sums_wider,
    taker,
    writes_in_place,
)
from memcalc.trace.ledger import Ledger
from memcalc.trace.operators import deterministic
from memcalc.trace.operators.convolution import PLANNED, TRIED
from memcalc.trace.operators.overrides import (
    FAKE_KERNELS,
)
from memcalc.trace.operators.patches import adds_bias
from memcalc.trace.operators.placed import PUTS, put_by
from memcalc.trace.operators.refused_sizes import as_cuda_says
from memcalc.trace.operators.symbolic import SYMBOLIC_KERNELS
from memcalc.trace.routes import ITSELF, Routes
from memcalc.trace.scratch.kernels import KernelMemory
from memcalc.trace.scratch.readers import READERS
from memcalc.trace.scratch.shapes import is_empty
from memcalc.trace.streams import switched
from memcalc.trace.symbolic.symbols import Symbols
from memcalc.trace.torch_private.dispatch import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    HigherOrderOperator,
    mode_in_use,
)
from memcalc.trace.torch_private.engine import current_node
from memcalc.trace.torch_private.python_kernels import is_brought
from memcalc.trace.torch_private.tensors import storage_of
from memcalc.trace.traffic import Traffic, is_sent
from memcalc.trace.unruled import without_rule
from memcalc.trace.writer import Writer
from memcalc.trace.writes import decides
from memcalc.trace.written_views import WrittenViews

_ASKS_DEVICE = torch.ops.prim.device.default


class TraceRecorder(Routes):
    """A dispatch mode that records storages; enter it above the fake mode.

    Host tensors run for real (they are small: step counters, random states); tensors on the
    simulated device stay fake. A value read back from the device (``.item()``) is what memory
    full of zeros would have led to (see ``Values``), and noted as an assumption.
    """

    def __init__(
        self,
        kernel_memory: KernelMemory | None,
        breadcrumbs: Breadcrumbs | None = None,
        symbols: Symbols | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """Record with what these kernels take; ``None`` leaves kernels' own memory out.

        Args:
            kernel_memory: says what a kernel takes beside its outputs.
            breadcrumbs: where to say what runs.
            symbols: what sizes may depend on; such sizes are written down as numbers.
            ledger: where to write; ``None``: a new one.
        """
        self._size: Callable[[Any], int] = int if symbols is None else symbols.size
        known = Ledger(self._size) if ledger is None else ledger
        super().__init__(known, kernel_memory, symbols)
        self._instead = FAKE_KERNELS if symbols is None else {**FAKE_KERNELS, **SYMBOLIC_KERNELS}
        self.cudnn_benchmark = False
        """It tries its engines first."""
        self.target: Target | None = None
        """The GPU that is stood for, where one is known."""
        self.traffic = Traffic()
        self._breadcrumbs = breadcrumbs
        self._writer = Writer(self.ledger, kernel_memory)
        self._operators: dict[int, Operator] = {}
        """By the identity of what PyTorch calls; its own hash is worked out in Python."""
        self._written_views = WrittenViews()
        self._outcomes = outcomes.outcomes(with_kernels=kernel_memory is not None)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What happens inside is not part of the run."""
        kept = self._writer
        self._write_to(Writer(Ledger(self._size), self._kernel_memory))
        try:
            yield
        finally:
            self._write_to(kept)

    def _write_to(self, writer: Writer) -> None:
        self._writer = writer
        self.ledger = self.modules.ledger = writer.ledger
        self.position = self.ledger.position

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here: no need to keep Dynamo out of every single call."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is _ASKS_DEVICE:
            return args[0].fake_device
        operator = self._operators.get(id(func))
        if operator is None:
            if isinstance(func, HigherOrderOperator):
                return self._given_functions(func, args, kwargs or {})
            operator = self._meet(func)
        if operator.undoes_views:
            written = self._written_views.written_by(current_node())
            if written is not None:
                return self._written_views.undo(written, func, args, kwargs or {}, self)
        elif operator.writes_lists and args:
            # Source: aten/src/ATen/native/cuda/ForeachBinaryOpScalar.cu and its like (2.13).
            increment_version(args[0])
        elif operator.writes and torch.is_grad_enabled() and args:
            self._written_views.meet(args[0])
        key = None
        if (
            operator.kept
            and not self.numbers_on_host
            and not (operator.in_formula and in_formula())
        ):
            key = memo.described(operator.number, operator.by_value, args, kwargs)
            known = self._outcomes.get(key)
            if known is not None:
                return self._again(known, operator, args, kwargs or {})
        kwargs = kwargs or {}
        out = self._run(operator, key, types, args, kwargs)
        if operator.writes:
            memo.forget((*args, *kwargs.values()))
        return out

    def _meet(self, func: Any) -> Operator:
        """Know an operator from now on."""
        self.bring(func)
        operator = Operator(func, self.ways_of(func), self._special(func))
        self._operators[id(func)] = operator
        return operator

    def _special(self, func: Any) -> bool:
        """What it makes is not kept, though it may be a kernel of its own."""
        return (
            func in PUTS
            or func in IN_PLACE
            or func in RESIZES
            or func in deterministic.INSTEAD
            or is_sent(func)
            or self._symbols is not None
        )

    def _arrived(self, operator: Operator, args: tuple[Any, ...]) -> tuple[Any, Any]:
        """Whose call it is, and its result where it takes nothing (``ITSELF``: it runs)."""
        node = self.modules.locate()
        if self.ledger.by_parameter:
            self.ledger.follow(args)
        if not operator.adds:
            if switched():
                self.ledger.handed_over(args, node)
            return node, ITSELF
        node = taker(node, args)
        if switched():
            self.ledger.handed_over(args, node)
        if accumulates(node, args, self.ledger.was_made_in):
            return node, args[0]
        if getattr(adds_bias, "inside", False):
            return node, outcomes.alias(args[0])
        return node, ITSELF

    def _again(
        self,
        known: outcomes.Outcome,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call whose like was seen before."""
        node, out = self._arrived(operator, args)
        if out is not ITSELF:
            return out
        self._runs(operator.name)
        out = known.again(args, mode_in_use())
        if known.noted or self._values.follows(args):
            self._values.note(operator.func, args, kwargs, out, deciding=known.decides)
        if known.flops:
            self.operations.add(self.position.step, known.flops)
        if known.call is not None or operator.written:
            self._write_down(operator.name, args, out, node, known.call)
        elif known.container is None:
            if isinstance(out, FakeTensor) and out.fake_device.type == device.NAME:
                self.ledger.birth(out, operator.name, node)
        else:
            self._writer.track(out, operator.name, node, args)
        return out

    def _run(
        self, operator: Operator, key: Any, types: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """A call whose like was not seen."""
        if operator.check is not None and device.NAME != "cpu" and not holds_others(types):
            self._runs(operator.name)
            operator.check(args, kwargs)
        out = self.by_others(operator, types, args, kwargs)
        if out is not ITSELF:
            return out
        node, out = self._arrived(operator, args)
        if out is not ITSELF:
            return out
        func = operator.func
        instead = in_place(func, node, lambda: self.ledger.maker_of(args[0], node))
        if instead is not None and writes_in_place(func, node, args):
            func = instead
        out = self._put(func, args, kwargs)
        if out is not NotImplemented:
            return out
        if kwargs and sums_wider(node, args, kwargs):
            key, kwargs = None, {**kwargs, "dtype": torch.float32}
        name = name_of(func)
        self._runs(name)
        try:
            out = self._ran(func, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self._by_values(func, args, kwargs)
        except NotImplementedError as error:
            raise without_rule(func, error) from None
        except ValueError as error:
            raise as_cuda_says(error) from None
        kept = key if func is operator.func else None
        self._write_down(name, args, out, node, self._counted_up(kept, func, args, kwargs, out))
        return out

    def _runs(self, name: str) -> None:
        if self._breadcrumbs is not None:
            self._breadcrumbs.drop(self.position.module, name)

    def _put(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run what puts values into places, where that is more than a kernel."""
        if func in PUTS:
            with self:
                return put_by(self._take, func, args)
        if func in deterministic.INSTEAD:
            with self:
                return deterministic.INSTEAD[func](*args, **kwargs)
        return NotImplemented

    def _counted_up(
        self, key: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> KernelCall | None:
        """Count what was done, and keep the outcome by this key; returns what the kernel takes."""
        self._values.remember(func, args, kwargs, out)
        operations = self.operations.count(self.position.step, func, args, kwargs, out)
        self.traffic.count(self.position.step, func, args)
        call = self._call_of(func, args, kwargs, out)
        if key is not None and len(self._outcomes) < outcomes.MOST:
            known = outcomes.outcome_of(args, kwargs, out, operations, call)
            if known is not None:
                known.decides = decides(func, out)
                known.noted = self._values.may_note(func, args, out)
                self._outcomes[key] = known
        return call

    def _call_of(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> KernelCall | None:
        """The kernel's call, where it takes more than what it makes."""
        reader = READERS.get(name_of(func))
        if reader is not None and self._kernel_memory is not None and not is_empty(args[:1]):
            placed = (*args, kwargs["dim"]) if "dim" in kwargs else args
            return reader(placed, kwargs.get("out", out))
        return KernelCall("untold", (func.namespace,)) if is_brought(func) else None

    def _ran(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What fake tensors make of an operator; one that is written to may take other memory."""
        run = self._instead.get(func, func)
        written = kwargs.get("out", args[0] if func in RESIZES else None)
        if not isinstance(written, torch.Tensor):
            return run(*args, **kwargs)
        storage = storage_of(written)
        before = storage.nbytes()
        out = run(*args, **kwargs)
        self.ledger.resized(storage, before, storage.nbytes())
        return out

    def _write_down(
        self, name: str, args: tuple[Any, ...], out: Any, node: Any, call: KernelCall | None
    ) -> None:
        if call is not None and call.name == "convolution":
            self.assumptions[TRIED if self.cudnn_benchmark else PLANNED] = None
        self._writer.write(name, args, out, node, call)

    def clear_workspaces(self, stream: int | None = None) -> None:
        """``torch._C._cuda_clearCublasWorkspaces``; or those of one stream alone."""
        self._writer.clear_workspaces(stream)

    @property
    def runs_cudnn(self) -> bool:
        """What cuDNN can run it does run."""
        return self.cudnn and self._kernel_memory is not None

    def holding(self, call: KernelCall) -> AbstractContextManager[None]:
        """A kernel holds what it needs as long as the context lasts."""
        return self._writer.holding(call, self.modules.locate())

    def keep(self, call: KernelCall) -> None:
        """Take what a library takes once in a process and keeps."""
        self._writer.keep(call)

    def _take(self, call: KernelCall) -> None:
        self._writer.take(call, self.modules.locate())
