"""The suites that are shipped: every plan in them is one that can be asked."""

import pathlib
import runpy

import pytest

from memcalc.catalog.plan import load
from memcalc.errors import UsageError
from memcalc.estimation.estimate import answers
from memcalc.records.prediction import Prediction
from memcalc.units import GIB
from memcalc.workload import layouts

SUITES = pathlib.Path(__file__).parent.parent.parent / "configs" / "suites"


BY_DAY = ("community", "evidence", "several-gpus", "standin")
"""What people run, and the largest of those that are recorded."""


def suites():
    for path in sorted(SUITES.glob("*.toml")):
        marks = [] if path.stem in BY_DAY else [pytest.mark.nightly]
        yield pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", suites())
def test_every_run_of_a_suite_can_be_estimated(path):
    plans = load(path)
    assert len({repr(plan) for plan in plans}) == len(plans)
    lacking = {
        "deepspeed": "deepspeed",
        "deepspeed-loops": "deepspeed",
        "parallel-flash": "deepspeed",
        "unseen-ranks-more": "deepspeed",
        "unseen-ranks-third": "deepspeed",
        "unseen-ranks-fourth": "deepspeed",
        "unseen-ranks-fifth": "deepspeed",
        "standin-torchao": "torchao",
        "standin-liger": "liger_kernel",
        "parallel-liger": "liger_kernel",
    }.get(path.stem)
    if lacking is not None:
        pytest.importorskip(lacking)
    for plan, answer in zip(plans, answers(plans, method="analytic"), strict=True):
        said = plan.scheme is not None or plan.generate is not None or plan.liger
        if layouts.spread(plan).world > 1 or said:
            # Closed forms say nothing of these, but the plan is understood.
            assert "does not cover" in str(answer), (plan, answer)
        else:
            assert isinstance(answer, Prediction), (plan, answer)


def test_the_evidence_spans_what_it_promises():
    plans = load(SUITES / "evidence.toml")
    found = list(answers(plans, method="analytic"))
    assert len(plans) >= 60
    assert len({plan.model for plan in plans}) >= 6
    assert {"fp32", "amp-bf16", "amp-fp16", "bf16"} <= {plan.precision for plan in plans}
    assert {plan.checkpointing for plan in plans} == {True, False}
    sizes = [answer.parameters for answer in found]
    assert min(sizes) < 70e6
    assert max(sizes[:-2]) > 2.7e9
    # What is known exactly alone tells that all but the last two fit an H200, and those do not.
    held = [answer.peak.requested for answer in found]
    assert max(held[:-2]) < 130 * GIB
    assert min(held[-2:]) > 141 * GIB


def test_a_suite_that_is_wrong_says_where(tmp_path):
    (tmp_path / "s.toml").write_text('[[run]]\nmodel = "gpt2"\n[[run]]\nmodel = "gpt2"\nseqq = 3\n')
    with pytest.raises(UsageError, match="run 2: Unknown setting 'seqq'"):
        load(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_text("[defaults]\n")
    with pytest.raises(UsageError, match="lists no runs"):
        load(tmp_path / "s.toml")


def test_the_document_shows_what_the_faults_did():
    script = runpy.run_path(str(SUITES.parent.parent / "scripts" / "make_fault_table.py"))
    document = script["PATH"].read_text()
    assert document == script["document"](document)
