"""LoRA on Qwen2.5-3B in four bits by trl's SFTTrainer, one text of up to 512 tokens at a time.

    b01_qlora.py

Source: HelloblueAI/b01-nuna-lora-trainer, src/b01_nuna_lora/train.py with
configs/qwen25_3b_open_sft.yaml.

What decides memory: NF4 with constants that are quantised too; the Trainer loads the rest in fp32,
puts adapters of rank 16 on all seven projections and turns them into bf16; bf16 by autocast;
checkpointing; the loss of release 1.13, which makes logits of 256 tokens at a time, and only where
an answer is asked for. Texts are conversations of UltraChat, most of which are cut to 512 tokens:
three of four are here, and the others' lengths are drawn; a third of a text is asked, the rest is
answer. Eight texts make an update; four updates stand for 229.
"""

import json
import random
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, TaskType
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, BitsAndBytesConfig, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "models" / "Qwen--Qwen2.5-3B.json"
PARTS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LONGEST, ACCUMULATED, UPDATES = 512, 8, 4


def texts() -> Dataset:
    """Of random tokens."""
    drawn = random.Random(0)
    found = []
    for _ in range(ACCUMULATED * UPDATES):
        length = LONGEST if drawn.random() < 0.75 else drawn.randint(60, LONGEST)
        ids = [drawn.randrange(2, 100) for _ in range(length)]
        asked = length // 3
        found.append({"input_ids": ids, "labels": [-100] * asked + ids[asked:]})
    return Dataset.from_list(found)


def words() -> PreTrainedTokenizerFast:
    """A tokenizer that knows enough to fill up texts."""
    tokenizer = Tokenizer(WordLevel({"<end>": 0, "<unknown>": 1}, unk_token="<unknown>"))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", unk_token="<unknown>"
    )


def train(folder: str) -> None:
    """All of it."""
    settings = SFTConfig(
        output_dir=folder,
        num_train_epochs=1,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=ACCUMULATED,
        learning_rate=2e-4,
        warmup_steps=20,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        max_length=LONGEST,
        packing=False,
        fp16=False,
        bf16=True,
        optim="adamw_torch",
        max_grad_norm=1.0,
        dataloader_pin_memory=False,
        eval_strategy="no",
        gradient_checkpointing=True,
    )
    adapters = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=16,
        lora_alpha=32,
        lora_dropout=0.05,
        target_modules=PARTS,
        bias="none",
    )
    four = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    trainer = SFTTrainer(
        model=folder,
        args=settings,
        train_dataset=texts(),
        processing_class=words(),
        peft_config=adapters,
        quantization_config=four,
    )
    torch.cuda.reset_peak_memory_stats()
    trainer.train()


def main() -> None:
    """Train."""
    settings = json.loads(CONFIG.read_text())
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        train(folder)
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main()
