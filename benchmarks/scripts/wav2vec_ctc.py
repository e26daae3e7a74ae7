"""Wav2Vec2 with masked features and a CTC loss whose lengths are read from the GPU."""

import numpy
import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

numpy.random.seed(0)

m = Wav2Vec2ForCTC(
    Wav2Vec2Config(
        vocab_size=32,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        apply_spec_augment=True,
        ctc_zero_infinity=True,
    )
).cuda()
m.freeze_feature_encoder()
opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], fused=True)
for i in range(3):
    n = [16000, 12000, 9000, 14000]
    x = torch.zeros(4, 16000)
    a = torch.zeros(4, 16000, dtype=torch.long)
    for k, l in enumerate(n):
        x[k, :l] = torch.randn(l)
        a[k, :l] = 1
    y = torch.full((4, 20), -100)
    for k in range(4):
        y[k, : 10 + k] = torch.randint(1, 32, (10 + k,))
    l = m(input_values=x.cuda(), attention_mask=a.cuda(), labels=y.cuda()).loss
    l.backward()
    opt.step()
    opt.zero_grad()
    print(l.item())
