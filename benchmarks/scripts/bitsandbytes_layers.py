"""8-bit and 4-bit linear layers, a stable embedding, and 8-bit optimizers."""

import bitsandbytes as bnb
import torch


class Net(torch.nn.Module):
    def __init__(s):
        super().__init__()
        s.a = bnb.nn.Linear8bitLt(512, 1024, has_fp16_weights=False, threshold=6.0)
        s.b = bnb.nn.Linear4bit(1024, 512, compute_dtype=torch.bfloat16, quant_type="fp4")
        s.lora_a = torch.nn.Linear(512, 8, bias=False)
        s.lora_b = torch.nn.Linear(8, 512, bias=False)

    def forward(s, x):
        return s.b(torch.relu(s.a(x.half())).to(torch.bfloat16)).float() + s.lora_b(s.lora_a(x))


m = Net().cuda()
opt = bnb.optim.Adam8bit([*m.lora_a.parameters(), *m.lora_b.parameters()], 1e-3, min_8bit_size=1024)
for _ in range(3):
    x = torch.randn(64, 512, device="cuda")
    l = (m(x) - x).pow(2).mean()
    l.backward()
    opt.step()
    opt.zero_grad()
    print(l.item())
g = torch.nn.Sequential(bnb.nn.StableEmbedding(2000, 256), torch.nn.Linear(256, 2000)).cuda()
o2 = bnb.optim.Lion8bit(g.parameters(), 1e-4)
for _ in range(3):
    ids = torch.randint(0, 2000, (16, 64), device="cuda")
    l = torch.nn.functional.cross_entropy(g(ids).flatten(0, 1), ids.flatten())
    l.backward()
    o2.step()
    o2.zero_grad()
