"""torch.func: an ensemble by vmap, Hessian-vector products by jvp over grad, MAML in the inner loop."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, jacrev, jvp, stack_module_state, vmap

torch.manual_seed(0)
device = "cuda"


def make():
    return nn.Sequential(
        nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 10)
    )


models = [make().to(device) for _ in range(4)]
params, buffers = stack_module_state(models)
base = make().to("meta")


def loss_of(p, b, x, y):
    return F.cross_entropy(functional_call(base, (p, b), (x,)), y)


optimizer = torch.optim.Adam(params.values(), lr=1e-3)
for step in range(3):
    x, y = torch.randn(128, 64, device=device), torch.randint(0, 10, (128,), device=device)
    losses = vmap(loss_of, in_dims=(0, 0, None, None))(params, buffers, x, y)
    optimizer.zero_grad()
    losses.sum().backward()
    optimizer.step()
    print(losses.tolist())

net = make().to(device)
weights = {k: v.detach() for k, v in net.named_parameters()}


def scalar(p):
    return F.cross_entropy(functional_call(net, p, (x,)), y)


tangent = {k: torch.ones_like(v) for k, v in weights.items()}
_, hvp = jvp(grad(scalar), (weights,), (tangent,))
print(sum(v.square().sum() for v in hvp.values()).sqrt().item())
jac = vmap(jacrev(lambda row: functional_call(net, weights, (row,))))(x[:16])
print(jac.shape)

outer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
for step in range(3):
    outer.zero_grad()
    for task in range(2):
        fast = dict(net.named_parameters())
        sx, sy = torch.randn(32, 64, device=device), torch.randint(0, 10, (32,), device=device)
        for _ in range(2):
            inner = F.cross_entropy(functional_call(net, fast, (sx,)), sy)
            grads = torch.autograd.grad(inner, fast.values(), create_graph=True)
            fast = {k: p - 0.1 * g for (k, p), g in zip(fast.items(), grads)}
        qx, qy = torch.randn(32, 64, device=device), torch.randint(0, 10, (32,), device=device)
        F.cross_entropy(functional_call(net, fast, (qx,)), qy).backward()
    outer.step()
