"""Weights that leave the GPU and come back, with what autograd knows of them."""


def test_gradients_move_with_their_model(run):
    found = run(
        """
import torch
model = torch.nn.Linear(256, 256).cuda()
model(torch.ones(2, 256, device="cuda")).sum().backward()
torch._C._cuda_clearCublasWorkspaces()
held, gradient = torch.cuda.memory_allocated(), model.weight.grad
model.cpu()
assert torch.cuda.memory_allocated() == 0
assert model.weight.grad is gradient and gradient.device.type == "cpu"
model.cuda()
assert model.weight.grad is gradient and gradient.is_cuda
assert torch.cuda.memory_allocated() == held
""",
        gpu="t4",
    )
    assert found.ending.code == 0


def test_weights_on_the_host_keep_their_gradients_on_the_gpu_and_who_is_told_of_them(run):
    found = run(
        """
import torch
weight = torch.nn.Parameter(torch.ones(256, device="cuda"))
told = []
weight.register_post_accumulate_grad_hook(told.append)
weight.sum().backward()
weight.data = weight.data.cpu()
assert weight.grad.is_cuda and weight.device.type == "cpu"
weight.grad = None
weight.data = weight.data.cuda()
weight.sum().backward()
assert len(told) == 2
""",
        gpu="t4",
    )
    assert found.ending.code == 0
