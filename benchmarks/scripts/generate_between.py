"""A language model that writes a sample every other step, with a cache of keys and values."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=256, n_head=4, vocab_size=5000)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
ids = torch.randint(2, 5000, (8, 128)).cuda()
for step in range(3):
    loss = model(ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 2 == 0:
        model.eval()
        with torch.no_grad():
            token, cache = ids[:2, :16], None
            for _ in range(12):
                out = model(token, past_key_values=cache, use_cache=True)
                token, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
        del out, cache
        model.train()
torch.cuda.empty_cache()
print(torch.cuda.memory_reserved() // 2**20)
