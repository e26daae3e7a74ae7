"""Remedies are estimates, not guesses; and the combination that is found holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.estimation.estimate import answers
from memcalc.explanation.command import options as typed
from memcalc.explanation.records import Explanation
from memcalc.files import artifact
from memcalc.records.plan import Plan
from memcalc.records.prediction import ALLOCATOR_RUNGS, Peak
from memcalc.records.trace import Phase
from memcalc.remedies.records import Figures, Remedy, Trial
from memcalc.remedies.search import needed, search, stages
from memcalc.remedies.table import candidates
from memcalc.remedies.trials import apply
from memcalc.report import explained as report
from memcalc.report.blocks import markdown, terminal


@pytest.fixture(scope="module")
def again(explained):
    """The plan as it was, each that was changed, and the one found; estimated anew."""
    plan = explained.figures.plan
    changed = [apply(plan, [option.remedy]) for option in explained.options]
    found = [plan, *changed, explained.search.best.figures.plan]
    return list(answers(found, use_cache=False))


def test_every_saving_is_the_difference_of_two_full_estimates(explained, again):
    base, *others, _ = again
    keys = {option.remedy.key for option in explained.options}
    assert keys >= {"fused", "expandable", "accumulate", "amp", "chunked loss", "checkpointing",
                    "checkpointing/2", "8-bit states", "bf16", "bf16, corrected", "LoRA",
                    "in backward"}  # fmt: skip
    for option, other in zip(explained.options, others, strict=True):
        assert option.trial.error is None, option
        for rung in ALLOCATOR_RUNGS:
            difference = getattr(base.peak, rung) - getattr(other.peak, rung)
            assert option.trial.saved(explained.figures, rung) == difference


def test_operations_follow_what_runs(explained):
    more = {o.remedy.key: o.trial.more_flops(explained.figures) for o in explained.options}
    # A third of all products are forward's; all layers run once more, the head does not.
    assert 0 < more["checkpointing/2"] < more["checkpointing"] < 1 / 3
    assert 0 < more["chunked loss"] < 1 / 3
    assert more["fused"] == more["8-bit states"] == 0
    assert more["LoRA"] < 0


def test_the_combination_holds_when_it_is_estimated_again(explained, again):
    best = explained.search.best
    assert best.remedies
    assert needed(best.figures) <= explained.search.limit < needed(explained.figures)
    assert again[-1].peak == best.figures.peak


def test_an_explanation_reads_back_from_its_file(explained):
    import json

    data = json.loads(report.as_json(explained))
    assert artifact.decode(Explanation, data["record"]) == explained
    assert sum(group["bytes"] for group in data["peak"]["groups"]) == data["peak"]["requested"]


def test_the_typed_command_says_the_same_plan(memcalc, explained):
    from memcalc.cli import explain

    seen = []

    def catch(plan, wish):
        seen.append(plan)
        raise UsageError("seen")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explain, "explain_plan", catch)
        for option in explained.options:
            plan = option.trial.figures.plan
            memcalc("explain", *_words(typed(plan)))
            assert seen.pop() == plan


def _words(text):
    import shlex

    return shlex.split(text)


@pytest.mark.parametrize(
    ("change", "key", "offered"),
    [
        ({"set_to_none": False}, "set_to_none", True),
        ({}, "set_to_none", False),
        ({"attention": "eager"}, "sdpa", True),
        ({"attention": "flash"}, "sdpa", False),
        ({"optim": "adamw_torch_fused"}, "fused", False),
        ({"optim": "adam8bit"}, "8-bit states", False),
        ({"lora": "r=8"}, "LoRA", False),
        ({"batch": 1}, "accumulate", False),
        ({"checkpointing": True}, "checkpointing", False),
        ({"checkpointing": True, "checkpoint_every": 2}, "checkpointing", True),
        ({"loop": "trainer"}, "in backward", False),
        ({"gpu": "a100-40gb", "precision": "amp-bf16"}, "amp", False),
    ],
)
def test_a_remedy_is_offered_where_it_changes_something(traced, change, key, offered):
    plan = make({"model": "gpt2", "batch": 4, **change})
    found = {remedy.key for remedy in candidates(plan, traced.trace)}
    assert (key in found) is offered


def test_a_gpu_without_bf16_is_offered_fp16(traced):
    def precision(gpu):
        plan = make({"model": "gpt2", "gpu": gpu})
        found = {remedy.key: remedy for remedy in candidates(plan, traced.trace)}
        return dict(found["amp"].changes)["precision"]

    assert precision("t4") == "amp-fp16"
    assert precision("l4") == "amp-bf16"


class Scales:
    """A laboratory with made-up figures: each remedy takes its share off, each piece its own."""

    def __init__(self, plan, shares):
        self.plan = plan
        self.shares = shares
        self.asked = []

    def try_out(self, remedies):
        size = 1 << 20
        for remedy in remedies:
            size = int(size * self.shares.get(remedy.key, 1.0))
            size //= dict(remedy.changes).get("grad_accum", 1)
        self.asked.append(tuple(remedies))
        return Trial(remedies=tuple(r.key for r in remedies), figures=_figures(self.plan, size))


def _figures(plan, size):
    peak = Peak(
        phase=Phase.BACKWARD, requested=size, allocated=size, reserved=size, process_used=None
    )
    return Figures(plan=plan, peak=peak, context=None, fit=None, flops=None)


def _remedy(key, rank):
    return Remedy(key=key, title=key, changes=(), cost="", source="", rank=rank)


REMEDIES = [
    *(_remedy("fused", 0), _remedy("expandable", 0), _remedy("amp", 2)),
    *(_remedy("checkpointing/2", 3), _remedy("checkpointing", 4), _remedy("LoRA", 7)),
]
SHARES = st.fixed_dictionaries({r.key: st.floats(0.1, 1.2) for r in REMEDIES})


@given(SHARES, st.sampled_from((1, 2, 6, 7, 12)), st.integers(1 << 10, 1 << 20))
def test_what_the_search_returns_holds_and_needs_each_of_its_remedies(shares, batch, limit):
    laboratory = Scales(Plan(model="m", batch=batch), shares)
    found = search(laboratory, _figures(laboratory.plan, 1 << 20), REMEDIES, limit)
    if found.best is None:
        return
    assert needed(found.best.figures) <= limit
    by_key = {remedy.key: remedy for remedy in REMEDIES}
    last = laboratory.asked[-1] if laboratory.asked else ()
    for remedy in last:
        if remedy.key in by_key:
            fewer = [one for one in last if one is not remedy]
            assert remedy.rank == 0 or needed(laboratory.try_out(fewer).figures) > limit or (
                shares[remedy.key] > 1
            )  # fmt: skip


def test_stages_grow_by_cost_and_replace_what_changes_the_same():
    grown = [tuple(remedy.key for remedy in stage) for stage in stages(REMEDIES)]
    assert grown == [
        ("fused", "expandable"),
        ("fused", "expandable", "amp"),
        ("fused", "expandable", "amp", "checkpointing/2"),
        ("fused", "expandable", "amp", "checkpointing"),
        ("fused", "expandable", "amp", "checkpointing", "LoRA"),
    ]


def test_a_plan_that_holds_already_is_left_as_it_is(explained):
    before = explained.figures
    found = search(Scales(before.plan, {}), before, REMEDIES, needed(before))
    assert found.best.remedies == ()
    assert found.trials == ()


def test_the_high_end_of_the_context_counts(explained):
    figures = explained.figures
    spread = figures.context.high - figures.context.likely
    assert needed(figures) == figures.peak.process_used + spread
    bare = replace(figures, peak=replace(figures.peak, process_used=None), context=None)
    assert needed(bare) == figures.peak.reserved


def test_without_an_allocator_remedies_are_compared_by_what_is_requested(explained):
    def bare(peak):
        return replace(peak, allocated=None, reserved=None, process_used=None)

    prediction = replace(explained.prediction, peak=bare(explained.prediction.peak))
    on_cpu = replace(explained, prediction=prediction, search=None)
    text = terminal(report.blocks(on_cpu, 3))
    head = next(line for line in text.splitlines() if line.startswith(" remedy")).split()
    assert head == ["remedy", "requested", "FLOPs", "cost"]
    assert "requested | FLOPs" in markdown(report.blocks(on_cpu, 3))
