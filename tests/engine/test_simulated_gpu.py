"""Cards that the PyTorch here has no kernels for."""

import platform

import pytest
import torch

from memcalc.engine import simulated_gpu

OF_CUDA_12_6 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
OF_CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]


@pytest.mark.parametrize(
    ("built", "capability", "typed"),
    [
        (OF_CUDA_13, 60, "--torch 2.7"),
        (OF_CUDA_13, 70, "--torch 2.10"),
        (OF_CUDA_12_6, 120, "--torch 2.8"),
        (OF_CUDA_12_6, 70, None),
        (OF_CUDA_13, 89, None),
        (OF_CUDA_13, 121, None),
    ],
)
def test_a_card_without_kernels_is_refused_with_the_release_that_has_them(
    monkeypatch, built, capability, typed
):
    monkeypatch.setenv("MEMCALC_STUB_CAPABILITY", str(capability))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    refusal = simulated_gpu.kernel_refusal()
    if typed is None:
        assert refusal is None
    else:
        assert f"no kernels for GPUs of compute capability {capability // 10}." in refusal
        assert f"Type {typed}," in refusal
