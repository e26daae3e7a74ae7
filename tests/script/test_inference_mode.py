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
