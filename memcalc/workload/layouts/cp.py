"""Tokens of a sequence divided over GPUs: PyTorch's ``context_parallel``, with ring attention.

Weights are shards of FSDP2 among the ranks of a context, and batches are divided, as torchtitan,
accelerate and the Trainer do it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from memcalc.errors import UsageError
from memcalc.files import extras
from memcalc.imports import line
from memcalc.workload.layouts import Rank, tp

if TYPE_CHECKING:
    import torch


def divide(model: torch.nn.Module, rank: Rank, mesh: Any) -> None:
    """Set up context parallelism: causal attention without a mask, batches split along tokens.

    Raises:
        UsageError: a layer's attention cannot be divided, or accelerate is not installed.
    """
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    config: Any = getattr(model, "config", None)
    attention = getattr(config, "_attn_implementation", "sdpa")
    if attention != "sdpa":
        raise UsageError(
            "Context parallelism is supported only with SDPA attention, you are using "
            f"{attention}: add --attention sdpa, or choose fsdp2 if the model has none."
        )
    missing = extras.lacking("--parallel cp needs", "accelerate")
    if missing is not None:
        raise UsageError(f"{missing}.")
    from accelerate.big_modeling import _attach_context_parallel_hooks

    try:
        _attach_context_parallel_hooks(model)
        set_rotate_method(str(rank.options.get("rotate_method", "allgather")))
    except (NotImplementedError, ValueError) as error:
        raise UsageError(f"{line(error)}.") from None
    # The rings last until the model is called again.
    rings = contextlib.ExitStack()

    def divide_batch(_: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        rings.close()
        return args, rings.enter_context(divide_tokens(mesh["cp"], kwargs))

    if rank.spread.stages == 1:
        model.register_forward_pre_hook(divide_batch, with_kwargs=True, prepend=True)


@contextlib.contextmanager
def divide_tokens(mesh: Any, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Split a batch along its tokens over the ranks, inside the block."""
    import torch
    from torch.distributed.tensor.experimental import context_parallel

    tokens, whole = batch["input_ids"], dict(batch)
    if "labels" in batch:
        pad = torch.nn.functional.pad
        whole["shift_labels"] = pad(batch["labels"], (0, 1), value=-100)[:, 1:].contiguous()
    places = torch.arange(tokens.size(1), device=tokens.device)
    whole["position_ids"] = places.expand(tokens.size(0), -1)
    buffers = [one for one in whole.values() if isinstance(one, torch.Tensor)]
    with context_parallel(
        mesh,
        buffers=buffers,
        buffer_seq_dims=[1] * len(buffers),
        no_restore_buffers=set(buffers),
    ):
        yield whole


LAYOUT = replace(
    tp.LAYOUT,
    name="cp",
    summary="tokens of each sequence divided, such as cp=2 or cp=2,fsdp2=4",
    divide=divide,
    options=("rotate_method",),
)
