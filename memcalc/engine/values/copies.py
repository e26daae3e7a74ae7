"""Copies numbers along with tensors between the simulated GPU and the host, and on the GPU."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from memcalc.engine.host_view import is_plain
from memcalc.engine.patches import Patches
from memcalc.engine.values.known import KNOWN, MADE_UP, Numbers
from memcalc.engine.values.rules import LARGE, SMALL, Followed

_READ = 1 << 22
"""Largest unknown tensor, in elements, that the host gets as numbers. Larger ones are zeros, which
take no memory: offloaded states and checkpoints."""
_WEIGHT = 1 << 20
"""Largest weights, in elements, whose numbers are kept: no program decides by larger ones."""


class Transfers:
    """The copies of a program, with the numbers of the copied tensors."""

    def __init__(
        self, numbers: Numbers, compute: Callable[[Followed, Any, Any, Any], None]
    ) -> None:
        self._numbers = numbers
        self._compute = compute
        self._transfer = ctypes.CDLL(None).memcalc_stub_transfer
        self.source: torch.Tensor | None = None
        """The tensor being copied, or None."""
        self._loads_weights = False

    def install(self, patches: Patches) -> None:
        """Stop the stub driver from copying values: ``copy`` allows it for a program's copies."""
        self._transfer(False)
        models = "transformers.modeling_utils"
        patches.wrap_later(models, "PreTrainedModel.from_pretrained", self._load_weights)

    def _load_weights(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a model; its weights pass through tensors that are no parameters yet."""
        before, self._loads_weights = self._loads_weights, True
        try:
            return original(*args, **kwargs)
        finally:
            self._loads_weights = before

    def copy(self, one: Followed, args: Any, kwargs: Any) -> Any:
        """Run a copy operator, and copy or mark the numbers of its result."""
        source = args[1 if one.writes else 0]
        if not isinstance(source, torch.Tensor):
            return one.op(*args, **kwargs)
        later = None
        if source.is_cuda and source.numel() <= LARGE:
            to = args[0].device if one.writes else kwargs.get("device") or source.device
            if torch.device(to).type == "cuda":
                later = self._numbers.postponed_numbers(source)
            if later is None:
                self._numbers.settle(source)
        ready, shares = True, False
        if one.writes and self._numbers.stays_unknown(args[0], source):
            return one.op(*args, **kwargs)
        if one.writes:
            ready = self._numbers.prepare_write(args[0])
            shares = args[0].is_cuda and self._numbers.shares_units(args[0])
        self.source = source
        self._transfer(True)
        try:
            out = one.op(*args, **kwargs)
        finally:
            self.source = None
            self._transfer(False)
        if not is_plain((out, source)):
            return out
        if later is not None and self._numbers.postpone_copy(out, source, later):
            return out
        if not (out.is_cuda or source.is_cuda):
            self._numbers.carry_on_host((source,), (out,))
        elif not ready:
            self._numbers.erase(out)
        elif not source.is_cuda:
            self._copy_to_gpu(out, source, shares)
        elif not out.is_cuda:
            self._copy_to_host(out, source)
        elif 1 < source.numel() < out.numel() > SMALL:
            # Convolutions begin so with their bias.
            self._numbers.forget((out,))
        elif source.numel() <= SMALL or (
            self._numbers.read_mark(source) and not _is_weight(source)
        ):
            self._compute(one, args, kwargs, out)
        elif one.writes:
            self._numbers.forget((out,))
        return out

    def _copy_to_gpu(self, out: torch.Tensor, source: torch.Tensor, made_up: bool) -> None:
        """Copy values to the GPU that the driver did not: large or in another layout."""
        made_up = made_up or self._numbers.state(source) == MADE_UP
        if self._numbers.read_mark(out) and out.dtype is source.dtype:
            if made_up:
                self._numbers.mark(out, made_up)
            return
        weight = self._loads_weights or _is_weight(source) or _is_weight(out)
        most = _WEIGHT if weight and out.is_floating_point() else LARGE
        if out.numel() <= most and self._numbers.may_take(out.numel()):
            self._numbers.write(out, source)
            self._numbers.mark(out, made_up)

    def _copy_to_host(self, out: torch.Tensor, source: torch.Tensor) -> None:
        """Copy values to the host that the driver did not: unknown or in another layout."""
        unknown = source.is_floating_point() and not self._numbers.read_mark(source)
        converted = not source.is_contiguous() or source.dtype is not out.dtype
        if (unknown and source.numel() <= _READ) or (converted and source.numel() <= LARGE):
            self._numbers.write(out, self._numbers.host(source))
        if self._numbers.state(source) != KNOWN:
            self._numbers.mark(out, made_up=True)


def _is_weight(tensor: torch.Tensor) -> bool:
    """Return True for a weight: no program decides by its numbers."""
    return isinstance(tensor, torch.nn.Parameter) or tensor.requires_grad
