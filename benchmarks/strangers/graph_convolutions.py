"""PyTorch Geometric: batches of graphs.

Requires: torch_geometric
"""

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.lin = GCNConv(16, 128), GCNConv(128, 128), torch.nn.Linear(128, 3)

    def forward(self, d):
        x = self.c1(d.x, d.edge_index).relu()
        x = self.c2(x, d.edge_index).relu()
        return self.lin(global_mean_pool(x, d.batch))


ds = [
    Data(
        x=torch.randn(30, 16), edge_index=torch.randint(0, 30, (2, 90)), y=torch.randint(0, 3, (1,))
    )
    for _ in range(80)
]
model = Net().cuda()
opt = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):
    for d in DataLoader(ds, batch_size=32, shuffle=True):
        d = d.to("cuda")
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(d), d.y)
        loss.backward()
        opt.step()
