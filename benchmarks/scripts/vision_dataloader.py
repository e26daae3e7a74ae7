"""ViT with torchvision transforms, loader workers, pinned memory, label smoothing, top-k metrics."""

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler
from torchvision import models, transforms


class Pictures(Dataset):
    def __init__(self, count, transform):
        self.count, self.transform = count, transform

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        pixels = np.random.default_rng(at).integers(0, 256, (96 + at % 7, 120, 3), dtype=np.uint8)
        return self.transform(Image.fromarray(pixels)), at % 12


train_transform = transforms.Compose(
    [
        transforms.RandomResizedCrop(64),
        transforms.RandomHorizontalFlip(),
        transforms.ColorJitter(0.2, 0.2),
        transforms.ToTensor(),
        transforms.Normalize((0.5,) * 3, (0.5,) * 3),
        transforms.RandomErasing(p=0.3),
    ]
)
test_transform = transforms.Compose([transforms.Resize((64, 64)), transforms.ToTensor()])
sampler = WeightedRandomSampler(torch.ones(60), 60)
train = DataLoader(
    Pictures(60, train_transform),
    20,
    sampler=sampler,
    num_workers=3,
    pin_memory=True,
    drop_last=True,
    persistent_workers=True,
)
test = DataLoader(Pictures(50, test_transform), 25, num_workers=2, pin_memory=True)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = models.VisionTransformer(64, 8, 4, 6, 192, 768, dropout=0.1, num_classes=12).to(device)
decay = [p for p in model.parameters() if p.ndim > 1]
others = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}], lr=3e-4
)
schedule = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, 3e-3, epochs=2, steps_per_epoch=len(train)
)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
scaler = torch.amp.GradScaler("cuda")
for epoch in range(2):
    model.train()
    for images, labels in train:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.amp.autocast("cuda"):
            loss = criterion(model(images), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    model.eval()
    right = torch.zeros(2, device=device)
    with torch.inference_mode():
        for images, labels in test:
            images, labels = (
                images.to(device, non_blocking=True),
                labels.to(device, non_blocking=True),
            )
            top = model(images).topk(5, dim=1).indices
            hit = top == labels[:, None]
            right += torch.stack([hit[:, 0].sum(), hit.any(1).sum()])
    print(epoch, (right / 50).tolist())
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
        "last.pth",
    )
state = torch.load("last.pth", map_location=device)
model.load_state_dict(state["model"])
