"""Memory after backward: the engine's thread holds nothing any more."""

SCRIPT = """
import torch

def gradient(of):
    x = torch.ones(600, 400, device="cuda", requires_grad=True)
    return torch.autograd.grad(of(x).sum(), [x])

for of in [torch.relu, lambda x: x.std(1), lambda x: x * 2, lambda x: x.median(1)[0]] * 4:
    gradient(of)
    assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()
"""


def test_what_the_last_node_was_given_is_gone_when_backward_returns(run):
    assert run(SCRIPT, gpu="t4").ending.code == 0


def test_the_thread_of_backward_has_a_workspace_of_its_own(run):
    found = run(
        """
import torch
x = torch.ones(64, 64, device="cuda", requires_grad=True)
y = x @ x
one = torch.cuda.memory_allocated()
y.sum().backward()
assert torch.cuda.memory_allocated() - one > 1 << 20
""",
        gpu="t4",
    )
    assert found.ending.code == 0


def test_numbers_are_sent_to_the_gpu_from_within_backward(run):
    """torchdiffeq's adjoint makes the limits of its solver there."""
    found = run(
        """
import torch

class Limited(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        most = torch.as_tensor(3, device=grad.device)
        assert 2 < most < 4 and grad.new_tensor([2.5]) == 2.5
        return grad

Limited.apply(torch.ones(4, device="cuda", requires_grad=True)).sum().backward()
""",
        gpu="t4",
    )
    assert found.ending.code == 0


def test_weights_that_were_stepped_in_between_end_the_backward(run):
    """As in GANs that step the generator before they differentiate what it made."""
    found = run(
        """
import torch
one, two = (torch.nn.Linear(4, 4, device="cuda") for _ in range(2))
loss = two(one(torch.ones(4, 4, device="cuda"))).sum()
torch.autograd.backward(loss, retain_graph=True)
torch.optim.Adam(two.parameters(), fused=True).step()
torch.autograd.backward(loss, retain_graph=True)
torch.optim.Adam(two.parameters()).step()
try:
    loss.backward()
except RuntimeError as error:
    assert "modified by an inplace operation" in str(error)
else:
    raise AssertionError
""",
        gpu="t4",
    )
    assert found.ending.code == 0
