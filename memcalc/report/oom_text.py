"""An out-of-memory message as blocks: what was held, why the request failed, what to try."""

import shlex
from collections.abc import Iterator

from memcalc.catalog import gpus
from memcalc.records.oom_text import OomText, SimulatedAgain
from memcalc.report.blocks import Block, Cell, Kind, Line, Share, Size, Table
from memcalc.units import format_bytes

_ALIKE = 0.01
"""Cards whose memory differs by less than this share of a message's total may be the card."""
_SHOWN = 4
_UNLIKE = 0.05
"""Share of a log's allocated bytes from which a difference of the simulated run is named."""


def blocks(found: OomText) -> Iterator[Block]:
    """Yield an out-of-memory message as blocks: failure, memory's holders, cause, commands."""
    yield Line(
        f"out of memory on GPU {found.gpu}: asked for {format_bytes(found.asked)}, "
        f"{format_bytes(found.free)} free of {format_bytes(found.total)}",
        Kind.VERDICT,
    )
    if found.line is not None:
        yield Line(f"  at {found.line}")
    if found.times > 1:
        yield Line(f"  the last of {found.times} such messages")
    yield _tabulate_holders(found)
    yield Line(f"why: {_explain_failure(found)}")
    if found.run is not None:
        yield from _describe_run(found, found.run)
        return
    yield Line("next: what needs less", Kind.SECTION)
    cards = list_cards(found)
    name = cards[0] if len(cards) == 1 else "NAME"
    yield from (Line(f"  {command}", Kind.COMMAND) for command in _suggest_commands(found, name))
    if len(cards) > 1:
        yield Line(f"NAME is your GPU; by its size {', '.join(cards[:_SHOWN])}", Kind.NOTE)


def list_cards(found: OomText) -> list[str]:
    """Return the names of the GPUs that have as much memory as the message says."""
    near = _ALIKE * found.total
    return [one.name for one in gpus.table() if abs(one.memory - found.total) <= near]


def _describe_run(found: OomText, run: SimulatedAgain) -> Iterator[Line]:
    """Yield where a simulated run asks for what failed, what the run needs, and what is next."""
    asked, request = format_bytes(found.asked), run.request
    if request is None:
        yield Line(f"simulated: {run.command} makes no request of {asked}: is it the same run?")
    else:
        storage = request.storage
        module = f"module {storage.module}" if storage.module else ""
        what = " ".join(filter(None, (module, storage.op, storage.dtype)))
        yield Line(
            f"simulated: {format_bytes(storage.bytes)} for {what or 'scratch'}"
            f"{f' at {storage.line}' if storage.line else ''}, in {storage.phase.value} of step "
            f"{storage.step + 1}, beside {format_bytes(request.before)}"
        )
        if (more := found.allocated - request.before) > _UNLIKE * found.allocated:
            yield Line(
                f"the run of the log held {format_bytes(more)} more there: other settings, or "
                "memory that grows from step to step"
            )
    yield Line(f"needs {format_bytes(run.needs)} in all; this GPU has {format_bytes(found.total)}")
    yield Line("next: what is alive at the peak, and at which lines of the script")
    yield Line("  memcalc explain last", Kind.COMMAND)


def _tabulate_holders(found: OomText) -> Table:
    own = found.process - found.allocated - found.cached if found.process is not None else None
    rows = [
        ("tensors", found.allocated, "allocated by PyTorch"),
        ("cached", found.cached, "reserved by PyTorch, held by no tensor"),
        *([("context", max(own, 0), "CUDA, kernels and libraries of this process")] if own else []),
        ("others", found.outside, "other processes" + ("" if own else ", or this one's context")),
        ("free", found.free, "of the whole GPU"),
    ]
    body: list[tuple[Cell, ...]] = [
        (name, Size(size), Share(size / max(found.total, 1)), words) for name, size, words in rows
    ]
    return Table(
        title="memory of the GPU",
        head=("held by", "", "", ""),
        rows=[*body, ("total", Size(found.total), "", "")],
        words=(0, 2, 3),
        strong=(len(body),),
    )


def _explain_failure(found: OomText) -> str:
    asked = format_bytes(found.asked)
    if found.gap == "limit" and found.allowed is not None:
        return (
            f"torch.cuda.set_per_process_memory_fraction leaves {format_bytes(found.allowed)} to "
            "this process"
        )
    if found.gap == "fragmentation":
        return (
            f"fragmentation: {format_bytes(found.cached + found.free)} are held by no tensor, but "
            f"in pieces that are smaller than {asked}"
        )
    if found.gap == "other processes":
        return (
            f"other processes hold {format_bytes(found.outside)}; without them {asked} would have "
            "been served (nvidia-smi shows them)"
        )
    lacks = found.asked - found.free - found.cached
    return f"the run is too large for this GPU: it lacks at least {format_bytes(lacks)}"


def _suggest_commands(found: OomText, gpu: str) -> Iterator[str]:
    if found.gap == "fragmentation":
        yield "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True   # and run again"
    if found.gap == "other processes":
        yield "nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv"
    script = shlex.quote(found.script) if found.script is not None else "train.py"
    gpu = shlex.quote(gpu)
    yield f"memcalc simulate --gpu {gpu} -o run.json -- python {script} ; memcalc explain run.json"
