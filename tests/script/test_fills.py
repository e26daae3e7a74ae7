"""Masks and whole numbers that are made by the pattern of a host weight have their numbers."""

SCRIPT = """
import torch
weight = torch.nn.Linear(8, 6).weight
rows = weight.new_zeros((6,), dtype=torch.bool).view(3, 2)
rows[[True, False, True], :] = True
assert rows.view(-1).tolist() == [True, True, False, False, True, True]
assert weight.new_full((4,), 7, dtype=torch.int32).tolist() == [7] * 4
assert torch.full_like(weight, 3, dtype=torch.long).sum().item() == 3 * 48
assert torch.ones_like(weight, dtype=torch.bool).all()
assert weight.new_ones(2, dtype=torch.uint8).tolist() == [1, 1]
assert torch.zeros_like(weight, dtype=torch.long).any().item() is False
out = torch.zeros(4, 6, device="cuda")
out[:, rows.view(-1)] = torch.ones(4, 4, device="cuda")
assert out[:, rows.view(-1)].shape == (4, 4)
assert torch.zeros_like(weight).shape == weight.new_zeros(6, 8).shape
"""


def test_a_mask_of_a_weight_says_which_columns_are_taken(run):
    assert run(SCRIPT).ending.code == 0
