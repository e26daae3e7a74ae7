"""PPO of a language model by hand: samples, a reference, advantages, minibatches."""

import copy

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
pol = GPT2LMHeadModel(
    GPT2Config(vocab_size=600, n_embd=96, n_layer=2, n_head=4, n_positions=128)
).cuda()
ref = copy.deepcopy(pol).eval().requires_grad_(False)
val = torch.nn.Linear(96, 1).cuda()
rew = torch.nn.Linear(96, 1).cuda()
optimizer = torch.optim.Adam([*pol.parameters(), *val.parameters()], 1e-5)


def logp(m, ids, pl):
    lg = m(ids, output_hidden_states=True)
    return (
        lg.logits[:, pl - 1 : -1].log_softmax(-1).gather(-1, ids[:, pl:, None]).squeeze(-1),
        lg.hidden_states[-1][:, pl - 1 : -1],
        lg.logits,
    )


for it in range(2):
    q = torch.randint(0, 600, (6, 16)).cuda()
    with torch.no_grad():
        pol.eval()
        ids = pol.generate(q, max_new_tokens=24, do_sample=True, top_k=0, top_p=1.0, pad_token_id=0)
        pol.train()
        lp, h, _ = logp(pol, ids, 16)
        rl, hr, _ = logp(ref, ids, 16)
        v = val(h).squeeze(-1)
        r = -0.05 * (lp - rl)
        r[:, -1] += rew(hr[:, -1]).squeeze(-1)
        adv = torch.zeros_like(r)
        last = 0
        for t in reversed(range(r.size(1))):
            nv = v[:, t + 1] if t + 1 < r.size(1) else 0.0
            d = r[:, t] + nv - v[:, t]
            adv[:, t] = last = d + 0.95 * last
        ret = adv + v
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for ep in range(2):
        for mb in torch.randperm(6).split(3):
            nl, h, lg = logp(pol, ids[mb], 16)
            nv = val(h).squeeze(-1)
            ratio = (nl - lp[mb]).exp()
            a = adv[mb]
            pg = torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.2)).mean()
            vl = (
                0.5
                * torch.max(
                    (nv - ret[mb]) ** 2, (torch.clamp(nv, v[mb] - 0.2, v[mb] + 0.2) - ret[mb]) ** 2
                ).mean()
            )
            pr = F.softmax(lg, -1)
            ent = (torch.logsumexp(lg, -1) - (pr * lg).sum(-1)).mean()
            optimizer.zero_grad()
            (pg + 0.1 * vl - 0.01 * ent).backward()
            optimizer.step()
            if ((nl - lp[mb]) ** 2).mean().item() > 10:
                break
    print(it, ret.mean().item())
