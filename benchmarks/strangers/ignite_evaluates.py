"""ignite: a trainer and an evaluator with metrics.

Requires: pytorch-ignite
"""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss

model = torch.nn.Sequential(
    torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4)
).cuda()
opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
loss = torch.nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, opt, loss, device="cuda")
ev = create_supervised_evaluator(
    model, metrics={"acc": Accuracy(), "nll": Loss(loss)}, device="cuda"
)
data = [(torch.randn(32, 128), torch.randint(0, 4, (32,))) for _ in range(6)]


@trainer.on(Events.EPOCH_COMPLETED)
def _(e):
    print(ev.run(data).metrics)


trainer.run(data, max_epochs=1)
