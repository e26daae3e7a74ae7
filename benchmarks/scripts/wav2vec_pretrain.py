"""wav2vec2 pretraining: masked spans, sampled negatives, a quantizer with a temperature."""

import numpy as np
import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForPreTraining
from transformers.models.wav2vec2.modeling_wav2vec2 import (
    _compute_mask_indices,
    _sample_negative_indices,
)

torch.manual_seed(0)
np.random.seed(0)
c = Wav2Vec2Config(
    hidden_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=192,
    conv_dim=(64, 64, 64),
    conv_stride=(5, 4, 4),
    conv_kernel=(10, 8, 4),
    num_feat_extract_layers=3,
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
    codevector_dim=64,
    proj_codevector_dim=64,
    num_codevectors_per_group=32,
    num_negatives=20,
    do_stable_layer_norm=True,
    feat_extract_norm="layer",
)
m = Wav2Vec2ForPreTraining(c).cuda()
m.freeze_feature_encoder()
opt = torch.optim.AdamW(m.parameters(), 1e-4)
m.train()
for it in range(3):
    x = torch.randn(4, 16000).cuda()
    L = int(m._get_feat_extract_output_lengths(16000))
    mi = _compute_mask_indices((4, L), 0.2, 10)
    ng = _sample_negative_indices((4, L), 20, mi)
    mi, ng = (
        torch.tensor(mi, device="cuda", dtype=torch.long),
        torch.tensor(ng, device="cuda", dtype=torch.long),
    )
    o = m(x, mask_time_indices=mi, sampled_negative_indices=ng)
    n = mi.sum()
    (o.loss / n).backward()
    for p in m.parameters():
        if p.grad is not None:
            p.grad.data.mul_(1.0)
    tot = (
        torch.stack([p.grad.detach().norm(2) for p in m.parameters() if p.grad is not None])
        .norm(2)
        .item()
    )
    opt.step()
    opt.zero_grad()
    m.set_gumbel_temperature(max(2 * 0.999**it, 0.5))
