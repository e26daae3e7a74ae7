"""The Trainer without padding: DataCollatorWithFlattening, LoRA and flash_attention_2."""

import torch
import transformers
from peft import LoraConfig, get_peft_model

torch.manual_seed(0)
config = transformers.Qwen2Config(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    vocab_size=1024,
)
model = transformers.AutoModelForCausalLM.from_config(
    config, dtype=torch.bfloat16, attn_implementation="flash_attention_2"
)
model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
lengths = (120, 33, 250, 64, 180, 90, 17, 300, 77, 140, 60, 210)
data = [{"input_ids": list(range(1, n + 1)), "labels": list(range(1, n + 1))} for n in lengths]
arguments = transformers.TrainingArguments(
    "out",
    per_device_train_batch_size=4,
    num_train_epochs=1,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    bf16=True,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
transformers.Trainer(
    model,
    arguments,
    train_dataset=data,
    data_collator=transformers.DataCollatorWithFlattening(),
).train()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
