"""Contrastive loss of a batch larger than fits: embedded without gradients, then piece by piece."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import get_device_states, set_device_states

PIECES, SIZE = 4, 8


class SameDraws:
    """Dropout draws again what it drew."""

    def __init__(self, *tensors):
        self.host, self.gpu = torch.get_rng_state(), get_device_states(*tensors)

    def __enter__(self):
        self.forked = torch.random.fork_rng(devices=self.gpu[0], enabled=True)
        self.forked.__enter__()
        torch.set_rng_state(self.host)
        set_device_states(*self.gpu)

    def __exit__(self, *error):
        self.forked.__exit__(*error)


def tower():
    layers = (nn.Embedding(500, 64), nn.Flatten(), nn.Dropout(0.1), nn.Linear(64 * 16, 64))
    return nn.Sequential(*layers).cuda()


towers = tower(), tower()
optimizer = torch.optim.AdamW([p for one in towers for p in one.parameters()], lr=1e-4)
scaler = torch.amp.GradScaler("cuda")
for _ in range(3):
    shape = (PIECES, SIZE, 16)
    batches = [list(torch.randint(0, 500, shape, device="cuda")) for _ in towers]
    embedded, draws = [], []
    for one, batch in zip(towers, batches, strict=True):
        made, drawn = [], []
        for piece in batch:
            drawn.append(SameDraws(piece))
            with torch.no_grad(), torch.autocast("cuda", torch.float16):
                made.append(one(piece))
        embedded.append(torch.cat(made).detach().requires_grad_())
        draws.append(drawn)
    with torch.autocast("cuda", torch.float16):
        labels = torch.arange(PIECES * SIZE, device="cuda")
        loss = F.cross_entropy(embedded[0] @ embedded[1].t() / 0.05, labels)
    scaler.scale(loss).backward()
    for one, batch, kept, drawn in zip(towers, batches, embedded, draws, strict=True):
        for piece, grad, same in zip(batch, kept.grad.split(SIZE), drawn, strict=True):
            with same, torch.autocast("cuda", torch.float16):
                out = one(piece)
            torch.dot(out.flatten().float(), grad.flatten().float()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
