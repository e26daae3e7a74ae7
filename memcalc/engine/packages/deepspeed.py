"""DeepSpeed: steps of its engine, and its buffers and messages over the stub driver.

Read in DeepSpeed 0.19.8.
"""

import importlib
from typing import Any

import torch

from memcalc.engine.notes import Notebook, held_by
from memcalc.engine.patches import Patches
from memcalc.records.trace import Component

ZERO = "deepspeed.runtime.zero"
SECOND, THIRD = "DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3"
UTILS = "deepspeed.runtime.utils"
NORMS = ("get_grad_norm", "get_weight_norm", "is_invalid_grad_norm")
"""Functions that read norms to check them: no decision of the program's."""
_AGREES = "assert_ints_same_as_other_ranks"


def follow_steps(patches: Patches, steps: Any, phases: Any) -> None:
    """Patch DeepSpeed's engine to count its updates as steps, and follow its backward.

    ``steps`` and ``phases`` come from ``engine.follow``, which uses this file.
    """

    def init_engine(original: Any, *args: Any, **kwargs: Any) -> None:
        with steps.pause_counting():
            original(*args, **kwargs)

    def step(original: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
        with steps.one(engine):
            return original(engine, *args, **kwargs)

    module = "deepspeed.runtime.engine"
    patches.wrap_later(module, "DeepSpeedEngine.__init__", init_engine)
    patches.wrap_later(module, "DeepSpeedEngine._take_model_step", step)
    patches.wrap_later(module, "DeepSpeedEngine.backward", phases.backward)
    for stage, name in ((f"{ZERO}.stage_1_and_2", SECOND), (f"{ZERO}.stage3", THIRD)):
        patches.wrap_later(stage, f"{name}.zero_grad", phases.clear_gradients)


def label(patches: Patches, book: Notebook) -> None:
    """Patch DeepSpeed to label master weights, gradients, buckets and gathered weights."""

    def label_master_weights(original: Any, engine: Any, *args: Any, **kwargs: Any) -> None:
        original(engine, *args, **kwargs)
        own = set(map(id, engine.module.parameters()))
        held = held_by(engine.basic_optimizer) if engine.basic_optimizer is not None else ()
        book.name(Component.MASTER_WEIGHTS, [one for one in held if id(one) not in own])

    def label_buckets(original: Any, optimizer: Any) -> None:
        original(optimizer)
        for bucket in optimizer.ipg_buckets.values():
            book.name(Component.COMMUNICATION, bucket.buffer)

    def label_partitions(original: Any, optimizer: Any) -> None:
        original(optimizer)
        book.name(Component.MASTER_WEIGHTS, optimizer.fp32_partitioned_groups_flat)
        book.name(Component.GRADIENTS, [optimizer.grad_partitions_flat_buffer])

    def label_averages(original: Any, optimizer: Any) -> None:
        original(optimizer)
        for gradients in optimizer.averaged_gradients.values():
            book.name(Component.GRADIENTS, gradients or ())

    def label_step_gradients(original: Any, optimizer: Any, group: int) -> None:
        flat = vars(optimizer).get("single_partition_of_fp32_groups")
        masters = optimizer.fp32_partitioned_groups_flat if flat is None else flat
        book.name(Component.GRADIENTS, [masters[group].grad])
        original(optimizer, group)

    patches.wrap_later("deepspeed.runtime.engine", "DeepSpeedEngine.__init__", label_master_weights)
    second, third = (f"{ZERO}.stage_1_and_2", SECOND), (f"{ZERO}.stage3", THIRD)
    for (module, owner), name, around in (
        (second, "setup_buckets", label_buckets),
        (second, "independent_gradient_partition_epilogue", label_averages),
        (second, "_optimizer_step", label_step_gradients),
        (third, "_setup_for_real_optimizer", label_partitions),
        (third, "_optimizer_step", label_step_gradients),
    ):
        patches.wrap_later(module, f"{owner}.{name}", around)
    patches.when_imported(f"{ZERO}.partition_parameters", lambda _: _label_weights(patches, book))


def _label_weights(patches: Patches, book: Notebook) -> None:
    """Label gathered weights: the third stage assigns them to parameters as ``data``."""
    plain: Any = torch.Tensor.data

    def set_data(tensor: torch.Tensor, new: torch.Tensor) -> None:
        plain.__set__(tensor, new)
        if hasattr(tensor, "ds_id"):
            book.name(Component.UNSHARDED, [new])

    patches.set(torch.Tensor, "data", property(plain.__get__, set_data))


def run_alone() -> None:
    """Patch DeepSpeed for good, so that its engine runs on one rank and compiles nothing.

    The patches stay until this process ends: one more step may follow, to count its operations.
    """
    for_good = Patches()
    # It would compile collectives over shared memory, in a folder of the user's.
    for_good.set(importlib.import_module("deepspeed.comm.torch"), "build_shm_op", lambda: None)
    for stage, name in ((f"{ZERO}.stage_1_and_2", SECOND), (f"{ZERO}.stage3", THIRD)):
        # Gradients have no values here, and a step that is skipped makes no state.
        module = importlib.import_module(stage)
        for_good.wrap(getattr(module, name), "has_overflow", _find_no_overflow)
        for_good.set(module, "is_invalid_grad_norm", lambda norm: False)
    # Ranks compare notes by values that they read back: here they agree.
    for name in ("parameter_offload", "partitioned_param_coordinator"):
        importlib.import_module(f"{ZERO}.{name}")
    utils = importlib.import_module(f"{ZERO}.utils")
    for_good.set_everywhere(utils, _AGREES, lambda ints: None)


def _find_no_overflow(original: Any, *args: Any, **kwargs: Any) -> bool:
    original(*args, **kwargs)
    return False
