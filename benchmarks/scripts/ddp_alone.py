"""DistributedDataParallel in a group of one process, which the script joins by itself."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

for k, v in dict(
    MASTER_ADDR="127.0.0.1", MASTER_PORT="29571", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0"
).items():
    os.environ.setdefault(k, v)
dist.init_process_group("nccl", rank=0, world_size=1)
lr = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(lr)
torch.manual_seed(dist.get_rank())
m = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(512, 1000),
    nn.ReLU(),
    nn.Linear(1000, 10),
)
m = nn.SyncBatchNorm.convert_sync_batchnorm(m).cuda(lr)
m = nn.parallel.DistributedDataParallel(
    m, device_ids=[lr], output_device=lr, find_unused_parameters=False, gradient_as_bucket_view=True
)
ds = TensorDataset(torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,)))
sa = DistributedSampler(ds)
dl = DataLoader(ds, 16, sampler=sa, pin_memory=True)
opt = torch.optim.AdamW(m.parameters())
for ep in range(2):
    sa.set_epoch(ep)
    tot = torch.zeros(2, device="cuda")
    for x, y in dl:
        x, y = x.cuda(lr, non_blocking=True), y.cuda(lr, non_blocking=True)
        o = m(x)
        L = nn.functional.cross_entropy(o, y)
        opt.zero_grad(set_to_none=True)
        L.backward()
        opt.step()
        tot += torch.stack([L.detach() * len(x), torch.tensor(len(x), device="cuda")])
    dist.all_reduce(tot)
    dist.barrier()
    if dist.get_rank() == 0:
        print((tot[0] / tot[1]).item())
        torch.save(m.module.state_dict(), "m.pt")
dist.destroy_process_group()
