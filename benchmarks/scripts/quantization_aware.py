"""Quantization-aware training of a multi-label classifier, with batches copied into one tensor."""

import torch
import torch.ao.quantization as quantization
import torch.nn as nn
import torch.nn.functional as F

LABELS = 400


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = quantization.QuantStub(), quantization.DeQuantStub()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(64)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(64, 128, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2d(128)
        self.relu2 = nn.ReLU()
        self.head = nn.Linear(128 * 16, LABELS)

    def forward(self, x):
        x = self.enter(x)
        x = self.relu1(self.norm1(self.conv1(x)))
        x = self.relu2(self.norm2(self.conv2(x)))
        x = F.adaptive_avg_pool2d(x, 4).flatten(1)
        return self.leave(self.head(x))


torch.manual_seed(0)
net = Net().train()
net = quantization.fuse_modules_qat(net, [["conv1", "norm1", "relu1"], ["conv2", "norm2", "relu2"]])
net.qconfig = quantization.get_default_qat_qconfig("fbgemm")
quantization.prepare_qat(net, inplace=True)
net = net.cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
often = torch.rand(LABELS, device="cuda") + 1
images, labels = torch.empty(1, device="cuda"), torch.empty(1, device="cuda")

for step, size in enumerate([32, 16, 64, 48]):
    images.resize_(size, 3, 64, 64).copy_(torch.randn(size, 3, 64, 64))
    labels.resize_(size, LABELS).copy_(torch.randint(0, 2, (size, LABELS)))
    loss = F.binary_cross_entropy_with_logits(net(images), labels, pos_weight=often)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 1:
        net.apply(quantization.disable_observer)

with torch.no_grad():
    net.eval()
    seen = torch.sigmoid(net(images)) > 0.5
    print("right", (seen == labels.bool()).float().mean().item())
