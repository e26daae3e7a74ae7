"""PPO: rollouts kept on the GPU, minibatches by numpy indices."""

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Normal


class AC(nn.Module):
    def __init__(s):
        super().__init__()

        def o(l, std=2**0.5):
            return (
                nn.init.orthogonal_(l.weight, std),
                nn.init.constant_(l.bias, 0.0),
                l,
            )[-1]

        s.c = nn.Sequential(
            o(nn.Linear(17, 256)),
            nn.Tanh(),
            o(nn.Linear(256, 256)),
            nn.Tanh(),
            o(nn.Linear(256, 1), 1.0),
        )
        s.a = nn.Sequential(
            o(nn.Linear(17, 256)),
            nn.Tanh(),
            o(nn.Linear(256, 256)),
            nn.Tanh(),
            o(nn.Linear(256, 6), 0.01),
        )
        s.ls = nn.Parameter(torch.zeros(1, 6))

    def get(s, x, a=None):
        mean = s.a(x)
        d = Normal(mean, s.ls.expand_as(mean).exp(), validate_args=False)
        if a is None:
            a = mean + d.stddev * torch.randn_like(mean)
        return a, d.log_prob(a).sum(1), d.entropy().sum(1), s.c(x)


dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
agent = AC().to(dev)
opt = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
N, E = 64, 16
obs = torch.zeros((N, E, 17)).to(dev)
act = torch.zeros((N, E, 6)).to(dev)
lp = torch.zeros((N, E)).to(dev)
rew = torch.zeros((N, E)).to(dev)
dones = torch.zeros((N, E)).to(dev)
vals = torch.zeros((N, E)).to(dev)
nxt = torch.Tensor(np.random.randn(E, 17)).to(dev)
for it in range(2):
    for st in range(N):
        obs[st] = nxt
        with torch.no_grad():
            a, l, _, v = agent.get(nxt)
            vals[st] = v.flatten()
        act[st] = a
        lp[st] = l
        env = a.cpu().numpy()
        rew[st] = torch.tensor(np.random.randn(E)).to(dev).view(-1)
        nxt = torch.Tensor(np.random.randn(E, 17)).to(dev)
    with torch.no_grad():
        adv = torch.zeros_like(rew).to(dev)
        last = 0
        for t in reversed(range(N)):
            nv = vals[t + 1] if t < N - 1 else vals[t]
            delta = rew[t] + 0.99 * nv - vals[t]
            adv[t] = last = delta + 0.99 * 0.95 * last
        ret = adv + vals
    bo, bl, ba, bad, br = (
        obs.reshape(-1, 17),
        lp.reshape(-1),
        act.reshape(-1, 6),
        adv.reshape(-1),
        ret.reshape(-1),
    )
    inds = np.arange(N * E)
    for ep in range(2):
        np.random.shuffle(inds)
        for s in range(0, N * E, 256):
            mb = inds[s : s + 256]
            _, nl, ent, nv = agent.get(bo[mb], ba[mb])
            ratio = (nl - bl[mb]).exp()
            with torch.no_grad():
                kl = ((ratio - 1) - (nl - bl[mb])).mean()
            mad = bad[mb]
            mad = (mad - mad.mean()) / (mad.std() + 1e-8)
            loss = (
                torch.max(-mad * ratio, -mad * torch.clamp(ratio, 0.8, 1.2)).mean()
                + 0.5 * ((nv.view(-1) - br[mb]) ** 2).mean()
                - 0.01 * ent.mean()
            )
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            opt.step()
    yp, yt = vals.cpu().numpy(), ret.cpu().numpy()
    print(it, loss.item(), kl.item(), np.var(yt))
