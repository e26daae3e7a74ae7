"""One step of Qwen3-0.6B-Base in three ways, as MiniLLM-Forge qualifies a GPU.

    minillm_qualify.py WAY LENGTH

``WAY``: full, lora or qlora. Source: zhangjf314/MiniLLM-Forge, src/minillm_forge/qualification/
qwen.py: one sample, shorter than LENGTH and padded to it; each a process of its own.

What decides memory: weights in bf16, moved to the GPU as a whole (``qlora``: NF4 with constants
that are quantised too, and peft's preparation for it, with checkpointing); adapters of rank 4 on
queries and values, in fp32; all weights are checkpointed alone in ``full``, and only ``lora`` keeps
transformers' cache; one step of PyTorch's AdamW with clipped gradients, each asked whether it is
finite.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig, PretrainedConfig

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "models" / "Qwen--Qwen3-0.6B.json"
WRITTEN = 120
"""Tokens of the sample; the rest are padding."""
ONCE = {"use_reentrant": False}


def config_of() -> PretrainedConfig:
    """The model's configuration."""
    settings = json.loads(CONFIG.read_text()) | {"max_position_embeddings": 32768}
    return AutoConfig.for_model(settings.pop("model_type"), **settings)


def quantised() -> torch.nn.Module:
    """The base in four bits, on the GPU."""
    four = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    with tempfile.TemporaryDirectory() as folder:
        config_of().save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=four, device_map="auto"
        )
    model = prepare_model_for_kbit_training(
        model, use_gradient_checkpointing=True, gradient_checkpointing_kwargs=ONCE
    )
    model.config.use_cache = False
    return model


def build(way: str) -> torch.nn.Module:
    """The model on the GPU, with what is trained of it."""
    if way == "qlora":
        model = quantised()
    else:
        model = AutoModelForCausalLM.from_config(config_of(), dtype=torch.bfloat16)
        if way == "full":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=ONCE)
            model.config.use_cache = False
        model.to("cuda")
    if way == "full":
        return model
    adapters = LoraConfig(
        task_type="CAUSAL_LM",
        r=4,
        lora_alpha=8,
        lora_dropout=0.0,
        target_modules=["q_proj", "v_proj"],
        bias="none",
    )
    return get_peft_model(model, adapters)


def sample(length: int) -> dict[str, torch.Tensor]:
    """A sample on the host."""
    ids = torch.ones(1, length, dtype=torch.long)
    mask = torch.zeros(1, length, dtype=torch.bool)
    mask[:, :WRITTEN] = True
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(~mask, -100)}


def main(way: str, length: str) -> None:
    """Train."""
    batch = sample(int(length))
    model = build(way)
    batch = {key: value.to("cuda") for key, value in batch.items()}
    model.train()
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = model(**batch)
        loss = output.loss
    bool(torch.isfinite(loss))
    loss.backward()
    for one in trained:
        if one.grad is not None:
            bool(torch.isfinite(one.grad).all())
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
