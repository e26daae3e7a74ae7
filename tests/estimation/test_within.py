"""Where a workspace is known only within limits, so is what the run reserves."""

import sys

import pytest
from msgspec.structs import replace

from memcalc.catalog.plan import make
from memcalc.estimation import within
from memcalc.estimation.fits import device_of
from memcalc.estimation.outside import CUDNN, EAGER
from memcalc.estimation.question import asked
from memcalc.estimation.replays import judged
from memcalc.estimation.tracing import Desk
from memcalc.kernels import alike, cudnn
from memcalc.records.prediction import FitVerdict
from memcalc.records.trace import Component
from memcalc.report import answer, rows
from memcalc.report.rows import process_ends

SOURCE = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 50, 5), nn.Linear(50, 10)
    def forward(self, x, labels):
        hidden = torch.relu(self.conv(x)).mean((2, 3))
        return {"loss": nn.functional.cross_entropy(self.head(hidden), labels)}
"""


@pytest.fixture
def holds(forked, tmp_path):
    """Run a check in a process that has trained nothing, where it may patch the library."""
    (tmp_path / "odd_net.py").write_text(SOURCE)
    return lambda check: forked(check, str(tmp_path))


def estimates(folder):
    """What is estimated of a network whose convolutions are in no table."""
    sys.path.insert(0, folder)
    cudnn.workspaces = lambda *_, **__: ()
    alike.limits.cache_clear()

    def ask(**more):
        inputs = ("x=float32[16,3,90,90]", "labels=int64[16]")
        settings = {"model": "odd_net:Net", "batch": 16, "inputs": inputs, "gpu": "a100-40gb"}
        return Desk().estimate(make({**settings, **more}))

    return ask


def reserved_is_a_range(folder):
    found, trace = estimates(folder)()
    span = found.allocator
    assert trace.bounds
    assert span.low <= found.peak.reserved <= span.high
    assert span.low < span.high
    assert process_ends(found) == (span.low + found.context.low, span.high + found.context.high)
    (part,) = span.parts
    assert (part.name, part.low, part.high) == (within.RESERVED, span.low, span.high)
    assert within.ALIKE in found.assumptions
    assert found.fit.verdict is FitVerdict.FITS


def test_reserved_is_a_range_and_said_part_by_part(holds):
    holds(reserved_is_a_range)


def allocated_is_a_range(folder):
    estimate = estimates(folder)
    plain, _ = estimate()
    assert plain.allocated is None, "no convolution runs at the peak"
    small = {"batch": 2, "inputs": ("x=float32[2,3,12,12]", "labels=int64[2]")}
    assert estimate(**small)[0].allocated is None, "too little to be told"
    found, trace = estimate(precision="amp-fp16")
    span, widest = found.allocated, max(bound.bytes - bound.least for bound in trace.bounds)
    assert span.low < found.peak.allocated == span.likely == span.high
    assert span.high - span.low <= widest
    (part,) = span.parts
    assert (part.name, part.low, part.high) == (within.ALLOCATED, span.low, span.high)
    shown = str(list(answer.blocks(found)))
    assert f"max_memory_allocated(): {rows.span_range(span)}" in shown
    assert "max_memory_allocated():" not in str(list(answer.blocks(plain)))


def test_what_is_allocated_is_a_range_where_a_workspace_makes_the_peak(holds):
    holds(allocated_is_a_range)


def an_older_pytorch_may_lay_blocks_otherwise(folder):
    estimate = estimates(folder)
    found, trace = estimate(torch="2.3")
    span = found.allocator
    _, fewer, more = span.parts
    assert (fewer.name, more.name) == (within.WITHOUT_GAPS, within.APART)
    assert "PyTorch 2.3" in fewer.source
    assert "PyTorch 2.3" in more.source
    assert span.low == fewer.low < found.peak.reserved <= span.high - more.high
    least = max(sum(s.bytes for s in trace.storages if s.component is Component.WEIGHTS), 1)
    assert least < fewer.low <= found.peak.allocated + (2 << 20)
    largest = max(storage.bytes for storage in trace.storages)
    assert largest <= more.high < largest + (2 << 20)
    rest = {"allocated": 90, "largest": 10 << 20, "release": "2.3"}
    for room, high in ((1 << 40, (10 << 20) + 120), (500, 500), (100, 120)):
        plain = within.Span(low=95, likely=100, high=120, source="")
        assert within.of_other_order(plain, 100, room=room, **rest).high == high
    newer, _ = estimate(torch="2.11")
    assert {part.name for part in newer.allocator.parts} == {within.RESERVED}


def test_an_older_pytorch_may_reserve_what_it_allocates_or_its_largest_block_twice(holds):
    holds(an_older_pytorch_may_lay_blocks_otherwise)


def workspaces_are_drawn_one_by_one(folder):
    _, trace = estimates(folder)(torch="2.3")
    assert len(trace.bounds) > 1
    of = {
        index: (bound.least or 1, bound.bytes, bound.most)
        for index, storage in enumerate(trace.storages)
        for bound in trace.bounds
        if storage.op in within.OPERATORS and storage.bytes == bound.bytes
    }
    drawn = list(within.variants(trace))
    assert drawn == list(within.variants(trace))
    mixed, alone = drawn[2 : 2 + within.MIXTURES], drawn[2 + within.MIXTURES :]
    assert len(alone) == min(within.ALONE, len(trace.bounds))
    for index, sizes in of.items():
        taken = [variant.storages[index].bytes for variant in drawn]
        assert (taken[0], taken[1]) == (sizes[0], sizes[2])
        assert set(taken) <= set(sizes)
    assert len({tuple(v.storages[index].bytes for index in of) for v in mixed}) > 1
    for variant in alone:
        changed = {
            sizes for index, sizes in of.items() if sizes[1] != variant.storages[index].bytes
        }
        assert len(changed) <= 1
    span = within.span_of(within.RESERVED, trace, 100, [90] * 6 + [110] * 4)
    assert (span.low, span.likely, span.high) == (90, 100, 110)


def test_workspaces_are_replayed_in_mixtures_always_the_same(holds):
    holds(workspaces_are_drawn_one_by_one)


def no_workspace_at_the_low_end(folder):
    estimate = estimates(folder)
    plain, _ = estimate()
    for more in ({"torch": "2.3"}, {"cudnn_benchmark": True}):
        found, _ = estimate(**more)
        assert found.allocator.low <= plain.allocator.low
        assert any("benchmark is on" in said for said in found.assumptions) == ("torch" not in more)


def test_an_older_pytorch_and_a_benchmark_may_take_no_workspace(holds):
    holds(no_workspace_at_the_low_end)


def cudnn_is_loaded_whole(folder):
    found, _ = estimates(folder)(module_loading="eager", torch="2.3")
    parts = {part.name: part for part in found.context.parts}
    assert set(parts) == {EAGER, CUDNN}
    assert parts[CUDNN].low == 333 << 20
    assert found.context.low == parts[EAGER].low + parts[CUDNN].low


def test_kernels_loaded_at_the_start_bring_cudnn_whole_with_the_first_convolution(holds):
    holds(cudnn_is_loaded_whole)


def test_a_full_gpu_gets_cached_blocks_back():
    span = within.given_back(None, reserved=70, unlimited=90)
    assert (span.low, span.likely, span.high) == (70, 70, 90)
    assert [part.name for part in span.parts] == [within.GIVEN_BACK]
    wider = within.given_back(span, reserved=60, unlimited=80)
    assert (wider.low, wider.high, len(wider.parts)) == (60, 90, 2)


def test_the_code_of_another_release_widens_what_it_may_change():
    span = within.of_other_code(None, 100, (-10, 30), "readings")
    assert (span.low, span.likely, span.high) == (90, 100, 130)
    wider = within.of_other_code(span, 100, (-5, 5), "others")
    assert (wider.low, wider.high, len(wider.parts)) == (85, 135, 2)


def a_verdict_is_left_open():
    plan = make({"model": "distilgpt2", "batch": 4, "seq": 64, "gpu": "t4"})
    today, trace = Desk().estimate(plan)
    assert today.allocator is None
    held, ends = today.peak.reserved, {}
    for version in (None, "4.46"):
        named = replace(plan, transformers=version)
        question, state = asked(named), today.optimizer_state
        at_limit = held + today.context.high
        device = device_of(question.gpu, at_limit, named).holding(state, trace.inventory)
        ends[version] = judged(question, trace, device)
    assert ends[None].verdict is FitVerdict.FITS
    assert ends["4.46"].verdict is FitVerdict.TOO_CLOSE
    assert ends["4.46"].needed_high > ends[None].needed_high
    then, _ = Desk().estimate(replace(plan, transformers="4.46"))
    (part,) = then.allocator.parts
    assert part.name == within.OTHER_CODE
    assert "published readings" in part.source
    assert then.fit.needed_high == process_ends(then)[1]


def test_a_verdict_near_the_limit_is_left_open_where_other_code_runs(forked):
    forked(a_verdict_is_left_open)
