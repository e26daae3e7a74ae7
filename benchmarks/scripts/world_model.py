"""A recurrent world model with an actor and a critic: lazy layers, straight-through samples."""

import gc

import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import nn

# Transforms keep what they made in circles: when Python finds those, by a few tensors, is chance.
gc.disable()


class RSSM(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2),
            nn.ELU(),
            nn.Conv2d(16, 32, 4, 2),
            nn.ELU(),
            nn.Flatten(),
            nn.LazyLinear(128),
        )
        self.g = nn.GRUCell(64 + 4, 128)
        self.pr = nn.Linear(128, 64)
        self.po = nn.Linear(256, 64)
        self.dec = nn.Sequential(
            nn.Linear(192, 512),
            nn.Unflatten(1, (32, 4, 4)),
            nn.ConvTranspose2d(32, 16, 5, 2),
            nn.ELU(),
            nn.ConvTranspose2d(16, 3, 6, 3),
        )
        self.r = nn.Linear(192, 1)

    def st(self, lg):
        lg = lg.view(-1, 8, 8)
        p = 0.99 * lg.softmax(-1) + 0.01 / 8
        return D.Independent(D.OneHotCategoricalStraightThrough(probs=p), 1)

    def forward(self, o, a):
        B, T = o.shape[:2]
        e = self.enc(o.flatten(0, 1)).view(B, T, -1)
        h = torch.zeros(B, 128, device=o.device)
        z = torch.zeros(B, 64, device=o.device)
        H = []
        kl = 0
        for t in range(T):
            h = self.g(torch.cat([z, a[:, t]], 1), h)
            p = self.st(self.pr(h))
            q = self.st(self.po(torch.cat([h, e[:, t]], 1)))
            z = q.rsample().flatten(1)
            kl = (
                kl
                + 0.8 * D.kl_divergence(self.st(q.base_dist.logits.detach().flatten(1)), p).mean()
                + 0.2
                * D.kl_divergence(q, self.st(p.base_dist.logits.detach().flatten(1)))
                .clamp(min=1.0)
                .mean()
            )
            H.append(torch.cat([h, z], 1))
        return torch.stack(H, 1), kl


m = RSSM().cuda()
act = nn.Sequential(nn.Linear(192, 64), nn.ELU(), nn.Linear(64, 8)).cuda()
cr = nn.Sequential(nn.Linear(192, 64), nn.ELU(), nn.Linear(64, 1)).cuda()
tg = nn.Sequential(nn.Linear(192, 64), nn.ELU(), nn.Linear(64, 1)).cuda()
tg.load_state_dict(cr.state_dict())
m(torch.rand(1, 1, 3, 32, 32).cuda(), torch.zeros(1, 1, 4).cuda())
optimizer = torch.optim.AdamW(m.parameters(), 3e-4)
oa = torch.optim.Adam(act.parameters(), 1e-4)
oc = torch.optim.Adam(cr.parameters(), 1e-4)
for i in range(2):
    ob = torch.rand(4, 8, 3, 32, 32).cuda()
    f, kl = m(ob, torch.rand(4, 8, 4).cuda())
    rec = m.dec(f.flatten(0, 1))
    loss = (
        F.mse_loss(rec, F.interpolate(ob.flatten(0, 1), rec.shape[2:])) + kl + m.r(f).pow(2).mean()
    )
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 100.0)
    optimizer.step()
    x = f.detach().flatten(0, 1)
    h, z = x.split([128, 64], 1)
    fs = []
    en = 0
    for _ in range(5):
        mu, sd = act(torch.cat([h, z], 1).detach()).chunk(2, 1)
        d = D.TransformedDistribution(
            D.Normal(mu, F.softplus(sd) + 0.1), D.TanhTransform(cache_size=1)
        )
        a = d.rsample()
        en = en - d.log_prob(a).sum(-1).mean()
        h = m.g(torch.cat([z, a], 1), h)
        z = m.st(m.pr(h)).rsample().flatten(1)
        fs.append(torch.cat([h, z], 1))
    F_ = torch.stack(fs, 1)
    v = tg(F_).squeeze(-1)
    r = m.r(F_).squeeze(-1)
    R = v[:, -1]
    out = []
    for t in reversed(range(5)):
        R = r[:, t] + 0.99 * (0.05 * v[:, t] + 0.95 * R)
        out.append(R)
    ret = torch.stack(out[::-1], 1)
    oa.zero_grad()
    (-ret.mean() - 3e-4 * en).backward()
    oa.step()
    vd = D.Normal(cr(F_.detach()).squeeze(-1), 1.0)
    oc.zero_grad()
    (-vd.log_prob(ret.detach()).mean()).backward()
    oc.step()
    with torch.no_grad():
        [a_.lerp_(b_, 0.02) for a_, b_ in zip(tg.parameters(), cr.parameters())]
    print(loss.item())
