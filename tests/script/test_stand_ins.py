"""Something stands in for a package that needs a compiler, where a script asks for it."""

import importlib.util

import pytest

import memcalc
from memcalc.engine.packages.stand_ins import STAND_INS, lacking
from memcalc.errors import EstimateError
from memcalc.script.simulate import make_plan, simulate

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


COMPILED = """
    import pathlib, sys, torch
    for name in ("apex", "mamba_ssm"):
        pathlib.Path(name).mkdir()
        pathlib.Path(name, "__init__.py").write_text("")
    sys.path.insert(0, "")
    import amp_C, fused_layer_norm_cuda, selective_scan_cuda
    try:
        import causal_conv1d_cuda
    except ImportError:
        causal_conv1d_cuda = None
    assert causal_conv1d_cuda is None

    def took(function, *arguments):
        before = torch.cuda.memory_allocated()
        held = function(*arguments)
        return held, torch.cuda.memory_allocated() - before

    x = torch.empty(64, 512, dtype=torch.bfloat16, device="cuda")
    weight, bias = torch.empty(2, 512, dtype=torch.bfloat16, device="cuda")
    kept, size = took(fused_layer_norm_cuda.forward_affine, x, (512,), weight, bias, 1e-5)
    assert size == x.nbytes + 2 * 512
    found, size = took(
        fused_layer_norm_cuda.backward_affine, x, *kept[1:], x, (512,), weight, bias, 1e-5, False
    )
    assert [one.shape for one in found] == [x.shape, weight.shape, bias.shape]
    assert size == x.nbytes + 2 * 1024
    total, each = amp_C.multi_tensor_l2norm(65536, x, [[weight, bias]], True)
    assert (total.shape, each.shape) == ((1,), (2,))
    u, delta, z = (torch.empty(2, 64, 4096, device="cuda") for _ in range(3))
    a, b, c = torch.empty(64, 16, device="cuda"), *torch.empty(2, 2, 1, 16, 4096, device="cuda")
    kept, size = took(selective_scan_cuda.fwd, u, delta, a, b, c, None, z, None, True)
    assert size == u.nbytes + z.nbytes + 4 * 2 * 64 * 2 * 32
    assert selective_scan_cuda.bwd(
        u, delta, a, b, c, None, z, None, u, kept[1], kept[0], None, True, False
    )[3].shape == b.shape
"""


def test_the_compiled_part_of_an_installed_package_is_stood_in_for(run):
    found = run(COMPILED)
    assert not found.ending.code
    said = found.traced.prediction.assumptions
    assert any(one.startswith("apex's compiled part is not installed") for one in said)
    assert any(one.startswith("mamba_ssm's compiled part is not installed") for one in said)


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("mamba_ssm", r"MAMBA_SKIP_CUDA_BUILD=TRUE pip install .* mamba-ssm"),
        ("transformer_engine", "nothing in place of transformer_engine"),
    ],
)
def test_a_package_that_needs_a_compiler_is_refused_with_a_way(tmp_path, package, said):
    (tmp_path / "train.py").write_text(f"import {package}")
    with pytest.raises(EstimateError, match=said):
        simulate(make_plan(["python", "train.py"]), tmp_path)


def test_a_block_of_code_gets_stand_ins_too():
    with memcalc.simulate() as simulation:
        import flash_attn
        import torch

        q = torch.empty(1, 64, 2, 64, dtype=torch.bfloat16, device="cuda")
        flash_attn.flash_attn_func(q, q, q)
    assert STAND_INS["flash_attn"].said in simulation.prediction.assumptions
