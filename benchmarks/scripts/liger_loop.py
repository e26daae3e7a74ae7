"""Liger's Triton kernels in place of a Llama's own: norms, rope, SwiGLU, fused linear loss."""

import torch
from liger_kernel.transformers import apply_liger_kernel_to_llama
from transformers import LlamaConfig, LlamaForCausalLM

apply_liger_kernel_to_llama()
config = LlamaConfig(
    hidden_size=512,
    intermediate_size=1408,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    vocab_size=32000,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for _ in range(3):
    ids = torch.zeros(4, 512, dtype=torch.long, device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
