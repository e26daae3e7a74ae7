"""Where autograd's keys are off, PyTorch hands calls over whole that it takes apart elsewhere."""

SCRIPT = """
import torch
numbers, whole = torch.arange(256.0, dtype=torch.float64), torch.arange(8)
device = torch.device("cuda")
linear = torch.nn.Linear(256, 256, device=device)
with torch.no_grad():
    linear(torch.ones(4, 256, device=device))
before = torch.cuda.memory_allocated()
for context in (torch.no_grad, torch.inference_mode):
    for turn in range(3):
        with context():
            x = numbers.to(device=device, dtype=torch.float32)
            assert (x.device.type, x.dtype) == ("cuda", torch.float32)
            assert whole.to("cuda", torch.int32).sum().item() == 28
            known = x[1:4].cpu()
            assert type(known) is torch.Tensor and known.tolist() == x[1:4].tolist() == [1, 2, 3]
            y = linear(x.expand(4, 256))
            held = linear.weight.view(-1)
            assert torch.cuda.memory_allocated() == before + 1024 + 4096, turn
            new = context is torch.inference_mode
            assert [one.is_inference() for one in (x, y, held)] == [new, new, False]
        del x, y
assert torch.cuda.memory_allocated() == before
"""


def test_each_turn_is_as_the_first_and_as_without_gradients(run):
    assert run(SCRIPT).ending.code == 0


COMPOSED = """
import torch, torch.nn.functional as F
torch.backends.cudnn.enabled = False
lstm = torch.nn.LSTM(32, 64, batch_first=True).cuda()
weight = torch.ones(96, 32, device="cuda", requires_grad=True)
x = torch.ones(4, 16, 32, device="cuda")
def taken(work):
    before = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
    with context():
        work()
    return torch.cuda.memory_stats()["requested_bytes.all.allocated"] - before
found = []
for context in (torch.no_grad, torch.inference_mode):
    lstm(x)
    works = lambda: lstm(x), lambda: F.linear(x.transpose(0, 1), weight)
    found.append([taken(work) for work in works])
assert found[0] == found[1], found
assert found[0][1] == 8192 + 24576, found
"""


def test_what_is_composed_is_composed_as_in_c(run):
    """PyTorch's compositions in Python are others; weights in views are trained ones."""
    assert run(COMPOSED, gpu="t4", steps=0).ending.code == 0
