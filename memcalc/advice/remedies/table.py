"""The common remedies for a high peak, as changes of a plan.

A row says what changes, where it cannot be done and why, and what it costs, with the source of
that; what it saves is never said here, but estimated in full. ``rank`` orders by cost:

====  ===================================================================================
0     same arithmetic, no slower
1     same gradient from smaller pieces
2     products in half precision, weights and update in fp32
3, 4  same arithmetic, part of the forward runs twice, or no accumulation and no clipping
5     optimizer state in 8 bit
6     weights in half precision
7     other parameters train
8     other parameters train, around weights that are rounded to 4 bit
====  ===================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memcalc.advice.remedies.records import Remedy
from memcalc.advice.remedies.rows import adapters, free, lower_precision, slower
from memcalc.catalog import models
from memcalc.records.plan import Plan
from memcalc.workload import tasks
from memcalc.workload.tasks import Task

Row = Callable[[Plan, Task], Iterator[Remedy]]

ROWS: tuple[Row, ...] = (
    free.fused,
    free.set_to_none,
    free.outputs,
    free.kv_cache,
    free.attention,
    free.expandable,
    slower.accumulation,
    lower_precision.autocast,
    slower.sharded,
    slower.on_the_host,
    slower.chunked_loss,
    slower.liger,
    slower.in_backward,
    slower.checkpointing,
    lower_precision.eight_bit_states,
    lower_precision.all_in_bf16,
    lower_precision.unprepared,
    adapters.lower_rank,
    adapters.lora,
    adapters.qlora,
)
OF_INFERENCE: tuple[Row, ...] = (
    free.attention,
    free.expandable,
    lower_precision.all_in_half,
    lower_precision.weights_in_4_bit,
)
"""Where nothing is trained."""


def candidates(plan: Plan) -> list[Remedy]:
    """The remedies of a plan, cheapest first; what it does already is left out.

    Raises:
        UsageError: the plan names a model or task that is not known.
    """
    if plan.command:
        return []
    task = tasks.choose(models.find(plan.model), plan.task).task
    rows = OF_INFERENCE if plan.infers else ROWS
    found = [remedy for row in rows for remedy in row(plan, task)]
    return sorted(found, key=lambda remedy: remedy.rank)
