"""A variational autoencoder with binary cross-entropy and a checkpointed decoder."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU()
        )
        self.mean, self.logvar = nn.Linear(512, 32), nn.Linear(512, 32)
        self.decoder = nn.Sequential(
            nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 784)
        )

    def forward(self, x):
        hidden = checkpoint(self.encoder, x, use_reentrant=False)
        mean, logvar = self.mean(hidden), self.logvar(hidden)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * logvar)
        return checkpoint_sequential(self.decoder, 2, z, use_reentrant=True), mean, logvar


model = VAE().cuda()
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
for _ in range(3):
    x = torch.rand(512, 784).cuda()
    logits, mean, logvar = model(x)
    loss = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    loss = loss - 0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item() / 512)
