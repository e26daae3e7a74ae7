"""Two steps of LoRA on Qwen3-8B in four bits by transformers' Trainer, as vektori-trace probes it.

    vektori_lora.py LENGTH

Source: vektori-ai/vektori-trace, scripts/vram_probe.py and vektori_trace/train.py (``train_lora``).

What decides memory: NF4 with constants that are quantised too; peft's preparation for it, behind
which embeddings and head go back to bf16 and norms stay in fp32; adapters of rank 16 on the
attention's projections with dropout; one sample of LENGTH tokens, none of them padding, and half of
them asked for; bf16, checkpointing and the rest as the Trainer has them.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    Trainer,
    TrainingArguments,
)

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "models" / "Qwen--Qwen3-8B.json"


def build() -> torch.nn.Module:
    """The base in four bits with its adapters."""
    settings = json.loads(CONFIG.read_text())
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    four = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, quantization_config=four
        )
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=True)
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):
        part.to(torch.bfloat16)
    adapters = LoraConfig(
        task_type="CAUSAL_LM",
        r=16,
        lora_alpha=32,
        lora_dropout=0.05,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
    )
    return get_peft_model(model, adapters)


def samples(length: int) -> list[dict[str, list[int]]]:
    """Two of them."""
    half = length // 2
    one = {
        "input_ids": [1] * length,
        "labels": [-100] * half + [1] * (length - half),
        "attention_mask": [1] * length,
    }
    return [one, dict(one)]


def together(features: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """A batch of samples of one length."""
    return {key: torch.tensor([one[key] for one in features]) for key in features[0]}


def main(length: str) -> None:
    """Train."""
    model = build()
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            max_steps=2,
            per_device_train_batch_size=1,
            gradient_checkpointing=True,
            bf16=True,
            learning_rate=2e-4,
            lr_scheduler_type="cosine",
            max_grad_norm=1.0,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            remove_unused_columns=False,
            label_names=["labels"],
        )
        data = samples(int(length))
        trainer = Trainer(model=model, args=settings, train_dataset=data, data_collator=together)
        model.enable_input_require_grads()
        trainer.train()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
