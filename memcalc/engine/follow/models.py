"""The models, optimizers and gradients of a program, held by weak references."""

import copy
import re
import sys
import weakref
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef

from memcalc.engine.counters import Counters
from memcalc.engine.follow.counts import Counts, TensorRef
from memcalc.engine.notes import driven_by, held_by, state_by_parameter
from memcalc.engine.patches import Patches
from memcalc.records.model import Inventory, OptimizerState
from memcalc.records.trace import Component

_MAKES_COPIES = copy._reconstruct.__code__  # type: ignore[attr-defined]
"""Runs while ``copy.deepcopy`` makes a module."""
_SETTLED = 4
"""Steps after which an optimizer has made all its state; LBFGS makes its anew."""
_WRAPPED = re.compile(r"\b(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\b\.?")
"""Names that PyTorch's wrappers give to what they wrap."""


class _Ref(WeakIdRef):
    """PyTorch's own asks the object for an attribute, which may run the program's code."""

    __slots__ = ()

    def __call__(self) -> Any:
        return weakref.ref.__call__(self)


def _make_weak_dict() -> WeakIdKeyDictionary:
    try:
        return WeakIdKeyDictionary(ref_type=_Ref)
    except TypeError:  # PyTorch 2.2
        return WeakIdKeyDictionary()


