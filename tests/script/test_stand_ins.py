"""Something stands in for a package that needs a compiler, where a script asks for it."""

import importlib.util

import pytest

from memcalc.engine.packages.stand_ins import STAND_INS, lacking

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("flash_attn") is not None, reason="flash-attn is installed"
)
CALLS = """
    import importlib.metadata, torch
    from flash_attn import flash_attn_func
    from flash_attn.bert_padding import pad_input, unpad_input

    assert importlib.metadata.version("flash-attn") == importlib.metadata.version("flash_attn")
    q, k, v = (torch.empty(4, 512, heads, 64, dtype=torch.bfloat16, device="cuda",
                           requires_grad=True) for heads in (8, 2, 2))
    held = torch.cuda.memory_allocated()
    out = flash_attn_func(q, k, v, causal=True)
    # The output, the sums of the softmax, and the state of its generator.
    assert torch.cuda.memory_allocated() - held == out.nbytes + 4 * 4 * 512 * 8 + 512
    out.sum().backward()
    assert k.grad.shape == k.shape
    mask = torch.ones(4, 512, dtype=torch.long)
    mask[:, 300:] = 0
    kept, where, begins, longest, _ = unpad_input(q.flatten(2), mask.cuda())
    assert (kept.shape, longest) == ((1200, 512), 300)
    assert pad_input(kept, where, 4, 512).shape == (4, 512, 512)
"""


def test_flash_attn_is_stood_in_for_and_the_answer_says_so(run):
    found = run(CALLS)
    assert not found.ending.code
    assert STAND_INS["flash_attn"].said in found.traced.prediction.assumptions


def test_a_script_that_can_do_without_it_is_given_none(run):
    found = run(
        """
        import torch
        try:
            import flash_attn
        except ImportError:
            flash_attn = None
        assert flash_attn is None
        torch.zeros(1, device="cuda")
        """
    )
    assert not found.ending.code
    assert STAND_INS["flash_attn"].said not in found.traced.prediction.assumptions


@pytest.mark.parametrize(
    ("error", "package"),
    [
        (ModuleNotFoundError("No module named 'flash_attn'", name="flash_attn"), "flash_attn"),
        (ImportError("the package flash_attn seems to be not installed"), "flash_attn"),
        (ImportError("FlashAttention2 has been toggled on, but"), "flash_attn"),
        (ModuleNotFoundError("No module named 'other'", name="other"), ""),
        (ValueError("flash_attn"), ""),
        (None, ""),
    ],
)
def test_what_a_script_ended_for_lack_of_is_read_from_its_error(error, package):
    assert lacking(error) == package
