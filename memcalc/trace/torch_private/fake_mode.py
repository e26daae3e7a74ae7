"""The fake mode of simulated GPUs."""

from __future__ import annotations

from typing import Any

from torch._prims_common import compute_required_storage_length

from memcalc.trace.torch_private.dispatch import FakeTensor, FakeTensorMode
from memcalc.trace.torch_private.names import ask

_bypass: type[Exception] = ask("torch._subclasses.fake_tensor:_BypassDispatchCache")


class SimulatedMode(FakeTensorMode):
    """Fake tensors on a device that needs no initialisation, in storages as large as were made."""

    @property
    def avoid_device_init(self) -> bool:
        """There is nothing to be initialised."""
        return True

    def _get_output_info_for_cache_entry(self, *args: Any, **kwargs: Any) -> Any:
        """What is made anew by sizes and strides alone would lie in a smaller storage.

        Attention makes the gradient of its mask in rows that are longer than those it returns.
        """
        info = super()._get_output_info_for_cache_entry(*args, **kwargs)
        output = args[-1]
        made = isinstance(output, FakeTensor) and info.metadata is not None
        if made and info.view_idx is None and _reaches_further(output):
            raise _bypass("storage is larger than the output")
        return info


def _reaches_further(tensor: FakeTensor) -> bool:
    """Its storage goes on behind its last element."""
    nbytes, shape, strides = tensor.untyped_storage().nbytes(), tensor.shape, tensor.stride()
    if not all(type(size) is int for size in (nbytes, *shape, *strides)):
        return False
    own = compute_required_storage_length(shape, strides, int(tensor.storage_offset()))
    return bool(nbytes != own * tensor.element_size())
