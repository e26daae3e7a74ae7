"""Fine-tuning of DINOv2's ViT-g by torchao's script for its optimizers: bf16, 32 pictures a batch.

    torchao_vit.py none|ao|ao_offload_grads

Blocks are checkpointed. ``ao``: states and step of AdamW lie on the host; ``ao_offload_grads``:
gradients too. The model is run over classes of its validation pictures at the end, which the source
does after each epoch.
"""

import sys
import types

import torch
from torch.nn.functional import cross_entropy

BATCH, CLASSES, SIDE, STEPS = 32, 45, 224, 3


def model_of() -> torch.nn.Module:
    """The model in bf16 on the GPU."""
    import timm

    model = timm.create_model("vit_giant_patch14_dinov2", num_classes=CLASSES, img_size=SIDE)
    model.set_grad_checkpointing()
    model.bfloat16()
    return model.to("cuda")


def optimizer_of(model: torch.nn.Module, kind: str) -> torch.optim.Optimizer:
    """PyTorch's fused AdamW, on the GPU or behind torchao's offloading."""
    if kind == "none":
        return torch.optim.AdamW(model.parameters(), fused=True, lr=1e-4, weight_decay=0)
    from torchao.optim import CPUOffloadOptimizer

    more = {"offload_gradients": True} if kind == "ao_offload_grads" else {}
    parameters = model.parameters()
    return CPUOffloadOptimizer(parameters, torch.optim.AdamW, **more, lr=1e-4, weight_decay=0)


def pictures() -> torch.Tensor:
    """A batch on the host."""
    return torch.zeros(BATCH, 3, SIDE, SIDE).bfloat16()


def main(kind: str) -> None:
    """Train."""
    model = model_of()
    optimizer = optimizer_of(model, kind)
    model.train()
    for step in range(STEPS):
        labels = torch.zeros(BATCH, dtype=torch.long)
        loss = cross_entropy(model(pictures().to("cuda")), labels.to("cuda"))
        loss.backward()
        if step == 0:
            loss.item()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        model(pictures().to("cuda")).argmax(1).cpu()
    print(f"Max memory used: {torch.cuda.max_memory_allocated() / 1e9:.02f} GB")


def without_compiled_operators() -> None:
    """A build of torchvision for another PyTorch does not import; timm asks it for its pictures."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.modules["kept_operators"] = types.ModuleType("kept_operators")
    sys.modules["kept_operators"].library = library


if __name__ == "__main__":
    without_compiled_operators()
    main(*sys.argv[1:])
