"""Optimizer steps in backward by hooks, activations on the host, own hooks for saved tensors."""

import torch
import torch.nn as nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

torch.manual_seed(0)
m = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(
        192, 6, 512, batch_first=True, norm_first=True, dropout=0.1, activation="gelu"
    ),
    4,
    enable_nested_tensor=False,
).cuda()
emb = nn.Embedding(3000, 192).cuda()
head = nn.Linear(192, 3000).cuda()
params = [*m.parameters(), *emb.parameters(), *head.parameters()]
opts = {p: torch.optim.AdamW([p], 1e-3, foreach=False) for p in params}


def hook(p):
    opts[p].step()
    opts[p].zero_grad()


for p in params:
    p.register_post_accumulate_grad_hook(hook)


def pack(t):
    return (
        (t.dtype, t.to(torch.bfloat16))
        if t.is_floating_point() and not isinstance(t, nn.Parameter) and t.dim() > 2
        else (None, t)
    )


def unpack(x):
    return x[1] if x[0] is None else x[1].to(x[0])


for it, how in enumerate(("plain", "cpu", "bf16", "cpu")):
    ids = torch.randint(0, 3000, (6, 128)).cuda()

    def fw(ids=ids):
        h = emb(ids)
        return nn.functional.cross_entropy(
            head(
                m(
                    h,
                    is_causal=True,
                    mask=nn.Transformer.generate_square_subsequent_mask(128, device="cuda"),
                )
            ).flatten(0, 1),
            ids.flatten(),
        )

    if how == "cpu":
        with save_on_cpu(pin_memory=True):
            L = fw()
    elif how == "bf16":
        with saved_tensors_hooks(pack, unpack):
            L = fw()
    else:
        L = fw()
    L.backward()
    torch.cuda.reset_peak_memory_stats()
