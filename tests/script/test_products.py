"""What products leave on the GPU, by the PyTorch that runs."""

import pytest

WITH_A_BIAS = """
import torch
layer = torch.nn.Linear(64, 64).cuda()
x = torch.ones(32, 64, device="cuda")
x @ layer.weight
before = torch.cuda.memory_allocated()
out = layer(x)
kept = torch.cuda.memory_allocated() - before - out.numel() * 4
assert kept == {kept}, kept
peak = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
assert peak == {given_back}, peak
"""


@pytest.mark.parametrize(("torch", "kept"), [("2.6", 0), ("2.11", 1 << 20)])
def test_the_workspace_of_a_product_with_a_bias_goes_back_before_2_7(run, torch, kept):
    text = WITH_A_BIAS.format(kept=kept, given_back=(1 << 20) - kept)
    assert run(text, gpu="a100-80gb", torch=torch).ending.code == 0


FLOAT8 = """
import torch
x = torch.ones(32, 64, device="cuda").to(torch.float8_e4m3fn)
one = torch.ones((), device="cuda")
torch._scaled_mm(x, x.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
"""


def test_a_product_in_8_bit_ends_as_on_a_gpu_that_has_none(run, capfd):
    assert run(FLOAT8, gpu="RTX 4090").ending.code == 0
    assert run(FLOAT8, gpu="a100-80gb").ending.code == 1
    assert "only supported on CUDA devices with compute capability >= 9.0" in capfd.readouterr().err


WIDER = """
import torch
a, b = (torch.ones(2, 32, 32, device="cuda", dtype={dtype}) for _ in range(2))
wide = torch.zeros(2, 32, 32, device="cuda")
for out in (
    torch.mm(a[0], b[0], out_dtype=torch.float32),
    torch.bmm(a, b, out_dtype=torch.float32),
    torch.addmm(wide[0], a[0], b[0], out_dtype=torch.float32),
    torch.baddbmm(wide, a, b, out_dtype=torch.float32),
):
    assert out.dtype is torch.float32 and out.shape[-2:] == (32, 32)
"""


def test_products_of_16_bits_come_out_in_32_where_the_gpu_has_them(run, capfd):
    """``out_dtype``: trl's chunked losses ask for it."""
    assert run(WIDER.format(dtype="torch.float16"), gpu="t4").ending.code == 0
    assert run(WIDER.format(dtype="torch.bfloat16"), gpu="a100-80gb").ending.code == 0
    assert run(WIDER.format(dtype="torch.bfloat16"), gpu="t4").ending.code == 1
    said = "gemm input type at::BFloat16 and output type float is only supported for CUDA devices"
    assert said in capfd.readouterr().err
