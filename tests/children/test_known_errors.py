"""What users are advised where PyTorch itself raises an error."""

import pytest
import torch

from memcalc.children.exit_reason import advice, serialize_error


def _fused_adam(found_inf):
    torch._foreach_sub_([torch.tensor(1.0)], [found_inf])


@pytest.mark.parametrize("update", [_fused_adam, lambda other: torch.tensor(1.0).sub_(other)])
def test_only_a_fused_adam_is_told_that_it_does_not_take_the_scaler_of_fsdp1(update):
    with pytest.raises(RuntimeError, match="broadcast shape") as raised:
        update(torch.zeros(1))
    assert ("fused=false" in advice(raised.value)) is (update is _fused_adam)


def test_of_an_extension_that_does_not_compile_the_name_is_said_and_not_the_compilers_log():
    log = "\n".join(["Error building extension 'quanto_cuda': [1/9] nvcc -MD", *["error: no"] * 99])
    said = serialize_error(RuntimeError(log), "simulated run", "")["error"]
    assert "Error building extension 'quanto_cuda'" in said
    assert "goes with this PyTorch" in said
    assert "nvcc" not in said
