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


def test_what_a_transform_differentiates_is_gone_when_it_returns(run):
    found = run(
        """
import torch
from torch.func import grad, vmap
x = torch.ones(8, 3, 32, 32, device="cuda")
held = torch.cuda.memory_allocated()
for of in [lambda x: torch.nn.functional.max_pool2d(x, 2), torch.relu, lambda x: x * x] * 4:
    vmap(grad(lambda x: of(x).sum()))(x)
    assert torch.cuda.memory_allocated() == held, torch.cuda.memory_allocated()
""",
        gpu="t4",
    )
    assert found.ending.code == 0


def test_forward_derivatives_go_through_a_backward(run):
    """Their formulas are TorchScript, and so are not called from Python either."""
    found = run(
        """
import torch
from torch.autograd import forward_ad
from torch.nn import GELU, LayerNorm, Linear
model = torch.nn.Sequential(Linear(16, 32), GELU(), LayerNorm(32), Linear(32, 2)).cuda()
x = torch.ones(4, 16, device="cuda")
with forward_ad.dual_level():
    out = model(forward_ad.make_dual(x, torch.ones_like(x)))
    forward_ad.unpack_dual(out).tangent.pow(2).mean().backward()
assert model[0].weight.grad is not None
""",
        gpu="t4",
    )
    assert found.ending.code == 0


def test_what_is_known_to_be_zero_has_no_memory(run):
    found = run(
        """
import torch
zero = torch._efficientzerotensor((256, 256), device="cuda")
torch.nn.functional.linear(torch.ones(8, 256, device="cuda"), zero)
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()
""",
        gpu="t4",
    )
    assert found.ending.code == 0


def test_a_loss_with_weights_of_what_is_true_goes_on_in_place(peaks):
    """Logits, targets and weights of labels; as PyTorch's CUDA code over the stand-in driver."""
    script = """
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as loss
x = torch.randn(256, 200, device="cuda", requires_grad=True)
true, weight = torch.ones(256, 200, device="cuda"), torch.ones(200, device="cuda") + 1
LEAVES = [x]
CASES = {"weighted": lambda: loss(x, true, pos_weight=weight).backward()}
"""
    assert peaks(script, gpu="t4") == {"weighted": 615_424}


def test_what_is_known_to_be_zero_is_so_each_time(run):
    """A product of it takes a single zero, which is spread and copied, and a sum takes nothing."""
    found = run(
        """
import torch
from torch.autograd import forward_ad
from torch.func import jacfwd, jacrev, vmap
x, weight = torch.ones(8, 512, device="cuda"), torch.ones(512, 512, device="cuda")
def peak():
    torch.cuda.reset_peak_memory_stats()
    with forward_ad.dual_level():
        forward_ad.make_dual(x, torch.ones_like(x)) @ weight
    return torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
# As PyTorch's CUDA code over the stand-in driver: a weight of zeros, and three of 8 x 512.
assert [peak() for _ in range(3)] == [4 * 512 * 512 + 3 * 4 * 8 * 512 + 512] * 3
slopes = vmap(jacfwd(jacrev(lambda row: (weight[:4] @ row).sin().sum())))(x)
assert slopes.shape == (8, 512, 512)
""",
        gpu="t4",
    )
    assert found.ending.code == 0
