"""pytorch-ignite engines."""

import torch
import torch.nn as nn
from ignite.contrib.handlers import ProgressBar
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import ModelCheckpoint
from ignite.metrics import Accuracy, ConfusionMatrix, Loss
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 169, 10)
).to("cuda")
data = TensorDataset(torch.randn(256, 1, 28, 28), torch.randint(0, 10, (256,)))
train, val = DataLoader(data, 32, shuffle=True), DataLoader(data, 64)
optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9, nesterov=True)
criterion = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(
    model, optimizer, criterion, "cuda", amp_mode="amp", scaler=True
)
metrics = {"accuracy": Accuracy(), "loss": Loss(criterion), "cm": ConfusionMatrix(10)}
evaluator = create_supervised_evaluator(model, metrics=metrics, device="cuda")
ProgressBar().attach(trainer, output_transform=lambda x: {"loss": x})


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    evaluator.run(val)
    print(evaluator.state.metrics["accuracy"], evaluator.state.metrics["loss"])


saver = ModelCheckpoint(
    "ckpt",
    n_saved=2,
    filename_prefix="best",
    score_function=lambda e: e.state.metrics["accuracy"],
    score_name="accuracy",
    require_empty=False,
)
evaluator.add_event_handler(Events.COMPLETED, saver, {"model": model})
trainer.run(train, max_epochs=3)
