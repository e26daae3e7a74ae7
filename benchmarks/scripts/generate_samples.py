"""A causal LM with an eos token that samples, searches by beams and streams between its steps."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=4000,
    hidden_size=192,
    intermediate_size=512,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    max_position_embeddings=512,
)
model = LlamaForCausalLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(3):
    model.train()
    ids = torch.randint(3, 4000, (4, 96), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    prompt = torch.randint(3, 4000, (4, 16)).cuda()
    mask = torch.ones_like(prompt)
    greedy = model.generate(
        input_ids=prompt, attention_mask=mask, max_new_tokens=40, do_sample=False
    )
    sampled = model.generate(
        input_ids=prompt,
        attention_mask=mask,
        max_new_tokens=40,
        do_sample=True,
        top_p=0.9,
        top_k=50,
    )
    beams = model.generate(
        input_ids=prompt,
        attention_mask=mask,
        max_new_tokens=20,
        num_beams=3,
        num_return_sequences=2,
    )
    print(step, loss.item(), greedy.shape, sampled.shape, beams.shape)
