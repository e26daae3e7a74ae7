"""Layers divided into stages that pass activations on: ``torch.distributed.pipelining``.

A stage is the model with its own layers alone. The first has the embedding, the last the final norm
and the head. Each stage is then divided, sharded or replicated over the other dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from memcalc.errors import UsageError
from memcalc.imports import line
from memcalc.records.plan import Plan
from memcalc.workload.layouts import Layout, Rank, fsdp2, tp

if TYPE_CHECKING:
    import torch

_V_SHAPED = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
"""Schedules whose first rank has the first stage and the last."""


def place(model: torch.nn.Module, rank: Rank) -> torch.nn.Module:
    """Return this rank's pipeline stages on the device, each split by the inner layouts."""
    from memcalc.workload.inputs import without_adapters
    from memcalc.workload.pipeline import Pipeline, make_stage

    over, mesh = rank.spread, fsdp2.mesh(rank)
    schedule = _find_schedule(str(rank.options.get("schedule", "1F1B")))
    whole = without_adapters(model)
    stages = list(_layers_of_stages(whole, schedule, rank))
    at, last = rank.number // (over.world // over.stages), len(stages) - 1
    mine = [at, last - at] if schedule.__name__ in _V_SHAPED else range(at, last + 1, over.stages)
    parts: dict[int, torch.nn.Module] = {}
    for number in mine:
        part = make_stage(whole, stages[number], first=number == 0, last=number == last)
        fsdp2.divide(part, rank, mesh)
        if over.sharding or "tp" in over.axes:
            fsdp2.materialize(part, rank)
        else:
            rank.move(part)
        parts[number] = _wrap_in_ddp(part, rank, mesh)
    return Pipeline(parts, last + 1, schedule, mesh)


def _find_schedule(name: str) -> Any:
    """Return PyTorch's pipeline schedule class with this name.

    Raises:
        UsageError: PyTorch has none of this name.
    """
    from torch.distributed.pipelining.schedules import get_schedule_class

    try:
        return get_schedule_class(name)
    except ValueError as error:
        raise UsageError(f"--parallel-arg schedule={name}: {line(error)}.") from None


def _layers_of_stages(model: Any, schedule: Any, rank: Rank) -> Iterator[range]:
    """Yield the range of layers of each pipeline stage.

    Raises:
        UsageError: the model is built otherwise, or the layers do not make the stages.
    """
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle

    from memcalc.workload.pipeline import find_layers

    stages, (_, whole) = rank.spread.stages, find_layers(model)
    layers, single = len(whole), issubclass(schedule, PipelineScheduleSingle)
    count = stages if single else 2 * stages
    each = str(rank.options.get("layers_per_stage", "")).replace(" ", "")
    sizes = [layers // count + (number < layers % count) for number in range(count)]
    if "," in each:
        sizes = [int(one) for one in each.split(",")]
    elif each:
        sizes = [min(int(each), layers - start) for start in range(0, layers, int(each))]
    held = len(sizes) // stages
    wrong = held < 1 or len(sizes) % stages or (single and held > 1)
    if sum(sizes) != layers or min(sizes) < 1 or wrong or (not single and held < 2):
        raise UsageError(
            f"{layers} layers in {len(sizes)} stages of {min(sizes)} to {max(sizes)} do not fit "
            f"{schedule.__name__} on {stages} ranks, which has "
            f"{'one stage' if single else 'two stages or more'} a rank: set layers_per_stage to "
            "the layers of each, such as 3,5."
        )
    for end, size in zip(itertools.accumulate(sizes), sizes, strict=True):
        yield range(end - size, end)


def _wrap_in_ddp(part: torch.nn.Module, rank: Rank, mesh: Any) -> torch.nn.Module:
    """Wrap a stage in DistributedDataParallel if the mesh has replicas without shards."""
    if "dp_replicate" not in rank.spread.axes or rank.spread.sharding:
        return part
    from torch.nn.parallel import DistributedDataParallel

    from memcalc.workload.layouts import ddp

    own = {name: value for name, value in rank.options.items() if name in ddp.LAYOUT.options}
    own |= {"device_ids": [rank.device.index], "process_group": mesh["dp_replicate"].get_group()}
    return DistributedDataParallel(part, **own)


def check(plan: Plan) -> None:
    """Raise UsageError for settings that PyTorch's pipeline schedules do not support.

    Raises:
        UsageError: they do not.
    """
    given = dict(plan.parallel_args)
    sizes = str(given.get("layers_per_stage", 1)).split(",")
    count = given.get("n_microbatches", 1)
    if not all(size.strip().isdecimal() and 0 < int(size) < 1 << 16 for size in sizes):
        raise UsageError(
            f"--parallel-arg layers_per_stage={given['layers_per_stage']} is not understood: write "
            "layers of each stage, such as 8, or 7,9,9,7."
        )
    if not isinstance(count, int) or isinstance(count, bool) or count < 1 or plan.batch % count:
        raise UsageError(
            f"--parallel-arg n_microbatches={count}: --batch {plan.batch} cannot be divided so."
        )
    refused = {
        "--eval": bool(plan.eval),
        "--compile": plan.compile is not None,
        "--optim-in-backward": plan.optim_in_backward,
        "--precision amp-fp16 (no scaler reaches their losses)": plan.precision == "amp-fp16",
        "sequence_parallel": bool(given.get("sequence_parallel")),
    }
    what = next((what for what, asked in refused.items() if asked), None)
    if what is not None:
        raise UsageError(f"pp trains by PyTorch's schedules, without {what}: leave one out.")


LAYOUT = Layout(
    name="pp",
    summary="layers divided into stages, such as pp=4 or pp=2,fsdp2=4",
    place=place,
    options=("layers_per_stage", "n_microbatches", "schedule"),
    casts=True,
    groups=tp.make_groups,
    clip=tp.clip,
    check=check,
    loop="pipeline",
)
