"""fastai: a Learner with tensors and an optimizer of its own.

Requires: fastai
"""

import torch
from fastai.vision.all import *

x = torch.rand(128, 3, 32, 32)
y = torch.randint(0, 4, (128,))
ds = list(zip(x, y))
dls = DataLoaders.from_dsets(ds, ds[:32], bs=16, device="cuda")
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 4),
)
learn = Learner(dls, model, loss_func=CrossEntropyLossFlat(), metrics=accuracy, cbs=[])
with learn.no_logging():
    learn.fit_one_cycle(1, 1e-3)
