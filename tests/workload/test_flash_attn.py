"""What stands for flash-attn where a program asks for it."""

import importlib.metadata
import importlib.util
import sys

import pytest
import torch

from memcalc.kernels.target import Target
from memcalc.trace.packages.flash_attn import Kernels
from memcalc.workload import flash_attn

H100 = Target(torch=(2, 13), capability=(9, 0), multiprocessors=132)


def test_programs_find_it_while_the_context_lasts_and_not_afterwards():
    before = {name for name in sys.modules if name.startswith("flash_attn")}
    with flash_attn.provide():
        from flash_attn import flash_attn_varlen_func
        from flash_attn.bert_padding import unpad_input
        from transformers.utils import import_utils

        assert callable(flash_attn_varlen_func)
        assert callable(unpad_input)
        assert importlib.metadata.version("flash_attn") == flash_attn.VERSION
        assert "flash-attn" in importlib.metadata.packages_distributions()["flash_attn"]
        assert importlib.util.find_spec("flash_attn.layers") is None
        found = import_utils._is_package_available("flash_attn", return_version=True)
        assert found == (True, flash_attn.VERSION)
    assert {name for name in sys.modules if name.startswith("flash_attn")} == before
    assert not import_utils.is_flash_attn_2_available()


def test_a_module_that_was_imported_before_is_there_again(monkeypatch):
    own = type(sys)("flash_attn")
    monkeypatch.setitem(sys.modules, "flash_attn", own)
    with flash_attn.provide():
        import flash_attn as found

        assert found is not own
    assert sys.modules["flash_attn"] is own


@pytest.mark.parametrize(
    ("shape", "dtype", "capability", "words"),
    [
        ((1, 8, 2, 64), torch.float32, (9, 0), "fp16 and bf16"),
        ((1, 8, 2, 64), torch.float16, (7, 5), "Ampere GPUs or newer"),
        ((1, 8, 2, 320), torch.float16, (9, 0), "at most 256"),
    ],
)
def test_what_the_extension_refuses_is_refused_in_its_words(shape, dtype, capability, words):
    kernels = Kernels(Target(torch=(2, 13), capability=capability, multiprocessors=40))
    q = torch.empty(shape, dtype=dtype, device="meta")
    with pytest.raises(RuntimeError, match=words):
        kernels._forward(q, q, q, 0.0, 1.0, True, -1, -1, 0.0, None, False)


def test_one_query_of_grouped_heads_is_laid_out_as_a_sequence_and_back():
    q = torch.empty(3, 1, 8, 64, dtype=torch.float16, device="meta")
    k = torch.empty(3, 500, 2, 64, dtype=torch.float16, device="meta")
    out, sums, _, random = Kernels(H100)._forward(q, k, k, 0.0, 1.0, True, -1, -1, 0.0, None, False)
    assert out.shape == q.shape
    assert sums.shape == (3, 8, 1)
    assert (random.dtype, random.shape) == (torch.int64, (2,))
