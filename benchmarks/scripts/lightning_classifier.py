"""A LightningModule with metrics, checkpoints, early stopping, schedulers, bf16-mixed."""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self, width=512, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(784, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )
        self.train_acc = torchmetrics.Accuracy("multiclass", num_classes=10)
        self.val_acc = torchmetrics.Accuracy("multiclass", num_classes=10)
        self.val_f1 = torchmetrics.F1Score("multiclass", num_classes=10, average="macro")

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.train_acc(logits, y)
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_acc", self.train_acc, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.val_acc(logits, y)
        self.val_f1(logits, y)
        self.log("val_loss", F.cross_entropy(logits, y), prog_bar=True)
        self.log_dict({"val_acc": self.val_acc, "val_f1": self.val_f1})

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 1e-2, total_steps=self.trainer.estimated_stepping_batches
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


if __name__ == "__main__":
    L.seed_everything(42, workers=True)
    data = TensorDataset(torch.randn(512, 1, 28, 28), torch.randint(0, 10, (512,)))
    train = DataLoader(data, batch_size=64, shuffle=True, num_workers=0)
    val = DataLoader(data, batch_size=128)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        log_every_n_steps=1,
        callbacks=[
            ModelCheckpoint(monitor="val_loss", save_top_k=1, save_last=True),
            EarlyStopping("val_loss", patience=3),
            LearningRateMonitor(),
        ],
        default_root_dir="lightning",
    )
    model = Net()
    trainer.fit(model, train, val)
    print(trainer.validate(model, val))
    print(trainer.test_loop is not None, torch.cuda.max_memory_allocated())
