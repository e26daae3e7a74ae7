"""A loop under the profiler, with memory history, a snapshot of its own, TensorBoard and tqdm."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.profiler import (
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    tensorboard_trace_handler,
)
from torch.utils.tensorboard import SummaryWriter
from tqdm import trange

torch.manual_seed(0)
torch.cuda.memory._record_memory_history(max_entries=100000)
writer = SummaryWriter("runs/a")
model = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, norm_first=True), 3
).cuda()
head = nn.Linear(128, 50).cuda()
params = list(model.parameters()) + list(head.parameters())
optimizer = torch.optim.AdamW(params, lr=1e-3, foreach=False)
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
with profile(
    activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
    schedule=schedule(wait=1, warmup=1, active=2),
    on_trace_ready=tensorboard_trace_handler("./log"),
    profile_memory=True,
    record_shapes=True,
    with_stack=False,
) as prof:
    bar = trange(5)
    for step in bar:
        start.record()
        x = torch.randn(16, 64, 128, device="cuda")
        y = torch.randint(0, 50, (16, 64), device="cuda")
        with record_function("forward"):
            loss = F.cross_entropy(head(model(x)).flatten(0, 1), y.flatten())
        with record_function("backward"):
            optimizer.zero_grad()
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        end.record()
        torch.cuda.synchronize()
        writer.add_scalar("loss", loss.item(), step)
        writer.add_scalar("norm", norm, step)
        writer.add_histogram("w", head.weight, step)
        bar.set_postfix(
            loss=loss.item(),
            ms=start.elapsed_time(end),
            mem=torch.cuda.max_memory_allocated() / 2**20,
        )
        prof.step()
print(prof.key_averages().table(sort_by="cpu_time_total", row_limit=3))
torch.cuda.memory._dump_snapshot("snapshot.pickle")
torch.cuda.memory._record_memory_history(enabled=None)
print(torch.cuda.memory_summary(abbreviated=True)[:80])
writer.close()
