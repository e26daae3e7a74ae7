"""Steps of PyTorch's optimizers."""

import torch
from phases import mark
from torch import nn, optim

WAYS = {
    "adam": (optim.Adam, {}),
    "adam_amsgrad": (optim.Adam, {"amsgrad": True}),
    "adam_decayed": (optim.Adam, {"weight_decay": 0.1}),
    "adam_maximizing": (optim.Adam, {"maximize": True}),
    "adam_capturable": (optim.Adam, {"capturable": True}),
    "adam_one_by_one": (optim.Adam, {"foreach": False}),
    "adam_fused": (optim.Adam, {"fused": True}),
    "adamw": (optim.AdamW, {}),
    "adamw_amsgrad": (optim.AdamW, {"amsgrad": True}),
    "nadam": (optim.NAdam, {"weight_decay": 0.1}),
    "radam": (optim.RAdam, {}),
    "adagrad": (optim.Adagrad, {}),
    "adadelta": (optim.Adadelta, {}),
    "rmsprop": (optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "sgd": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
}
for name, (kind, options) in WAYS.items():
    torch.cuda.empty_cache()
    model = nn.Sequential(*(nn.Linear(500, 500) for _ in range(8))).cuda()
    optimizer = kind(model.parameters(), **options)
    for step in range(2):
        model(torch.zeros(8, 500, device="cuda")).sum().backward()
        mark(f"{name}.backward{step}")
        optimizer.step()
        mark(f"{name}.step{step}")
        optimizer.zero_grad()
    del model, optimizer
