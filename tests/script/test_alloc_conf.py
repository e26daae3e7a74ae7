"""Settings of the allocator that a script gives itself."""

import pytest

SCRIPT = """
import os
{before}
import torch
{after}
kept = [torch.empty(n << 20, dtype=torch.uint8, device="cuda") for n in (30, 50, 70)]
del kept[1]
kept.append(torch.empty(25 << 20, dtype=torch.uint8, device="cuda"))
"""
CONF = "max_split_size_mb:20"
WAYS = {
    "before PyTorch is imported": (f"os.environ['PYTORCH_CUDA_ALLOC_CONF'] = '{CONF}'", ""),
    "after": ("", f"os.environ['PYTORCH_ALLOC_CONF'] = '{CONF}'"),
    "by a call": ("", f"torch._C._accelerator_setAllocatorSettings('{CONF}')"),
}


@pytest.mark.parametrize(("before", "after"), WAYS.values(), ids=WAYS)
def test_what_a_script_sets_is_followed(run, before, after):
    prediction = run(SCRIPT.format(before=before, after=after)).traced.prediction
    assert prediction.plan.alloc_conf == CONF
    assert prediction.peak.reserved == (30 + 50 + 70 + 25 + 1) << 20


def test_nothing_set_is_nothing_followed(run):
    prediction = run(SCRIPT.format(before="", after="")).traced.prediction
    assert prediction.plan.alloc_conf == ""
    assert prediction.peak.reserved == (30 + 50 + 70) << 20


def test_settings_that_are_none_are_an_error_of_the_script(run):
    found = run(SCRIPT.format(before="os.environ['PYTORCH_ALLOC_CONF'] = 'x:1'", after=""))
    assert found.ending.code == 1
