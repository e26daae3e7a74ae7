"""What DDP and FSDP do that fake tensors cannot, or that another rank would answer."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from memcalc.trace.torch_private.dispatch import FakeTensor
from memcalc.trace.torch_private.names import ask, replaced
from memcalc.trace.torch_private.tensors import data_of, storage_key

_Set = Callable[[torch.Tensor, torch.Tensor], None]


def _set_in_views(set_data: _Set) -> _Set:
    """``tensor.data = new``, which the pieces that a view was made of show as well."""

    def set_it(tensor: torch.Tensor, new: torch.Tensor) -> None:
        between = _between(tensor)
        set_data(tensor, new)
        with torch.no_grad():
            for part in between:
                set_data(part, new.view(part.shape))

    return set_it


_PARTS = "_memcalc_parts"
"""Attribute of FSDP1's flat parameters: references to the pieces that they were split into."""


def _split(split: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.split``, which notes the pieces of flat parameters."""

    def noted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        pieces = split(tensor, *args, **kwargs)
        if getattr(tensor, "_is_flat_param", False):
            alive = [one for one in getattr(tensor, _PARTS, ()) if one() is not None]
            setattr(tensor, _PARTS, [*alive, *map(weakref.ref, pieces)])
        return pieces

    return noted


def _between(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Pieces of a flat parameter that a view of it was made of, and shows.

    A view of a fake tensor holds what it was made of, to be replayed (torch/csrc/autograd,
    ``ADInplaceOrViewType``, 2.13); one of a real tensor does not, and lets old data go.
    """
    pieces = [one() for one in getattr(tensor._base, _PARTS, ())]
    if not pieces:
        return []
    place = storage_key(tensor), tensor.storage_offset(), tensor.numel()
    return [
        one
        for one in pieces
        if one is not None
        and one is not tensor
        and (storage_key(one), one.storage_offset(), one.numel()) == place
    ]


def buckets_rebuilt_by(
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> AbstractContextManager[None]:
    """DDP makes its buckets anew by what ``wrap`` makes of its reducer's method."""
    owner = ask("torch._C._distributed_c10d:Reducer")
    return replaced(owner, "_rebuild_buckets", wrap(owner._rebuild_buckets))


def ddp_asks_no_timer() -> AbstractContextManager[None]:
    """DDP's logger would ask a timer of the device, which a build without CUDA does not have."""
    owner = ask("torch._C._distributed_c10d:Logger")
    return replaced(owner, "set_runtime_stats_and_log", lambda logger: None)


@contextmanager
def ranks_trusted(record_stream: Callable[..., None], set_data: _Set) -> Iterator[None]:
    """DDP takes it that ranks agree; FSDP1 records streams and sets data by these functions.

    DDP compares shapes by values that are read back (torch/nn/parallel/distributed.py); FSDP1
    calls ``record_stream`` past all modes (torch/distributed/fsdp/_common_utils.py), and knows
    storages by their address, which fake ones do not have (_flat_param.py). Pinned host memory is
    host memory.
    """

    def compared(group: Any, parameters: list[torch.Tensor], logger: Any = None) -> None:
        # What torch/csrc/distributed/c10d/reducer.cpp (verify_params_across_processes, 2.13) makes
        # on the device: how many parameters each rank has, then their sizes and strides.
        like = parameters[0]

        def numbers(count: int) -> torch.Tensor:
            return torch.empty(count, dtype=torch.int64, device=like.device)

        counts = [numbers(1) for _ in range(1 + group.size())]
        numbers(group.size())
        numbers(sum(2 * parameter.dim() for parameter in parameters))
        del counts

    with ExitStack() as stack:
        ddp = importlib.import_module("torch.nn.parallel.distributed")
        stack.enter_context(replaced(ddp, "_verify_param_shape_across_processes", compared))
        for name in ("_common_utils", "_flat_param", "_runtime_utils"):
            module = importlib.import_module(f"torch.distributed.fsdp.{name}")
            stack.enter_context(replaced(module, "_no_dispatch_record_stream", record_stream))
        flat = importlib.import_module("torch.distributed.fsdp._flat_param")
        for owner, name, value in (
            (flat, "_data_ptr_allocated", lambda tensor: tensor.untyped_storage().nbytes() > 0),
            (flat, "_same_storage", lambda one, two: storage_key(one) == storage_key(two)),
            (torch.Tensor, "data", property(data_of.__get__, _set_in_views(set_data))),
            (torch, "split", _split(torch.split)),
            (torch.Tensor, "pin_memory", lambda tensor, device=None: tensor),
            (torch.Tensor, "is_pinned", lambda tensor, device=None: tensor.device.type == "cpu"),
        ):
            stack.enter_context(replaced(owner, name, value))
        runtime = importlib.import_module("torch.distributed.fsdp._runtime_utils")
        hook = _on_stream_of_views(runtime._post_backward_hook)
        stack.enter_context(replaced(runtime, "_post_backward_hook", hook))
        yield


@contextmanager
def shards_padded_once() -> Iterator[None]:
    """FSDP2 knows a shard that it has padded by its address, and a fake one's by its storage.

    Else it would pad uneven shards again in the first forward, and free the first ones
    (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, ``reset_sharded_param``, 2.13).
    """
    owner = ask("torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam")
    reset = owner.reset_sharded_param

    def same(shard: Any) -> bool:
        place = shard._module_info
        parameter = getattr(place.module, place.param_name)
        local, kept = parameter._local_tensor, shard._sharded_param_data
        if parameter is not shard.sharded_param or not isinstance(kept, FakeTensor):
            return False
        held = local.device.type != "meta" and kept.untyped_storage().nbytes() > 0
        return held and storage_key(local) == storage_key(kept)

    def once(shard: Any) -> None:
        if same(shard):
            shard._sharding_spec = shard.sharded_param._spec
        else:
            reset(shard)

    with replaced(owner, "reset_sharded_param", once):
        yield


def _on_stream_of_views(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook of FSDP1 that runs where CUDA's engine runs it: on the stream that made its node.

    The node that accumulates a flat parameter's gradient is made with the first views into it, on
    the stream that unshards, and the engine switches to a node's stream for its hooks too
    (torch/csrc/autograd/engine.cpp, ``evaluate_function``).
    """

    def run(state: Any, *args: Any) -> None:
        with state._device_handle.stream(state._unshard_stream):
            hook(state, *args)

    return run
