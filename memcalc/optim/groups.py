"""Which parameters stay in 32-bit: the embeddings, whose rows see few and uneven gradients."""

from typing import Any

from torch import nn


def embeddings_in_32bit(model: nn.Module) -> list[dict[str, Any]]:
    """Split a model's trainable parameters into two groups, embeddings with 32-bit states.

    A weight tied to an embedding (an output layer's) counts as the embedding.

    Args:
        model: Any module; every ``nn.Embedding`` and ``nn.EmbeddingBag`` in it is found.

    Returns:
        Parameter groups for ``AdamW8bit`` or ``Adam8bit``; a group without parameters is
        left out.

    Source: Dettmers et al. 2022, section 2.3, which keeps embeddings in 32 bit for stability.
    """
    embeddings = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trainable if id(p) not in embeddings]},
        {"params": [p for p in trainable if id(p) in embeddings], "optim_bits": 32},
    ]
    return [group for group in groups if group["params"]]
