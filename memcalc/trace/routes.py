"""What an operator is run as on the simulated device, where it is not one kernel of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from memcalc.errors import EstimateError
from memcalc.kernels.target import cudnn_enabled
from memcalc.trace import device
from memcalc.trace.calls import Operator, holds_others, is_numbers, on_device
from memcalc.trace.engine import keeps_sparse_gradient
from memcalc.trace.flops import Operations
from memcalc.trace.ledger import Ledger
from memcalc.trace.modules import Modules
from memcalc.trace.operators.composed import is_composed
from memcalc.trace.operators.counted import COUNTED, NONZERO
from memcalc.trace.operators.overrides import (
    OVERRIDES,
    SPLIT,
    WITHOUT_CUDNN,
    without_cudnn,
)
from memcalc.trace.operators.placed import PLACED, needs_places
from memcalc.trace.operators.sparse import SparseKernels, takes_nothing
from memcalc.trace.operators.sparse_layouts import LAYOUTS
from memcalc.trace.operators.sparse_parts import CLONE, DETACH, MAKES, any_sparse
from memcalc.trace.reading import Reading
from memcalc.trace.reads import compared_with_zeros
from memcalc.trace.recipes import UnansweredError
from memcalc.trace.scratch.kernels import KernelMemory
from memcalc.trace.symbolic.symbols import Symbols
from memcalc.trace.torch_private.dispatch import (
    FakeTensor,
    by_others,
    eager_code,
    views_have_bases,
    without_modes,
)
from memcalc.trace.torch_private.python_kernels import has_fake, is_brought, python_kernel
from memcalc.trace.torch_private.tensors import storage_key

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
_LINEAR = torch.ops.aten.linear.default
"""Copies what does not lie in rows where its weights are trained, as the view of them says."""
ITSELF = object()
"""Said of an operator that is one kernel of its own."""
SCALARS = {torch.ops.aten._local_scalar_dense.default}


Way = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Runs an operator with these arguments; it may say ``ITSELF``."""


