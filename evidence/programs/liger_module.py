"""One module of a language model, forward and backward ten times, as Liger-Kernel measures it.

    liger_module.py cross_entropy|swiglu|geglu|rms_norm|layer_norm|fused_linear_cross_entropy SIZE

The module that is measured is PyTorch's or transformers' own; where the script holds its rival's
weights on the GPU beside it, so does this one.
"""

import sys
from collections.abc import Callable

import torch
from torch import nn

HIDDEN, INNER, VOCABULARY = 4096, 11008, 128256
TIMES = 10


class RMSNorm(nn.Module):
    """The norm of a Llama, in single operators."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def mlp(batch: int, tokens: int, act: str) -> Callable[[], None]:
    """A Llama's feed-forward layer in bf16."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    config = LlamaConfig(hidden_size=HIDDEN, intermediate_size=INNER, hidden_act=act)
    shape = (batch, tokens, HIDDEN)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    layer = LlamaMLP(config).to("cuda").to(torch.bfloat16)

    def full() -> None:
        y = layer(x)
        y.backward(torch.randn_like(y), retain_graph=True)

    return full


def norm(make: Callable[[int], nn.Module], rows: int, width: int, dtype: torch.dtype):
    """A norm, its rival's weights beside it."""
    rival, layer = make(width).to("cuda"), make(width).to("cuda")
    x = torch.randn((rows, width), dtype=dtype, device="cuda")
    dy = torch.randn_like(x)
    x.requires_grad_(True)

    def full(rival: nn.Module = rival) -> None:
        y = layer(x)
        y.backward(dy, retain_graph=True)

    return full


def cross_entropy(vocabulary: int) -> Callable[[], None]:
    """The loss alone, of fp32 logits."""
    x = torch.randn(8 * 2048, vocabulary, requires_grad=True, device="cuda")
    target = torch.randint(vocabulary, (8 * 2048, 1), device="cuda").squeeze(1)

    def full() -> None:
        nn.functional.cross_entropy(x, target).backward()

    return full


def head_and_loss(tokens: int) -> Callable[[], None]:
    """The last layer and the loss in bf16, its rival's weights beside it."""
    head, rival = (
        nn.Linear(HIDDEN, VOCABULARY, bias=False, dtype=torch.bfloat16).to("cuda") for _ in "ab"
    )
    x = torch.randn(tokens, HIDDEN, requires_grad=True, dtype=torch.bfloat16, device="cuda")
    target = torch.randint(VOCABULARY, (tokens, 1), dtype=torch.long, device="cuda").squeeze(1)

    def full(rival: nn.Module = rival) -> None:
        # The logits die as the forward pass of the script's module ends.
        nn.functional.cross_entropy(head(x), target).backward()

    return full


def main() -> None:
    """Measure one."""
    name, size = sys.argv[1], int(sys.argv[2])
    full = {
        "cross_entropy": lambda: cross_entropy(size),
        "swiglu": lambda: mlp(4, size, "silu"),
        "geglu": lambda: mlp(8, size, "gelu_pytorch_tanh"),
        "rms_norm": lambda: norm(RMSNorm, 2048, size, torch.bfloat16),
        "layer_norm": lambda: norm(nn.LayerNorm, 4096, size, torch.float32),
        "fused_linear_cross_entropy": lambda: head_and_loss(size),
    }[name]()
    for _ in range(TIMES):
        full()


main()
