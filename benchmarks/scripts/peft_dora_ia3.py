"""DoRA with a saved head, merged, then (IA)3 on another model."""

import torch
from peft import IA3Config, LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

cfg = LlamaConfig(
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=4,
    vocab_size=4000,
)


def train(model, opt, n=3):
    sch = get_cosine_schedule_with_warmup(opt, 1, 10)
    model.train()
    for _ in range(n):
        ids = torch.randint(0, 4000, (4, 128)).cuda()
        out = model(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids))
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_((p for p in model.parameters() if p.requires_grad), 1.0)
        opt.step()
        sch.step()
        opt.zero_grad()
        print(out.loss.item())


m = get_peft_model(
    LlamaForCausalLM(cfg).to(torch.bfloat16),
    LoraConfig(
        r=8,
        use_dora=True,
        target_modules=["q_proj", "v_proj", "down_proj"],
        modules_to_save=["lm_head"],
    ),
).cuda()
m.print_trainable_parameters()
train(m, torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 1e-4))
m = m.merge_and_unload()
del m
torch.cuda.empty_cache()
m2 = get_peft_model(
    LlamaForCausalLM(cfg),
    IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
).to("cuda")
train(m2, torch.optim.AdamW(m2.parameters(), 1e-3))
