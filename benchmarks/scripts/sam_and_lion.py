"""Two optimizers that the script brings itself: SAM around SGD, and Lion."""

import torch


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kw):
        super().__init__(params, dict(rho=rho, **kw))
        self.base_optimizer = base(self.param_groups, **kw)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norm = torch.norm(
            torch.stack(
                [
                    p.grad.norm(p=2).to("cuda")
                    for g in self.param_groups
                    for p in g["params"]
                    if p.grad is not None
                ]
            ),
            p=2,
        )
        for g in self.param_groups:
            scale = g["rho"] / (norm + 1e-12)
            for p in g["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale.to(p))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    def step(self, closure=None):
        raise NotImplementedError


class Lion2(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, b=(0.9, 0.99)):
        super().__init__(params, dict(lr=lr, b=b))

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["m"] = torch.zeros_like(p)
                u = s["m"] * g["b"][0] + p.grad * (1 - g["b"][0])
                p.add_(u.sign_(), alpha=-g["lr"])
                s["m"].mul_(g["b"][1]).add_(p.grad, alpha=1 - g["b"][1])


dev = "cuda:0"
m = torch.nn.Sequential(
    torch.nn.Linear(300, 1500),
    torch.nn.Tanh(),
    torch.nn.Linear(1500, 700),
    torch.nn.Tanh(),
    torch.nn.Linear(700, 5),
).to(dev)
sam = SAM(m.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
x, y = torch.randn(200, 300).to(dev), torch.randint(0, 5, (200,)).to(dev)
for _ in range(3):
    torch.nn.functional.cross_entropy(m(x), y).backward()
    sam.first_step(True)
    torch.nn.functional.cross_entropy(m(x), y).backward()
    sam.second_step(True)
lion = Lion2(m.parameters())
for _ in range(3):
    l = torch.nn.functional.cross_entropy(m(x), y)
    l.backward()
    lion.step()
    lion.zero_grad()
    print(l.item())
