"""An encoder of PyTorch's own layers over random tokens, as gpu-sizing-playbook measures it.

    sizing_encoder.py BATCH LENGTH [checkpointing=1] [optim=adam]

Twenty layers of width 2,048 with 16 heads that norm first, dropout 0.1, over 1,000 tokens and
a table of positions; weights in fp32, forward and loss under autocast to bf16. Each step frees
gradients first, and its logits live until the next one's.
"""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

TOKENS, WIDTH, HEADS, LAYERS, STEPS = 1000, 2048, 16, 20, 8


class Encoder(nn.Module):
    """A token's logits, of all tokens before and after it."""

    def __init__(self, length: int, *, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.register_buffer("positions", torch.zeros(length, WIDTH), persistent=False)
        shape = {"dim_feedforward": 4 * WIDTH, "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, **shape) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, S) to (B, S, TOKENS)."""
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]].unsqueeze(0)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(x)


def main(batch: str, length: str, *words: str) -> None:
    """Train."""
    given = dict(word.split("=") for word in words)
    model = Encoder(int(length), recompute="checkpointing" in given).to("cuda")
    model.train()
    if given.get("optim") == "adam8bit":
        import bitsandbytes

        optimizer = bitsandbytes.optim.Adam8bit(model.parameters(), lr=1e-4)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    criterion = nn.CrossEntropyLoss()
    shape = int(batch), int(length)
    for _ in range(STEPS):
        tokens = torch.randint(0, TOKENS, shape, device="cuda")
        targets = torch.randint(0, TOKENS, shape, device="cuda")
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens)
            loss = criterion(logits.view(-1, TOKENS), targets.view(-1))
        loss.backward()
        optimizer.step()
        loss.item()
    print(f"reserved {torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
