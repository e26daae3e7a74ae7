"""Measurements beside their predictions, as tables."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table

from memcalc.accuracy.compare import Difference, compare, peak
from memcalc.files.results import Run
from memcalc.records.measurement import GpuReading, Measurement, OutOfMemory, steady_peak
from memcalc.records.plan import Plan
from memcalc.report.measured_tables import differences, phases
from memcalc.units import format_bytes, format_mib
from memcalc.workload import loops

WIDTH = 110
WORDS = {
    "process": "NVML's figure for the process",
    "appeared": "NVML's figure for the process that appeared with it",
    "difference": "growth of the whole device",
}
"""Where the figure of a process is from."""


def render(runs: Sequence[Run], width: int = WIDTH) -> str:
    """One run in full, or several with a line each."""
    out = io.StringIO()
    console = Console(file=out, width=width, no_color=True, highlight=False, markup=False)
    if len(runs) == 1 and runs[0].measurement is not None:
        _single(console, runs[0], runs[0].measurement)
    else:
        console.print(_table(runs))
        for run in runs:
            if _failed(run):
                console.print(f"{name(run.plan)}: {line(run)}")
        for warning, count in _warnings(runs).items():
            console.print(f"warning: {warning} (in {count} of {len(runs)} runs)")
    return out.getvalue()


def name(plan: Plan) -> str:
    """The words that tell a run from others of a suite."""
    words = [plan.model, plan.optim, *(f"{k}={v}" for k, v in plan.optim_args), plan.precision]
    words += ["checkpointing"] if plan.checkpointing else []
    words += [f"lora {plan.lora}"] if plan.lora else []
    words += [plan.loop] if plan.loop != loops.DEFAULT else []
    return " ".join(words)


def line(run: Run) -> str:
    """How a run went, in a few words."""
    measured = run.measurement
    if measured is None:
        return run.error or "not measured"
    if measured.out_of_memory is not None:
        return _out_of_memory(measured.out_of_memory, run)
    parts = [f"{_time(measured)}/step, {_rate(measured)} samples/s"]
    found = _peak(run)
    if found is not None:
        parts.append(f"peak {format_mib(found.measured)}, estimate {format_mib(found.predicted)}")
        parts.append(_percent(found))
    return ", ".join(part for part in parts if part)


def _warnings(runs: Sequence[Run]) -> Counter[str]:
    measured = [run.measurement for run in runs if run.measurement is not None]
    return Counter(text for m in measured if m.gpu is not None for text in m.gpu.warnings)


def _failed(run: Run) -> bool:
    return run.measurement is None or run.measurement.out_of_memory is not None


def _out_of_memory(failed: OutOfMemory, run: Run) -> str:
    text = f"out of memory in {failed.phase.value} of step {failed.step}"
    if failed.asked is not None:
        text += f", asked for {format_bytes(failed.asked)}"
    if failed.free is not None:
        text += f" with {format_bytes(failed.free)} free"
    if failed.asked is None:
        text += f" ({failed.message})"
    if run.prediction is not None:
        top = run.prediction.peak
        text += f"; the estimate is a peak of {format_mib(top.allocated or top.requested)}"
    return text


def _table(runs: Sequence[Run]) -> Table:
    table = Table(title="Sizes in MiB", title_justify="left", box=None)
    on_cpu = all(run.plan.target == "cpu" for run in runs)
    occupied = "resident" if on_cpu else "occupied"
    for head in ("run", "time/step", "samples/s", occupied, "peak", "estimate", "error"):
        wide = head == "run"
        overflow: Literal["fold", "ellipsis"] = "fold" if wide else "ellipsis"
        justify: Literal["left", "right"] = "left" if wide else "right"
        table.add_column(head, justify=justify, no_wrap=not wide, overflow=overflow)
    for run in runs:
        table.add_row(name(run.plan), *_figures(run))
    return table


def _figures(run: Run) -> list[str]:
    measured = run.measurement
    if measured is None:
        return ["failed", "", "", "", "", ""]
    found = _peak(run)
    if measured.out_of_memory is not None:
        top = run.prediction.peak if run.prediction is not None else None
        estimate = top.allocated or top.requested if top is not None else None
        return ["no memory", "", _bare(_occupied(measured)), "", _bare(estimate), ""]
    return [
        _time(measured),
        _rate(measured),
        _bare(_occupied(measured)),
        _bare(found.measured if found is not None else _level(measured)),
        _bare(found.predicted if found is not None else None),
        _percent(found),
    ]


def _single(console: Console, run: Run, measured: Measurement) -> None:
    plan = run.plan
    seen = f", batch {plan.batch * plan.grad_accum}" if measured.phases else ""
    console.print(f"{name(plan) if seen else plan.model}{seen}, on {measured.device}")
    if measured.out_of_memory is not None:
        console.print(line(run))
    if measured.seconds_per_step is not None:
        console.print(f"Time: {_time(measured)} per step")
        console.print(f"Samples/second: {_rate(measured)}")
    gpu = measured.gpu
    if measured.process_used is not None and gpu is not None:
        words = WORDS[gpu.source]
        console.print(f"GPU memory occupied: {format_mib(measured.process_used)} ({words})")
    elif measured.device != "cpu":
        reason = measured.unknown.get("process_used", "").rstrip(".")
        console.print(f"GPU memory occupied: n/a ({reason})")
    if measured.peak_rss is not None:
        console.print(f"Main memory, largest resident set: {format_mib(measured.peak_rss)}")
    if measured.phases:
        console.print(phases(measured))
    _holdings(console, measured)
    if gpu is not None:
        _gpu(console, gpu)
    if run.prediction is not None:
        found = compare(run.prediction, measured)
        if found:
            console.print(differences(found))
        if run.prediction.uncounted:
            console.print("not in the estimate: " + "; ".join(run.prediction.uncounted))


def _holdings(console: Console, measured: Measurement) -> None:
    parts = [
        f"{word} {format_mib(value)}"
        for word, value in (("weights", measured.weights), ("gradients", measured.gradients))
        if value is not None
    ]
    state = measured.state
    if state is not None:
        held = state.device + state.host + state.managed
        parts.append(f"optimizer state {format_mib(held)}")
    if parts:
        console.print("  ".join(parts))
    if state is not None:
        console.print(
            f"optimizer.state.values() adds up to {state.tutorial_elements:,} elements, "
            f"{format_mib(state.tutorial_bytes)}"
        )
    if measured.retries:
        console.print(f"the allocator emptied its cache {measured.retries} times to go on")


def _gpu(console: Console, gpu: GpuReading) -> None:
    held = [
        f"{moment.name} {format_mib(moment.process)}"
        for moment in gpu.moments
        if moment.process is not None
    ]
    if held:
        console.print(f"process, by NVML: {', '.join(held)}")
    if gpu.outside_allocator is not None:
        console.print(f"outside PyTorch's allocator: {format_mib(gpu.outside_allocator)}")
    for warning in gpu.warnings:
        console.print(f"warning: {warning}")


def _level(measured: Measurement) -> int | None:
    allocated = steady_peak(measured, "allocated")
    return allocated if allocated is not None else steady_peak(measured, "requested")


def _peak(run: Run) -> Difference | None:
    if run.prediction is None or run.measurement is None:
        return None
    found = peak(run.prediction, run.measurement, "allocated")
    return found or peak(run.prediction, run.measurement, "requested")


def _time(measured: Measurement) -> str:
    seconds = measured.seconds_per_step
    return f"{seconds:.3f} s" if seconds is not None else "n/a"


def _rate(measured: Measurement) -> str:
    rate = measured.samples_per_second
    return f"{rate:,.1f}" if rate is not None else "n/a"


def _occupied(measured: Measurement) -> int | None:
    return measured.peak_rss if measured.device == "cpu" else measured.process_used


def _bare(value: int | None) -> str:
    """A size in MiB, its unit in the title of the table."""
    return format_mib(value).removesuffix(" MiB") if value is not None else "n/a"


def _mib(value: int | None) -> str:
    return format_mib(value) if value is not None else "n/a"


def _percent(found: Difference | None) -> str:
    return f"{found.relative:+.2%}" if found is not None and found.relative is not None else ""
