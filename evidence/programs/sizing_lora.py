"""LoRA on TinyLlama over random tokens, as gpu-sizing-playbook measures it.

    sizing_lora.py BATCH LENGTH [rank=8] [upper=N] [base=bfloat16] [checkpointing=1] [optim=adam]

Seven projections of every block have adapters (``upper``: of the last N), of ``rank`` with twice
that as alpha and no dropout, in fp32 over weights of type ``base``; forward and loss under
autocast to bf16. Each step frees gradients first, and its outputs live until the next one's.
"""

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

CONFIG = Path(__file__).resolve().parents[2] / "configs/models/TinyLlama--TinyLlama-1.1B.json"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
STEPS = 8


def build(rank: int, upper: int, kind: torch.dtype) -> torch.nn.Module:
    """The model with its adapters, on the CPU."""
    settings = json.loads(CONFIG.read_text())
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    base = AutoModelForCausalLM.from_config(config, dtype=kind)
    layers = config.num_hidden_layers
    some = {"layers_to_transform": list(range(layers - upper, layers))} if upper else {}
    adapters = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=TARGETS,
        bias="none",
        task_type="CAUSAL_LM",
        **some,
    )
    return get_peft_model(base, adapters)


def main(batch: str, length: str, *words: str) -> None:
    """Train."""
    given = dict(word.split("=") for word in words)
    kind = getattr(torch, given.get("base", "bfloat16"))
    model = build(int(given.get("rank", 8)), int(given.get("upper", 0)), kind).to("cuda")
    if "checkpointing" in given:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    trained = [one for one in model.parameters() if one.requires_grad]
    if given.get("optim") == "adam8bit":
        import bitsandbytes

        optimizer = bitsandbytes.optim.Adam8bit(trained, lr=1e-4)
    else:
        optimizer = torch.optim.Adam(trained, lr=1e-4)
    words_known = model.config.vocab_size
    for _ in range(STEPS):
        tokens = torch.randint(0, words_known, (int(batch), int(length)), device="cuda")
        labels = tokens.clone()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            outputs = model(input_ids=tokens, labels=labels)
            loss = outputs.loss
        loss.backward()
        optimizer.step()
        loss.item()
    print(f"reserved {torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
