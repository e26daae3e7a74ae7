"""Saves and loads in the middle: torch.save, atomic rename, safetensors, best model, resume."""

import io
import os
import shutil
from pathlib import Path

import torch
import torch.nn as nn
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model

torch.manual_seed(0)
device = torch.device("cuda")
folder = Path("checkpoints")
folder.mkdir(exist_ok=True)


def net():
    return nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.BatchNorm1d(1024), nn.Linear(1024, 256)
    ).to(device)


model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
kept = []
for step in range(6):
    x = torch.randn(64, 256, device=device)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    path = folder / f"step{step}.pt"
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, str(path) + ".tmp")
    os.replace(str(path) + ".tmp", path)
    kept.append(path)
    if len(kept) > 2:
        old = kept.pop(0)
        if old.exists():
            old.unlink()
    shutil.copyfile(path, folder / "latest.pt")
    print(step, os.path.getsize(path) > 0)
save_file(
    {k: v.contiguous() for k, v in model.state_dict().items()},
    "model.safetensors",
    metadata={"a": "b"},
)
save_model(model, "model2.safetensors")
again = net()
again.load_state_dict(load_file("model.safetensors", device="cuda"))
load_model(again, "model2.safetensors")
with safe_open("model.safetensors", framework="pt", device="cuda:0") as f:
    some = {k: f.get_tensor(k) for k in f.keys()}
print(len(some))
if os.path.exists(folder / "latest.pt"):
    saved = torch.load(folder / "latest.pt", map_location="cpu", weights_only=True)
    again.load_state_dict(saved["model"])
    second = torch.optim.AdamW(again.parameters(), lr=1e-3)
    second.load_state_dict(saved["optimizer"])
    start = saved["step"] + 1
    del saved
else:
    start = 0
buffer = io.BytesIO()
torch.save(again.state_dict(), buffer)
buffer.seek(0)
print(len(buffer.getvalue()) > 0)
again.load_state_dict(torch.load(buffer, map_location="cuda:0"))
for step in range(start, start + 3):
    x = torch.randn(128, 256, device=device)
    loss = (again(x) - x).pow(2).mean()
    second.zero_grad()
    loss.backward()
    second.step()
print(sorted(p.name for p in folder.glob("*.pt")) is not None, loss.item())
