"""Transposed convolutions of volumes without cuDNN take what they take over the driver."""

SCRIPT = """
import torch
from torch.nn.functional import conv_transpose3d
torch.backends.cudnn.enabled = False
def made(*shape): return torch.ones(*shape, device="cuda", requires_grad=True)
image = made(1, 16, 8, 8, 8)
narrow, wide, less = made(16, 2, 3, 3, 3), made(16, 8, 3, 3, 3), made(16, 1, 1, 1, 1)
LEAVES = [image, narrow, wide, less]
CASES = {
    "as large": lambda: conv_transpose3d(image, narrow, stride=2, padding=1, output_padding=1),
    "larger": lambda: conv_transpose3d(image, wide, stride=2, padding=1, output_padding=1),
    "smaller": lambda: conv_transpose3d(image, less),
}
"""
# Columns, and a result that is made like the image first and keeps that memory if it is enough.
CASES = {"as large": 143_360, "larger": 573_440, "smaller": 34_816}


def test_a_result_keeps_the_memory_that_is_made_first(peaks):
    assert peaks(SCRIPT, gpu="A100-40GB") == CASES
