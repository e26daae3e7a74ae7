"""What is outside the allocator is made of named parts, each with its source."""

import pytest

from memcalc.allocator.context import eager_span, outside
from memcalc.catalog import contexts, gpus
from memcalc.estimation.fits import CODE, CONTEXT, NCCL, OLD_DRIVER, outside_span
from memcalc.records.plan import Plan

A100 = gpus.find("A100-40GB")


def test_every_part_has_a_name_a_source_and_a_likely_figure_between_its_ends():
    for gpu in gpus.table():
        span = outside_span(gpu, Plan(model="gpt2"))
        assert [part.name for part in span.parts] == [CONTEXT, CODE]
        for part in span.parts:
            assert part.source
            assert part.low <= part.high
            if part.likely is not None:
                assert part.low <= part.likely <= part.high
        assert sum(part.low for part in span.parts) <= span.low <= span.likely <= span.high


def test_several_gpus_add_a_part_for_nccl():
    span = outside_span(A100, Plan(model="gpt2", devices=4, parallel="ddp"))
    alone = outside_span(A100, Plan(model="gpt2"))
    (part,) = (part for part in span.parts if part.name == NCCL)
    assert (span.low - alone.low, span.high - alone.high) == (part.low, part.high)


@pytest.mark.parametrize("name", ["A100-40GB", "V100-16GB", "RTX 3090", "RTX 2080 Ti"])
def test_all_kernels_at_the_start_take_more_than_those_that_are_used(name):
    gpu = gpus.find(name)
    span = eager_span(gpu)
    assert span.low > outside(gpu).total.high
    held = [r for r in contexts.table() if r.gpu == gpu.name and not r.lazy and not r.aside]
    assert held
    assert all(span.low <= r.low and r.high <= span.high for r in held)


def test_an_old_driver_may_load_all_kernels_where_an_old_pytorch_runs_on_it():
    lazy = outside_span(A100, Plan(model="gpt2", torch="2.1"))
    eager = outside_span(A100, Plan(model="gpt2", torch="2.0", module_loading="eager"))
    either = outside_span(A100, Plan(model="gpt2", torch="2.0"))
    assert (either.low, either.likely, either.high) == (lazy.low, lazy.likely, eager.high)
    assert [part.name for part in either.parts] == [CONTEXT, CODE, OLD_DRIVER]
    said = outside_span(A100, Plan(model="gpt2", torch="2.0", module_loading="lazy"))
    assert said == lazy