class Models:
    """All modules of the program, and the tensors of its optimizers."""

    def __init__(self, counters: Counters, *, counted: bool = True) -> None:
        """Start without models; ``counted``: ``inventory`` and ``state`` will be asked for."""
        self._counters, self._counted = counters, counted
        self._modules = _make_weak_dict()
        """Every living module in order of birth, and whether it was made by copying another."""
        self._births = _make_weak_dict()
        """In which interval each of them, and each optimizer, was made or came to the GPU."""
        self._paths = _make_weak_dict()
        """What modules are called inside their models."""
        self._roots: list[weakref.ref[torch.nn.Module]] = []
        """Models, in the order in which they were called."""
        self._parameters: list[TensorRef] = []
        self._alone: list[TensorRef] = []
        """Parameters that optimizers hold and no module has."""
        self._counted_on_meta: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Models that were called while they had parameters on meta."""
        self.counts = Counts(counters.interval)
        self._trained: set[int] = set()
        self._names: dict[str, None] = {}
        self._homes: dict[int, str] = {}
        """Paths of parameters' modules, by the ids of the parameters."""
        self._entries: dict[int, tuple[int, int]] = {}
        """Of each optimizer's state, when it was looked at last."""
        self._moving = 0
        self._versions = -1
        """Changes in place of all parameters, as PyTorch counts them; -1: nobody asked."""
        self._touched = False

    def install(self, patches: Patches) -> None:
        """Patch modules and optimizers to record each one, and when it is moved or cast."""
        module = torch.nn.Module
        patches.wrap(weakref, "getweakrefs", TensorRef.hide)
        patches.wrap(module, "__init__", self._init_module)
        patches.wrap(module, "__setstate__", self._restore_module)
        patches.wrap(module, "_apply", self._apply)
        patches.wrap(torch.optim.Optimizer, "__init__", self._init_optimizer)
        patches.wrap(torch.optim.Optimizer, "load_state_dict", self._load_optimizer)

    def _init_module(self, original: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        self._record_module(module, copied=False)
        original(module, *args, **kwargs)

    def _restore_module(self, original: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        """Replace ``Module.__setstate__``: record the module, perhaps as a copy."""
        self._record_module(module, copied=_is_deepcopy())
        original(module, *args, **kwargs)

    def _record_module(self, module: torch.nn.Module, *, copied: bool) -> None:
        self._modules[module] = copied
        self._births[module] = self._counters.interval()

    def _apply(self, original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Replace ``Module._apply``: label the weights before and after a move or cast."""
        if self._moving:
            return original(module, *args, **kwargs)
        self._moving += 1
        try:
            self._counters.name_models([("", module)])
            came = not any(one.is_cuda for one in module.parameters())
            moved = original(module, *args, **kwargs)
            if came and any(one.is_cuda for one in module.parameters()):
                self._births[module] = self._counters.interval()
            self.counts.move(module)
            self._counters.name_models([("", module)])
            return moved
        finally:
            self._moving -= 1

    def _init_optimizer(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self._births[optimizer] = self._counters.interval()
        original(optimizer, *args, **kwargs)

    def _load_optimizer(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        # Its state is other tensors now.
        self._entries.pop(id(optimizer), None)

    # ---- names

    def path(self, module: torch.nn.Module) -> str | None:
        """Return the path of a module in its model, or None if the model is unknown."""
        return self._paths.get(module)  # type: ignore[no-any-return]

    def know(self, model: torch.nn.Module) -> None:
        """Record the path of each module in a model, before a wrapper changes the names."""
        for path, module in model.named_modules():
            self._paths[module] = path

    def meet(self, module: torch.nn.Module) -> bool:
        """Add the model that contains a called module; return False if it is known or lazy."""
        if module in self._paths or any(map(is_lazy, module.parameters())):
            return False  # Lazy modules get their parameters in their first forward.
        self.add(self._find_root(module))
        return True

    def add(self, root: torch.nn.Module) -> None:
        """Count and label the modules of a model, which may contain known models."""
        parts = set(map(id, root.modules()))
        self._roots = [ref for ref in self._roots if id(ref()) not in parts]
        prefix = f"{type(root).__name__}." if self._roots else ""
        for path, part in root.named_modules():
            self._paths.setdefault(part, f"{prefix}{_WRAPPED.sub('', path)}".rstrip("."))
        if not self._counted or self.counts.add_model(root, self._births.get(root, 0), ran=True):
            self._roots.append(weakref.ref(root))
        if any(one.is_meta for one in root.parameters()):
            self._counted_on_meta.add(root)
        self.sweep()

    def _find_root(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the model that contains a module; the first, if several do."""
        parents: dict[int, torch.nn.Module] = {}
        for one in list(self._modules):
            for child in one.__dict__.get("_modules", {}).values():
                if child is not None:
                    parents.setdefault(id(child), one)
        seen: set[int] = set()
        while id(module) in parents and id(module) not in seen:
            seen.add(id(module))
            module = parents[id(module)]
        return module

    def sweep(self) -> None:
        """Label the weights and buffers of all modules, and count new ones."""
        roots = [root for ref in self._roots if (root := ref()) is not None]
        modules = list(self._modules)
        children = {
            id(child) for one in modules for child in one.__dict__.get("_modules", {}).values()
        }
        met = {id(root) for root in roots}
        others = [one for one in modules if id(one) not in children and id(one) not in met]
        named = [(self._name_copy(root) if self._trained else "", root) for root in roots]
        named += [(self._name_copy(one) or type(one).__name__, one) for one in others]
        self._homes = self._counters.name_models(named, self._paths)
        for one in others:
            if not any(map(is_lazy, one.parameters())):
                self.counts.add_model(one, self._births.get(one, 0), ran=False)
        for root in self._counted_on_meta.intersection(roots):
            if not any(one.is_meta for one in root.parameters()):
                self.counts.add_model(root, self._births.get(root, 0), ran=True)
                self._counted_on_meta.discard(root)
        parameters = {id(p): p for _, one in named for p in one.parameters()}
        self._parameters = [TensorRef(p) for p in parameters.values()]
        self._parameters += self._alone

    def _name_copy(self, module: torch.nn.Module) -> str:
        """Return a name for a copied model, also inside a wrapper such as ``AveragedModel``.

        Returns:
            An empty string if the module is no copy, or if it is trained.
        """
        if self.is_trained(module):
            return ""
        parts = list(module.modules())
        copied = [one for one in parts if self._modules.get(one)]
        own = [one for one in parts if one.__dict__.get("_parameters")]
        if not copied or not all(map(self._modules.get, own)):
            return ""
        return f"copy of {type(copied[0]).__name__}"

    def detect_changes(self) -> bool:
        """Return True if parameters were changed in place since the last call."""
        before, touched = self._versions, self._touched
        self._versions = sum(p._version for ref in self._parameters if (p := ref()) is not None)
        self._touched = False
        return touched or 0 <= before < self._versions

    def watch_data(self, patches: Patches) -> None:
        """Count each use of a parameter's ``data`` as a change, which PyTorch does not count."""
        data: Any = torch.Tensor.data

        def note_change(tensor: torch.Tensor) -> None:
            self._touched = self._touched or (tensor.is_leaf and tensor.requires_grad)

        def read(tensor: torch.Tensor) -> Any:
            note_change(tensor)
            return data.__get__(tensor)

        def write(tensor: torch.Tensor, value: Any) -> None:
            note_change(tensor)
            data.__set__(tensor, value)

        patches.set(torch.Tensor, "data", property(read, write))

    def touch(self, leaves: Iterable[torch.Tensor]) -> None:
        """Record that parameters were replaced by these tensors."""
        self._touched = True
        self._trained.update(map(id, leaves))

    def adopt(self, leaves: Iterable[torch.Tensor]) -> None:
        """Use these tensors as all parameters of a program that calls no module."""
        self._parameters = self._alone = [TensorRef(one) for one in leaves]

    def parameters(self) -> Iterator[torch.Tensor]:
        """Return the parameters that are known and alive."""
        return (p for ref in self._parameters if (p := ref()) is not None)

    def detect_replacements(self) -> bool:
        """Return True if parameters were freed, or written since the last call."""
        return self.detect_changes() or any(ref() is None for ref in self._parameters)

    @property
    def none_ran(self) -> bool:
        """Return True if no module with parameters was called."""
        return not self._roots

    def gradients(self, parameters: Iterable[torch.Tensor] | None = None) -> None:
        """Label the gradients of these parameters, or of all if None."""
        if parameters is None:
            parameters = self.parameters()
        kept = (p.grad for p in parameters if p.is_leaf or p.retains_grad)
        self._counters.name(Component.GRADIENTS, kept)

    # ---- optimizers

    def is_trained(self, module: torch.nn.Module) -> bool:
        """Return True if an optimizer has updated this module."""
        first = next((p for p in module.parameters() if p.requires_grad), None)
        return first is not None and id(first) in self._trained

    def trains(self, module: torch.nn.Module) -> None:
        """Record that this module is trained."""
        self._trained.update(map(id, module.parameters()))

    def name_optimizer(self, name: str) -> None:
        """Record the class name of an optimizer."""
        self._names[name] = None

    def name_optimizer_state(self, optimizer: Any, steps: int) -> None:
        """Label and count the state of an optimizer after this number of steps."""
        kept = driven_by(optimizer)
        if steps == 1:
            self.name_optimizer(type(kept).__name__)
            self.name_optimizer(type(optimizer).__name__)
        # Parameters that are added, replaced or unfrozen later get their state then.
        entries = len(state_by_parameter(optimizer)), _hash_parameters(optimizer)
        before = self._entries.get(id(optimizer))
        if before is None or before[1] != entries[1]:
            self._find_alone(optimizer)
        if steps <= _SETTLED or before != entries or isinstance(optimizer, torch.optim.LBFGS):
            self._entries[id(optimizer)] = entries
            self._trained.update(id(p) for p in held_by(optimizer) if p.requires_grad)
            if self._counted:
                own = not isinstance(kept, torch.optim.Optimizer)
                born = 0 if own else self._births.get(kept, 0)
                self.counts.keep(kept, state_by_parameter(kept).values(), born)
            self._counters.name_state(optimizer, self._homes)

    def _find_alone(self, optimizer: Any) -> None:
        """Label and count the parameters of an optimizer that no module has."""
        before = {id(ref()) for ref in self._alone}
        known = {id(ref()) for ref in self._parameters} - before
        alone = [p for p in held_by(optimizer) if id(p) not in known]
        new = [TensorRef(p) for p in alone if id(p) not in before]
        self._alone = [ref for ref in self._alone if ref() is not None] + new
        self._counters.name(Component.WEIGHTS, alone)
        if alone:
            self.sweep()
        if self.counts.in_fp32:
            # Else these may be the copies of parameters that are updated for them.
            self.counts.add_plain(alone, id(optimizer))

    # ---- answers

    def inventory(self, name: str, interval: int) -> Inventory:
        """Return all tensors of the models alive in an interval."""
        return self.counts.inventory(name, interval, self._trained)

    def state(self, interval: int) -> OptimizerState:
        """Return the state of the optimizers alive in an interval."""
        return self.counts.state(interval, ", ".join(self._names) or "no optimizer")


def _hash_parameters(optimizer: Any) -> int:
    """Return a hash of the parameters that an optimizer of PyTorch's holds, else 0."""
    groups = getattr(optimizer, "param_groups", None) or ()
    if not isinstance(optimizer, torch.optim.Optimizer):
        return 0
    return hash(tuple(id(p) for group in groups for p in group["params"]))


def _is_deepcopy() -> bool:
    """Return True if ``copy.deepcopy`` called a module's ``__setstate__``: others are loaded."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _MAKES_COPIES:
            return True
        frame = frame.f_back
    return False
