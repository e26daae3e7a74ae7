"""DeepSpeed over the stub driver: buffers of its engine, and messages between ranks.

Read in DeepSpeed 0.19.8.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memcalc.engine.recorder import Recorder
from memcalc.records.trace import Component

_ZERO = "deepspeed.runtime.zero"


@contextlib.contextmanager
def followed(recorder: Recorder) -> Iterator[None]:
    """Say what the engine makes, and keep it from compiling anything."""
    # It would compile collectives over shared memory, in a folder of the user's.
    _replace(importlib.import_module("deepspeed.comm.torch"), "build_shm_op", lambda: None)
    second = importlib.import_module(f"{_ZERO}.stage_1_and_2").DeepSpeedZeroOptimizer
    third = importlib.import_module(f"{_ZERO}.stage3").DeepSpeedZeroOptimizer_Stage3

    def buckets(optimizer: Any) -> None:
        for bucket in optimizer.ipg_buckets.values():
            recorder.name(Component.COMMUNICATION, bucket.buffer)

    def partitions(optimizer: Any) -> None:
        recorder.name(Component.MASTER_WEIGHTS, optimizer.fp32_partitioned_groups_flat)
        recorder.name(Component.GRADIENTS, [optimizer.grad_partitions_flat_buffer])

    for owner, name, tell in (
        (second, "setup_buckets", buckets),
        (third, "_setup_for_real_optimizer", partitions),
    ):
        _replace(owner, name, _told(getattr(owner, name), tell))
    for owner in (second, third):
        # Gradients have no values here, and a step that is skipped makes no state.
        owner.has_overflow = _none_overflows(owner.has_overflow)
        module = importlib.import_module(owner.__module__)
        _replace(module, "is_invalid_grad_norm", lambda norm: False)
    _agree()
    plain: Any = torch.Tensor.data

    def give(tensor: torch.Tensor, new: torch.Tensor) -> None:
        plain.__set__(tensor, new)
        if hasattr(tensor, "ds_id"):
            recorder.name(Component.UNSHARDED, [new])

    torch.Tensor.data = property(plain.__get__, give)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.Tensor.data = plain


def _agree() -> None:
    """Ranks compare notes by values that they read back: here they agree."""
    check = "assert_ints_same_as_other_ranks"
    for name in ("utils", "parameter_offload", "partitioned_param_coordinator"):
        importlib.import_module(f"{_ZERO}.{name}")
    for name, module in list(sys.modules.items()):
        if name.startswith("deepspeed.") and check in vars(module):
            _replace(module, check, lambda ints: None)


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """For the life of this process, which runs one program."""
    setattr(owner, name, function)


def _told(function: Callable[[Any], None], tell: Callable[[Any], None]) -> Callable[[Any], None]:
    def run(optimizer: Any) -> None:
        function(optimizer)
        tell(optimizer)

    return run


def _none_overflows(check: Callable[..., Any]) -> Callable[..., bool]:
    def run(*args: Any, **kwargs: Any) -> bool:
        check(*args, **kwargs)
        return False

    return run
