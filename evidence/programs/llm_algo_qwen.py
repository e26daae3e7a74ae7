"""Steps of Qwen2.5-0.5B, all of it, with ways to hold fewer activations, one way after the other.

    llm_algo_qwen.py fp32|bf16 LENGTH WAY...

WAY is ``baseline``, ``checkpoint``, ``offload`` (what autograd keeps goes to the host) or
``hybrid`` (both). They run in one process, each with a model of its own; the last is read.
Source: datawhalechina/llm-algo-leetcode, 02_PyTorch_Algorithms, lesson 76.

What decides memory: weights in fp32, bf16 by autocast if any; AdamW of PyTorch, whose states and
temporary lists of tensors make the peak; one text of random tokens, labels a copy of it. Behind the
steps comes one text without gradients, while those of the last step are still there. Two steps
warm up, and two stand for the five that are read.
"""

import contextlib
import gc
import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "models" / "Qwen--Qwen2.5-0.5B.json"
WARM, STEPS = 2, 2


def build() -> torch.nn.Module:
    """The model in fp32, on the host."""
    settings = json.loads(CONFIG.read_text())
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    config.use_cache = False
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def kept(way: str) -> contextlib.AbstractContextManager[object]:
    """Where what autograd keeps is."""
    if way in ("offload", "hybrid"):
        return torch.autograd.graph.save_on_cpu(pin_memory=False)
    return contextlib.nullcontext()


def run(precision: str, length: int, way: str) -> None:
    """Train and evaluate one model."""
    model = build()
    if way in ("checkpoint", "hybrid"):
        model.gradient_checkpointing_enable()
    model.to("cuda").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    numbers = [torch.randint(0, model.config.vocab_size, (1, length)) for _ in "te"]
    ids = numbers[0].to("cuda")
    labels = ids.clone()
    other = numbers[1].to("cuda")
    other_labels = other.clone()

    def mixed() -> torch.autocast:
        return torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16")

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with kept(way):
            with mixed():
                loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
        optimizer.step()
        return float(loss.detach().item())

    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        step()
    model.eval()
    with torch.no_grad(), mixed():
        model(input_ids=other, labels=other_labels).loss.item()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


def main(precision: str, length: str, *ways: str) -> None:
    """Run all ways."""
    for way in ways:
        run(precision, int(length), way)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:])
