"""A network whose middle is graphed (make_graphed_callables), and a pool of the script's own."""

import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(128, 1024)
        self.body = nn.Sequential(
            nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024), nn.ReLU(), nn.Dropout(0.1)
        )
        self.head = nn.Linear(1024, 128)

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


net = Net().cuda()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    table = torch.randn(4096, 1024, device="cuda")
sample = torch.randn(512, 1024, device="cuda", requires_grad=True)
net.body = torch.cuda.make_graphed_callables(net.body, (sample,))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for number in range(4):
    x = torch.randn(512, 128, device="cuda")
    loss = (net(x) - x).pow(2).mean() + table.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(number, loss.item())
net.eval()
with torch.no_grad(), torch.cuda.use_mem_pool(pool):
    features = net.stem(torch.randn(4096, 128, device="cuda"))
    score = features @ table.t()
print(score.shape, torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
del features, score, table
print(pool.use_count())
del pool
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
