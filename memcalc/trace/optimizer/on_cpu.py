"""Updates that are Python on the CPU: they run there operator by operator, and so they do here.

On CUDA one kernel updates a parameter and makes nothing. On the CPU bitsandbytes takes states,
gradient and parameter to fp32 first, a parameter at a time, and memcalc's own optimizers work
through chunks of a fixed size. Read in bitsandbytes 0.50.2.
"""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memcalc.registry import Choice
from memcalc.trace.packages.bitsandbytes import updates_on_cpu
from memcalc.trace.recorder import TraceRecorder
from memcalc.trace.torch_private.dispatch import without_modes
from memcalc.trace.torch_private.names import replaced
from memcalc.version import installed as version_of

Update = Callable[..., None]


def runs(choice: Choice) -> bool:
    """Whether the optimizer's own code runs on fake tensors of the CPU, kernels included."""
    return choice.row.package == "bitsandbytes"


@contextlib.contextmanager
def installed(choice: Choice, recorder: TraceRecorder) -> Iterator[None]:
    """Run the operators that an optimizer calls as the CPU does, while the context lasts.

    Raises:
        EstimateError: this bitsandbytes is another one than was read.
    """
    if choice.row.package == "memcalc":
        recorder.in_python.update(_of_memcalc())
    if choice.row.package != "bitsandbytes" or version_of("bitsandbytes") is None:
        # Without it the optimizer cannot be made, which is said where that is tried.
        yield
        return
    # It prints notices about kernels it does not find.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        import bitsandbytes  # noqa: F401

        update_32bit, update_8bit = updates_on_cpu()
    ops = torch.ops.bitsandbytes
    with (
        replaced(ops, "optimizer_update_32bit", _with_numbers(update_32bit)),
        replaced(ops, "optimizer_update_8bit_blockwise", _with_numbers(update_8bit)),
    ):
        yield


def _with_numbers(update: Update) -> Update:
    """Operators read a number off a tensor that is given for one, as LAMB's and LARS's norm."""
    names = list(inspect.signature(update).parameters)
    number = names.index("param_norm") if "param_norm" in names else None

    def run(*args: Any) -> None:
        if number is None:
            return update(*args)
        return update(*args[:number], float(args[number]), *args[number + 1 :])

    return run


def settle(optimizer: Any) -> None:
    """Let bitsandbytes make its code maps as fake tensors: they are computed number by number."""
    maps = ("dynamic", "udynamic")

    def fill() -> None:
        optimizer.name2qmap.update({name: torch.empty(256) for name in maps})

    optimizer.fill_qmap = fill


def _of_memcalc() -> dict[Any, Update]:
    from memcalc.optim import chunked
    from memcalc.optim.batch import Batch8bit, Batch32bit, BatchBF16, Scalars
    from memcalc.optim.codetables import code_tables

    tables: list[torch.Tensor] = []

    def adam_32bit(p: Any, g: Any, s1: Any, s2: Any, scalars: Any) -> None:
        batch = Batch32bit(params=p, grads=g, state1=s1, state2=s2)
        chunked.adam_32bit(batch, Scalars.unpack(scalars))

    def adam_8bit(
        p: Any, g: Any, s1: Any, s2: Any, a1: Any, a2: Any, q1: Any, q2: Any, scalars: Any
    ) -> None:
        if not tables:
            # Made once for each process, from numbers: what is seen of them is their memory.
            with without_modes():
                made = [code_tables(torch.device("cpu"), signed=signed) for signed in (True, False)]
            for one in made:
                tables.extend(torch.empty(t.shape, dtype=t.dtype) for t in (one.low, one.upper))
        batch = Batch8bit(
            params=p, grads=g, state1=s1, state2=s2, absmax1=a1, absmax2=a2, qmap1=q1, qmap2=q2
        )
        chunked.adam_8bit(batch, Scalars.unpack(scalars))

    def adamw_bf16(p: Any, g: Any, m: Any, v: Any, shift: Any, keys: Any, scalars: Any) -> None:
        batch = BatchBF16(params=p, grads=g, exp_avg=m, exp_avg_sq=v, shift=shift, keys=list(keys))
        chunked.adamw_bf16(batch, Scalars.unpack(scalars))

    ops = torch.ops.memcalc_optim
    return {
        ops.adam_32bit_.default: adam_32bit,
        ops.adam_8bit_.default: adam_8bit,
        ops.adamw_bf16_.default: adamw_bf16,
    }
