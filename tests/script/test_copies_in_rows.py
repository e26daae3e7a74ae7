"""What is copied to lie in rows first, and what formulas of gradients write to in place."""

import pytest

CASES = {
    "largest of all": 192512,
    "both ends": 97280,
    "gradient of the largest": 482304,
    "gradient of a trace": 207872,
    "bags": 258048,
    "reflected": 188416,
    "first of parts": 545280,
    "many of parts": 1138176,
}
"""Bytes over the stand-in driver of an A100 (2.13)."""
SCRIPT = """
import torch
import torch.nn.functional as F
rows = torch.ones(60, 800, device="cuda", requires_grad=True)
table = torch.ones(800, 64, device="cuda", requires_grad=True)
bags = torch.arange(600).view(60, 10).cuda()
long = torch.ones(4, 30000, device="cuda")
sound = torch.ones(4, 96, 60, device="cuda").transpose(1, 2).requires_grad_()
CASES = {
    "largest of all": lambda: rows.detach().t().max(),
    "both ends": lambda: rows.detach()[:, ::2].aminmax(),
    "gradient of the largest": lambda: rows.max().backward(),
    "gradient of a trace": lambda: rows[:, :60].trace().backward(),
    "bags": lambda: F.embedding_bag(bags, table, mode="max").sum().backward(),
    "reflected": lambda: F.pad(sound, (1, 2), mode="reflect").sum().backward(),
    "first of parts": lambda: long[:, 500:].topk(100),
    "many of parts": lambda: long[:, 500:].topk(5000),
}
LEAVES = rows, table, sound
"""


@pytest.mark.pinned
def test_copies_and_gradients_take_what_they_take_on_a_gpu(peaks):
    assert peaks(SCRIPT, gpu="A100-80GB") == CASES


ONE_CHANNEL = {"in two dimensions": 386560, "in three dimensions": 474112}
"""The same, of images of one channel that cuDNN is not asked for."""
OF_ONE_CHANNEL = """
import torch
import torch.nn.functional as F
torch.backends.cudnn.enabled = False
image, volume = (torch.ones(2, 1, *size, device="cuda") for size in ((64, 64), (16, 16, 16)))
flat, deep = (torch.ones(8, 1, *[3] * n, device="cuda", requires_grad=True) for n in (2, 3))
CASES = {
    "in two dimensions": lambda: F.conv2d(image, flat).sum().backward(),
    "in three dimensions": lambda: F.conv3d(volume, deep).sum().backward(),
}
LEAVES = flat, deep
"""


@pytest.mark.pinned
def test_one_channel_is_unfolded_and_not_taken_for_depthwise(peaks):
    assert peaks(OF_ONE_CHANNEL, gpu="A100-80GB") == ONE_CHANNEL


ONE_HEAD = {"one head": 792064, "two heads": 927232}
"""The same, of attention on a T4: sums of one head lie as wanted."""
OF_ONE_HEAD = """
import torch
import torch.nn.functional as F
one = torch.ones(2, 256, 64, device="cuda", requires_grad=True)
heads = lambda count: one.view(2, 256, count, -1).transpose(1, 2)
attention = lambda many: F.scaled_dot_product_attention(many, many, many).sum().backward()
CASES = {"one head": lambda: attention(heads(1)), "two heads": lambda: attention(heads(2))}
LEAVES = (one,)
"""


@pytest.mark.pinned
def test_row_sums_of_one_head_are_not_copied(peaks):
    assert peaks(OF_ONE_HEAD, gpu="t4") == ONE_HEAD


SPREAD_PLACES = """
import torch
x = torch.zeros(64, 64, device="cuda")
rows, columns = torch.arange(48, device="cuda")[:, None], torch.arange(48, device="cuda")
number = torch.ones((), device="cuda")
def peak(step):
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return torch.cuda.max_memory_allocated() - before
places = 48 * 48
assert peak(lambda: x.index_put_((rows, columns), number)) == 2 * 8 * places
narrow = rows.int(), columns.int()
assert peak(lambda: x.index_put_(narrow, number)) == 2 * 8 * places
# Positions, the same sorted, their order and that of the places; the number in each place.
added = peak(lambda: x.index_put_((rows, columns), number, accumulate=True))
assert added == 4 * 8 * places + 4 * places + 512
"""


def test_places_of_rows_and_columns_are_copied_to_lie_alike_where_values_are_put(run):
    """As PyTorch's CUDA code takes them over the stand-in driver."""
    assert run(SPREAD_PLACES, gpu="t4").ending.code == 0
