"""Products of columns and rows ask no cuBLAS from PyTorch 2.13 on, as over the driver."""

SCRIPT = """
import torch
columns, rows = torch.ones(8, 32, 1, device="cuda"), torch.ones(8, 1, 16, device="cuda")
def reserved():
    return torch.cuda.memory_reserved() >> 20
assert torch.bmm(columns, rows).shape == (8, 32, 16)
assert torch.einsum("bi,bj->bij", columns[..., 0], rows[:, 0]).shape == (8, 32, 16)
assert reserved() == 2, reserved()
torch.bmm(columns, rows, out=torch.empty(8, 32, 16, device="cuda"))
assert reserved() == 22, reserved()
"""


def test_no_workspace_is_taken_for_them(run):
    assert run(SCRIPT, gpu="t4", steps=0).ending.code == 0


def test_before_that_release_it_is(run):
    assert run(SCRIPT, gpu="t4", steps=0, torch="2.11").ending.code == 1


APART = """
import torch
rows = torch.ones(8, 1, 32, device="cuda")[..., ::2]
before = torch.cuda.memory_allocated()
torch.cuda.reset_peak_memory_stats()
product = torch.bmm(rows.mT, rows)
taken = torch.cuda.max_memory_allocated() - before
assert taken == 8 * 16 * 16 * 4, taken
"""


def test_they_are_read_as_they_lie(run):
    assert run(APART, gpu="t4", steps=0).ending.code == 0
