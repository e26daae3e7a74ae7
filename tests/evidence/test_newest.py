"""Runs recorded with the newest PyTorch against estimates for it, by the code that is installed."""

import pytest

from tests.evidence.test_standin import STANDIN, accuracy

RECORDED = next(STANDIN.glob("newest-torch*.json"))
RESUMED = 0.001
"""Share by which a resumed Adafactor is off: its counters come back onto the GPU there."""


def test_a_run_is_equal_in_every_phase_on_every_rung():
    (row,) = accuracy["compare"](RECORDED, first=2, every=1 << 20)
    assert all(row.exact.values()), (accuracy["label"](row.plan), row.off)


@pytest.mark.nightly
def test_all_but_what_resumes_are_equal_in_every_phase_on_every_rung():
    rows = accuracy["compare"](RECORDED)
    assert len(rows) >= 14
    for row in rows:
        name = accuracy["label"](row.plan)
        if row.plan.resume:
            assert max(map(abs, row.off.values())) <= RESUMED, name
        else:
            assert all(row.exact.values()), (name, row.off)
