"""Adapters that are trained, merged into the model, and made anew."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig

torch.manual_seed(0)
c = LlamaConfig(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    vocab_size=4000,
)
m = AutoModelForCausalLM.from_config(c, dtype=torch.bfloat16).cuda()
for rnd in range(2):
    p = get_peft_model(
        m,
        LoraConfig(
            r=8,
            lora_alpha=16,
            target_modules=["q_proj", "v_proj", "down_proj"],
            task_type="CAUSAL_LM",
        ),
    )
    p.print_trainable_parameters()
    o = torch.optim.AdamW([q for q in p.parameters() if q.requires_grad], 1e-3)
    for i in range(2):
        x = torch.randint(0, 4000, (4, 256), device="cuda")
        l = p(input_ids=x, labels=x).loss
        l.backward()
        o.step()
        o.zero_grad()
        print(l.item())
    m = p.merge_and_unload()
    del o, p
    torch.cuda.empty_cache()
    with torch.inference_mode():
        print(m(torch.randint(0, 4000, (2, 64), device="cuda")).logits.float().mean().item())
