"""SegFormer with the encoder MiT-B2, trained on ever larger batches to see which of them fits.

    segformer_probe.py BATCH

Source: RishiiGamer2201/SIH26143, scripts/e005_segformer.py, part E of its ``tests``: one process
tries batches of 2, 4, 6, 8, 12 and 16 pictures of 512 pixels, one after another; BATCH is the
last that is tried here.

What decides memory: the model is that of segmentation-models-pytorch 0.5.0; it runs in bfloat16 by
autocast, the loss in fp32, by operators that are written out; gradients are freed behind the
forward pass; cuBLAS has a workspace of 32 MiB and cuDNN is held to what is deterministic. A model
is freed before the next one comes, except that the last loss holds its weights and gradients until
there is a new loss. Before it all a model runs on larger pictures without gradients, and what
tests of the augmentation have left stays to the end: 18 MB, made here at one go.
"""

import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch.nn import functional

BATCHES = (2, 4, 6, 8, 12, 16)
SIDE, STEPS = 512, 5
"""STEPS: of the 13 on each batch."""


def build() -> torch.nn.Module:
    """The model, on the GPU."""
    import segmentation_models_pytorch as models

    return models.Segformer("mit_b2", encoder_weights=None, in_channels=2, classes=1).cuda()


def loss_of(logits: torch.Tensor, oil: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Half of it by pixels, half by their overlap."""
    logits = logits.float()
    weight = torch.tensor(5.0, device=logits.device)
    each = functional.binary_cross_entropy_with_logits(
        logits, oil.float(), pos_weight=weight, reduction="none"
    )
    pixels = torch.where(valid, each, 0.0)
    del each
    pixels = pixels.sum() / valid.sum().clamp_min(1)
    chance = torch.where(valid, torch.sigmoid(logits), 0.0)
    target = (oil & valid).float()
    both = 2 * (chance * target).sum() + 1.0
    overlap = 1 - both / (chance.sum() + target.sum() + 1.0)
    return 0.5 * pixels + 0.5 * overlap


def before() -> list[torch.Tensor]:
    """A model that only looks, and what tests of the augmentation leave."""
    model = build()
    pictures = torch.randn(2, 2, 512, 512, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        first = model(pictures)
        second = model(torch.randn(1, 2, 1024, 1024, device="cuda"))
    del model, pictures, first, second
    shape = (64, 96, 96)
    left = [torch.rand(shape, device="cuda") for _ in range(5)]
    left += [torch.rand(shape, device="cuda") > 0.5 for _ in range(6)]
    return [*left, torch.rand(int(0.7 * 64 * 96 * 96), device="cuda")]


def main(last: str) -> None:
    """One batch after another."""
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.use_deterministic_algorithms(True, warn_only=True)
    left = before()
    for batch in (one for one in BATCHES if one <= int(last)):
        torch.cuda.empty_cache()
        model = build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5)
        pictures = torch.randn(batch, 2, SIDE, SIDE, device="cuda")
        oil = torch.rand(batch, SIDE, SIDE, device="cuda") < 0.05
        valid = torch.ones(batch, SIDE, SIDE, dtype=torch.bool, device="cuda")
        for _ in range(STEPS):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = loss_of(model(pictures)[:, 0], oil, valid)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        model = optimizer = pictures = None
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}, {len(left)} tensors held")


if __name__ == "__main__":
    main(*sys.argv[1:])
