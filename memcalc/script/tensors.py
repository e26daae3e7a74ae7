"""Methods of tensors that need their memory, for tensors that have none."""

from __future__ import annotations

from typing import Any

import torch

from memcalc.script.patches import Patches
from memcalc.script.recorder import ScriptRecorder
from memcalc.script.visible import Gpus
from memcalc.trace.subclasses import pointer
from memcalc.trace.torch_private.dispatch import FakeTensor
from memcalc.trace.torch_private.tensors import storage_key

_NO_ARRAY = (
    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
    "memory first."
)
_NO_ARRAY_WITH_GRADIENT = (
    "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
)


def install(patches: Patches, recorder: ScriptRecorder) -> None:
    """Answer for fake tensors; others are asked themselves."""
    _install_reads(patches, recorder)
    _install_addresses(patches, recorder)
    if recorder.memory.several:
        _install_places(patches, recorder.memory.gpus)
    _install_moves(patches, recorder)


def _install_reads(patches: Patches, recorder: ScriptRecorder) -> None:
    """Values that leave a tensor for Python and NumPy."""
    tensor = torch.Tensor

    def read(original: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, FakeTensor):
            self = self.detach().cpu() if self.is_cuda else recorder.read_whole(self.detach())
        return original(self, *args, **kwargs)

    def array(original: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("force", False):
            if self.is_cuda:
                raise TypeError(_NO_ARRAY)
            if self.requires_grad and torch.is_grad_enabled():
                raise RuntimeError(_NO_ARRAY_WITH_GRADIENT)
        return read(original, self, *args, **kwargs)

    listed = tensor.tolist
    patches.wrap(tensor, "tolist", read)
    # Its own one asks for each element.
    patches.set(FakeTensor, "tolist", lambda self: read(listed, self))
    for name in ("numpy", "__array__"):
        patches.wrap(tensor, name, array)


def _install_addresses(patches: Patches, recorder: ScriptRecorder) -> None:
    """Where data lies.

    What was freed makes room for others: a script may tell tensors apart by where they lie.
    """

    def address(original: Any, self: torch.Tensor) -> int:
        if not isinstance(self, FakeTensor):
            return int(original(self))
        if not self.numel():
            return 0
        begins = recorder.memory.address(storage_key(self))
        if begins is None:
            return pointer(self)
        return begins + int(self.storage_offset()) * self.element_size()

    def storage_pointer(original: Any, self: Any) -> int:
        if self.device.type != "meta":
            return int(original(self))
        if not self.nbytes():
            return 0
        begins = recorder.memory.address(self._cdata)
        return int(self._cdata) if begins is None else begins

    patches.wrap(torch.Tensor, "data_ptr", address)
    patches.wrap(torch.UntypedStorage, "data_ptr", storage_pointer)


def _install_places(patches: Patches, gpus: Gpus) -> None:
    """On which of several GPUs a method makes its result."""

    # C++ does these on a tensor's device, made the current one (torch/csrc/autograd, 2.13).
    def on_its_device(original: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.is_cuda:
            return original(self, *args, **kwargs)
        return gpus.on(self.get_device(), original, self, *args, **kwargs)

    def made(original: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.is_cuda and kwargs.get("device") is None:
            kwargs["device"] = self.device
        return original(self, *args, **kwargs)

    for name in ("__getitem__", "__setitem__", "type"):
        patches.wrap(torch.Tensor, name, on_its_device)
    for name in ("new", "new_tensor"):
        patches.wrap(torch.Tensor, name, made)


def _install_moves(patches: Patches, recorder: ScriptRecorder) -> None:
    """What takes a tensor to the GPU, to another stream, or into memory that is shared."""
    tensor = torch.Tensor

    def cuda(
        original: Any, self: Any, device: Any = None, non_blocking: bool = False, **_: Any
    ) -> Any:
        place = torch.device("cuda", device) if isinstance(device, int) else device or "cuda"
        return self.to(place, non_blocking=non_blocking)

    patches.wrap(tensor, "cuda", cuda)
    patches.wrap(tensor, "pin_memory", _pinned)
    patches.wrap(
        tensor, "record_stream", lambda original, self, stream: recorder.used(self, stream)
    )
    patches.wrap(tensor, "share_memory_", lambda original, self: self)
    patches.wrap(tensor, "is_shared", lambda original, self: self.is_cuda or original(self))
    patches.wrap(tensor, "is_pinned", lambda original, self, *_, **__: self.device.type == "cpu")


def _pinned(original: Any, self: Any, *_: Any, **__: Any) -> Any:
    if self.is_cuda:
        kind = self.type()
        raise RuntimeError(f"cannot pin '{kind}' only dense CPU tensors can be pinned")
    return self


def like_real_ones(patches: Patches) -> None:
    """Where PyTorch asks for the exact type of a tensor, a fake one is as good."""
    from torch._subclasses import fake_tensor
    from torch.nn.utils import clip_grad
    from torch.optim.optimizer import _foreach_supported_types

    # It makes a real tensor, so that there is a CUDA context (2.11: of whatever device).
    if hasattr(fake_tensor, "init_gpu_context"):
        patches.set(fake_tensor, "init_gpu_context", lambda device: None)
    # It tells of every error, also of those that a script catches, with a traceback of its own.
    patches.set(fake_tensor.log, "exception", lambda *_, **__: None)
    before = list(_foreach_supported_types)
    _foreach_supported_types.append(FakeTensor)
    patches.also(lambda: _foreach_supported_types.__setitem__(slice(None), before))
    patches.set(clip_grad, "_has_foreach_support", lambda tensors, device: device.type != "cpu")
    patches.wrap(torch._C, "_group_tensors_by_device_and_dtype", _grouped)


def _grouped(original: Any, lists: list[list[Any]], with_indices: bool = False) -> Any:
    """All in one group, where one look at each tells that; C++ asks each fake one several times."""
    first = lists[0]
    if not first or not isinstance(first[0], FakeTensor):
        return original(lists, with_indices)
    place, dtype = first[0].fake_device, first[0].dtype
    for tensor in first:
        fake = isinstance(tensor, FakeTensor)
        if not fake or tensor.fake_device != place or tensor.dtype != dtype:
            return original(lists, with_indices)
    indices = list(range(len(first))) if with_indices else []
    return {(place, dtype): ([list(one) for one in lists], indices)}
