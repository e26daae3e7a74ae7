"""Sees every operator on the simulated device, and enters the storages it makes in the ledger."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memcalc.children.breadcrumbs import Breadcrumbs
from memcalc.errors import EstimateError
from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.target import cudnn_enabled
from memcalc.trace import device, memo
from memcalc.trace.calls import ADDS, Operator, holds_others, is_numbers, name_of, on_device
from memcalc.trace.engine import (
    IN_PLACE,
    accumulates,
    in_formula,
    in_place,
    keeps_sparse_gradient,
    sums_wider,
    taker,
    writes_in_place,
)
from memcalc.trace.flops import Operations
from memcalc.trace.ledger import Ledger
from memcalc.trace.modules import Modules
from memcalc.trace.operators.convolution import PLANNED, TRIED
from memcalc.trace.operators.overrides import (
    BOOLEAN_INDEXED,
    FAKE_KERNELS,
    OVERRIDES,
    SPLIT,
    VALUE_RECIPES,
    WITHOUT_CUDNN,
    has_mask,
    without_cudnn,
)
from memcalc.trace.operators.patches import adds_bias
from memcalc.trace.operators.sparse import (
    AS_THEY_ARE,
    CLONE,
    DETACH,
    MAKES,
    SparseKernels,
    any_sparse,
)
from memcalc.trace.operators.symbolic import SYMBOLIC_KERNELS
from memcalc.trace.reads import compared_with_zeros, read_as_zero
from memcalc.trace.recipes import UnansweredError
from memcalc.trace.scratch.kernels import KernelMemory
from memcalc.trace.scratch.readers import READERS
from memcalc.trace.symbolic.symbols import Symbols
from memcalc.trace.torch_private.dispatch import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    HigherOrderOperator,
    TorchDispatchMode,
    eager_code,
    mode_in_use,
    without_modes,
)
from memcalc.trace.torch_private.tensors import storage_key
from memcalc.trace.traffic import Traffic, is_sent
from memcalc.trace.values import Values, decides, may_note
from memcalc.trace.writer import Writer

_ASKS_DEVICE = torch.ops.prim.device.default
_EAGER_FLEX = (
    "flex_attention runs its eager code, which holds every score; what it is compiled to holds "
    "none of them (memcalc simulate --backend driver compiles it)"
)
_INITIALISES = {
    torch.ops.aten.normal_.default,
    torch.ops.aten.uniform_.default,
    torch.ops.aten.zero_.default,
}
_IS_PINNED = torch.ops.aten.is_pinned.default
_ITSELF = object()
_SCALARS = {torch.ops.aten._local_scalar_dense.default}


class TraceRecorder(TorchDispatchMode):
    """A dispatch mode that records storages; enter it above the fake mode.

    Host tensors run for real (they are small: step counters, random states); tensors on the
    simulated device stay fake. A value read back from the device (``.item()``) is what memory
    full of zeros would have led to (see ``Values``), and noted as an assumption.
    """

    supports_higher_order_operators = True

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
        super().__init__()  # type: ignore[no-untyped-call]
        self._size: Callable[[Any], int] = int if symbols is None else symbols.size
        self._instead = FAKE_KERNELS if symbols is None else {**FAKE_KERNELS, **SYMBOLIC_KERNELS}
        self._symbols = symbols
        self.ledger = Ledger(self._size) if ledger is None else ledger
        self.position = self.ledger.position
        self.numbers_on_host = False
        """On the CPU: whole numbers of 32 bits are read by C++ that runs now, and so are real."""
        self.kernels_of: dict[str, Callable[[Any], Callable[..., Any] | None]] = {}
        """By namespace of packages with CUDA kernels of their own: what runs an operator."""
        self._pinned: set[int] = set()
        """Keys of storages of the host that were asked for as pinned ones."""
        self.assumptions: dict[str, None] = {}
        self.in_python: dict[Any, Callable[..., None]] = {}
        """Operators that are Python on the device: run step by step."""
        self._kernel_memory = kernel_memory
        self.cudnn = cudnn_enabled()
        """Convolutions are cuDNN's."""
        self.cudnn_benchmark = False
        """It tries its engines first."""
        self.operations = Operations()
        """Floating-point ones."""
        self.traffic = Traffic()
        self._breadcrumbs = breadcrumbs
        self._values = Values()
        self.modules = Modules(self.ledger)
        self._writer = Writer(self.ledger, kernel_memory)
        self._sparse: SparseKernels | None = None
        """What runs on sparse tensors, once there are any."""
        self._operators: dict[Any, Operator] = {}
        self._outcomes = memo.outcomes(with_kernels=kernel_memory is not None)

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
        operator = self._operators.get(func)
        if operator is None:
            if isinstance(func, HigherOrderOperator):
                return self._given_functions(func, args, kwargs or {})
            operator = self._meet(func)
        key = None
        if (
            operator.kept
            and not self.numbers_on_host
            and not (operator.in_formula and in_formula())
            and not torch.is_inference_mode_enabled()
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

    def _given_functions(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the eager code of an operator that is given functions."""
        eager = eager_code(func)
        if eager is None:
            raise EstimateError(f"{func.name()} has no eager code, and memcalc compiles nothing")
        if func.name().startswith("flex_attention"):
            self.assumptions[_EAGER_FLEX] = None
        with self:
            return eager(*args, **kwargs)

    def _meet(self, func: Any) -> Operator:
        """Know an operator from now on."""
        operator = self._operators[func] = Operator(func, self._special(func))
        return operator

    def _special(self, func: Any) -> bool:
        """Something other than the operator itself may run, so what it makes is not kept."""
        return (
            func in _SCALARS
            or func in self.in_python
            or func in BOOLEAN_INDEXED
            or func in WITHOUT_CUDNN
            or func in SPLIT
            or func in OVERRIDES
            or func in self._instead
            or func in IN_PLACE
            or is_sent(func)
            or self._symbols is not None
        )

    def _again(
        self,
        known: memo.Outcome,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call whose like was seen before."""
        node = self.modules.locate()
        if self.ledger.by_parameter:
            self.ledger.follow(args)
        if operator.adds:
            if accumulates(node, args):
                return args[0]
            if getattr(adds_bias, "inside", False):
                return memo.alias(args[0])
            node = taker(node, args)
        if self._breadcrumbs is not None:
            self._breadcrumbs.drop(self.position.module, operator.name)
        out = known.again(args, mode_in_use())
        if known.noted:
            self._values.note(operator.func, args, kwargs, out, deciding=known.decides)
        if known.flops:
            self.operations.add(self.position.step, known.flops)
        if known.call is not None or operator.written:
            self._write_down(operator.name, args, out, node, known.call)
        elif known.container is None:
            if out is not None and out.fake_device.type == device.NAME:
                self.ledger.birth(out, operator.name, node)
        else:
            self._writer.track(out, operator.name, node, args)
        return out

    def _run(
        self, operator: Operator, key: Any, types: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """A call whose like was not seen."""
        out = self._by_others(operator, types, args, kwargs)
        if out is not _ITSELF:
            return out
        func = operator.func
        node = self.modules.locate()
        if self.ledger.by_parameter:
            self.ledger.follow(args)
        if func in ADDS and accumulates(node, args):
            return args[0]
        if func in ADDS and getattr(adds_bias, "inside", False):
            return memo.alias(args[0])
        if func in ADDS:
            node = taker(node, args)
        instead = in_place(func, node, lambda: self.ledger.maker_of(args[0]))
        if instead is not None and writes_in_place(node, args):
            func = instead
        if kwargs and sums_wider(node, args, kwargs):
            key, kwargs = None, {**kwargs, "dtype": torch.float32}
        name = name_of(func)
        if self._breadcrumbs is not None:
            self._breadcrumbs.drop(self.position.module, name)
        try:
            out = self._instead.get(func, func)(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self._by_values(func, args, kwargs)
        self._values.remember(func, args, kwargs, out)
        operations = self.operations.count(self.position.step, func, args, kwargs, out)
        self.traffic.count(self.position.step, func, args)
        reader = READERS.get(name)
        call = None
        if reader is not None and self._kernel_memory is not None:
            placed = (*args, kwargs["dim"]) if "dim" in kwargs else args
            call = reader(placed, kwargs.get("out", out))
        if key is not None and func is operator.func and len(self._outcomes) < memo.MOST:
            known = memo.outcome_of(args, kwargs, out, operations, call)
            if known is not None:
                known.decides, known.noted = decides(func, out), may_note(func, args, out)
                self._outcomes[key] = known
        self._write_down(name, args, out, node, call)
        return out

    def _by_others(
        self, operator: Operator, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run what an operator is on the device; ``_ITSELF``: a kernel of its own."""
        func = operator.func
        if self.numbers_on_host and is_numbers(args, kwargs):
            with without_modes():
                return func(*args, **kwargs)
        if holds_others(types):
            # What it holds comes back here, one by one.
            return NotImplemented
        if func.namespace in self.kernels_of:
            kernel = self.kernels_of[func.namespace](func)
            if kernel is not None:
                return self._by_package(kernel, func, args, kwargs)
        if not on_device(args, kwargs):
            return self._on_host(func, args, kwargs)
        if func in _SCALARS:
            return self._read(args[0])
        if func is MAKES or (self._sparse is not None and any_sparse(args)):
            kept = func is CLONE and keeps_sparse_gradient(self.modules.locate(), args[0])
            return self._on_sparse(DETACH if kept else func, args, kwargs)
        if func in self.in_python:
            with self:
                return self.in_python[func](*args, **kwargs)
        if func in BOOLEAN_INDEXED and has_mask(args[1]):
            with self:
                return BOOLEAN_INDEXED[func](*args, **kwargs)
        if self._native(func, args):
            with self:
                out = WITHOUT_CUDNN[func](*args, **kwargs)
            if out is not NotImplemented:
                return out
        if self._split(func, args):
            with self:
                return SPLIT[func][1](*args, **kwargs)
        if func in OVERRIDES:
            out = self._replaced(func, args, kwargs)
            if out is not NotImplemented:
                return out
        if operator.composed:
            with self:
                return func.decompose(*args, **kwargs)
        return _ITSELF

    def _write_down(
        self, name: str, args: tuple[Any, ...], out: Any, node: Any, call: KernelCall | None
    ) -> None:
        if call is not None and call.name == "convolution":
            self.assumptions[TRIED if self.cudnn_benchmark else PLANNED] = None
        self._writer.write(name, args, out, node, call)

    def clear_workspaces(self) -> None:
        """``torch._C._cuda_clearCublasWorkspaces``."""
        self._writer.clear_workspaces()

    def _on_sparse(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator that has to do with sparse tensors, part by part."""
        if self._sparse is None:
            self._sparse = SparseKernels(self._take, self.assume, compared_with_zeros())
        if func in AS_THEY_ARE:
            return func(*args, **kwargs)
        with self:
            return self._sparse(func, args, kwargs)

    def assume(self, said: str) -> None:
        """Add to what was assumed."""
        self.assumptions[said] = None

    def _take(self, call: KernelCall) -> None:
        self._writer.take(call, self.modules.locate())

    def _on_host(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _SCALARS and isinstance(args[0], FakeTensor):
            return self._read(args[0])
        if args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            # Weights that stay on the host: nobody asks for their values.
            return func(*args, **kwargs)
        if func in _INITIALISES and type(args[0]) is torch.nn.Parameter:
            # Adapters are made on the host and moved; their numbers go nowhere.
            return args[0]
        if func is _IS_PINNED:
            return storage_key(args[0]) in self._pinned or func(*args, **kwargs)
        pinned = kwargs.get("pin_memory")
        if pinned:
            # Pinned or not, it is the host's, and nobody here could pin it.
            kwargs = {**kwargs, "pin_memory": False}
        with without_modes():
            out = func(*args, **kwargs)
        if pinned:
            self._pinned.add(storage_key(out))
        if isinstance(out, FakeTensor):
            # A copy of the device's, whose values nobody has either.
            self._values.remember(func, args, kwargs, out)
        return out

    def _replaced(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run what stands for an operator; its allocations come back as operators of their own."""
        instead, assumed = OVERRIDES[func]
        with self:
            out = instead(*args, **kwargs)
        if out is NotImplemented:
            return out
        if assumed:
            self.assumptions[f"in {self._place()} {assumed}"] = None
        if func in VALUE_RECIPES:
            self._values.remember(VALUE_RECIPES[func], args, kwargs, out)
        self.operations.count(self.position.step, func, args, kwargs, out)
        return out

    def _by_package(
        self, kernel: Callable[..., Any], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a package's function for its operator; what it calls comes back here."""
        before = self.operations.known(self.position.step)
        with self:
            out = kernel(*args, **kwargs)
        if self.operations.known(self.position.step) == before:
            # It called no product of PyTorch's: its own kernel multiplies.
            self.operations.count(self.position.step, func, args, kwargs, out)
        return out

    def _native(self, func: Any, args: tuple[Any, ...]) -> bool:
        """PyTorch runs this operator by itself, where it could have asked cuDNN."""
        if func not in WITHOUT_CUDNN or self._kernel_memory is None:
            return False
        return not self.cudnn or without_cudnn(func, args)

    def _split(self, func: Any, args: tuple[Any, ...]) -> bool:
        """CUDA runs this operator, with these arguments, in several steps."""
        if func not in SPLIT or self._kernel_memory is None or not self.cudnn:
            return False
        return SPLIT[func][0](args)

    def _read(self, tensor: torch.Tensor) -> bool | int | float:
        """A value that the program reads from the device."""
        try:
            if compared_with_zeros():
                raise UnansweredError
            value = self._value(tensor)
            if device.NAME == "cpu" and tensor.dtype.is_floating_point:
                value = value or read_as_zero(tensor.dtype)
        except UnansweredError:
            value = read_as_zero(tensor.dtype)
        self._note_read()
        return value

    def _note_read(self) -> None:
        said = f"values read from the device in {self._place()} are taken to be those of zeros"
        self.assumptions[said] = None

    def _value(self, tensor: torch.Tensor) -> bool | int | float:
        """The value, the same wherever symbols stand for."""
        if self._symbols is None:
            return self._values.read(tensor)
        first, *others = (
            self._values.read(tensor, at, which) for which, at in enumerate(self._symbols.numbers)
        )
        if any(other != first for other in others):
            raise EstimateError("the program decides by a value that depends on its sizes")
        return first

    def _by_values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator whose result, or its size, depends on values: as it is with those known.

        Raises:
            UnansweredError: it cannot be worked out.
        """
        self._note_read()
        made = self._values.run(func, args, kwargs)
        several = isinstance(made, list | tuple)
        if not several and not isinstance(made, torch.Tensor):
            return made
        with self:
            outs = [
                torch.empty(item.shape, dtype=item.dtype, device=device.NAME)
                for item in (made if several else (made,))
            ]
        out = tuple(outs) if several else outs[0]
        self._values.remember(func, args, kwargs, out)
        return out

    def _place(self) -> str:
        """The module at work, all of its like in one; outside of all, the phase."""
        return re.sub(r"\.\d+", ".*", self.position.module) or self.position.phase.value
