"""Images and volumes that do not lie in rows: what is copied, and how results lie."""

import pytest

CASES = {
    "bilinear, then in rows": 1_048_576,
    "trilinear, then as it was": 262_144,
    "nearest of a part": 327_680,
    "nearest of the same size": 65_536,
    "nearest exact of a part": 327_680,
    "nearest in a row": 12_288,
    "nearest of a volume": 589_824,
    "largest of a volume": 53_248,
    "largest of a part": 45_056,
    "mean of a volume": 69_632,
    "mean of a part": 33_792,
    "adaptive largest": 69_632,
}
"""Bytes over the stand-in driver of an A100 (2.13)."""
SCRIPT = """
import torch
from torch.nn import functional

last = torch.ones(4, 8, 32, 32, device="cuda").to(memory_format=torch.channels_last)
some = torch.ones(4, 8, 32, 32, device="cuda")[:, 1:5]
row = torch.ones(4, 8, 64, device="cuda")[:, 1:5]
volume = torch.ones(2, 8, 8, 8, 8, device="cuda").to(memory_format=torch.channels_last_3d)
volume.requires_grad_()
part = torch.ones(2, 8, 8, 8, 16, device="cuda")[:, 1:5]
LEAVES = [volume]


def larger(x, mode, size=None):
    return functional.interpolate(x, size, None if size else 2, mode=mode)


def trained(out):
    out.backward(torch.ones(out.shape, device="cuda"))


CASES = {
    "bilinear, then in rows": lambda: larger(last, "bilinear").contiguous(),
    "trilinear, then as it was": lambda: larger(volume, "trilinear").contiguous(
        memory_format=torch.channels_last_3d
    ),
    "nearest of a part": lambda: larger(some, "nearest"),
    "nearest of the same size": lambda: larger(some, "nearest", (32, 32)),
    "nearest exact of a part": lambda: larger(some, "nearest-exact"),
    "nearest in a row": lambda: larger(row, "nearest"),
    "nearest of a volume": lambda: trained(larger(volume, "nearest")),
    "largest of a volume": lambda: trained(functional.max_pool3d(volume, 2)),
    "largest of a part": lambda: functional.max_pool3d(part, 2),
    "mean of a volume": lambda: trained(functional.adaptive_avg_pool3d(volume, 3)),
    "mean of a part": lambda: functional.adaptive_avg_pool3d(part, 3),
    "adaptive largest": lambda: trained(functional.adaptive_max_pool3d(volume, 3)),
}
"""


@pytest.mark.pinned
def test_what_lies_across_is_copied_where_a_gpu_copies_it(peaks):
    assert peaks(SCRIPT, gpu="A100-80GB") == CASES
