"""DeiT's training step, by timm's model, as its own main.py runs it.

    deit_train.py MODEL BATCH

Mixup makes soft targets, autocast runs model and loss, a scaled backward and AdamW follow, and an
averaged copy of the model lies on the GPU (main.py and engine.py of DeiT: ``ModelEma``,
``NativeScaler``, ``SoftTargetCrossEntropy``). In timm 0.3.2 attention is single operators,
and PyTorch before 1.11, which that means, keeps the input of each softmax.
"""

import sys

import torch
from softmax_of_before import softmax_of_before

STEPS, SIDE = 3, 224


def attention(layer: torch.nn.Module, x: torch.Tensor, **_: object) -> torch.Tensor:
    """(B, S, width) to the same, by timm 0.3.2."""
    batch, length, width = x.shape
    shape = batch, length, 3, layer.num_heads, width // layer.num_heads
    queries, keys, values = layer.qkv(x).reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
    scores = (queries @ keys.transpose(-2, -1)) * layer.scale
    weights = layer.attn_drop(softmax_of_before(scores))
    x = (weights @ values).transpose(1, 2).reshape(batch, length, width)
    return layer.proj_drop(layer.proj(x))


def main(name: str, batch: str) -> None:
    """Train."""
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEma, NativeScaler

    timm.layers.set_fused_attn(False)
    timm.models.vision_transformer.Attention.forward = attention
    model = timm.create_model(name, num_classes=1000, drop_rate=0.0, drop_path_rate=0.1).to("cuda")
    averaged = ModelEma(model, decay=0.99996, device="", resume="")
    optimizer = create_optimizer_v2(model, opt="adamw", lr=5e-4, weight_decay=0.05)
    scaler, criterion = NativeScaler(), SoftTargetCrossEntropy()
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=1000)
    model.train()
    for _ in range(STEPS):
        pictures = torch.zeros(int(batch), 3, SIDE, SIDE).to("cuda", non_blocking=True)
        labels = torch.zeros(int(batch), dtype=torch.long).to("cuda", non_blocking=True)
        pictures, labels = mixup(pictures, labels)
        with torch.autocast("cuda"):
            outputs = model(pictures)
            loss = criterion(outputs, labels)
        optimizer.zero_grad()
        scaler(loss, optimizer, parameters=model.parameters(), create_graph=False)
        torch.cuda.synchronize()
        averaged.update(model)
    print(f"max mem: {torch.cuda.max_memory_allocated() / (1 << 20):.0f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
