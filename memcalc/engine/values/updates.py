"""Forgets numbers that kernels write over: weights, averages, and what a program's own kernels do.

Only an optimizer's count of steps is known after an update.
"""

import functools
import importlib
import inspect
import weakref
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from memcalc.engine.host_view import cpu_view, is_plain, tensors_in
from memcalc.engine.notes import flat, held_by
from memcalc.engine.patches import Patches
from memcalc.engine.values import threads
from memcalc.engine.values.known import Numbers

_C: Any = torch._C
_STATISTICS = ("running_mean", "running_var")
"""Arguments that batch norms write to, without a mark in their schema."""
_WRITERS = """
native_batch_norm cudnn_batch_norm batch_norm_update_stats batch_norm_gather_stats
batch_norm_gather_stats_with_counts addmm_ addmv_ elu_ gelu_ silu_ mish_ leaky_relu_ threshold_
hardswish_ hardsigmoid_ rrelu_with_noise_ _foreach_lerp_
""".split()
"""Operators with one kernel that writes to given tensors, and that the table of rules lacks.

Of those over lists, which are dear to follow in each optimizer step, the one of moving averages."""
_COUNTS_STEPS = (("_foreach_add_", "Scalar"), ("_foreach_add_", "Tensor"))
_TRITON = "torch._higher_order_ops.triton_kernel_wrap"
_INDUCTOR = "torch._inductor.runtime.triton_heuristics"


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

    def implement(self, library: Any, key: str) -> None:
        """Register kernels of in-place operators that mark their results as unknown."""
        for base, overload in _COUNTS_STEPS:
            add = getattr(getattr(torch.ops.aten, base), overload)
            library.impl(f"{base}.{overload}", functools.partial(self._count_steps, add), key)
        for base in _WRITERS:
            packet = getattr(torch.ops.aten, base, None)
            for overload in packet.overloads() if packet is not None else ():
                op = getattr(packet, overload)
                library.impl(op.name().partition("::")[2], self._wrap_writer(op), key)

    def _wrap_writer(self, op: Any) -> Any:
        """Return a kernel that runs an operator, and marks what it wrote as unknown."""
        arguments = op._schema.arguments
        places = [
            place
            for place, one in enumerate(arguments)
            if one.name in _STATISTICS or (one.alias_info is not None and one.alias_info.is_write)
        ]
        switch = next(
            (n for n, one in enumerate(arguments) if one.name in ("training", "train")), 0
        )

        def call(*args: Any, **kwargs: Any) -> Any:
            with _C._ExcludeDispatchKeyGuard(threads.keys()):
                out = op(*args, **kwargs)
                if not self._stepping and (not switch or args[switch]):
                    given = [args[place] for place in places if place < len(args)]
                    self._numbers.forget(filter(_is_plain, tensors_in(given)))
                return out

        return call

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
                self._numbers.forget(filter(_is_plain, found), integers=names is not None)
        return launched

    def _run_compiled(self, original: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch a kernel of Inductor's, and mark the arguments it writes to as unknown."""
        launched = original(kernel, *args, **kwargs)
        names = getattr(kernel, "mutated_arg_names", ())
        if names and not self._stepping:
            given = dict(zip(kernel.fn.arg_names, args, strict=False))
            found = (given[name] for name in names if isinstance(given.get(name), torch.Tensor))
            self._numbers.forget(filter(_is_plain, found))
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

    def _count_steps(
        self, add: Any, counters: list[torch.Tensor], number: Any, **kwargs: Any
    ) -> None:
        """Add a number to counts of steps, which fused optimizers keep on the GPU."""
        with _C._ExcludeDispatchKeyGuard(threads.keys()):
            add(counters, number, **kwargs)
            first = counters[0]
            if first.is_cuda and first.numel() == 1 and self._numbers.knows(first):
                known = [
                    cpu_view(one)
                    for one in counters
                    if one.numel() == 1 and self._numbers.knows(one)
                ]
                add(known, number, **kwargs)
            elif first.is_cuda and not self._stepping:
                self._numbers.forget(filter(_is_plain, counters))


def _is_plain(tensor: torch.Tensor) -> bool:
    return is_plain((tensor,))


def _find_written(kernel: Any, given: dict[str, Any]) -> list[str] | None:
    """Return the names of the arguments that a Triton kernel writes to, or None: unknown.

    Returns:
        None if it cannot tell.
    """
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
