"""torchvision RetinaNet and FCOS: anchors, boxes of the batch, losses by what they match."""

import torch
from torchvision.models.detection import fcos_resnet50_fpn, retinanet_resnet50_fpn


def batch():
    boxes = torch.tensor([[10.0, 10, 60, 70], [20, 30, 100, 90]])
    labels = torch.tensor([1, 3])
    images = [torch.rand(3, 120, 140).cuda() for _ in range(2)]
    return images, [{"boxes": boxes.cuda(), "labels": labels.cuda()} for _ in images]


torch.manual_seed(0)
for make in (retinanet_resnet50_fpn, fcos_resnet50_fpn):
    model = make(weights=None, weights_backbone=None, num_classes=5, min_size=128, max_size=160)
    model.cuda()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, 0.005, momentum=0.9)
    for _ in range(2):
        losses = model(*batch())
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print({name: value.item() for name, value in losses.items()})
