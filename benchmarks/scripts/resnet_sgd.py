"""A residual network in fp32: SGD with momentum, a schedule, evaluation after each epoch."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += x if self.down is None else self.down(x)
        return F.relu(out, inplace=True)


class ResNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()
        )
        self.layers = nn.Sequential(Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2))
        self.head = nn.Linear(128, classes)

    def forward(self, x):
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


def evaluate(model, batches):
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in batches:
            right += (model(x.cuda()).argmax(1).cpu() == y).sum().item()
    model.train()
    return right


torch.manual_seed(0)
model = ResNet().cuda()
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True
)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
train = [(torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))) for _ in range(2)]
test = [(torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,)))]
for epoch in range(2):
    for x, y in train:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        schedule.step()
    print(epoch, evaluate(model, test))
