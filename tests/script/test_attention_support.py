"""What a program asks of attention before it calls it: which kernel, and whether one could."""

import pytest

ASKS = """
    import torch
    from torch.backends import cuda
    def call(heads, dtype, width, **settings):
        q = torch.zeros(1, 8, 128, width, dtype=dtype, device="cuda", **settings)
        k = torch.zeros(1, heads, 128, width, dtype=dtype, device="cuda")
        return q, k, k
    for settings in ({}, {"requires_grad": True}):
        # Again and again: what an operator returned before need not be a tensor.
        for width in (64, 80):
            taken = torch._fused_sdp_choice(
                *call(8, torch.float16, width, **settings), is_causal=True)
            assert taken == %(alone)s, taken
            shared = torch._fused_sdp_choice(
                *call(4, torch.float16, width, **settings), is_causal=True, enable_gqa=True)
            assert shared == %(shared)s, shared
    given = cuda.SDPAParams(*call(4, torch.float16, 64), None, 0.0, True, True)
    assert cuda.can_use_flash_attention(given) is %(flash)s
    assert cuda.can_use_efficient_attention(given) is False
    # Numbers of a head that do not lie side by side: no fused kernel.
    across = tuple(t.transpose(2, 3) for t in call(8, torch.float16, 128))
    given = cuda.SDPAParams(*across, None, 0.0, False, False)
    assert not cuda.can_use_flash_attention(given)
    assert not cuda.can_use_efficient_attention(given)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert torch._fused_sdp_choice(*call(8, torch.float16, 64)) == 0
        given = cuda.SDPAParams(*call(8, torch.float16, 64), None, 0.0, False, False)
        assert not cuda.can_use_flash_attention(given)
"""
"""Numbers are those of ``SDPBackend``: 0 math, 1 flash, 2 efficient."""


@pytest.mark.parametrize(
    ("gpu", "answers"),
    [("t4", (2, 0, False)), ("a100-40gb", (1, 1, True))],
)
def test_the_kernel_that_the_gpu_would_take_is_told(run, gpu, answers):
    asks = ASKS % dict(zip(("alone", "shared", "flash"), answers, strict=True))
    assert run(asks, gpu=gpu).ending.code == 0
