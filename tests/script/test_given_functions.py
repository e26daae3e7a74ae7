"""Operators that are given functions, where nothing is compiled."""


def test_code_that_no_mode_may_see_is_seen(run):
    found = run(
        """
import torch
from torch._higher_order_ops.foreach_map import foreach_map
tensors = [torch.ones(256, device="cuda") for _ in range(3)]
held = torch.cuda.memory_allocated()
sums = foreach_map(torch.add, tensors, tensors)
assert torch.cuda.memory_allocated() == 2 * held

x = torch.ones(256, device="cuda")

def inner(x):
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

before = torch.cuda.memory_allocated()
out = torch.cond(x.sum() > 0, inner, lambda x: x.sin(), (x,))
assert torch.cuda.memory_allocated() == before + 1024, torch.cuda.memory_allocated() - before
""",
        gpu="t4",
    )
    assert found.ending.code == 0
