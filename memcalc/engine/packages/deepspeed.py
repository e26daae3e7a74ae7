"""DeepSpeed: steps of its engine, and its buffers and messages over the stub driver.

Read in DeepSpeed 0.19.8.
"""

import importlib
from typing import Any

import torch

from memcalc.engine.notes import Notebook
from memcalc.engine.patches import Patches
from memcalc.records.trace import Component

ZERO = "deepspeed.runtime.zero"
SECOND, THIRD = "DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3"
_AGREES = "assert_ints_same_as_other_ranks"


def follow_steps(patches: Patches, steps: Any, phases: Any) -> None:
    """Take updates of an engine for steps, whichever optimizers it drives, and see its backward.

    ``steps`` and ``phases`` are those of ``engine.follow``, which uses this file.
    """

    def made(original: Any, *args: Any, **kwargs: Any) -> None:
        with steps.prepared():
            original(*args, **kwargs)

    def step(original: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
        with steps.one(engine):
            return original(engine, *args, **kwargs)

    module = "deepspeed.runtime.engine"
    patches.wrap_later(module, "DeepSpeedEngine.__init__", made)
    patches.wrap_later(module, "DeepSpeedEngine._take_model_step", step)
    patches.wrap_later(module, "DeepSpeedEngine.backward", phases.backward)
    for stage, name in ((f"{ZERO}.stage_1_and_2", SECOND), (f"{ZERO}.stage3", THIRD)):
        patches.wrap_later(stage, f"{name}.zero_grad", phases.clear_gradients)


def follow(patches: Patches, book: Notebook) -> None:
    """Say what the engine makes, and keep it from compiling anything.

    ``patches`` end with the run that is followed. What the engine needs to run here at all stays
    for the life of this process: one more step may follow, to count its operations.
    """
    for_good = Patches()
    # It would compile collectives over shared memory, in a folder of the user's.
    for_good.set(importlib.import_module("deepspeed.comm.torch"), "build_shm_op", lambda: None)
    second = getattr(importlib.import_module(f"{ZERO}.stage_1_and_2"), SECOND)
    third = getattr(importlib.import_module(f"{ZERO}.stage3"), THIRD)

    def buckets(original: Any, optimizer: Any) -> None:
        original(optimizer)
        for bucket in optimizer.ipg_buckets.values():
            book.name(Component.COMMUNICATION, bucket.buffer)

    def partitions(original: Any, optimizer: Any) -> None:
        original(optimizer)
        book.name(Component.MASTER_WEIGHTS, optimizer.fp32_partitioned_groups_flat)
        book.name(Component.GRADIENTS, [optimizer.grad_partitions_flat_buffer])

    patches.wrap(second, "setup_buckets", buckets)
    patches.wrap(third, "_setup_for_real_optimizer", partitions)
    for owner in (second, third):
        # Gradients have no values here, and a step that is skipped makes no state.
        for_good.wrap(owner, "has_overflow", _none_overflows)
        module = importlib.import_module(owner.__module__)
        for_good.set(module, "is_invalid_grad_norm", lambda norm: False)
    # Ranks compare notes by values that they read back: here they agree.
    for name in ("parameter_offload", "partitioned_param_coordinator"):
        importlib.import_module(f"{ZERO}.{name}")
    utils = importlib.import_module(f"{ZERO}.utils")
    for_good.set_everywhere(utils, _AGREES, lambda ints: None)
    plain: Any = torch.Tensor.data

    def give(tensor: torch.Tensor, new: torch.Tensor) -> None:
        plain.__set__(tensor, new)
        if hasattr(tensor, "ds_id"):
            book.name(Component.UNSHARDED, [new])

    patches.set(torch.Tensor, "data", property(plain.__get__, give))


def _none_overflows(original: Any, *args: Any, **kwargs: Any) -> bool:
    original(*args, **kwargs)
    return False
