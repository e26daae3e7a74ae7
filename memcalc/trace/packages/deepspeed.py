"""DeepSpeed on the simulated GPU: an accelerator of its own kind, and what ranks tell each other.

DeepSpeed asks one object for everything about its device (``deepspeed/accelerator``). The one here
answers for a GPU that is always ready; streams and the cache are the simulated ones. Read in
0.19.8.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from memcalc.records.trace import Component
from memcalc.trace import device, streams, subclasses
from memcalc.trace.ledger import Ledger
from memcalc.trace.torch_private.names import replaced

_GROUPS = "deepspeed.utils.groups"
_COMM = "deepspeed.comm.comm"
_MEMORY = 80 << 30
"""What it is told of the device's size; it only logs it."""


@contextlib.contextmanager
def simulated(ledger: Ledger, rank: int, world: int) -> Iterator[None]:
    """DeepSpeed takes the simulated GPU for its own, in a group that is there already."""
    told = {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "DS_ACCELERATOR": "cpu",
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment(told))
        _accelerate(ledger)
        stack.enter_context(_agreeing())
        stack.enter_context(subclasses.made_of_fakes())
        stack.enter_context(gathering(ledger))
        # Stage 3 puts its own in the place of this one for the life of the process.
        functional = torch.nn.functional
        stack.enter_context(replaced(functional, "linear", functional.linear))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", FutureWarning)
        stack.callback(_forget)
        _forget()
        yield


@contextlib.contextmanager
def _environment(told: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _forget() -> None:
    """Groups of the last run: they belong to a process group that is gone."""
    groups = importlib.import_module(_GROUPS)
    for name, value in list(vars(groups).items()):
        if name.isupper() and name.startswith("_") and not callable(value):
            setattr(groups, name, {} if isinstance(value, dict) else None)
    setattr(importlib.import_module(_COMM), "cdb", None)  # noqa: B010


@contextlib.contextmanager
def _agreeing() -> Iterator[None]:
    """Ranks compare notes by values that they read back: here they agree.

    ``deepspeed.comm.torch`` would compile collectives over shared memory for a host's processes.
    """
    with contextlib.ExitStack() as stack:
        backend = importlib.import_module("deepspeed.comm.torch")
        stack.enter_context(replaced(backend, "build_shm_op", lambda: None))
        for name in ("utils", "stage3", "parameter_offload", "partitioned_param_coordinator"):
            importlib.import_module(f"deepspeed.runtime.zero.{name}")
        check = "assert_ints_same_as_other_ranks"
        for module in [one for name, one in sys.modules.items() if name.startswith("deepspeed")]:
            if check in getattr(module, "__dict__", {}):
                stack.enter_context(replaced(module, check, lambda ints: None))
        yield


@contextlib.contextmanager
def gathering(ledger: Ledger) -> Iterator[None]:
    """Say what the engine makes: whole parameters while they are used, and gradients' buckets."""
    plain: Any = torch.Tensor.data

    def give(tensor: torch.Tensor, new: torch.Tensor) -> None:
        plain.__set__(tensor, new)
        if hasattr(tensor, "ds_id"):
            ledger.label((new,), Component.UNSHARDED)

    owner = importlib.import_module("deepspeed.runtime.zero.stage_1_and_2").DeepSpeedZeroOptimizer
    set_up = owner.setup_buckets

    def buckets(optimizer: Any) -> None:
        set_up(optimizer)
        for bucket in optimizer.ipg_buckets.values():
            ledger.label(bucket.buffer, Component.COMMUNICATION)

    third = importlib.import_module("deepspeed.runtime.zero.stage3").DeepSpeedZeroOptimizer_Stage3
    made = third._setup_for_real_optimizer

    def third_made(optimizer: Any) -> None:
        made(optimizer)
        ledger.label(optimizer.fp32_partitioned_groups_flat, Component.MASTER_WEIGHTS)
        ledger.label((optimizer.grad_partitions_flat_buffer,), Component.GRADIENTS)

    with (
        replaced(torch.Tensor, "data", property(plain.__get__, give)),
        replaced(third, "_setup_for_real_optimizer", third_made),
        replaced(owner, "setup_buckets", buckets),
    ):
        yield


def shards(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """What this rank holds of each parameter between its uses (``ds_tensor`` of stage 3)."""
    return (getattr(parameter, "ds_tensor", parameter) for parameter in model.parameters())


def masters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """This rank's part of the weights in fp32, in place of what the optimizer was made over."""
    return (tensor for group in optimizer.param_groups for tensor in group["params"])


def _accelerate(ledger: Ledger) -> None:
    from deepspeed.accelerator import set_accelerator

    set_accelerator(_kind()(ledger))


@functools.cache
def _kind() -> Any:
    """The class of the accelerator; DeepSpeed checks what it inherits from."""
    base = importlib.import_module("deepspeed.accelerator.cpu_accelerator").CPU_Accelerator

    class Simulated(base):  # type: ignore[misc,valid-type]
        """A GPU that is always ready."""

        def __init__(self, ledger: Ledger) -> None:
            super().__init__()
            self._name = device.NAME
            self._communication_backend_name = "fake"
            self.empty_cache = ledger.empty_cache

        def __getattribute__(self, name: str) -> Any:
            answer = _ANSWERS.get(name)
            return super().__getattribute__(name) if answer is None else answer

        BFloat16Tensor = property(lambda self: _tensor(torch.bfloat16))
        FloatTensor = property(lambda self: _tensor(torch.float32))
        HalfTensor = property(lambda self: _tensor(torch.float16))
        ByteTensor = property(lambda self: _tensor(torch.uint8))
        IntTensor = property(lambda self: _tensor(torch.int32))
        LongTensor = property(lambda self: _tensor(torch.int64))

    return Simulated


def _tensor(dtype: torch.dtype) -> Any:
    return functools.partial(torch.tensor, dtype=dtype, device=device.NAME)


def _named(index: int | None = None) -> str:
    return device.NAME if index is None else f"{device.NAME}:{index}"


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


_YES: Any = lambda *args, **kwargs: True  # noqa: E731
_NO: Any = lambda *args, **kwargs: False  # noqa: E731
_ZERO: Any = lambda *args, **kwargs: 0  # noqa: E731
_ANSWERS: dict[str, Any] = {
    **dict.fromkeys(("is_available", "is_bf16_supported", "is_fp16_supported", "is_pinned"), _YES),
    "use_host_timers": _YES,
    **dict.fromkeys(("is_synchronized_device", "resolves_data_dependency"), _NO),
    "handles_memory_backpressure": _NO,
    **dict.fromkeys(("current_device", "memory_allocated", "max_memory_allocated"), _ZERO),
    **dict.fromkeys(("memory_reserved", "max_memory_reserved"), _ZERO),
    **dict.fromkeys(("set_device", "synchronize", "reset_peak_memory_stats"), _nothing),
    "device_name": _named,
    "current_device_name": lambda: _named(0),
    "device": lambda index=None: contextlib.nullcontext(),
    "device_count": lambda: 1,
    "total_memory": lambda index=None: _MEMORY,
    "available_memory": lambda index=None: _MEMORY,
    "on_accelerator": lambda tensor: tensor.device.type == device.NAME,
    "communication_backend_name": lambda: "fake",
    "pin_memory": lambda tensor, align_bytes=1: tensor,
    "Stream": streams.Stream,
    "Event": streams.Event,
    "stream": streams.use,
    "current_stream": lambda index=None: streams.current(),
    "default_stream": lambda index=None: streams.DEFAULT,
}
"""What it says of the simulated GPU, by the names of DeepSpeed's ``abstract_accelerator``."""
