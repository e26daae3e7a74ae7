"""Attention of many shapes, forward and backward: kernels, masks, layouts."""

import itertools

import torch
import torch.nn.functional as F
from phases import mark, warm_up

HEADS = (16, 32), (8, 12), (2, 4)
WAYS = (
    {},
    {"dropout_p": 0.1},
    {"is_causal": True},
    {"mask": "of texts"},
    {"mask": "added"},
    {"mask": "of all", "dropout_p": 0.1},
)
ORDER = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (1, 2, 0, 3)}


def mask_of(kind, batch, rows, columns, dtype):
    if kind == "of texts":
        return torch.ones(batch, 1, rows, columns, device="cuda", dtype=torch.bool)
    if kind == "added":
        return torch.zeros(rows, columns, device="cuda", dtype=dtype)
    return torch.ones(rows, columns, device="cuda", dtype=torch.bool)


def attend(name, dtype, heads, lengths, width, layout, mask=None, **options):
    torch.cuda.empty_cache()
    batch, count = heads
    sizes = {"b": batch, "h": count, "d": width}
    given = [
        torch.zeros(
            [{**sizes, "s": length}[letter] for letter in layout],
            device="cuda",
            dtype=dtype,
            requires_grad=True,
        )
        for length in (lengths[0], lengths[1], lengths[1])
    ]
    if mask:
        options["attn_mask"] = mask_of(mask, batch, *lengths, dtype)
    out = F.scaled_dot_product_attention(*(one.permute(ORDER[layout]) for one in given), **options)
    mark(f"{name}.forward")
    out = out.permute(2, 0, 1, 3).contiguous()
    mark(f"{name}.copied")
    out.backward(torch.zeros_like(out))
    mark(f"{name}.backward")


warm_up()
cases = itertools.product(
    (torch.float16, torch.float32),
    (32, 64, 80, 128, 160),
    ((64, 64), (100, 100), (600, 600), (300, 1100)),
    WAYS,
)
for number, (dtype, width, lengths, options) in enumerate(cases):
    if number % 4 or (lengths[0] != lengths[1] and "is_causal" in options):
        continue
    layout = list(ORDER)[number // 4 % 3]
    attend(number, dtype, HEADS[number // 4 % 2 + 1], lengths, width, layout, **options)
packed = torch.zeros(4, 100, 3, 4, 32, device="cuda", requires_grad=True)
parts = [one.squeeze(2).transpose(1, 2) for one in (packed * 1).split(1, 2)]
F.scaled_dot_product_attention(*parts, is_causal=True).sum().backward()
mark("packed")
