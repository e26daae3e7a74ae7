"""Which operators CUDA runs by others."""

import pytest
import torch

from memcalc.trace.operators.composed import is_composed

_aten = torch.ops.aten


@pytest.mark.parametrize("func", [_aten.linear.default, _aten.native_channel_shuffle.default])
def test_composed(func: object) -> None:
    assert is_composed(func)


@pytest.mark.parametrize(
    "func",
    [
        _aten.mm.default,
        _aten.silu_backward.default,
        _aten.mish_backward.default,
        _aten._fused_rms_norm.default,
        # Can be taken apart in Python, and is not on CUDA.
        _aten.upsample_nearest2d.default,
    ],
)
def test_with_a_kernel_of_its_own(func: object) -> None:
    assert not is_composed(func)


def test_no_other_operator_has_a_kernel_that_a_build_without_cuda_hides() -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    both = {
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and has(name, "CompositeImplicitAutograd") and has(name, "CPU")
    }
    assert both == {"aten::native_channel_shuffle", "aten::mish_backward", "aten::silu_backward"}
