"""Runs recorded with the newest PyTorch against estimates for it, by the code that is installed."""

import json

import pytest

from tests.evidence.test_standin import STANDIN, accuracy

RECORDED = next(STANDIN.glob("newest-torch*.json"))
FAMILIES = sorted(STANDIN.glob("families-torch*.json"))
LOOPS = next(STANDIN.glob("newest-loops-*.json"))
RESUMED = 0.001
"""Share by which a resumed Adafactor is off: its counters come back onto the GPU there."""
OFF = {
    "wav2vec2": "512 bytes of a convolution in forward, below the peak",
    "whisper-small optim=adamw8bit": "convolutions without cuDNN: one segment of 2 MiB",
    "loop=accelerate eval=4": "logits that the evaluation keeps, below the peak",
}
"""Runs that are not equal in each phase, and in what."""


def test_a_run_is_equal_in_every_phase_on_every_rung():
    (row,) = accuracy["compare"](RECORDED, first=2, every=1 << 20)
    assert all(row.exact.values()), (accuracy["label"](row.plan), row.off)


def test_heads_that_share_keys_in_fp32_are_equal_in_every_phase_on_every_rung():
    path = next(path for path in FAMILIES if "cc75" in path.stem)
    last = len(json.loads(path.read_text())["runs"]) - 1
    (row,) = accuracy["compare"](path, first=last, every=1 << 20)
    assert (row.plan.precision, row.plan.attention) == ("fp32", "auto")
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


@pytest.mark.nightly
@pytest.mark.parametrize("path", [*FAMILIES, LOOPS], ids=lambda path: path.stem)
def test_runs_of_many_families_and_of_loops_are_equal(path):
    for row in accuracy["compare"](path):
        name = accuracy["label"](row.plan)
        if any(known in name for known in OFF):
            assert max(map(abs, row.off.values())) <= RESUMED, name
        else:
            assert all(row.exact.values()), (name, row.off)
