"""Resumes from the newest checkpoint it finds: loads on the GPU, keeps the last two, links the best."""

import json
import re
from pathlib import Path

import torch
from torch import nn

FOLDER = Path("runs/char_rnn")


def newest():
    found = [(int(re.findall(r"\d+", path.stem)[0]), path) for path in FOLDER.glob("ckpt_*.pt")]
    return max(found)[1] if found else None


def train(epochs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(512, 256), nn.Linear(256, 1024), nn.GELU()).cuda()
    head = nn.Linear(1024, 512).cuda()
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=100)
    begin, best, path = 0, float("inf"), newest()
    if path is not None:
        saved = torch.load(path, map_location="cuda", weights_only=True)
        model.load_state_dict(saved["model"])
        head.load_state_dict(saved["head"])
        optimizer.load_state_dict(saved["optimizer"])
        scaler.load_state_dict(saved["scaler"])
        scheduler.load_state_dict(saved["scheduler"])
        begin, best = saved["epoch"] + 1, saved["best"]
        torch.set_rng_state(saved["rng"].cpu())
    for epoch in range(begin, epochs):
        for _ in range(2):
            x = torch.randint(0, 512, (16, 64)).cuda(non_blocking=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(head(model(x)).flatten(0, 1), x.flatten())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
        state = {
            "model": model.state_dict(),
            "head": head.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": torch.get_rng_state(),
            "epoch": epoch,
            "best": min(best, loss.item()),
        }
        with open(FOLDER / f"ckpt_{epoch}.pt", "wb") as file:
            torch.save(state, file)
        (FOLDER / "state.json").write_text(json.dumps({"epoch": epoch}))
        last = FOLDER / "last.pt"
        last.unlink(missing_ok=True)
        last.symlink_to(f"ckpt_{epoch}.pt")
        old = FOLDER / f"ckpt_{epoch - 2}.pt"
        if old.exists():
            old.unlink()
    return begin


FOLDER.mkdir(parents=True, exist_ok=True)
first = train(3)
print(first, train(5))
torch.load(FOLDER / "last.pt", map_location="cuda", weights_only=True)
