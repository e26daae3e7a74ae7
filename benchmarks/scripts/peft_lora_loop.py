"""LoRA on a bf16 language model in a loop of one's own; adapters are saved at the end."""

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import Qwen2Config, Qwen2ForCausalLM, get_cosine_schedule_with_warmup

config = Qwen2Config(
    hidden_size=384,
    intermediate_size=1024,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    vocab_size=10000,
)
model = Qwen2ForCausalLM(config).to("cuda", torch.bfloat16)
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
model = get_peft_model(
    model,
    LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj", "down_proj"]
    ),
)
model.print_trainable_parameters()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-4)
schedule = get_cosine_schedule_with_warmup(optimizer, 2, 20)
loader = DataLoader([torch.randint(0, 10000, (256,)) for _ in range(16)], batch_size=4)
model.train()
for ids in loader:
    ids = ids.to("cuda")
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    print(f"{out.loss.detach().float():.3f}")
model.save_pretrained("adapter")
