"""Optimizers with matrices of their own: roots of both sides, their bases, and low ranks of SVD."""

import torch
from torch import nn


class Shampoo(torch.optim.Optimizer):
    """An inverse root of what the gradients are along each dimension."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                grad, state = p.grad, self.state[p]
                for dim, size in enumerate(p.shape):
                    if dim not in state:
                        state[dim] = torch.eye(size, device=p.device) * 1e-4
                    grad = grad.transpose(0, dim).contiguous()
                    turned, grad = grad.shape, grad.view(size, -1)
                    state[dim] += grad @ grad.t()
                    values, vectors = torch.linalg.eigh(state[dim])
                    scaled = torch.diag(values.clamp(min=1e-6).pow(-1 / (2 * p.dim())))
                    grad = (vectors @ scaled @ vectors.t() @ grad).view(turned).transpose(0, dim)
                p.add_(grad.contiguous(), alpha=-group["lr"])


class Rotated(torch.optim.Optimizer):
    """Adam in the bases that QR keeps turning."""

    def __init__(self, params, lr=3e-3, every=2):
        super().__init__(params, {"lr": lr, "every": every})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state, g = self.state[p], p.grad
                if not state:
                    sides = [torch.zeros(n, n, device=p.device) for n in p.shape]
                    state.update(t=0, m=torch.zeros_like(g), v=torch.zeros_like(g), sides=sides)
                state["t"] += 1
                for i, side in enumerate(state["sides"]):
                    others = [d for d in range(g.dim()) if d != i]
                    side.lerp_(torch.tensordot(g, g, dims=[others, others]), 0.05)
                if "bases" not in state:
                    state["bases"] = [torch.linalg.eigh(s)[1].flip(1) for s in state["sides"]]
                    continue
                turned = g
                for base in state["bases"]:
                    turned = torch.tensordot(turned, base, dims=[[0], [0]])
                state["m"].lerp_(turned, 0.1)
                state["v"].mul_(0.95).add_(turned.square(), alpha=0.05)
                update = state["m"] / (state["v"].sqrt() + 1e-8)
                for base in state["bases"]:
                    update = torch.tensordot(update, base, dims=[[0], [1]])
                p.add_(update, alpha=-group["lr"])
                if state["t"] % group["every"] == 0:
                    both = zip(state["sides"], state["bases"], strict=True)
                    state["bases"] = [torch.linalg.qr(side @ base)[0] for side, base in both]


class LowRank(torch.optim.Optimizer):
    """Momentum of the gradient's largest directions."""

    def __init__(self, params, lr=1e-3, rank=16, every=2):
        super().__init__(params, {"lr": lr, "rank": rank, "every": every})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state, t = self.state[p], self.state[p].get("t", 0)
                grad = p.grad if p.dim() == 2 else p.grad[None]
                if t % group["every"] == 0:
                    u, _, _ = torch.linalg.svd(grad, full_matrices=False)
                    state["left"] = u[:, : group["rank"]].clone()
                small = state["left"].t() @ grad
                state["m"] = small if t == 0 else state["m"].lerp_(small, 0.1)
                p.add_((state["left"] @ state["m"]).view_as(p), alpha=-group["lr"])
                state["t"] = t + 1


for kind in (Shampoo, Rotated, LowRank):
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64)).cuda()
    optimizer = kind(model.parameters())
    for _ in range(5):
        model(torch.randn(32, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    del model, optimizer
