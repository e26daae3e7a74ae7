"""A whole training step captured in a CUDA graph; evaluation in another one of the same pool."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(784, 2048), nn.GELU(), nn.LayerNorm(2048), nn.Linear(2048, 2048), nn.GELU()
).cuda()
head = nn.Linear(2048, 10).cuda()
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], capturable=True)
x = torch.zeros(256, 784, device="cuda")
y = torch.zeros(256, dtype=torch.long, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        loss = nn.functional.cross_entropy(head(model(x)), y)
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    loss = step()
evaluation = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(evaluation, pool=graph.pool()):
    logits = head(model(x))

for epoch in range(2):
    for _ in range(5):
        x.copy_(torch.rand(256, 784), non_blocking=True)
        y.copy_(torch.randint(0, 10, (256,)), non_blocking=True)
        graph.replay()
    evaluation.replay()
    correct = (logits.argmax(1) == y).float().mean().item()
    print(epoch, loss.item(), correct, torch.cuda.memory_allocated(), torch.cuda.memory_reserved())

del graph, evaluation, logits, loss
optimizer.zero_grad()
torch.cuda.empty_cache()
large = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
print(torch.cuda.memory_reserved(), torch.cuda.is_current_stream_capturing())
