"""pytorch-metric-learning: mined triplets and a loss with weights of its own.

Requires: pytorch-metric-learning
"""

import torch
from pytorch_metric_learning import losses, miners

model = torch.nn.Sequential(
    torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128)
).cuda()
miner = miners.MultiSimilarityMiner()
loss_fn = losses.ArcFaceLoss(num_classes=20, embedding_size=128).cuda()
trip = losses.TripletMarginLoss()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
opt2 = torch.optim.SGD(loss_fn.parameters(), lr=0.1)
for i in range(5):
    y = torch.randint(0, 20, (64,)).cuda()
    e = model(torch.randn(64, 512).cuda())
    loss = loss_fn(e, y) + trip(e, y, miner(e, y))
    opt.zero_grad()
    opt2.zero_grad()
    loss.backward()
    opt.step()
    opt2.step()
