"""Grids of spatial transformers take what PyTorch 2.13's CUDA code takes over the driver."""

SCRIPT = """
import torch
from torch.nn.functional import affine_grid
flat = torch.ones(8, 2, 3, device="cuda", requires_grad=True)
deep = torch.ones(2, 3, 4, device="cuda", requires_grad=True)
LEAVES = [flat, deep]
CASES = {
    "pictures": lambda: affine_grid(flat, [8, 3, 128, 128], align_corners=False),
    "volumes": lambda: affine_grid(deep, [2, 3, 16, 32, 32], align_corners=True),
}
"""
# Numbers from -1 to 1 and a one for every place, beside the result.
CASES = {"pictures": 2_621_440, "volumes": 917_504}


def test_a_grid_of_places_is_made_first(peaks):
    assert peaks(SCRIPT, gpu="A100-80GB") == CASES
