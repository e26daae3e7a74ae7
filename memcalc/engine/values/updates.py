"""Forgets numbers that kernels write over: weights, averages, and what a program's own kernels do.

Only an optimizer's count of steps is known after an update.
"""

import functools
import importlib
import inspect
import re
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.optim import optimizer as optimizers

from memcalc.engine.host_view import cpu_view, is_plain, tensors_in
from memcalc.engine.notes import flat, held_by
from memcalc.engine.patches import Patches
from memcalc.engine.values import threads
from memcalc.engine.values.extensions import Extensions
from memcalc.engine.values.known import Numbers
from memcalc.engine.values.rules import list_followed

_C: Any = torch._C
_STATISTICS = ("running_mean", "running_var")
"""Arguments that batch norms write to, without a mark in their schema."""
_NO_KERNELS = frozenset("record_stream zero_ relu_ hardtanh hardtanh_".split())
"""Operators that write nothing themselves: they call followed ones, or only note something."""
_ON_LISTS = re.compile(r"_foreach_\w+_$")
"""Matches the functions that write to a list of tensors."""
_TRITON = "torch._higher_order_ops.triton_kernel_wrap"
_INDUCTOR = "torch._inductor.runtime.triton_heuristics"


class Writer(NamedTuple):
    """An operator with a kernel of its own that writes to given tensors."""

    op: Any
    places: tuple[int, ...]
    """Places of the arguments that it writes to."""
    names: tuple[str, ...]
    """Their names."""
    switch: int
    """Place of the argument that says whether it writes; 0: it always does."""

    def written(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """Return the tensors among its arguments that it writes to."""
        if self.switch and not args[self.switch]:
            return []
        found = [args[place] for place in self.places if place < len(args)]
        return tensors_in(found + [kwargs.get(name) for name in self.names] if kwargs else found)


@functools.cache
def list_writers() -> tuple[Writer, ...]:
    """Return PyTorch's operators on the GPU that write to tensors, and that the table lacks.

    Those over lists are left out: PyTorch converts each tensor for a kernel in Python.
    """
    followed = {one.op.name() for counts in (False, True) for one in list_followed(counts=counts)}
    found = []
    for name in _C._dispatch_get_all_op_names():
        space, _, place = name.partition("::")
        base, _, overload = place.partition(".")
        if space != "aten" or name in followed or base in _NO_KERNELS:
            continue
        if not _C._dispatch_has_kernel_for_dispatch_key(name, "CUDA"):
            continue
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        arguments = list(enumerate(op._schema.arguments))
        writes = [(at, one) for at, one in arguments if _is_written(one)]
        views = torch.Tag.inplace_view in op.tags
        if not writes or views or any(isinstance(one.type, torch.ListType) for _, one in writes):
            continue
        switch = next((at for at, one in arguments if one.name in ("training", "train")), 0)
        places, names = zip(*((at, one.name) for at, one in writes), strict=True)
        found.append(Writer(op, places, names, switch))
    return tuple(found)


def _is_written(argument: Any) -> bool:
    """Return True for an argument of an operator's schema that the operator writes to."""
    written = argument.alias_info is not None and argument.alias_info.is_write
    return written or argument.name in _STATISTICS


class Updates:
    """Follows optimizers, and operators and kernels that write to given tensors."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepping = False
        """True during an optimizer's step, which forgets what it writes at its end."""
        self._written: dict[Any, list[str] | None] = {}
        """Names of the arguments that a kernel of Triton's writes to; None: all, it seems."""

    def install(self, patches: Patches) -> None:
        """Register hooks around optimizer steps, and after kernels of Triton's."""
        for hook in (
            optimizers.register_optimizer_step_pre_hook(self._begin_step),
            optimizers.register_optimizer_step_post_hook(self._forget_first),
        ):
            patches.also(hook.remove)
        patches.wrap_later("triton.runtime.jit", "JITFunction.run", self._run_kernel)
        patches.wrap_later(_INDUCTOR, "CachingAutotuner.run", self._run_compiled)
        for name in filter(_ON_LISTS.match, dir(torch)):
            patches.wrap(torch, name, self._run_on_list)
        Extensions(self._forget).install(patches)

    def implement(self, library: Any, key: str) -> None:
        """Register kernels of in-place operators that mark their results as unknown."""
        for one in list_writers():
            library.impl(one.op.name().partition("::")[2], self._wrap_writer(one), key)

    def _forget(self, tensors: Iterable[torch.Tensor], *, integers: bool = False) -> None:
        """Mark tensors as unknown, but not in an optimizer's step."""
        if not self._stepping:
            self._numbers.forget(filter(_is_plain, tensors), integers=integers)

    def _wrap_writer(self, one: Writer) -> Any:
        """Return a kernel that runs an operator, and marks what it wrote as unknown."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with _C._ExcludeDispatchKeyGuard(threads.keys()):
                out = one.op(*args, **kwargs)
                if not self._stepping:
                    self._forget(one.written(args, kwargs))
                return out

        return call

    def _run_on_list(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run an operator that writes to a list of tensors, and mark these as unknown.

        Fused optimizers add to their counts of steps so, which stay known.
        """
        tensors, *others = args or (kwargs["self"],)
        if self._stepping:
            # What a step writes is forgotten at its end; each tensor of a list on the host would
            # be followed alone.
            with _C._ExcludeDispatchKeyGuard(threads.keys()):
                out = original(*args, **kwargs)
        else:
            out = original(*args, **kwargs)
        if torch.compiler.is_compiling() or not tensors or not tensors[0].is_cuda:
            return out
        counts = original.__name__ == "_foreach_add_" and tensors[0].numel() == 1
        if counts and others and isinstance(others[0], int | float):
            known = [
                cpu_view(one) for one in tensors if _is_plain(one) and self._numbers.knows(one)
            ]
            if known:
                with _C._ExcludeDispatchKeyGuard(threads.keys()):
                    original(known, *others, **kwargs)
        else:
            self._forget(tensors)
        return out

    def _run_kernel(self, original: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch a Triton kernel of the program's, and mark what it writes as unknown."""
        launched = original(kernel, *args, **kwargs)
        given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
        given = {name: given[name] for name in kernel.arg_names if name in given}
        tensors = {name: one for name, one in given.items() if isinstance(one, torch.Tensor)}
        if not self._stepping and tensors:
            with _C._ExcludeDispatchKeyGuard(threads.keys()):
                if kernel not in self._written:
                    self._written[kernel] = _find_written(kernel, given)
                names = self._written[kernel]
                found = [one for name, one in tensors.items() if names is None or name in names]
                self._forget(found, integers=names is not None)
        return launched

    def _run_compiled(self, original: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch a kernel of Inductor's, and mark the arguments it writes to as unknown."""
        launched = original(kernel, *args, **kwargs)
        names = getattr(kernel, "mutated_arg_names", ())
        if names:
            given = dict(zip(kernel.fn.arg_names, args, strict=False))
            self._forget(tensors_in([given.get(name) for name in names]))
        return launched

    def _begin_step(self, *_: object) -> None:
        self._stepping = True

    def _forget_first(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Mark the weights and state of an optimizer as unknown after its first step.

        Later steps find nothing that is known.
        """
        self._stepping = False
        if optimizer in self._stepped:
            return
        self._stepped.add(optimizer)
        weights = [one for one in held_by(optimizer) if one.grad is not None]
        kept = [one for of_one in optimizer.state.values() for _, one in flat("", of_one)]
        state = (one for one in kept if one.numel() > 1)
        self._numbers.forget(filter(_is_plain, (*weights, *state)))


def _is_plain(tensor: torch.Tensor) -> bool:
    return is_plain((tensor,))


def _find_written(kernel: Any, given: dict[str, Any]) -> list[str] | None:
    """Return the names of the arguments that a Triton kernel writes to, or None if unknown."""
    module: Any = importlib.import_module(_TRITON)
    find = getattr(module, "identify_mutated_tensors", None)
    try:
        if find is None:  # PyTorch 2.14
            accesses = module.identify_accessed_tensors(kernel, given, {})
            return [one.name for one in accesses.read_writes.writes]
        extra: list[Any] = [{}] * (len(inspect.signature(find).parameters) - 2)
        return list(find(kernel, given, *extra))
    except Exception:
        return None
