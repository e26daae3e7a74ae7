"""Measurements beside their predictions, as blocks."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from memcalc import untrusted_text
from memcalc.accuracy.compare import Difference, compare, peak
from memcalc.files.results import Run
from memcalc.measure.watched_command import CommandResult
from memcalc.records import measurement
from memcalc.records.levels import Levels
from memcalc.records.plan import Plan
from memcalc.records.trace import Phase, PhaseReading
from memcalc.report.blocks import Block, Line, Table
from memcalc.report.rows import describe
from memcalc.units import format_bytes, format_mib
from memcalc.wrap import fold

_SOURCES = {
    "process": "NVML's figure for the process",
    "appeared": "NVML's figure for the process that appeared with it",
    "difference": "growth of the whole device",
}


def source_words(gpu: measurement.GpuReading) -> str:
    """Return in words how a process's GPU memory was read."""
    return _SOURCES.get(gpu.source, gpu.source)


def blocks(runs: Sequence[Run]) -> list[Block]:
    """Return one measured run in full, or a table of several."""
    if len(runs) == 1 and runs[0].measurement is not None:
        return list(_describe_run(runs[0], runs[0].measurement))
    if len(runs) == 1 and runs[0].ranks:
        return [*_tabulate_ranks(runs[0]), Line(f"{name(runs[0].plan)}: {line(runs[0])}")]
    warnings = Counter(
        text
        for run in runs
        if run.measurement is not None and run.measurement.gpu is not None
        for text in run.measurement.gpu.warnings
    )
    return [
        _make_table("Sizes in MiB", "run", name, runs),
        *(Line(f"{name(run.plan)}: {line(run)}") for run in runs if _is_failure(run)),
        *(Line(f"warning: {w} (in {n} of {len(runs)} runs)") for w, n in warnings.items()),
    ]


def name(plan: Plan) -> str:
    """Return the settings that tell a run from others of a suite."""
    return f"{plan.model} {describe(plan, None, ('batch', 'seq', 'target'))}"


def line(run: Run) -> str:
    """Return the outcome of a measured run in one line."""
    measured = run.measurement
    if measured is None:
        return run.error or "not measured"
    if measured.out_of_memory is not None:
        return _describe_oom(measured.out_of_memory, run)
    time, rate, _, peak, estimate, error = _figures(run)
    speed = f"{time}/step, {rate} samples/s"
    compared = f"peak {peak} MiB, estimate {estimate} MiB" if estimate != "n/a" else ""
    return ", ".join(filter(None, (speed, compared, error)))


def _is_failure(run: Run) -> bool:
    return run.measurement is None or run.measurement.out_of_memory is not None


def _describe_oom(failed: measurement.OutOfMemory, run: Run) -> str:
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


def _make_table(title: str, what: str, named: Callable[[Plan], str], runs: Sequence[Run]) -> Table:
    occupied = "resident" if all(run.plan.target == "cpu" for run in runs) else "occupied"
    return Table(
        title=title,
        head=(what, "time/step", "samples/s", occupied, "peak", "estimate", "error"),
        rows=[(named(run.plan), *_figures(run)) for run in runs],
    )


def _figures(run: Run) -> tuple[str, str, str, str, str, str]:
    """Return time, rate, process memory, peak, estimate and error as texts; sizes in MiB."""
    measured, predicted = run.measurement, run.prediction
    if measured is None:
        return "failed", "", "", "", "", ""
    occupied = _bare_mib(measured.peak_rss if measured.device == "cpu" else measured.process_used)
    if measured.out_of_memory is not None:
        top = predicted.peak if predicted is not None else None
        estimate = _bare_mib(top.allocated or top.requested if top is not None else None)
        return "no memory", "", occupied, "", estimate, ""
    time, rate = _format_speed(measured)
    for rung in ("allocated", "requested"):
        both = peak(predicted, measured, rung) if predicted is not None else None
        if both is not None:
            sizes = _bare_mib(both.measured), _bare_mib(both.predicted)
            return time, rate, occupied, *sizes, _percent(both)
    levels = (measurement.steady_peak(measured, rung) for rung in ("allocated", "requested"))
    level = next((level for level in levels if level is not None), None)
    return time, rate, occupied, _bare_mib(level), "n/a", ""


def _format_speed(measured: measurement.Measurement) -> tuple[str, str]:
    """Return seconds per step and samples per second as texts."""
    seconds, rate = measured.seconds_per_step, measured.samples_per_second
    time = f"{seconds:.3f} s" if seconds is not None else "n/a"
    return time, f"{rate:,.1f}" if rate is not None else "n/a"


def _tabulate_ranks(run: Run) -> Iterator[Block]:
    """Yield a table with a row for each rank, and the rank that is shown below it."""
    title = f"Sizes in MiB, of {len(run.ranks)} processes"
    yield _make_table(title, "rank", lambda plan: str(plan.rank), run.ranks)
    for one in filter(_is_failure, run.ranks):
        said = line(one)
        if one.measurement is None and one.reached:
            peak = max(reading.requested or 0 for reading in one.reached)
            if peak:
                said = f"{said} It had reached a peak of {format_mib(peak)} requested."
        yield Line(f"rank {one.plan.rank}: {said}")
    shown = [one.plan.rank for one in run.ranks if one.measurement == run.measurement]
    if shown:
        yield Line(f"Below is rank {shown[0]}, which needs most.")