class Routes(Reading):
    """A dispatch mode that knows who runs an operator: the host, a package, or other operators.

    Those that an operator is made of come back to the mode one by one.
    """

    supports_higher_order_operators = True

    def __init__(
        self, ledger: Ledger, kernel_memory: KernelMemory | None, symbols: Symbols | None
    ) -> None:
        """Know of no package yet; arguments as for a recorder."""
        super().__init__(ledger, kernel_memory, symbols)
        self.modules = Modules(ledger)
        self.numbers_on_host = False
        """On the CPU: whole numbers of 32 bits are read by C++ that runs now, and so are real."""
        self.kernels_of: dict[str, Callable[[Any], Callable[..., Any] | None]] = {}
        """By namespace of packages with CUDA kernels of their own: what runs an operator."""
        self._pinned: set[int] = set()
        """Keys of storages of the host that were asked for as pinned ones."""
        self.in_python: dict[Any, Callable[..., None]] = {}
        """Operators that are Python on the device: run step by step."""
        self.brought: dict[Any, Callable[..., Any]] = {}
        """The same of programs and packages."""
        self.cudnn = cudnn_enabled()
        """Convolutions are cuDNN's."""
        self.operations = Operations()
        """Floating-point ones."""
        self._sparse: SparseKernels | None = None
        """What runs on sparse tensors, once there are any."""

    def ways_of(self, func: Any) -> tuple[Way, ...]:
        """What else than a kernel of its own may run an operator, in the order they are asked."""
        ways: tuple[tuple[bool, Way], ...] = (
            (func in SCALARS, self._scalar),
            (func in self.in_python, self._run_in_python),
            (func in self.brought, self._run_brought),
            (func in PLACED, self._placed),
            (func in WITHOUT_CUDNN, self._native),
            (func in SPLIT, self._split),
            (func is NONZERO, self._positions),
            (func in COUNTED and self._symbols is None, self._counted),
            (func in OVERRIDES, self._replaced),
            (func in LAYOUTS, self._on_sparse),
            (is_composed(func), self._composed),
        )
        return tuple(way for may, way in ways if may)

    def bring(self, func: Any) -> None:
        """Find out what runs an operator that is none of PyTorch's own."""
        kind = "cpu" if device.NAME == "cpu" else "cuda"
        kernel = python_kernel(func, kind) if is_brought(func) else None
        if kernel is not None:
            self.brought[func] = kernel

    def _run_brought(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a kernel in Python as it is; where it cannot, its fake one makes the results."""
        if func not in self.brought:
            return ITSELF
        try:
            with self:
                return self.brought[func](*args, **kwargs)
        except (EstimateError, torch.OutOfMemoryError):
            raise
        except Exception:
            if not has_fake(func):
                raise
        del self.brought[func]
        return ITSELF

    def _given_functions(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the eager code of an operator that is given functions."""
        eager = eager_code(func)
        if eager is None:
            raise EstimateError(f"{func.name()} has no eager code, and memcalc compiles nothing")
        if func.name().startswith("flex_attention"):
            self.assumptions[_EAGER_FLEX] = None
        with self:
            return eager(*args, **kwargs)

    def by_others(
        self, operator: Operator, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run what an operator is on the device; ``ITSELF``: a kernel of its own."""
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
        # A copy to the host that comes whole is a call of the device, though it names the host.
        if not on_device(args, kwargs) and not (operator.composed and on_device(args, {})):
            return self._on_host(func, args, kwargs)
        if func is MAKES or (self._sparse is not None and any_sparse(args)):
            kept = func is CLONE and keeps_sparse_gradient(self.modules.locate(), args[0])
            return self._on_sparse(DETACH if kept else func, args, kwargs)
        for way in operator.ways:
            out = way(func, args, kwargs)
            if out is not ITSELF:
                return out
        return ITSELF

    def _scalar(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._read(args[0])

    def _run_in_python(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self:
            return self.in_python[func](*args, **kwargs)

    def _placed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not needs_places(func, *args):
            return ITSELF
        with self:
            return PLACED[func](self._take, *args, **kwargs)

    def _native(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """PyTorch runs it by itself, where it could have asked cuDNN."""
        if self._kernel_memory is None or (self.cudnn and not without_cudnn(func, args)):
            return ITSELF
        with self:
            out = WITHOUT_CUDNN[func](*args, **kwargs)
        return ITSELF if out is NotImplemented else out

    def _split(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """CUDA runs it, with these arguments, in several steps."""
        several, run = SPLIT[func]
        if self._kernel_memory is None or not self.cudnn or not several(args):
            return ITSELF
        with self:
            return run(*args, **kwargs)

    def _positions(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._places_of(args[0])

    def _counted(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As many as values say, where they are known."""
        try:
            return self._by_values(func, args, kwargs)
        except UnansweredError:
            return ITSELF

    def _composed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self, views_have_bases() if func is _LINEAR else nullcontext():
            return by_others(func, args, kwargs)

    def _on_sparse(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator that has to do with sparse tensors, part by part."""
        if self._sparse is None:
            self._sparse = SparseKernels(self._take, self.assume, compared_with_zeros())
        if takes_nothing(func, args):
            return func(*args, **kwargs)
        with self:
            return self._sparse(func, args, kwargs)

    def _on_host(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in SCALARS and isinstance(args[0], FakeTensor):
            return self._read(args[0])
        if args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            # Weights that stay on the host: nobody asks for their values.
            return func(*args, **kwargs)
        if func in _INITIALISES and type(args[0]) is torch.nn.Parameter:
            # Adapters are made on the host and moved; their numbers go nowhere.
            return args[0]
        if func is _IS_PINNED:
            return storage_key(args[0]) in self._pinned or func(*args, **kwargs)
        if func is NONZERO and isinstance(args[0], FakeTensor):
            # Of a copy of the device's: as many as there are, or all.
            chosen = self._chosen(args[0])
            shape = args[0].numel() if chosen is None else chosen, args[0].dim()
            with without_modes():
                return args[0].new_empty(shape, dtype=torch.long)
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
            return ITSELF
        if assumed:
            self.assumptions[f"in {self._place()} {assumed}"] = None
        if not func._schema.is_mutable:
            # What stands for it makes room, and no numbers.
            self._values.remember(func, args, kwargs, out)
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
