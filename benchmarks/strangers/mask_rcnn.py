"""torchvision: Mask R-CNN, whose heads run on as many proposals as they sample.

Requires: torchvision
"""

import torch
from torchvision.models.detection import maskrcnn_resnet50_fpn


def main():
    model = maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=5, min_size=256, max_size=256
    )
    model.cuda().train()
    seen = []
    for pool in (model.roi_heads.box_roi_pool, model.roi_heads.mask_roi_pool):
        pool.register_forward_hook(lambda module, given, made: seen.append(len(made)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    boxes = torch.tensor([[10.0, 10, 100, 100], [50, 60, 200, 180]])
    for _ in range(2):
        objects = {
            "boxes": boxes.cuda(),
            "labels": torch.tensor([1, 2]).cuda(),
            "masks": torch.ones(2, 256, 256, dtype=torch.uint8).cuda(),
        }
        images = [torch.rand(3, 256, 256).cuda() for _ in range(2)]
        loss = sum(model(images, [objects, objects]).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert seen == [2 * 512, 2 * 128] * 2, seen
    return model, optimizer


if __name__ == "__main__":
    kept = main()
