"""A message-passing network: index_add, segment softmax by scatter, many small gathers."""

import torch
from torch import nn

NODES, EDGES, WIDTH = 5000, 30000, 96


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.message = nn.Linear(2 * WIDTH, WIDTH)
        self.score = nn.Linear(2 * WIDTH, 1)
        self.update = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x, source, target):
        pair = torch.cat([x[source], x[target]], -1)
        score = self.score(pair).squeeze(-1)
        top = torch.full((NODES,), -1e9, device=x.device).scatter_reduce(0, target, score, "amax")
        weight = torch.exp(score - top[target])
        total = torch.zeros(NODES, device=x.device).index_add(0, target, weight)
        weight = weight / (total[target] + 1e-9)
        gathered = torch.zeros_like(x).index_add_(
            0, target, weight.unsqueeze(-1) * torch.relu(self.message(pair))
        )
        return self.update(gathered, x)


embed = nn.Embedding(100, WIDTH).cuda()
layers = nn.ModuleList([Layer() for _ in range(3)]).cuda()
head = nn.Linear(WIDTH, 7).cuda()
optimizer = torch.optim.Adadelta([*embed.parameters(), *layers.parameters(), *head.parameters()])
kinds = torch.randint(0, 100, (NODES,)).cuda()
source, target = torch.randint(0, NODES, (2, EDGES)).cuda()
labels = torch.randint(0, 7, (NODES,)).cuda()
train = torch.arange(0, NODES, 2, device="cuda")
for _ in range(3):
    x = embed(kinds)
    for layer in layers:
        x = layer(x, source, target)
    loss = nn.functional.nll_loss(head(x[train]).log_softmax(-1), labels[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
