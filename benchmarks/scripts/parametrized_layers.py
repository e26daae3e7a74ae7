"""Weight norm, spectral norm and a parametrization of one's own, with RMSprop and an average of weights."""

import torch
import torch.nn.utils.parametrize as P
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


class Sym(nn.Module):
    def forward(s, X):
        return X.triu() + X.triu(1).transpose(-1, -2)


net = nn.Sequential(
    weight_norm(nn.Linear(512, 1024)),
    nn.SiLU(),
    spectral_norm(nn.Linear(1024, 1024)),
    nn.SiLU(),
    nn.Linear(1024, 512),
).cuda()
sq = nn.Linear(512, 512).cuda()
P.register_parametrization(sq, "weight", Sym())
opt = torch.optim.RMSprop([*net.parameters(), *sq.parameters()], momentum=0.9, centered=True)
ema = torch.optim.swa_utils.AveragedModel(
    sq, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
)
for i in range(4):
    x = torch.randn(512, 512, device="cuda")
    with P.cached():
        y = sq(net(x))
        y = y + sq(y)
    loss = nn.functional.huber_loss(y, x) + 1e-4 * sum(p.pow(2).sum() for p in net.parameters())
    opt.zero_grad()
    loss.backward()
    n = torch.nn.utils.get_total_norm([p.grad for p in opt.param_groups[0]["params"]])
    torch.nn.utils.clip_grads_with_norm_(opt.param_groups[0]["params"], 1.0, n)
    opt.step()
    ema.update_parameters(sq)
    print(float(loss), float(n))
