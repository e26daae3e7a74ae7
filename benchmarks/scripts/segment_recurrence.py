"""A language model that attends to what it made of the segments before (Transformer-XL)."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH, HEADS, SEGMENT, MEMORY = 400, 64, 4, 32, 48


class Relative(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.places = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.content = nn.Parameter(torch.zeros(HEADS, WIDTH // HEADS))
        self.position = nn.Parameter(torch.zeros(HEADS, WIDTH // HEADS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x, places, memory, hidden):
        length, batch, _ = x.shape
        all_of_it = x if memory is None else torch.cat([memory, x], 0)
        q, k, v = self.qkv(all_of_it).chunk(3, -1)
        q = q[-length:].reshape(length, batch, HEADS, -1)
        k, v = (t.reshape(len(k), batch, HEADS, -1) for t in (k, v))
        r = self.places(places).view(len(k), HEADS, -1)
        by_content = torch.einsum("ibnd,jbnd->ijbn", q + self.content, k)
        by_place = self.shifted(torch.einsum("ibnd,jnd->ijbn", q + self.position, r))
        scores = (by_content + by_place) * (WIDTH // HEADS) ** -0.5
        scores = scores.float().masked_fill(hidden[:, :, None, None], -1e30).type_as(x)
        weights = F.dropout(scores.softmax(1), 0.1)
        made = torch.einsum("ijbn,jbnd->ibnd", weights, v).reshape(length, batch, WIDTH)
        return self.norm(x + self.out(made))

    @staticmethod
    def shifted(x):
        """Each row one place further than the one before."""
        padded = torch.cat([x.new_zeros(len(x), 1, *x.shape[2:]), x], 1)
        return padded.view(x.shape[1] + 1, len(x), *x.shape[2:])[1:].view_as(x)


embedding = nn.Embedding(VOCAB, WIDTH).cuda()
layers = nn.ModuleList([Relative() for _ in range(3)]).cuda()
optimizer = torch.optim.Adam([*embedding.parameters(), *layers.parameters()])
frequencies = 1 / (10000 ** (torch.arange(0.0, WIDTH, 2.0) / WIDTH)).cuda()
memories = None
for _ in range(4):
    tokens = torch.randint(0, VOCAB, (SEGMENT, 4), device="cuda")
    before = 0 if memories is None else len(memories[0])
    everything = SEGMENT + before
    hidden = torch.ones(SEGMENT, everything, device="cuda").triu(1 + before).bool()
    angles = torch.outer(torch.arange(everything - 1, -1, -1.0, device="cuda"), frequencies)
    places = torch.cat([angles.sin(), angles.cos()], -1)
    states = [embedding(tokens)]
    for i, layer in enumerate(layers):
        memory = None if memories is None else memories[i]
        states.append(layer(states[-1], places, memory, hidden))
    with torch.no_grad():
        old = memories or [state[:0] for state in states]
        memories = [
            torch.cat([m, state])[-MEMORY:].detach() for m, state in zip(old, states, strict=True)
        ]
    logits = states[-1] @ embedding.weight.t()
    F.cross_entropy(logits.view(-1, VOCAB), tokens.view(-1)).backward()
    nn.utils.clip_grad_norm_(layers.parameters(), 0.25)
    optimizer.step()
    optimizer.zero_grad()
