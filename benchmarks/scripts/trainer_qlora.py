"""QLoRA by a Trainer, with the paged 8-bit optimizer and checkpointing."""

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

c = LlamaConfig(
    vocab_size=4000,
    hidden_size=512,
    intermediate_size=1376,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
)
LlamaForCausalLM(c).to(torch.bfloat16).save_pretrained("base")
m = LlamaForCausalLM.from_pretrained(
    "base",
    quantization_config=BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    ),
    device_map={"": 0},
)
m = prepare_model_for_kbit_training(m)
m = get_peft_model(
    m,
    LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM"
    ),
)
m.print_trainable_parameters()
rows = [{"input_ids": list(range(4, 132)), "labels": list(range(4, 132))} for _ in range(24)]
a = TrainingArguments(
    "o",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=3,
    bf16=True,
    optim="paged_adamw_8bit",
    report_to=[],
    save_strategy="no",
    gradient_checkpointing=True,
)
Trainer(m, a, train_dataset=rows).train()
