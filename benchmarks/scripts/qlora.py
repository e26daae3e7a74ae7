"""QLoRA: a checkpoint loaded in 4 bit, LoRA on all linear layers, a paged 8-bit optimizer."""

import bitsandbytes as bnb
import peft
import torch
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=4
)
LlamaForCausalLM(config).save_pretrained("small_llama")
quantized = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)
model = LlamaForCausalLM.from_pretrained(
    "small_llama", quantization_config=quantized, device_map={"": 0}, dtype=torch.bfloat16
)
model = peft.prepare_model_for_kbit_training(
    model, gradient_checkpointing_kwargs={"use_reentrant": False}
)
model = peft.get_peft_model(
    model, peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
)
optimizer = bnb.optim.PagedAdamW8bit([p for p in model.parameters() if p.requires_grad], lr=1e-4)
model.train()
for _ in range(3):
    ids = torch.zeros(2, 256, dtype=torch.long, device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
