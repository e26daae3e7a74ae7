"""What is cast, or made a number of, before it is added up."""

import pytest

CASES = {
    "sum of a number": 1024,
    "truth of a number": 1024,
    "truth of a truth": 1024,
    "sparse on dense": 1024,
    "sparse on narrower": 82944,
    "sparse as dense": 41984,
}
"""Bytes over the stand-in driver of an A100 (2.13)."""
SCRIPT = """
import torch
one = torch.ones((), dtype=torch.int32, device="cuda")
dense = torch.ones(160, 64, device="cuda")
narrow = dense.half()
places = torch.stack([torch.arange(100), torch.arange(100) % 64]).cuda()
sparse = torch.sparse_coo_tensor(places, torch.ones(100, device="cuda"), (160, 64))
CASES = {
    "sum of a number": lambda: one.sum(),
    "truth of a number": lambda: one.any(),
    "truth of a truth": lambda: (one == 1).all(),
    "sparse on dense": lambda: dense.add_(sparse),
    "sparse on narrower": lambda: narrow + sparse,
    "sparse as dense": lambda: sparse.to_dense(),
}
LEAVES = ()
"""


@pytest.mark.pinned
def test_casts_and_places_take_what_they_take_on_a_gpu(peaks):
    assert peaks(SCRIPT, gpu="A100-80GB") == CASES
