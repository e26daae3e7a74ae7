"""The loss of classes copies targets and weights that do not lie in rows, as over the driver."""

SCRIPT = """
import torch
from torch.nn.functional import nll_loss
scores = torch.ones(160, 10, device="cuda", requires_grad=True)
across = torch.ones(10, 160, device="cuda", requires_grad=True)
image = torch.ones(2, 10, 8, 8, device="cuda", requires_grad=True)
LEAVES = [scores, across, image]
targets = torch.zeros(160, 2, dtype=torch.long, device="cuda")
weights = torch.ones(10, 2, device="cuda")
places = torch.zeros(8, 8, 2, dtype=torch.long, device="cuda").permute(2, 0, 1)
CASES = {
    "in rows": lambda: nll_loss(scores, targets[:, 0].contiguous()).backward(),
    "a column": lambda: nll_loss(scores, targets[:, 0]).backward(),
    "weighted": lambda: nll_loss(scores, targets[:, 0], weights[:, 0]).backward(),
    "across": lambda: nll_loss(across.t(), targets[:, 0], reduction="none").sum().backward(),
    "image": lambda: nll_loss(image, places),
}
"""
CASES = {"in rows": 9_728, "a column": 9_728, "weighted": 10_240, "across": 17_408, "image": 2_048}


def test_what_lies_otherwise_is_copied(peaks):
    assert peaks(SCRIPT, gpu="A100-40GB") == CASES
