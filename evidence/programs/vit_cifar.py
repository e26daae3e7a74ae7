"""A ViT-L/16 of torchvision that is finetuned on pictures of CIFAR-10, in seven ways.

    vit_cifar.py WAY

WAY is ``plain`` (PyTorch alone), or under Lightning's Fabric: ``fabric``, ``mixed`` (fp16 autocast
with a scaler), ``bf16`` (weights too), ``smaller`` (16 pictures in place of 64), ``accumulated``
(four times four), ``sgd`` (the same with SGD). Fabric's part is written out: it upcasts what the
model makes (``precision/amp.py`` and ``half.py``, ``convert_output``; Lightning 2.1). A validation
follows the training, of which three of 703 batches stand for all.
"""

import contextlib
import sys

import torch
from torch.nn.functional import cross_entropy

BATCHES = 3
WAYS = {
    # Pictures of a batch, batches of an update, type of the weights.
    "plain": (64, 1, torch.float32),
    "fabric": (64, 1, torch.float32),
    "mixed": (64, 1, torch.float32),
    "bf16": (64, 1, torch.bfloat16),
    "smaller": (16, 1, torch.bfloat16),
    "accumulated": (4, 4, torch.bfloat16),
    "sgd": (4, 4, torch.bfloat16),
}


def main(way: str) -> None:
    """Train and validate."""
    from torchvision.models import vit_l_16

    size, accumulated, kind = WAYS[way]
    model = vit_l_16()
    model.heads.head = torch.nn.Linear(1024, 10)
    sgd = way == "sgd"
    optimizer = (torch.optim.SGD if sgd else torch.optim.Adam)(model.parameters(), lr=1e-4)
    model.to(kind).to("cuda")
    scaler = torch.amp.GradScaler("cuda", enabled=way == "mixed")

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(size, 3, 224, 224).to("cuda"), torch.randint(0, 10, (size,)).to("cuda")

    def outputs(pictures: torch.Tensor) -> torch.Tensor:
        if way == "plain":
            return model(pictures)
        cast = way == "mixed"
        with torch.autocast("cuda", torch.float16) if cast else contextlib.nullcontext():
            made = model(pictures.to(kind))
        return made.to(torch.float32)

    right = torch.zeros(10, dtype=torch.long, device="cuda")
    for number in range(BATCHES * accumulated):
        model.train()
        pictures, labels = batch()
        logits = outputs(pictures)
        loss = cross_entropy(logits, labels) / accumulated
        if accumulated == 1:
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        if number % accumulated == 0:
            scaler.step(optimizer)
            scaler.update()
            if accumulated > 1:
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            right += torch.bincount(logits.argmax(1), minlength=10)
    with torch.no_grad():
        for _ in range(BATCHES):
            pictures, labels = batch()
            right += torch.bincount(outputs(pictures).argmax(1), minlength=10)
    print(f"reserved {torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
