"""Which kernel attention takes, where a script switches some of them off."""

import pytest

SCRIPT = """
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
x = torch.ones(2, 4, 512, 16, device="cuda", dtype=torch.{dtype}, requires_grad=True)
with sdpa_kernel(SDPBackend.{kernel}):
    F.scaled_dot_product_attention(x, x, x).sum().backward()
"""
SCORES = 2 * 4 * 512 * 512 * 2
"""Bytes of what the others do not store."""


@pytest.mark.parametrize(
    ("kernel", "stored"),
    [("MATH", True), ("FLASH_ATTENTION", False), ("EFFICIENT_ATTENTION", False)],
)
def test_scores_are_stored_by_the_one_that_stores_them(run, kernel, stored):
    found = run(SCRIPT.format(kernel=kernel, dtype="bfloat16"), gpu="l4")
    assert found.ending.code == 0
    assert (found.traced.prediction.peak.requested > SCORES) is stored


def test_none_that_can_is_an_error_of_the_script(run, capfd):
    found = run(SCRIPT.format(kernel="FLASH_ATTENTION", dtype="float32"), gpu="l4")
    assert found.ending.code == 1
    assert "No available kernel" in capfd.readouterr().err


NARROW = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
for allowed in (False, True):
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(allowed)
    q = torch.randn(1, 4, 256, 64, device="cuda", dtype=torch.half, requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    with sdpa_kernel(SDPBackend.MATH):
        torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    print("peak", torch.cuda.max_memory_allocated())
"""


def test_scores_stay_narrow_where_a_script_allows_it(run, capfd):
    run(NARROW, gpu="A100-80GB")
    lines = capfd.readouterr().err.splitlines()
    # Over the stand-in driver (2.13).
    assert [line for line in lines if line.startswith("peak")] == ["peak 22152192", "peak 19661824"]
