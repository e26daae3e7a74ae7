"""A traced plan as a memory snapshot, with modules in place of Python frames."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memcalc.advice.explain.timeline import settings_of
from memcalc.allocator.replay import Op
from memcalc.allocator.snapshot_writer import Frame, predicted_snapshot, save_snapshot
from memcalc.errors import UsageError
from memcalc.estimation.estimate import Traced
from memcalc.estimation.replays import UNLIMITED, as_it_ran
from memcalc.records.trace import Storage
from memcalc.records.walk import program_end


def predicted(traced: Traced, path: Path) -> None:
    """Write what ``torch.cuda.memory._dump_snapshot`` would have, for pytorch.org/memory_viz.

    Frames show the module and the operator, and under it the component and the phase.

    Raises:
        UsageError: a CPU run has no CUDA memory, or the file cannot be written.
    """
    plan, trace = traced.prediction.plan, traced.trace
    if plan.target == "cpu":
        raise UsageError("A CPU run has no CUDA memory snapshot: leave --target cpu out.")
    shown: dict[Storage, tuple[Frame, ...]] = {}

    def frames(key: Hashable) -> Sequence[Frame]:
        assert isinstance(key, int)
        storage = trace.storages[key % len(trace.storages)]
        if storage not in shown:
            made, dtype = f"made in {storage.phase.value} of step {storage.step}", storage.dtype
            shown[storage] = (
                (storage.module or f"({storage.phase.value})", 0, f"{storage.op} {dtype}".rstrip()),
                (storage.component.value, 0, made),
            )
        return shown[storage]

    snapshot = predicted_snapshot(
        _events(traced), settings_of(plan, trace), UNLIMITED, frames=frames
    )
    save_snapshot(snapshot, path)


def _events(traced: Traced) -> Iterator[tuple[Any, ...]]:
    """As replayed for the prediction, with the marks in words."""
    trace = traced.trace
    # As if dumped after the last step, with the model and the optimizer still there.
    alive = replace(trace, events=trace.events[: program_end(trace)])
    for event in as_it_ran(alive):
        if event[0] is Op.MARK:
            step, phase = event[1]
            yield Op.MARK, f"step {step} {phase.value}"
        else:
            yield event
