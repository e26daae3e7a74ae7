"""Gradients of views that were written to are laid in new memory, as PyTorch's CUDA build does."""

PEAKS = {
    "flat": 164352,
    "across": 246272,
    "twice": 246272,
    "views_of_it": 8604160,
    "of_its_view": 164352,
    "base_alone": 83456,
    "base_as_well": 82432,
    "not_written": 82432,
}
"""What backward takes beyond what was there before; PyTorch 2.13 over the stand-in driver."""
SCRIPT = """
import torch

def flat(x): return x.view(-1).add_(1).tanh()
def across(x): return x.view(64, -1, 16).transpose(0, 1).mul_(2).sigmoid()
def twice(x): return x.unsqueeze(1).add_(1).mul_(2).sigmoid()
def views_of_it(x): return (lambda y: y.matmul(y.t()))(x.narrow(1, 2, 8).add_(1))
def of_its_view(x): return x.view(64, -1).add_(1).view(-1, 8).add_(1).tanh()
def base_alone(x): x[:, 3] = 2; return x.view(-1, 4).tanh()
def base_as_well(x): y = x[:10]; y.add_(1); return y.sigmoid().sum() + x.tanh().sum()
def not_written(x): return x.view(-1).tanh()

for function, more in PEAKS.items():
    x = torch.randn(64, 320, device="cuda", requires_grad=True)
    loss = globals()[function](x * 1.5).sum()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss.backward()
    found = torch.cuda.max_memory_allocated() - before
    assert found == more, (function, found, more)
    del x, loss
"""


def test_the_gradient_of_a_view_that_was_written_to_has_memory_of_its_own(run):
    assert run(f"PEAKS = {PEAKS}\n{SCRIPT}", gpu="t4").ending.code == 0
