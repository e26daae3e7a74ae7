"""ResNet-50 with activations of no, some or all of its blocks made again in the backward pass.

    resnet_checkpoints.py none|aggressive|per_stage|per_block [BATCH] [SIDE]

Source: vinitvyas09/optimizers, hw1_resnet.ipynb, benchmark_resnet50: torchvision's ResNet-50 with a
thousand classes, pictures of 224 x 224 in batches of 32, fp32. ``aggressive``: the blocks of the
last two stages; ``per_stage``: each stage as one; ``per_block``: each block.

What decides memory: forward and backward passes alone, without an optimizer; gradients are dropped
behind each pass; what a pass gives lives until the next one's; cuDNN tries no engines. All ran in
one process, from ``none`` on; before each is read the cache is given back and peaks are set back.
"""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CLASSES, WARM, STEPS = 1000, 2, 3


class Stages(nn.Module):
    """The network, its blocks called as is asked."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        from torchvision.models import resnet50

        network = resnet50(weights=None)
        parts = list(network.children())
        self.stem, self.stages = nn.Sequential(*parts[:4]), nn.ModuleList(parts[4:8])
        self.pool, self.head = parts[8], nn.Linear(2048, CLASSES)
        self.kept = kept

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures to classes."""
        x = self.stem(x)
        for at, stage in enumerate(self.stages):
            if self.kept == "per_stage":
                x = checkpoint(stage, x, use_reentrant=False)
            elif self.kept == "per_block" or (self.kept == "aggressive" and at >= 2):
                for block in stage:
                    x = checkpoint(block, x, use_reentrant=False)
            else:
                x = stage(x)
        return self.head(torch.flatten(self.pool(x), 1))


def main(kept: str, batch: str = "32", side: str = "224") -> None:
    """Train."""
    model = Stages(kept).cuda().train()
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    pictures = torch.randn(int(batch), 3, int(side), int(side), device="cuda")
    classes = torch.randint(0, CLASSES, (int(batch),), device="cuda")
    for step in range(WARM + STEPS):
        if step == WARM:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        out = model(pictures)
        loss = nn.functional.cross_entropy(out, classes)
        loss.backward()
        model.zero_grad(set_to_none=True)
    print(f"allocated {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
