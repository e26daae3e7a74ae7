"""AdaLoRA, prefix tuning and prompt tuning of one small model after another."""

import torch
from peft import AdaLoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel


def base():
    return GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=512, n_head=8, vocab_size=8000))


for conf in (
    AdaLoraConfig(
        init_r=12,
        target_r=8,
        total_step=20,
        tinit=1,
        tfinal=5,
        deltaT=1,
        target_modules=["c_attn"],
        task_type="CAUSAL_LM",
    ),
    PrefixTuningConfig(num_virtual_tokens=20, task_type="CAUSAL_LM"),
    PromptTuningConfig(num_virtual_tokens=16, task_type="CAUSAL_LM"),
):
    m = get_peft_model(base(), conf).cuda().train()
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-3)
    for i in range(3):
        x = torch.randint(0, 8000, (4, 128), device="cuda")
        loss = m(input_ids=x, labels=x).loss
        loss.backward()
        opt.step()
        if hasattr(m.base_model, "update_and_allocate"):
            m.base_model.update_and_allocate(i)
        opt.zero_grad()
    print(type(conf).__name__, loss.item())
    del m, opt, loss
