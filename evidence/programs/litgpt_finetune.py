"""LitGPT's finetuning by its own package: the longest text of its data is cut to 512 tokens.

    litgpt_finetune.py MODEL lora|qlora|qlora-dq|full BATCH ACCUMULATED [RANK PARTS [LONGEST REST]]

``PARTS``: what gets adapters, as letters of q, k, v, p (projection), m (feed-forward), h (head).
Dropout of adapters changes no size but that it is there; it is 0.05. The script validates two
batches before it trains, and every batch may be as long as the longest. Two batches an optimizer
step stand for more of them. ``LONGEST`` is the first batch's length where that has the longest
text, and ``REST`` that of all others: the readings that say it are of LitGPT of October 2023, whose
norms were worked out in the type of what they are given (lit_gpt/rmsnorm.py).
"""

import sys

import bitsandbytes
import lightning
import torch
from bitsandbytes import functional
from lightning.fabric.plugins import BitsandbytesPrecision
from litgpt import lora
from litgpt.config import Config
from litgpt.model import GPT, RMSNorm
from litgpt.utils import chunked_cross_entropy

STEPS, CHUNK = 2, 128
LETTERS = {"q": "query", "k": "key", "v": "value", "p": "projection", "m": "mlp", "h": "head"}


class Product(torch.autograd.Function):
    """A product with weights in four bits as bitsandbytes 0.42 makes it, which LitGPT asked for.

    It keeps its input for backward, which it does not need there (``ctx.tensors = (A, B)``), and
    dequantises to fp16, the type that weights had when they were quantised, before it casts.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, state):
        """(..., in) to (..., out)."""
        wide = functional.dequantize_4bit(weight, state).to(x.dtype)
        out = torch.nn.functional.linear(x, wide, bias)
        ctx.state, ctx.tensors = state, (x, weight)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Of the input alone."""
        wide = functional.dequantize_4bit(ctx.tensors[1], ctx.state).to(gradient.dtype)
        return torch.matmul(gradient, wide), None, None, None


def product(x, weight, quant_state, out=None, bias=None):
    """``bitsandbytes.matmul_4bit``."""
    return Product.apply(x, weight, bias, quant_state)


def made(name: str, kind: str, adapters: list[str]) -> tuple[lightning.Fabric, torch.nn.Module]:
    """The model on the GPU, its weights read from the host."""
    quantised = kind.startswith("qlora")
    if quantised:
        bitsandbytes.matmul_4bit = product
    constants = kind.replace("qlora", "nf4")  # nf4-dq: they are quantised as well.
    plugin = BitsandbytesPrecision(constants, torch.bfloat16) if quantised else None
    precision = None if quantised else "bf16-true"
    fabric = lightning.Fabric(accelerator="cuda", devices=1, precision=precision, plugins=plugin)
    fabric.launch()
    settings = {}
    if adapters:
        rank, parts = adapters
        settings = {"lora_r": int(rank), "lora_alpha": 16, "lora_dropout": 0.05}
        settings |= {f"lora_{word}": letter in parts for letter, word in LETTERS.items()}
    kinds = (lora.Config, lora.GPT) if adapters else (Config, GPT)
    config = kinds[0].from_name(name, **settings)
    with fabric.init_module(empty_init=False):
        model = kinds[1](config)
    if adapters:
        lora.mark_only_lora_as_trainable(model)
    return fabric, fabric.setup_module(model)


def stored(name: str) -> dict[str, torch.Tensor]:
    """The checkpoint, as it lies on the host."""
    with torch.device("meta"):
        shapes = GPT(Config.from_name(name)).state_dict()
    return {
        key: torch.empty(one.shape, dtype=torch.bfloat16, device="cpu")
        for key, one in shapes.items()
    }


def optimizer_of(model: torch.nn.Module, kind: str) -> torch.optim.Optimizer:
    """AdamW; with a quantised base bitsandbytes' paged one."""
    if kind.startswith("qlora"):
        trained = [one for one in model.parameters() if one.requires_grad]
        return bitsandbytes.optim.PagedAdamW(trained, lr=2e-4, betas=(0.9, 0.95), weight_decay=0.0)
    trained = [one for one in model.parameters() if one.requires_grad]
    return torch.optim.AdamW(trained, lr=2e-4, betas=(0.9, 0.95), weight_decay=0.0)


def logits_of(model: torch.nn.Module, ids: torch.Tensor, *, chunked: bool) -> object:
    """With adapters the head runs over 128 positions at a time."""
    if not chunked:
        return model(ids)
    logits = model(ids, lm_head_chunk_size=CHUNK)
    logits[-1] = logits[-1][..., :-1, :]
    return logits


@torch.no_grad()
def validate(model: torch.nn.Module, batch: int, tokens: int) -> None:
    """Two batches."""
    model.eval()
    losses = torch.zeros(2)
    for number in range(2):
        ids = torch.ones(batch, tokens, dtype=torch.long, device="cuda")
        logits = model(ids)
        losses[number] = chunked_cross_entropy(logits[..., :-1, :], ids[..., 1:], chunk_size=0)
    losses.mean()
    model.train()


def norm_of_2023(self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """(..., width) to (..., width)."""
    mean = torch.mean(x * x, dim=self.dim, keepdim=True)
    return self.weight * (x * torch.rsqrt(mean + self.eps))


def main(name: str, kind: str, batch: str, accumulated: str, *adapters: str) -> None:
    """Train."""
    adapted, lengths = list(adapters[:2]), adapters[2:] or (512, 512)
    longest, tokens = map(int, lengths)
    if adapters[2:]:
        RMSNorm.forward = norm_of_2023
    fabric, model = made(name, kind, adapted)
    optimizer = optimizer_of(model, kind)
    if kind == "full":
        # Its weights are read before the optimizer is made; with adapters it is the other way.
        model.load_state_dict(stored(name), strict=False)
        optimizer = optimizer_of(model, kind)
    optimizer = fabric.setup_optimizers(optimizer)
    if kind != "full":
        model.load_state_dict(stored(name), strict=False)
    model.max_seq_length = longest
    validate(model, int(batch), tokens)
    batches = min(int(accumulated), 2)
    for number in range(1, STEPS * batches + 1):
        length = longest if number == 1 else tokens
        ids = torch.ones(int(batch), length, dtype=torch.long).to("cuda")
        waiting = number % batches != 0
        with fabric.no_backward_sync(model, enabled=waiting):
            # The logits of a batch live until the next ones are there, in validation too.
            logits = logits_of(model, ids, chunked=kind != "full")
            kept = logits if kind != "full" else logits[..., :-1, :]
            loss = chunked_cross_entropy(kept, ids[..., 1:])
            del kept
            fabric.backward(loss / int(accumulated))
        if not waiting:
            optimizer.step()
            optimizer.zero_grad()
    validate(model, int(batch), tokens)
    print(f"Memory used: {torch.cuda.max_memory_allocated() / 1e9:.02f} GB")


if __name__ == "__main__":
    main(*sys.argv[1:])
