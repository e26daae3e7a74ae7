"""A ViT or a ConvNeXt whose blocks are left out by chance, on CIFAR-100 in bfloat16.

    depth_dropout.py vit|convnext BATCH

Source: a public repository (experiments/a100_transfer/train.py and vision.py, its pilots of 30
steps): ViT-B of patches of 4 for pictures of 32, ConvNeXt-Tiny for the same pictures at 64. The
data set lies on the card as bytes, and pictures are cut, mirrored and enlarged there.

What decides memory: each block's answer is multiplied by a number of each picture, so that all are
computed; autocast with fp32 sums from block to block; fused AdamW; gradients are dropped before
each step and clipped; an evaluation of 512 pictures in batches of 256 came first, after which the
peak was set back.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

CLASSES, EVALUATED, EVALUATION_BATCH = 100, 512, 256
SETS = {"train": 45_000, "validation": 5_000, "test": 10_000}
STEPS = 5


def kept(x: torch.Tensor, answer: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Around a block, of which each picture takes its share."""
    return x + answer * scale.to(answer.dtype).reshape(-1, *[1] * (answer.ndim - 1))


class Attention(nn.Module):
    """Of all patches to all."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        many, length, width = x.shape
        parts = self.qkv(x).reshape(many, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        x = functional.scaled_dot_product_attention(q, k, v)
        return self.out(x.transpose(1, 2).reshape(many, length, width))


class Layer(nn.Module):
    """Attention and two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width, eps=1e-6), Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        h = kept(x, self.attention(self.norm(x)), scale)
        return kept(h, self.mlp(self.norm_2(h)), scale)


class Vit(nn.Module):
    """Patches of 4, 12 layers of 768."""

    side, depth = 32, 12

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 4, 4)
        self.position = nn.Parameter(torch.zeros(1, 64, 768))
        self.layers = nn.ModuleList(Layer(768, 12) for _ in range(self.depth))
        self.norm, self.head = nn.LayerNorm(768, eps=1e-6), nn.Linear(768, CLASSES)

    def forward(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        for index, layer in enumerate(self.layers):
            x = layer(x, scales[:, index])
        return self.head(self.norm(x).mean(1))


class ChannelNorm(nn.LayerNorm):
    """Of planes, over their channels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """A depthwise convolution and two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(functional.gelu(self.wide(y))) * self.gamma
        return kept(x, y.permute(0, 3, 1, 2), scale)


class ConvNext(nn.Module):
    """Four stages, 18 blocks."""

    side, depth = 64, 18

    def __init__(self) -> None:
        super().__init__()
        blocks, widths = (3, 3, 9, 3), (96, 192, 384, 768)
        self.between, self.stages = nn.ModuleList(), nn.ModuleList()
        for index, width in enumerate(widths):
            if index:
                before = widths[index - 1]
                down = [ChannelNorm(before, eps=1e-6), nn.Conv2d(before, width, 2, 2)]
            else:
                down = [nn.Conv2d(3, width, 4, 4), ChannelNorm(width, eps=1e-6)]
            self.between.append(nn.Sequential(*down))
            self.stages.append(nn.ModuleList(Block(width) for _ in range(blocks[index])))
        self.norm, self.head = nn.LayerNorm(768, eps=1e-6), nn.Linear(768, CLASSES)

    def forward(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        at = 0
        for down, stage in zip(self.between, self.stages, strict=True):
            x = down(x)
            for block in stage:
                x = block(x, scales[:, at])
                at += 1
        return self.head(self.norm(x.mean((2, 3))))


def pictures(raw: torch.Tensor, side: int, training: bool) -> torch.Tensor:
    """Bytes to numbers, cut and mirrored in training."""
    x = raw.float().div_(255)
    if training:
        many, channels, height, width = x.shape
        top, left = (torch.randint(9, (many,), device="cuda") for _ in range(2))
        flip = torch.rand(many, device="cuda") < 0.5
        x = functional.pad(x, (4, 4, 4, 4), mode="reflect")
        rows = top[:, None] + torch.arange(height, device="cuda")
        columns = left[:, None] + torch.arange(width, device="cuda")
        x = x.gather(2, rows[:, None, :, None].expand(many, channels, height, width + 8))
        x = x.gather(3, columns[:, None, None, :].expand(many, channels, height, width))
        x = torch.where(flip[:, None, None, None], x.flip(-1), x)
    if side != x.shape[-1]:
        x = functional.interpolate(x, size=(side, side), mode="bilinear", align_corners=False)
    return x.sub_(0.5).div_(0.5)


def evaluate(model: nn.Module, raw: torch.Tensor, labels: torch.Tensor) -> None:
    """Two equal passes of one batch, then the loss of all."""
    ids = torch.linspace(0, len(raw) - 1, EVALUATED, device="cuda").long()
    ones = torch.ones(EVALUATION_BATCH, model.depth, device="cuda")
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        x = pictures(raw[ids[:EVALUATION_BATCH]], model.side, False)
        first, second = model(x, ones), model(x, ones)
        torch.equal(first, second)
        del x, first, second
        total = torch.zeros((), dtype=torch.float64, device="cuda")
        for some in ids.split(EVALUATION_BATCH):
            logits = model(pictures(raw[some], model.side, False), ones)
            total += functional.cross_entropy(logits, labels[some], reduction="sum")
            (logits.argmax(1) == labels[some]).sum().item()


def main(kind: str, batch: str) -> None:
    """Evaluate, then train."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = False
    data = {
        name: (
            torch.randint(256, (many, 3, 32, 32), dtype=torch.uint8).to("cuda"),
            torch.randint(CLASSES, (many,)).to("cuda"),
        )
        for name, many in SETS.items()
    }
    model = {"vit": Vit, "convnext": ConvNext}[kind]().to("cuda")
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    plain = [one for one in model.parameters() if one.ndim < 2]
    decayed = [one for one in model.parameters() if one.ndim >= 2]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), fused=True)
    evaluate(model, *data["validation"])
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    chances = torch.arange(model.depth, device="cuda") / (model.depth - 1) * 0.8
    active = torch.zeros((), device="cuda")
    raw, labels = data["train"]
    for step in range(STEPS):
        model.train()
        ids = torch.randint(len(raw), (int(batch),)).to("cuda")
        x, y = pictures(raw[ids], model.side, True), labels[ids]
        chance = chances * (1 - step / 29)
        masks = torch.rand(int(batch), model.depth, device="cuda") >= chance
        active += masks.sum()
        scales = masks.float() / (1 - chance)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(x, scales)
            loss = functional.cross_entropy(logits, y)
        torch.isfinite(loss).item()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        torch.isfinite(norm).item()
        optimizer.step()
        torch.cuda.synchronize()
        del logits, loss
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
