"""sentence-transformers: pairs, ranked against each other, then encoded.

Requires: sentence-transformers
"""

import os

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

os.makedirs("tiny", exist_ok=True)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [chr(97 + i) for i in range(26)]
open("tiny/vocab.txt", "w").write("\n".join(words))
BertTokenizerFast("tiny/vocab.txt").save_pretrained("tiny")
BertModel(
    BertConfig(
        vocab_size=31,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=256,
    )
).save_pretrained("tiny")
from sentence_transformers import InputExample, SentenceTransformer, losses
from torch.utils.data import DataLoader

model = SentenceTransformer("tiny", device="cuda")
data = DataLoader(
    [InputExample(texts=["a b c", "c d"]) for _ in range(64)],
    batch_size=16,
    collate_fn=model.smart_batching_collate,
)
loss_fn = losses.MultipleNegativesRankingLoss(model)
opt = torch.optim.AdamW(model.parameters(), 2e-5)
for feats, lab in data:
    feats = [{k: v.cuda() if hasattr(v, "cuda") else v for k, v in f.items()} for f in feats]
    loss = loss_fn(feats, lab)
    loss.backward()
    opt.step()
    opt.zero_grad()
print(model.encode(["a b", "c"], convert_to_tensor=True).shape)
