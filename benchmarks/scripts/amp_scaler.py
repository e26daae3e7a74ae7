"""A plain loop: fp16 autocast, GradScaler, clipping, accuracy on the device, a checkpoint."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Sequential(
    *(nn.Linear(512, 2048), nn.GELU(), nn.LayerNorm(2048)),
    *(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 100)),
).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
data = TensorDataset(torch.randn(4096, 512), torch.randint(0, 100, (4096,)))
loader = DataLoader(data, batch_size=1024, shuffle=True, pin_memory=True, num_workers=2)
criterion = nn.CrossEntropyLoss()
total = 0.0
for x, y in loader:
    x, y = x.cuda(non_blocking=True), y.to(device, non_blocking=True)
    with torch.autocast("cuda", dtype=torch.float16):
        out = net(x)
        loss = criterion(out, y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    total += loss.item()
    accuracy = (out.argmax(1) == y).float().mean().item()
    print(f"loss {loss.item():.3f} accuracy {accuracy:.2f}")
torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