def _describe_run(run: Run, measured: measurement.Measurement) -> Iterator[Block]:
    if run.ranks:
        yield from _tabulate_ranks(run)
    plan, gpu = run.plan, measured.gpu
    seen = f", batch {plan.batch * plan.grad_accum}" if measured.phases else ""
    yield Line(f"{name(plan) if seen else plan.model}{seen}, on {measured.device}")
    if measured.out_of_memory is not None:
        yield Line(line(run))
    if measured.seconds_per_step is not None:
        time, rate = _format_speed(measured)
        yield Line(f"Time: {time} per step")
        yield Line(f"Samples/second: {rate}")
    if measured.process_used is not None and gpu is not None:
        used = format_mib(measured.process_used)
        yield Line(f"GPU memory occupied: {used} ({source_words(gpu)})")
    elif measured.device != "cpu":
        reason = measured.unknown.get("process_used", "").rstrip(".")
        yield Line(f"GPU memory occupied: n/a ({reason})")
    if measured.peak_rss is not None:
        yield Line(f"Main memory, largest resident set: {format_mib(measured.peak_rss)}")
    if measured.phases:
        yield _tabulate_phases(measured)
    yield from _describe_holdings(measured)
    if gpu is not None:
        yield from _describe_gpu(gpu)
    if run.prediction is not None:
        found = compare(run.prediction, measured)
        if found:
            yield Table(
                title="Estimate against measurement, worst first",
                head=("figure", "estimate", "measured", "error (bytes)", "error"),
                rows=[
                    (d.name, f"{d.predicted:,}", f"{d.measured:,}", f"{d.error:+,}", _percent(d, 3))
                    for d in found
                ],
            )
        if run.prediction.uncounted:
            yield Line("not in the estimate: " + "; ".join(run.prediction.uncounted))


def _tabulate_phases(measured: measurement.Measurement) -> Table:
    """Return a table of each phase's peak in the last step, by known memory level."""
    rungs = Levels.__struct_fields__
    known = [r for r in rungs if any(getattr(p, r) is not None for p in measured.phases)]
    last = measurement.find_last_step(measured.phases) or 0
    rows = []
    for phase in Phase:
        steady = [r for r in measured.phases if r.phase is phase and r.step in (last, 0)]
        shown = [r for r in steady if r.step == last] or steady
        if shown:
            first = _format_highest([r for r in steady if r.step == 0], known[0]) if last else ""
            rows.append((phase.value, *(_format_highest(shown, rung) for rung in known), first))
    return Table(title="Peak by phase", head=("phase", *known, "first step"), rows=rows)


def _format_highest(readings: Sequence[PhaseReading], rung: str) -> str:
    levels = [level for r in readings if (level := getattr(r, rung)) is not None]
    return format_mib(max(levels)) if levels else ""


def _describe_holdings(measured: measurement.Measurement) -> Iterator[Line]:
    """Yield lines on measured weights, gradients, optimizer state and cache retries."""
    parts = [
        f"{word} {format_mib(value)}"
        for word, value in (("weights", measured.weights), ("gradients", measured.gradients))
        if value is not None
    ]
    state = measured.state
    if state is not None:
        parts.append(f"optimizer state {format_mib(state.device + state.host + state.managed)}")
    if parts:
        yield Line("  ".join(parts))
    if state is not None:
        yield Line(
            f"optimizer.state.values() adds up to {state.tutorial_elements:,} elements, "
            f"{format_mib(state.tutorial_bytes)}"
        )
    if measured.retries:
        yield Line(f"the allocator emptied its cache {measured.retries} times to go on")


def _describe_gpu(gpu: measurement.GpuReading) -> Iterator[Line]:
    """Yield lines on the process's memory by NVML, outside the allocator, and warnings."""
    held = [f"{m.name} {format_mib(m.process)}" for m in gpu.moments if m.process is not None]
    if held:
        yield Line(f"process, by NVML: {', '.join(held)}")
    if gpu.outside_allocator is not None:
        yield Line(f"outside PyTorch's allocator: {format_mib(gpu.outside_allocator)}")
    yield from (Line(f"warning: {warning}") for warning in gpu.warnings)


def _bare_mib(value: int | None) -> str:
    """Write a size in MiB without its unit, which the title names."""
    return format_mib(value).removesuffix(" MiB") if value is not None else "n/a"


def _percent(found: Difference, places: int = 2) -> str:
    return "" if found.relative is None else percent(found.relative, places)


def percent(share: float, places: int = 2) -> str:
    """Return a signed share as a percentage; one that rounds to 0 has no sign."""
    text = f"{share:+.{places}%}"
    return text if text.strip("+-0.%") else text[1:]


def render(outcome: CommandResult, width: int | None = None) -> str:
    """Return the outcome of ``memcalc run`` as text, one fact per line."""
    measured = outcome.measurement
    lines = [f"ended with exit code {outcome.code} after {measured.seconds:.1f} s"]
    rss = measured.peak_rss
    held = f"n/a ({measured.unknown['peak_rss']})" if rss is None else format_mib(rss)
    lines.append(f"main memory, largest resident sets of all its processes together: {held}")
    for gpu in outcome.gpus:
        words = f"{source_words(gpu)}, {gpu.samples} samples {gpu.interval:g} s apart"
        lines.append(
            f"GPU memory occupied on {gpu.name}: {format_mib(gpu.peak_process or 0)} ({words})"
        )
        lines += [f"warning: {warning}" for warning in gpu.warnings]
    if not outcome.gpus:
        lines.append(f"GPU memory occupied: n/a ({measured.unknown['process_used'].rstrip('.')})")
    said = [f"memcalc: {untrusted_text.line(line)}" for line in lines]
    if width is not None:
        said = [part for line in said for part in fold(line, width, len("memcalc: "))]
    return untrusted_text.lines("".join(f"{line}\n" for line in said))
