"""A step of universal-llm-trainer's training, by transformers' models and peft's LoRA.

    universal_llm.py MODEL [lora]

Two samples of 8,192 tokens; weights, gradients and AdamW's states in bf16; transformers' own
checkpointing; the loss is a cross entropy over the logits but the last, made by the trainer itself
in their type (src/models/llama3.py, ``forward``; src/trainer/trainer.py). Its test of a GPU puts
random tokens in place of those of padded samples and keeps their mask. Deterministic algorithms are
asked for, to warn only. LoRA has rank 8 on every projection; an update comes after 32 steps, of
which two stand for all.
"""

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

BATCH, LENGTH, WRITTEN, ACCUMULATED = 2, 8192, 200, 32
CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "models"
TARGETS = {
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    None: ["q_proj", "v_proj", "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
NAMES = {
    "llama3.1-8b": "meta-llama--Llama-3.1-8B",
    "llama2-13b": "meta-llama--Llama-2-13b-hf",
    "gemma2-9b": "google--gemma-2-9b",
    "phi3-mini": "microsoft--Phi-3-mini-4k-instruct",
}
"""Bundled models; gemma-7b is what transformers has as its default."""


def config_of(name: str) -> PretrainedConfig:
    """The model's configuration."""
    if name == "gemma-7b":
        return AutoConfig.for_model("gemma")
    settings = json.loads((CONFIGS / f"{NAMES[name]}.json").read_text())
    if name == "phi3-mini":
        # That of 128k, whose rotary tables are longer; its sizes are the same.
        settings |= {"max_position_embeddings": 131072, "sliding_window": 262144}
    return AutoConfig.for_model(settings.pop("model_type"), **settings)


def main(name: str, method: str = "full") -> None:
    """Train."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config_of(name), dtype=torch.bfloat16)
    torch.set_default_dtype(torch.float32)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
    if method == "lora":
        targets = TARGETS.get(model.config.model_type, TARGETS[None])
        settings = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "target_modules": targets}
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0)
    criterion = torch.nn.CrossEntropyLoss()
    mask = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    mask[:, :WRITTEN] = 1
    model.train()
    optimizer.zero_grad()
    steps = 2 if method == "full" else 3
    for step in range(steps):
        tokens, labels = (torch.randint(0, 1000, (BATCH, LENGTH)).to("cuda") for _ in range(2))
        output = model(input_ids=tokens, attention_mask=mask.to("cuda"))
        flat = output.logits[:, :-1, :].reshape(-1, output.logits.size(-1))
        loss = criterion(flat, labels[:, 1:].reshape(-1))
        del output, flat
        (loss / ACCUMULATED).backward()
        if method == "full" or step == steps - 2:
            optimizer.step()
            optimizer.zero_grad()
    print(f"reserved {torch.cuda.memory_reserved()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
