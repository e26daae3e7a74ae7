"""snnTorch: spikes over time.

Requires: snntorch
"""

import snntorch as snn
import torch
from snntorch import functional as SF
from snntorch import surrogate


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.l1 = (
            torch.nn.Linear(784, 256),
            snn.Leaky(beta=0.95, spike_grad=surrogate.fast_sigmoid()),
        )
        self.fc2, self.l2 = torch.nn.Linear(256, 10), snn.Leaky(beta=0.95)

    def forward(self, x):
        m1, m2, out = self.l1.init_leaky(), self.l2.init_leaky(), []
        for _ in range(10):
            s, m1 = self.l1(self.fc1(x), m1)
            s, m2 = self.l2(self.fc2(s), m2)
            out.append(s)
        return torch.stack(out)


net = Net().cuda()
loss_fn = SF.ce_rate_loss()
opt = torch.optim.Adam(net.parameters(), lr=5e-4)
for i in range(5):
    out = net(torch.rand(64, 784).cuda())
    loss = loss_fn(out, torch.randint(0, 10, (64,)).cuda())
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(SF.accuracy_rate(out, torch.randint(0, 10, (64,)).cuda()))
