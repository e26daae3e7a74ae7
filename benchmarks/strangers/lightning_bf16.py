"""Lightning: bf16-mixed with metrics and validation.

Requires: lightning torchmetrics
"""

import lightning as L
import torch
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(784, 512),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(512, 10),
        )
        self.acc = torchmetrics.Accuracy(task="multiclass", num_classes=10)

    def training_step(self, batch, i):
        x, y = batch
        out = self.net(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        self.log("loss", loss, prog_bar=True)
        self.log("acc", self.acc(out, y), prog_bar=True)
        return loss

    def validation_step(self, batch, i):
        x, y = batch
        self.log("val", torch.nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [opt], [torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)]


data = DataLoader(TensorDataset(torch.randn(640, 784), torch.randint(0, 10, (640,))), batch_size=64)
trainer = L.Trainer(
    max_epochs=1,
    accelerator="gpu",
    devices=1,
    precision="bf16-mixed",
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(Net(), data, data)
