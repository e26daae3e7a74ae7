"""Convolutions that PyTorch runs by itself take what they take over the driver."""

POINTS = """
import torch
torch.backends.cudnn.enabled = False
layer = torch.nn.Conv2d(3, 64, 1, bias=False).cuda()
image = torch.ones(8, 3, 16, 16, device="cuda")
grad = torch.ones(8, 64, 16, 16, device="cuda")
layer(image).backward(grad)
layer.zero_grad()
out = layer(image)
before = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
out.backward(grad)
taken = torch.cuda.memory_stats()["requested_bytes.all.allocated"] - before
assert taken == 64 * 3 * 4 + 3 * 16 * 16 * 4, taken
"""


def test_columns_are_made_for_weights_also_where_each_pixel_is_its_own(run):
    assert run(POINTS, gpu="t4", steps=0).ending.code == 0
