"""Steps of YOLO models over made-up pictures of eight objects each, to choose pictures' side.

    vigilante_yolo.py MODEL@SIDE BATCH [one|ten]

Source: a training plan of a public repository (vigilante-ai, ml/), which says of its measurement:
mixed precision, AdamW, an averaged model (EMA) and eight boxes a picture. ``MODEL`` is one of
Ultralytics' names; four classes.

What decides memory: fp16 by autocast with the loss inside it and PyTorch's scaler; gradients are
dropped after each step; no check of mixed precision before. The loss takes its memory by anchors
that have an object: ``one`` for every object, or ``ten``, the most that its assigner gives.
"""

import sys

import torch
from yolo_train import TOPK, matched

OBJECTS, CLASSES = 8, 4
STEPS = 4


def main(name: str, batch: str, anchors: str = "ten") -> None:
    """Train."""
    from ultralytics.cfg import get_cfg
    from ultralytics.nn.tasks import DetectionModel
    from ultralytics.utils.torch_utils import ModelEMA

    matched(OBJECTS * (1 if anchors == "one" else TOPK))
    name, _, side = name.partition("@")
    size = int(batch)
    model = DetectionModel(f"{name}.yaml", nc=CLASSES, verbose=False).to("cuda").train()
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    model.args = get_cfg()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    averaged = ModelEMA(model)
    pictures = torch.rand(size, 3, int(side), int(side), device="cuda")
    objects = {
        "img": pictures,
        "batch_idx": torch.arange(size, device="cuda").repeat_interleave(OBJECTS).float(),
        "cls": torch.zeros(size * OBJECTS, 1, device="cuda"),
        "bboxes": torch.rand(size * OBJECTS, 4, device="cuda") * 0.3 + 0.2,
    }
    for _ in range(STEPS):
        with torch.autocast("cuda", dtype=torch.float16):
            loss, _ = model(objects)
        scaler.scale(loss.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        averaged.update(model)
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
