"""Operators and modules that took other memory in some release before 2.12."""

import torch
import torch.nn.functional as F
from phases import mark, warm_up
from torch import nn

SIZES = 64, 300, 40


def leaf(*sizes):
    return torch.zeros(sizes or SIZES, device="cuda", requires_grad=True)


def known():
    return torch.zeros(SIZES, device="cuda")


def attended(**options):
    module = nn.MultiheadAttention(40, 4, **options).cuda()
    return module(leaf(), leaf(), leaf(), need_weights=False)[0]


def normalised():
    x = leaf() * 1
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def weighed():
    weight = torch.ones(40, device="cuda")
    return F.binary_cross_entropy_with_logits(leaf(), known(), pos_weight=weight)


def encoded():
    layer = nn.TransformerEncoderLayer(40, 4, 80, batch_first=True).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        return layer(leaf())


places = torch.zeros(9, dtype=torch.long, device="cuda")
WAYS = {
    "mean": lambda: (leaf() * 2).mean(),
    "mean_of_rows": lambda: (leaf() * 2).mean(1),
    "mean_of_two": lambda: (leaf() * 2).mean((0, 2), keepdim=True),
    "root_mean_square": normalised,
    "logits": lambda: F.binary_cross_entropy_with_logits(leaf(), known()),
    "logits_weighed": weighed,
    "first": lambda: leaf()[:, 0] * 1,
    "last": lambda: leaf()[:, -1, :] * 1,
    "all_of_one": lambda: leaf()[0, :] * 1,
    "behind_the_end": lambda: leaf()[:, 0:999] * 1,
    "some_of_all": lambda: leaf()[..., :20] * 1,
    "by_places": lambda: leaf()[:, places] * 1,
    "by_places_of_some": lambda: leaf()[:, places, :20] * 1,
    "attended": attended,
    "attended_with_dropout": lambda: attended(dropout=0.1, batch_first=True),
    "encoded": encoded,
    "linear": lambda: F.linear(leaf(), leaf(80, 40), leaf(80)),
}
warm_up()
for name, way in WAYS.items():
    torch.cuda.empty_cache()
    out = way()
    mark(f"{name}.forward")
    out.backward(torch.zeros_like(out))
    mark(f"{name}.backward")
    del out
