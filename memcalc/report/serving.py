"""A serving engine's memory, as blocks."""

from collections.abc import Iterator

from memcalc.records.prediction import Prediction
from memcalc.records.serving import TITLES, Serving
from memcalc.report.blocks import Block, Cell, Kind, Line, Table
from memcalc.units import GIB, format_bytes


def blocks(prediction: Prediction, serving: Serving) -> Iterator[Block]:
    """Yield a serving engine's memory as blocks: sequences at once, GPU share, KV cache."""
    yield headline(prediction, serving)
    plan, engine = prediction.plan, f"{TITLES[serving.engine]} {serving.version}"
    if serving.ran:
        yield Line(f"  {plan.name} ({prediction.head}): {engine} itself started here")
    else:
        head = f"  {plan.model} ({prediction.head}): {plan.precision}"
        how = "; --vllm 0.33 starts it" if serving.engine == "vllm" else ""
        yield Line(f"{head}, by the rules of {engine}, which did not run{how}")
    yield Line("")
    yield _tabulate_budget(serving)
    yield Line("")
    yield _tabulate_cache(serving)
    yield Line("")


def headline(prediction: Prediction, serving: Serving) -> Line:
    """Return in a sentence how many sequences the engine serves at once."""
    fit = prediction.fit
    word = fit.verdict.value if fit is not None else ""
    count = serving.gpus
    several = f"{count} x " if count > 1 else ""
    gpu = f"{several}{fit.gpu}" if fit is not None else ""
    found = _format_range(serving, "running")
    plural = "sequence" if found == "1" else "sequences"
    words = f"{found} {plural} of {serving.length:,} tokens at once"
    return Line(f"{word}: {TITLES[serving.engine]} on {gpu} serves {words}", Kind.VERDICT)


def _tabulate_budget(serving: Serving) -> Table:
    """Return a table of the engine's share of the GPU and its uses, in GiB."""
    body: list[tuple[Cell, ...]] = [
        (
            "share of each GPU" if serving.gpus > 1 else "share of the GPU",
            f"{serving.budget / GIB:.2f}",
            f"{serving.share:g} x {format_bytes(serving.memory)} ({serving.setting})",
        )
    ]
    body += [(f"- {one.name}", _format_gib(one.low, one.high), one.source) for one in serving.taken]
    strong = len(body)
    body.append(("KV cache", _format_gib(serving.least.bytes, serving.most.bytes), "what is left"))
    return Table(
        head=("reserved at the start", "GiB", ""), rows=body, words=(0, 2), strong=(0, strong)
    )


def _tabulate_cache(serving: Serving) -> Table:
    block = "page" if serving.engine == "sglang" else "block"
    longest = "that fits alone" if serving.least.longest < serving.most.longest else ""
    tokens = "token" if serving.block == 1 else "tokens"
    body: list[tuple[Cell, ...]] = [
        (f"{block}s", _format_range(serving, "blocks"), f"of {serving.block:,} {tokens}"),
        ("tokens", _format_range(serving, "tokens"), "as its log says it"),
        ("sequences", _format_range(serving, "sequences"), f"of {serving.length:,} tokens"),
        ("longest sequence", _format_range(serving, "longest"), longest or "tokens"),
    ]
    return Table(head=("in the cache", "", ""), rows=body, words=(0, 2), strong=(2,))


def _format_range(serving: Serving, field: str) -> str:
    low, high = (getattr(end, field) for end in (serving.least, serving.most))
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _format_gib(low: int, high: int) -> str:
    ends = f"{low / GIB:.2f}", f"{high / GIB:.2f}"
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
