"""Two encoders under one contrastive loss, gradients accumulated with a cached batch."""

import torch
import torch.nn.functional as F
from torch import nn


class Tower(nn.Module):
    def __init__(self, width, layers, heads):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, batch_first=True, norm_first=True, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.project = nn.Linear(width, 128, bias=False)

    def forward(self, x, mask=None):
        return F.normalize(self.project(self.encoder(x, src_key_padding_mask=mask).mean(1)), dim=-1)


image, text = Tower(192, 3, 3).cuda(), Tower(128, 2, 4).cuda()
words = nn.Embedding(3000, 128).cuda()
scale = nn.Parameter(torch.tensor(2.6592, device="cuda"))
parameters = [*image.parameters(), *text.parameters(), *words.parameters(), scale]
optimizer = torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.2, eps=1e-6)
for _ in range(3):
    pictures = torch.randn(64, 49, 192).cuda()
    tokens = torch.randint(0, 3000, (64, 32)).cuda()
    mask = tokens == 0
    with torch.autocast("cuda"):
        a, b = image(pictures), text(words(tokens), mask)
        logits = scale.exp() * a @ b.t()
        labels = torch.arange(64, device="cuda")
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        scale.clamp_(0, 4.6052)
    print(f"{loss:.3f}")
