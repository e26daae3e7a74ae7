"""What operators take beside what they make, where types, strides or places say so."""

import pytest

CASES = {
    "where of two types": 12_288,
    "where by bytes": 9_216,
    "power of whole numbers": 12_288,
    "numbers within others": 12_288,
    "tensors within others": 6_144,
    "power of truths": 24_576,
    "search of another type": 18_432,
    "search among a column": 24_576,
    "draw from one row": 3_072,
    "draw of many": 1_842_688,
    "normal of spreads": 7_168,
    "normal of both": 7_168,
    "shares": 6_656,
    "counts": 6_144,
    "blackman": 10_240,
    "kaiser": 4_096,
    "margins by a column": 7_680,
    "classes in bytes": 19_456,
    "squares of two types": 12_288,
    "places apart": 11_264,
    "places together": 7_680,
    "small vectors": 7_680,
    "reflections": 2_048,
}
"""Bytes over the stand-in driver of an A100 (2.13)."""
SCRIPT = """
import torch
from torch import linalg
from torch.nn import functional

torch.manual_seed(0)
wide = torch.ones(32, 48, device="cuda")
narrow, whole, truth = wide.half(), wide.long(), wide > 0
table = torch.ones(4, 5, 6, 7, device="cuda", requires_grad=True)
scores = torch.ones(32, 48, device="cuda", requires_grad=True)
places = torch.arange(3, device="cuda")
edges = torch.arange(3.0, device="cuda")
halves = narrow.clone().requires_grad_()
LEAVES = [table, scores, halves]
CASES = {
    "where of two types": lambda: torch.where(truth, narrow, wide),
    "where by bytes": lambda: torch.where(truth.byte(), wide, wide),
    "power of whole numbers": lambda: whole**0.5,
    "numbers within others": lambda: whole.clamp(0.5, 3),
    "tensors within others": lambda: narrow.clamp(min=wide),
    "power of truths": lambda: truth**2,
    "search of another type": lambda: torch.bucketize(narrow, edges),
    "search among a column": lambda: torch.searchsorted(wide.t().contiguous().t(), wide),
    "draw from one row": lambda: torch.multinomial(wide[0], 1),
    "draw of many": lambda: torch.multinomial(wide.repeat(150, 1).flatten()[:200_000], 1000),
    "normal of spreads": lambda: torch.normal(0.0, wide),
    "normal of both": lambda: torch.normal(wide, wide),
    "shares": lambda: torch.distributions.Dirichlet(wide).sample(),
    "counts": lambda: torch.binomial(wide, wide),
    "blackman": lambda: torch.blackman_window(400, device="cuda"),
    "kaiser": lambda: torch.kaiser_window(400, device="cuda"),
    "margins by a column": lambda: functional.multi_margin_loss(scores, whole[:, 0]).backward(),
    "classes in bytes": lambda: functional.cross_entropy(scores, whole[:, 0].byte()).backward(),
    "squares of two types": lambda: functional.mse_loss(halves, wide).backward(),
    "places apart": lambda: table[:, places, :, places].sum().backward(),
    "places together": lambda: table[:, places, places].sum().backward(),
    "small vectors": lambda: linalg.svd(wide[:, :5], full_matrices=False),
    "reflections": lambda: linalg.householder_product(wide[:, :10], wide[0, :10]),
}
"""


@pytest.mark.pinned
def test_casts_copies_and_checks_take_what_they_take_on_a_gpu(peaks):
    assert peaks(SCRIPT, gpu="A100-80GB") == CASES


NUMBERS = """
import torch
half, where = torch.ones(8, device="cuda").half(), torch.ones(8, device="cuda") > 0
half.masked_fill(where, -1e4)
try:
    half.masked_fill(where, -1e9)
except RuntimeError as error:
    assert "value cannot be converted to type c10::Half without overflow" in str(error)
else:
    raise AssertionError
assert (where.long() ** 2).shape == (8,)
try:
    where.long() ** -1
except RuntimeError as error:
    assert "negative integer powers" in str(error)
else:
    raise AssertionError
"""


def test_a_number_is_looked_at_though_its_like_was_taken(run):
    """What an operator makes of numbers of one type is kept; whether it takes them is not."""
    assert run(NUMBERS).ending.code == 0
