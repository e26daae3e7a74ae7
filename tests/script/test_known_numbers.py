"""Which numbers a script finds on the GPU: those it put there, and zeros in place of others."""

BOXES = """
import torch
boxes = torch.tensor([[10.0, 10, 60, 70], [20, 30, 100, 90]]).cuda()
left, top, right, bottom = (boxes * 1.5).unbind(1)
boxes = torch.stack((left, top, right, bottom), dim=1)
assert not (boxes[:, 2:] <= boxes[:, :2]).any()
assert ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sum().item() == 17550.0
labels = torch.tensor([1, 3]).cuda()
chosen = torch.zeros(2, 5, device="cuda")
chosen[torch.arange(2), labels] = 1
assert torch.ones(2, 5, device="cuda")[chosen == 1].shape == (2,)
"""


def test_boxes_and_the_places_of_labels_are_known(run):
    assert run(BOXES).ending.code == 0


UNKNOWN = """
import torch
model = torch.nn.Linear(4, 4).cuda()
known = torch.full((2, 4), 3.0).cuda()
assert known.sum().item() == 24.0
assert model(known).sum().item() == 0.0
known += model(known)
assert known.sum().item() == 0.0
assert torch.ones(1 << 17).cuda().sum().item() == 0.0
"""


def test_what_weights_and_large_tensors_have_a_part_in_is_zero(run):
    assert run(UNKNOWN).ending.code == 0


MASK = """
import torch
places = torch.arange(1000).to("cuda")
ones = torch.ones(1000, dtype=bool).to("cuda")
mask = torch.zeros(3072, 18432).to(ones).view(1, -1)
mask = mask.scatter_(1, places.unsqueeze(0), ones.unsqueeze(0)).view(3072, 18432)
assert torch.where(mask == 1.0)[0].shape == (1000,)
"""


def test_places_of_a_mask_as_large_as_a_weight_are_counted(run):
    """As peft's SHiRA chooses the weights that it trains, 57 million to choose from."""
    assert run(MASK).ending.code == 0


FINITE = """
import math, torch
mask = torch.ones(2, 9, device="cuda")
mask[:, :3] = 0
places = torch.rand(2, 9, device="cuda").argsort(dim=1).argsort(dim=1)
mask = mask.gather(1, places)
loss = (torch.nn.Linear(4, 9).cuda()(torch.rand(2, 4, device="cuda")) * mask).sum() / mask.sum()
assert math.isfinite(loss.item()) and not torch.isnan(loss)
assert math.isfinite(mask.sum().log().item())
# What is known is read as it is.
assert math.isnan((torch.zeros(2, device="cuda").sum() / 0).item())
assert math.isinf(torch.zeros(1, device="cuda").log().item())
"""


def test_zeros_in_place_of_unknown_numbers_make_no_loss_that_is_not_finite(run):
    """As of masked autoencoders, which end the run where their loss is not finite."""
    assert run(FINITE).ending.code == 0


BY_PARTS = """
import torch
labels = torch.tensor([0, 1, 1, 2, 0], device="cuda")
same = (labels[:, None] == labels[None]).fill_diagonal_(False)
assert same.nonzero().shape == (4, 2)
others = torch.ones_like(same).fill_diagonal_(False)
assert torch.rand(5, 5, device="cuda")[others].view(5, 4).shape == (5, 4)
rows = torch.zeros(2, 6, dtype=torch.bool, device="cuda")
for row, length in enumerate((3, 5)):
    rows[row, :length] = True
assert torch.rand(2, 6, 4, device="cuda")[rows].shape == (8, 4)
boxes = torch.zeros(2, 3, device="cuda")
boxes[1:].copy_(torch.tensor([[1.0, 2.0, 3.0]]))
assert boxes.sum().item() == 6.0
numbers = torch.arange(6, device="cuda")
pair, last = numbers.view(3, 2)[1], numbers[5:]
numbers.mul_(2)
assert pair.sum().item() == 10
pair += 1
assert numbers.sum().item() == 32 and last.item() == 10
assert torch.isin(labels, torch.tensor([2], device="cuda")).nonzero().shape == (1, 1)
assert labels.median().item() == 1
"""
UNKNOWN_PARTS = """
import torch
half = torch.ones(8, device="cuda")
half[:4] = torch.nn.Linear(4, 4).cuda()(half[4:])
assert half.sum().item() == 0.0
"""


def test_what_is_written_to_a_view_stands_in_the_mask_that_it_shows(run):
    assert run(BY_PARTS).ending.code == 0
    assert run(UNKNOWN_PARTS).ending.code == 0
