"""Contrastive training whose masks are filled part by part: diagonals, rows, slices."""

import torch
from torch import nn
from torch.nn import functional

DEVICE = "cuda"
VIEWS, BATCH, TOKENS = 2, 24, 40


class Encoder(nn.Module):
    """Words to one vector a text; what stands at the masked places is guessed too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(800, 96)
        self.mixed = nn.TransformerEncoderLayer(96, 4, 192, batch_first=True)
        self.guess = nn.Linear(96, 800)

    def forward(self, tokens, padding):
        hidden = self.mixed(self.words(tokens), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1)
        return hidden, (hidden * kept).sum(1) / kept.sum(1)


def padding_of(lengths):
    mask = torch.ones(len(lengths), TOKENS, dtype=torch.bool, device=DEVICE)
    for row, length in enumerate(lengths):
        mask[row, :length] = False
    return mask


def contrast(vectors, labels):
    """Supervised contrastive loss; nobody is his own example."""
    scores = functional.normalize(vectors) @ functional.normalize(vectors).T / 0.1
    same = (labels[:, None] == labels[None]).fill_diagonal_(False)
    others = torch.ones_like(same).fill_diagonal_(False)
    kept = scores[others].view(len(labels), len(labels) - 1)
    log_chances = kept - kept.logsumexp(1, keepdim=True)
    return -log_chances[same[others].view_as(kept)].mean()


def guessed(model, hidden, tokens, padding):
    labels = torch.full_like(tokens, -100)
    labels[:, ::5] = tokens[:, ::5]
    labels[torch.isin(tokens, torch.tensor([1, 2], device=DEVICE)) | padding] = -100
    asked = labels != -100
    return functional.cross_entropy(model.guess(hidden[asked]), labels[asked])


def main() -> None:
    torch.manual_seed(0)
    model = Encoder().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        lengths = [8 + (7 * row + step) % (TOKENS - 8) for row in range(BATCH)] * VIEWS
        tokens = torch.randint(1, 800, (VIEWS * BATCH, TOKENS)).to(DEVICE)
        labels = torch.randint(0, 6, (BATCH,)).to(DEVICE).repeat(VIEWS)
        padding = padding_of(lengths)
        hidden, vectors = model(tokens, padding)
        loss = contrast(vectors, labels) + guessed(model, hidden, tokens, padding)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()
