"""A normalizing flow in DataParallel, with batches of the host, and distributions."""

import torch
import torch.distributions as D
from torch import nn


class Coup(nn.Module):
    def __init__(self, d, flip):
        super().__init__()
        self.n = nn.Sequential(nn.Linear(d // 2, 64), nn.Tanh(), nn.Linear(64, d))
        self.flip = flip
        self.W = nn.Parameter(torch.linalg.qr(torch.randn(d, d))[0])

    def forward(self, x):
        ld = torch.slogdet(self.W)[1].expand(x.size(0))
        x = x @ self.W
        a, b = x.chunk(2, 1)
        a, b = (b, a) if self.flip else (a, b)
        sc, t = self.n(a).chunk(2, 1)
        sc = torch.tanh(sc)
        b = b * sc.exp() + t
        return torch.cat([a, b], 1), ld + sc.sum(1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.ModuleList(Coup(16, i % 2) for i in range(4))
        self.register_buffer("mu", torch.zeros(16))
        self.register_buffer("sd", torch.ones(16))

    def forward(self, x):
        ld = 0
        for c in self.c:
            x, found = c(x)
            ld = ld + found
        return D.Independent(D.Normal(self.mu, self.sd), 1).log_prob(x) + ld


m = nn.DataParallel(Flow()).cuda()
optimizer = torch.optim.Adamax(m.parameters())
for i in range(3):
    x = torch.randn(256, 16)
    loss = -m(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
mix = D.MixtureSameFamily(
    D.Categorical(logits=torch.zeros(5, device="cuda", requires_grad=True)),
    D.Independent(D.Normal(torch.randn(5, 16, device="cuda"), torch.ones(5, 16, device="cuda")), 1),
)
print(mix.sample((64,)).shape, mix.log_prob(x.cuda()).mean().item())
mv = D.MultivariateNormal(torch.zeros(16).cuda(), scale_tril=torch.eye(16).cuda())
print(D.kl_divergence(mv, D.MultivariateNormal(torch.ones(16).cuda(), torch.eye(16).cuda())).item())
for d in (
    D.Beta(torch.ones(64, 3).cuda(), torch.ones(64, 3).cuda()),
    D.Dirichlet(torch.ones(64, 5).cuda()),
    D.Gamma(torch.ones(64).cuda(), 1.0),
    D.RelaxedOneHotCategorical(torch.tensor(0.5).cuda(), logits=torch.zeros(64, 7).cuda()),
    D.OneHotCategoricalStraightThrough(logits=torch.zeros(64, 7).cuda()),
    D.StudentT(torch.ones(64).cuda()),
    D.VonMises(torch.zeros(32).cuda(), torch.ones(32).cuda()),
    D.LowRankMultivariateNormal(
        torch.zeros(8).cuda(), torch.randn(8, 2).cuda(), torch.ones(8).cuda()
    ),
    D.Poisson(torch.ones(9).cuda()),
    D.NegativeBinomial(torch.ones(9).cuda(), torch.full((9,), 0.5).cuda()),
):
    s = d.sample()
    lp = d.log_prob(s)
    print(type(d).__name__, lp.shape)
