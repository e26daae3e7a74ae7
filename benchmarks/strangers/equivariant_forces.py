"""e3nn: forces are gradients that are trained on.

Requires: e3nn
"""

import torch
from e3nn import nn, o3


class Conv(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.sh = o3.Irreps.spherical_harmonics(2)
        inn, out = o3.Irreps("16x0e"), o3.Irreps("16x0e+8x1o")
        self.tp = o3.FullyConnectedTensorProduct(inn, self.sh, out, shared_weights=False)
        self.fc = nn.FullyConnectedNet([8, 64, self.tp.weight_numel], torch.nn.functional.silu)
        self.lin = o3.Linear(out, "1x0e")

    def forward(self, x, pos, src, dst):
        v = pos[src] - pos[dst]
        sh = o3.spherical_harmonics(self.sh, v, normalize=True, normalization="component")
        m = self.tp(x[src], sh, self.fc(torch.rand(len(v), 8, device=x.device)))
        return self.lin(torch.zeros(len(x), m.shape[1], device=x.device).index_add(0, dst, m))


model = Conv().cuda()
opt = torch.optim.Adam(model.parameters(), 1e-3)
for i in range(5):
    pos = torch.randn(50, 3).cuda().requires_grad_()
    e = model(
        torch.randn(50, 16).cuda(),
        pos,
        torch.randint(0, 50, (200,)).cuda(),
        torch.randint(0, 50, (200,)).cuda(),
    ).sum()
    f = -torch.autograd.grad(e, pos, create_graph=True)[0]
    loss = e.square() + f.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
