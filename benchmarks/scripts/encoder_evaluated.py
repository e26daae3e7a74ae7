"""A text classifier over nn.TransformerEncoder, evaluated with padding masks and larger batches."""

import torch
from torch import nn

torch.manual_seed(0)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 256, padding_idx=0)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.pool = nn.MultiheadAttention(256, 4, batch_first=True)
        self.head = nn.Linear(256, 4)

    def forward(self, x):
        hidden = self.encoder(self.embed(x), src_key_padding_mask=x == 0)
        hidden, weights = self.pool(hidden, hidden, hidden, key_padding_mask=x == 0)
        return self.head(hidden.mean(1)), weights


def batch(size):
    x = torch.randint(1, 1000, (size, 64))
    x[:, 50:] = 0
    return x.cuda(), torch.randint(0, 4, (size,)).cuda()


model = Classifier().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for number in range(3):
    model.train()
    x, y = batch(16)
    loss = nn.functional.cross_entropy(model(x)[0], y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        x, y = batch(256)
        logits, weights = model(x)
        print(number, (logits.argmax(1) == y).float().mean().item(), weights.shape)
model.half().eval()
with torch.inference_mode():
    print(model(batch(128)[0])[0].shape, torch.cuda.max_memory_allocated())
