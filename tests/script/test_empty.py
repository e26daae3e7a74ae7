"""Batches that a mask has left empty, as a detector's are where it finds nothing."""

OPERATORS = {
    "indexing by no places": "x[torch.zeros(0, dtype=torch.long, device='cuda')] * x[:0]",
    "softmax of no rows": "x[:0].softmax(1)",
    "a linear layer": "F.linear(x[:0], x[:3])",
    "a product over nothing": "x[:, :0] @ x[:, :0].T",
    "group norm": "F.group_norm(x[:0], 2)",
    "attention": "F.scaled_dot_product_attention(*[x[:0].view(0, 2, 2, 2)] * 3)",
    "a convolution": "F.conv1d(x[:0].view(0, 2, 4), x[:6].view(6, 2, 4)[..., :3])",
    "a transposed one": "F.conv_transpose1d(x[:0].view(0, 2, 4), x.view(2, 9, 4))",
}
SCRIPT = """
import torch
import torch.nn.functional as F
x = torch.randn(9, 8, device="cuda", requires_grad=True)
out = {code}
torch.autograd.grad(out.sum(), x)
del out
assert torch.cuda.memory_allocated() == 512, torch.cuda.memory_allocated()
"""


def test_of_nothing_no_kernel_runs_and_no_library_is_asked(run):
    for name, code in OPERATORS.items():
        found = run(SCRIPT.format(code=code), gpu="t4")
        assert found.ending.code == 0, (name, found.ending)


def test_an_order_of_none_takes_a_number_in_passing(peaks):
    """It tells whether the type holds as many; a detector draws among the boxes that it found."""
    script = """
import torch
CASES, LEAVES = {"none": lambda: torch.randperm(0, device="cuda")}, []
"""
    assert peaks(script, gpu="t4") == {"none": 512}
