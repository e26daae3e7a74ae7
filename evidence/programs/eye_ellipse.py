"""Steps of a plain ViT that finds the pupil in pictures of an event camera, without cuDNN.

    eye_ellipse.py fp32|bf16|fp16 BATCH...

Source: a public repository (references/codebase/software/FACET, its probe_hbtxr_batch_size.py and
EvEye/model/DavisEyeEllipse/HBTXR): pictures of 256 in patches of 4, which make 4,097 tokens of 192;
8 layers whose attention is written out; five heads of convolutions on a map of 64. Batches run one
behind the other in one process; the last of BATCH is the one that is read.

What decides memory: the scores of all tokens to all, twice a layer; convolutions by PyTorch's own
kernels; Adam; gradients are dropped before each step; autocast where it is asked for, without a
scaler. Cache and peak are set back before each batch.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

SIDE, PATCH, WIDTH, LAYERS, HEADS, MAP, FOUND = 256, 4, 192, 8, 3, 64, 100
ANSWERS = {"heat": 1, "axes": 2, "angle": 2, "offset": 2, "mask": 1}
STEPS = 3


class Layer(nn.Module):
    """Attention and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        many, length, _ = x.shape
        parts = self.qkv(x).reshape(many, length, 3, HEADS, WIDTH // HEADS)
        parts = parts.permute(2, 0, 3, 1, 4)
        q, k, v = parts[0], parts[1], parts[2]
        scores = (q @ k.transpose(-2, -1)) * (WIDTH // HEADS) ** -0.5
        scores = functional.softmax(scores, dim=-1)
        x = scores @ v
        return self.out(x.transpose(1, 2).reshape(many, length, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm(x))
        return x + self.narrow(functional.gelu(self.wide(self.norm_2(x))))


class Net(nn.Module):
    """Pictures to five maps."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = nn.Parameter(torch.zeros(1, MAP * MAP + 1, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.unused = nn.LayerNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, 1)
        parts = [nn.Conv2d(WIDTH, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        self.projection = nn.Sequential(*parts)
        self.heads = nn.ModuleDict(
            {
                name: nn.Sequential(
                    nn.Conv2d(64, 256, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(256, many, 1)
                )
                for name, many in ANSWERS.items()
            }
        )

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.position
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)[:, 1:, :]
        x = self.projection(x.transpose(1, 2).reshape(len(x), WIDTH, MAP, MAP))
        return {name: head(x) for name, head in self.heads.items()}


def at_places(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """What a map says at some places."""
    x = x.permute(0, 2, 3, 1).contiguous().view(len(x), -1, x.shape[1])
    return x.gather(1, places.unsqueeze(2).expand(*places.shape, x.shape[2]))


def ellipses(
    answers: dict[str, torch.Tensor], truth: dict[str, torch.Tensor], shown: torch.Tensor
) -> torch.Tensor:
    """How far ellipses lie from one another, as Gaussians."""
    axes, angle = at_places(answers["axes"], truth["places"]), answers["angle"]
    pair = at_places(angle, truth["places"])
    turn = (torch.atan2(pair[:, :, 0], pair[:, :, 1]) / 2).unsqueeze(2)
    best = answers["heat"].flatten(1).topk(FOUND).indices
    both = []
    for size, turned in ((axes, turn), (truth["axes"], truth["turn"])):
        centre = torch.stack((best % MAP, best // MAP), dim=2) * shown
        box = torch.cat([centre, size * 2 * shown, turned * shown[:, :, :1]], dim=2).reshape(-1, 5)
        cos, sin = torch.cos(box[:, 4]), torch.sin(box[:, 4])
        turns = torch.stack((cos, -sin, sin, cos), dim=-1).reshape(-1, 2, 2)
        half = 0.5 * torch.diag_embed(box[:, 2:4].clamp(min=1e-7, max=1e7))
        both.append((box[:, :2], half, turns @ half.square() @ turns.permute(0, 2, 1)))
    (first, wide, spread), (second, wide_2, spread_2) = both
    apart = (first - second).square().sum(dim=-1)
    apart = apart + sum(
        one.diagonal(dim1=-2, dim2=-1).square().sum(dim=-1) for one in (wide, wide_2)
    )
    common = spread.matmul(spread_2).diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    apart = (apart - 2 * common.clamp(1e-7).sqrt()).clamp(0)
    return (1 - 1 / (1 + torch.log1p(apart))).sum()


def judge(answers: dict[str, torch.Tensor], truth: dict[str, torch.Tensor]) -> torch.Tensor:
    """All losses, of eyes that are open: all of them."""
    open_eyes = torch.arange(len(truth["closed"]), device="cuda")
    answers["heat"] = torch.sigmoid(answers["heat"])
    answers = {name: one[open_eyes] for name, one in answers.items()}
    truth = {name: one[open_eyes] for name, one in truth.items()}
    heat, wanted, shown = answers["heat"], truth["heat"], truth["shown"].float()
    here, away = wanted.eq(1).float(), wanted.lt(1).float()
    hits = torch.log(heat) * torch.pow(1 - heat, 2) * here
    misses = torch.log(1 - heat) * torch.pow(heat, 2) * torch.pow(1 - wanted, 4) * away
    loss = -(hits.sum() + misses.sum()) / here.sum()
    for name, weight in (("angle", 1), ("axes", 0.1), ("offset", 0.1)):
        guess = at_places(answers[name], truth["places"])
        seen = shown.unsqueeze(2).expand_as(guess)
        how = functional.mse_loss if name == "angle" else functional.smooth_l1_loss
        part = how(guess * seen, truth[name] * seen, reduction="sum")
        loss = loss + weight * part / (seen.sum() + 1e-8)
    seen = shown.unsqueeze(2).expand(*shown.shape, 2)
    loss = loss + 15 * ellipses(answers, truth, seen) / (shown.sum() + 1e-8)
    mask = functional.binary_cross_entropy_with_logits(answers["mask"], truth["mask"])
    return loss + mask


def truths(batch: int) -> dict[str, torch.Tensor]:
    """What a picture should give."""
    pairs = {name: torch.rand(batch, FOUND, 2) for name in ("axes", "angle", "offset")}
    maps = {name: torch.ones(batch, 1, MAP, MAP) for name in ("heat", "mask")}
    places = torch.randint(MAP * MAP, (batch, FOUND))
    single = {"shown": torch.ones(batch, FOUND).byte(), "closed": torch.zeros(batch)}
    return {**pairs, **maps, **single, "places": places, "turn": torch.rand(batch, FOUND, 1)}


def probe(precision: str, batch: int) -> tuple[int, int]:
    """A network of its own."""
    torch.empty(1, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = Net().to("cuda").train()
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
    kind = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    for _ in range(STEPS):
        pictures = torch.rand(batch, 2, SIDE, SIDE).to("cuda")
        truth = {name: one.to("cuda") for name, one in truths(batch).items()}
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=kind, enabled=kind is not None):
            answers = model(pictures)
            loss = judge(answers, truth)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
    del model, optimizer
    torch.cuda.empty_cache()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def main(precision: str, *batches: str) -> None:
    """One batch after the other."""
    torch.backends.cudnn.enabled = False
    torch.set_float32_matmul_precision("medium")
    for batch in batches:
        allocated, reserved = probe(precision, int(batch))
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
