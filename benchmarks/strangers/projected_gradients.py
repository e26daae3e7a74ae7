"""galore-torch: gradients in a low rank, whose projections the optimizer's state holds.

Requires: galore-torch
"""

import torch
from galore_torch import GaLoreAdamW
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4}
config = LlamaConfig(**sizes, num_attention_heads=4, vocab_size=8000)
model = LlamaForCausalLM(config).cuda()
low = [p for name, p in model.named_parameters() if "proj" in name]
rest = [p for name, p in model.named_parameters() if "proj" not in name]
how = {"rank": 64, "update_proj_gap": 2, "scale": 0.25, "proj_type": "std"}
opt = GaLoreAdamW([{"params": rest}, {"params": low, **how}], lr=1e-3)
for i in range(4):
    x = torch.randint(0, 8000, (4, 256)).cuda()
    model(input_ids=x, labels=x).loss.backward()
    opt.step()
    opt.zero_grad()
