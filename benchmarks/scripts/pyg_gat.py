"""PyTorch Geometric: GAT and GraphSAGE layers, batched graphs with pooling, class weights."""

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATv2Conv, GINConv, SAGEConv, global_add_pool, global_mean_pool


def graph(seed):
    g = torch.Generator().manual_seed(seed)
    n = int(torch.randint(40, 120, (), generator=g))
    edges = torch.randint(0, n, (2, 6 * n), generator=g)
    return Data(
        x=torch.randn(n, 32, generator=g),
        edge_index=edges,
        edge_attr=torch.randn(6 * n, 8, generator=g),
        y=torch.randint(0, 5, (1,), generator=g),
    )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GATv2Conv(32, 64, heads=4, edge_dim=8)
        self.second = SAGEConv(256, 256)
        mlp = nn.Sequential(
            nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256)
        )
        self.third = GINConv(mlp)
        self.head = nn.Linear(512, 5)

    def forward(self, data):
        x = F.elu(self.first(data.x, data.edge_index, data.edge_attr))
        x = F.dropout(F.relu(self.second(x, data.edge_index)), 0.3, self.training)
        x = F.relu(self.third(x, data.edge_index))
        pooled = torch.cat([global_mean_pool(x, data.batch), global_add_pool(x, data.batch)], 1)
        return self.head(pooled)


torch.manual_seed(0)
device = torch.device("cuda")
train = DataLoader([graph(n) for n in range(64)], batch_size=16, shuffle=True)
test = DataLoader([graph(n) for n in range(100, 132)], batch_size=32)
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=5e-4)
for epoch in range(2):
    model.train()
    for batch in train:
        batch = batch.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), batch.y)
        loss.backward()
        optimizer.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for batch in test:
            batch = batch.to(device)
            right += int((model(batch).argmax(1) == batch.y).sum())
    print(epoch, right)
