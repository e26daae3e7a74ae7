"""Suggested sizes make whole tiles, and say why."""

import pytest

from memcalc.advice.fit.fit import advised, multiple
from memcalc.advice.fit.records import Limit, Probe
from memcalc.catalog.capabilities import ARCHITECTURES
from memcalc.catalog.plan import make
from memcalc.records.prediction import Fit, FitVerdict


def limit(batch=None, seq=None, axis="batch"):
    fit = Fit(gpu="x", capacity=1, needed=1, metric="process_used", verdict=FitVerdict.FITS)
    best = Probe(batch=batch or 1, seq=seq, fit=fit)
    return Limit(axis=axis, step=1, best=best, above=None, perhaps=None)


@pytest.mark.parametrize(
    ("precision", "capability", "wanted"),
    [
        ("amp-fp16", (7, 5), 8),
        ("bf16", (8, 0), 64),
        ("tf32", (8, 0), 32),
        ("tf32", (7, 5), 1),
        ("fp32", (9, 0), 1),
        ("fp16", (6, 0), 1),
    ],
)
def test_tiles_are_16_bytes_wide_and_128_from_the_a100_on(precision, capability, wanted):
    assert multiple(precision, ARCHITECTURES[capability]) == wanted


@pytest.mark.parametrize(
    ("batch", "seq", "wanted"), [(15, 500, 14), (15, 512, 15), (15, 1, 8), (7, 1, 7), (13, None, 8)]
)
def test_tokens_of_the_suggested_batch_are_a_multiple_where_that_is_possible(batch, seq, wanted):
    plan = make({"model": "gpt2", "precision": "amp-fp16"})
    found = advised(limit(batch=batch, seq=seq), plan, seq, ARCHITECTURES[7, 5])
    assert found.suggested == wanted
    assert "multiples of 8" in found.advice


def test_a_sequence_is_suggested_in_whole_tiles():
    plan = make({"model": "gpt2", "precision": "bf16"})
    found = advised(limit(seq=1000, axis="seq"), plan, 512, ARCHITECTURES[8, 0])
    assert found.suggested == 960
