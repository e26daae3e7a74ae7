"""Batches are copied on a stream of their own while the last one trains."""

import torch
from torch import nn


class Prefetcher:
    def __init__(self, batches):
        self.batches = iter(batches)
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self):
        self.next = next(self.batches, None)
        if self.next is None:
            return
        with torch.cuda.stream(self.stream):
            x, y = self.next
            self.next = x.cuda(non_blocking=True).float().div_(255), y.cuda(non_blocking=True)

    def get(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.next
        if batch is not None:
            for tensor in batch:
                tensor.record_stream(torch.cuda.current_stream())
        self.preload()
        return batch


net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
batches = [
    (torch.randint(0, 255, (96, 3, 64, 64), dtype=torch.uint8), torch.randint(0, 10, (96,)))
    for _ in range(5)
]
prefetcher = Prefetcher(batches)
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
while (batch := prefetcher.get()) is not None:
    loss = nn.functional.cross_entropy(net(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
end.record()
torch.cuda.synchronize()
print(f"{start.elapsed_time(end):.1f} ms")
