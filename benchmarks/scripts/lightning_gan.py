"""pytorch_lightning with manual optimization and two optimizers, 16-mixed."""

import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class GAN(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.g = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 784), nn.Tanh())
        self.d = nn.Sequential(nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))

    def training_step(self, batch, batch_idx):
        (real,) = batch
        og, od = self.optimizers()
        z = torch.randn(real.size(0), 64).type_as(real)
        self.toggle_optimizer(og)
        fake = self.g(z)
        loss = F.binary_cross_entropy_with_logits(
            self.d(fake), torch.ones(real.size(0), 1).type_as(real)
        )
        self.log("g", loss, prog_bar=True)
        self.manual_backward(loss)
        og.step()
        og.zero_grad()
        self.untoggle_optimizer(og)
        self.toggle_optimizer(od)
        a = F.binary_cross_entropy_with_logits(
            self.d(real), torch.ones(real.size(0), 1, device=self.device)
        )
        b = F.binary_cross_entropy_with_logits(
            self.d(self.g(z).detach()), torch.zeros(real.size(0), 1, device=self.device)
        )
        loss = (a + b) / 2
        self.log("d", loss, prog_bar=True)
        self.manual_backward(loss)
        od.step()
        od.zero_grad()
        self.untoggle_optimizer(od)

    def configure_optimizers(self):
        return [
            torch.optim.Adam(self.g.parameters(), lr=2e-4, betas=(0.5, 0.999)),
            torch.optim.Adam(self.d.parameters(), lr=2e-4, betas=(0.5, 0.999)),
        ], []


pl.seed_everything(0)
loader = DataLoader(TensorDataset(torch.rand(256, 784)), batch_size=32, shuffle=True)
trainer = pl.Trainer(
    max_steps=12,
    accelerator="auto",
    devices=1,
    precision="16-mixed",
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(GAN(), loader)
