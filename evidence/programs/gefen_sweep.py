"""Fine-tuning of all of Qwen3-0.6B in bf16, with one optimizer or another.

    gefen_sweep.py adamw|adamw8bit [short|long]

Source: thad0ctor/Gefen-X, benchmarks/optimizer-sweep/sweep_cell.py.

What decides memory: weights, gradients and AdamW's states in bf16, or states in 8 bits by
bitsandbytes; checkpointing; 2,048 tokens a step, put together of several texts, so without padding;
gradients go after each step. 32 texts of Alpaca, one at a time, are evaluated before the first
step, on the way and at the end; their lengths are drawn (median 115 tokens), and ``short`` and
``long`` are what they may have been instead. Peaks are set back behind the first evaluation. Three
steps stand for those up to the second, and two for the rest.
"""

import json
import random
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "models" / "Qwen--Qwen3-0.6B.json"
LENGTH, TEXTS = 2048, 32
LENGTHS = {"likely": (4.75, 0.45), "short": (4.5, 0.35), "long": (5.0, 0.7)}
"""Mean and deviation of a text's logarithm."""


def build() -> torch.nn.Module:
    """The model in bf16."""
    settings = json.loads(CONFIG.read_text())
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cuda()
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    return model.train()


def optimizer_of(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    """By its name."""
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    import bitsandbytes

    return bitsandbytes.optim.AdamW8bit(model.parameters(), lr=5e-5)


def text(length: int) -> torch.Tensor:
    """Of random tokens, on the host."""
    return torch.randint(0, 151643, (1, length))


@torch.no_grad()
def evaluate(model: torch.nn.Module, lengths: list[int]) -> None:
    """One text after the other."""
    model.eval()
    for length in lengths:
        ids, labels = text(length).cuda(), text(length).cuda()
        model(ids, labels=labels).loss.item()
    model.train()


def main(name: str, kind: str = "likely") -> None:
    """Train."""
    model = build()
    optimizer = optimizer_of(name, model)
    drawn = random.Random(0)
    lengths = [
        min(LENGTH, max(45, int(drawn.lognormvariate(*LENGTHS[kind])))) for _ in range(TEXTS)
    ]
    evaluate(model, lengths)
    torch.cuda.reset_peak_memory_stats()
    for steps in (3, 2):
        for _ in range(steps):
            ids, labels = text(LENGTH).cuda(), text(LENGTH).cuda()
            loss = model(ids, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
        evaluate(model, lengths)
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
