"""transformers: what its own code asks of a GPU, answered for the one that is simulated.

Caches whose layers lie in host memory come back one ahead of their turn (``cache_utils.py``, read
in 5.23), on streams of the simulated device: what is brought back is made on a stream of its own,
whose blocks the allocator keeps apart. Experts' products are chosen by the GPU's capability.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import torch

from memcalc.errors import EstimateError
from memcalc.kernels.target import Target
from memcalc.records.trace import Component
from memcalc.trace import device, streams
from memcalc.trace.ledger import Ledger
from memcalc.trace.torch_private.names import replaced
from memcalc.workload.inference import tensors_of


class _InTurn:
    """Stands for threads that read a checkpoint ahead: does each piece of work as it is given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work())
        return done

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        pass


@contextlib.contextmanager
def loading_in_turn(at: Callable[[str], None]) -> Iterator[None]:
    """Read checkpoints that are quantised already in this thread, as fast readers do: all at first.

    Others are read one by one anyway (``core_model_loading.py``).

    Args:
        at: told the name of each parameter as it is put together of what was read.
    """
    loading = importlib.import_module("transformers.core_model_loading")

    def followed(convert: Callable[..., Any]) -> Callable[..., Any]:
        def follow(mapping: Any, layer_name: str, *args: Any, **kwargs: Any) -> Any:
            at(layer_name)
            return convert(mapping, layer_name, *args, **kwargs)

        return follow

    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(loading, "ThreadPoolExecutor", _InTurn))
        for kind in (loading.WeightRenaming, loading.WeightConverter):
            stack.enter_context(replaced(kind, "convert", followed(kind.convert)))
        yield


@contextlib.contextmanager
def experts_of(target: Target) -> Iterator[None]:
    """Let products of experts run as one, or one by one, as they do on this GPU.

    transformers knows devices by name. One by one, gradients of the experts are made whether or
    not they are trained.
    """
    module = sys.modules.get("transformers.integrations.moe")
    original = getattr(module, "_can_use_grouped_mm", None)
    if original is None:
        yield
        return

    def can_use(inputs: torch.Tensor, weight: torch.Tensor, *offsets: torch.Tensor) -> bool:
        if device.NAME == "cpu" or weight.device.type != device.NAME:
            return bool(original(inputs, weight, *offsets))
        return target.groups_experts

    with replaced(module, "_can_use_grouped_mm", can_use):
        yield


@contextlib.contextmanager
def offloading(ledger: Ledger) -> Iterator[None]:
    """Let caches that leave the GPU find streams, and say what their layers hold there.

    Raises:
        EstimateError: this transformers has another such cache.
    """
    cache = importlib.import_module("transformers.cache_utils").Cache
    if not (hasattr(cache, "offload") and hasattr(cache, "prefetch")):
        raise EstimateError(
            "This transformers has another offloaded cache than 5.23, which was read: install "
            "that one, or name another --cache."
        )
    update, offload = cache.update, cache.offload

    def held(owner: Any, layer: int) -> None:
        if layer < len(owner.layers):
            ledger.label(tensors_of(owner.layers[layer]), Component.KV_CACHE)

    def updated(owner: Any, keys: Any, values: Any, layer_idx: int, *args: Any, **more: Any) -> Any:
        # What was brought back, before what comes of it takes its place.
        held(owner, layer_idx)
        return update(owner, keys, values, layer_idx, *args, **more)

    def offloaded(owner: Any, layer_idx: int, *args: Any, **more: Any) -> None:
        held(owner, layer_idx)
        offload(owner, layer_idx, *args, **more)

    streams.renumber()
    with (
        replaced(torch, "Stream", streams.Stream),
        replaced(torch.cuda, "default_stream", lambda device=None: streams.DEFAULT),
        replaced(cache, "update", updated),
        replaced(cache, "offload", offloaded),
    ):
        yield
