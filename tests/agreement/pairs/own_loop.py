"""The loop of one's own that scripts of these pairs have in common."""

import torch


def train(model, optimizer, vocabulary):
    """Train for four steps on two sequences of 128 tokens."""
    for _ in range(4):
        batch = {
            name: torch.randint(vocabulary, (2, 128), device="cuda")
            for name in ("input_ids", "labels")
        }
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
