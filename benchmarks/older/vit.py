"""A vision transformer of PyTorch's own layers, in bf16 and in fp32."""

import contextlib

import torch
from phases import mark
from torch import nn

WIDTH = 192


class ViT(nn.Module):
    """Patches of images, three layers, and a head on the first place."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 3, 4 * WIDTH, 0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 100)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
        return self.head(self.encoder(x)[:, 0])


for dtype in (torch.bfloat16, None):
    torch.cuda.empty_cache()
    model = ViT().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    images = torch.zeros(8, 3, 224, 224, device="cuda")
    labels = torch.zeros(8, dtype=torch.long, device="cuda")
    for step in range(2):
        half = torch.autocast("cuda", dtype=dtype) if dtype else contextlib.nullcontext()
        with half:
            loss = nn.functional.cross_entropy(model(images), labels)
        mark(f"{dtype}.forward{step}")
        loss.backward()
        mark(f"{dtype}.backward{step}")
        optimizer.step()
        mark(f"{dtype}.step{step}")
        optimizer.zero_grad()
    del model, optimizer, loss
