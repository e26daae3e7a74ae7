"""Memory of the simulated GPU: how much is taken, and what can be read back."""

import pytest

GPT = """
import torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1)
        mixed = F.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.second(x))))

def model(width=256, layers=2):
    blocks = [Block(width, 4) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(999, width), *blocks, nn.Linear(width, 999)).cuda()

def train(model, optimizer, steps=2, batch=4):
    for _ in range(steps):
        ids = torch.randint(0, 999, (batch, 64)).cuda()
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return loss
"""


def test_the_room_is_the_limit_and_running_out_of_it_is_pytorchs_own_error(over_stub):
    over_stub(
        GPT
        + """
net = model()
before = torch.cuda.memory_reserved()
try:
    train(net, torch.optim.AdamW(net.parameters()), batch=4096)
except torch.OutOfMemoryError as error:
    said = str(error)
assert "Tried to allocate" in said and "GPU 0 has a total capacity of 300.00 MiB" in said
assert before < torch.cuda.max_memory_reserved() <= 200 << 20
assert torch.cuda.memory_stats()["num_ooms"] == 1
torch.cuda.empty_cache()
torch.empty(50 << 20, dtype=torch.uint8, device="cuda")
""",
        ROOM=200 << 20,
        MEMORY=300 << 20,
        OUTSIDE=100 << 20,
    )


def test_free_memory_is_what_allocations_and_the_context_leave(over_stub):
    over_stub(
        """
free, total = torch.cuda.mem_get_info()
assert (total, total - free) == (16 << 30, 400 << 20)
held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
assert free - torch.cuda.mem_get_info()[0] == 64 << 20
""",
        MEMORY=16 << 30,
        OUTSIDE=400 << 20,
    )


PROGRAMS = {
    "a transformer trains and the allocator tells its peaks": GPT
    + """
net = model()
weights = 4 * sum(p.numel() for p in net.parameters())
train(net, torch.optim.AdamW(net.parameters()))
stats = torch.cuda.memory_stats()
peaks = [stats[f"{k}_bytes.all.peak"] for k in ("requested", "allocated", "reserved")]
# Weights, gradients and the two states of AdamW, and what else is alive with them.
assert 4 * weights < peaks[0] < 8 * weights
assert peaks == sorted(peaks)
""",
    "expandable segments take what they map and give it back": """
torch.cuda.memory._set_allocator_settings("expandable_segments:True")
free, _ = torch.cuda.mem_get_info()
held = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
assert [s["is_expandable"] for s in torch.cuda.memory_snapshot()] == [True]
assert free - torch.cuda.mem_get_info()[0] == torch.cuda.memory_reserved() == 120 << 20
one = torch.arange(100).cuda()
assert one.cpu().sum().item() == 4950
del held, one
torch.cuda.empty_cache()
assert free - torch.cuda.mem_get_info()[0] == 0
""",
    "what is copied in is read back": """
numbers = torch.arange(100_000, dtype=torch.int64)
there = numbers.cuda()
assert torch.equal(there.cpu(), numbers)
assert there[777].item() == 777
assert torch.equal(there.clone().cpu(), numbers)
assert there[5:9].tolist() == [5, 6, 7, 8]
pinned = torch.empty(100_000, dtype=torch.int64, pin_memory=True)
pinned.copy_(there, non_blocking=True)
assert torch.equal(pinned, numbers) and pinned.is_pinned()
other = torch.empty_like(there)
other.copy_(there)
assert torch.equal(other.cpu(), numbers)
""",
    "a block that is used again reads as zeros": """
first = torch.full((5000,), 7).cuda()
place = first.data_ptr()
assert first.cpu().sum().item() == 35_000
del first
again = torch.empty(5000, dtype=torch.int64, device="cuda")
assert again.data_ptr() == place
assert again.cpu().abs().sum().item() == 0
""",
    "the profiler still hears of each block": """
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as told:
    torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
used = [e.device_memory_usage for e in told.events() if e.name == "aten::empty"]
assert used == [3 << 20]
""",
    "a large tensor is zeros on the host and takes no memory there": """
import resource
large = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
here = large.cpu()
assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10 < 200
assert [here[0].item(), here[1 << 30].item(), here[-1].item()] == [0, 0, 0]
""",
    "large copies to the host clear it and keep shared memory shared": """
import os
torch.set_num_threads(1)
zeros = torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
private = torch.full((16 << 20,), 3, dtype=torch.uint8)
private.copy_(zeros)
assert private.sum().item() == 0
shared = torch.full((16 << 20,), 3, dtype=torch.uint8).share_memory_()
pid = os.fork()
if not pid:
    shared.copy_(torch.zeros(16 << 20, dtype=torch.uint8))
    shared[5 << 20] = 9
    os._exit(0)
os.waitpid(pid, 0)
assert shared.sum().item() == 9
shared.fill_(3)
shared.copy_(zeros)
assert shared.sum().item() == 0
pid = os.fork()
if not pid:
    shared[6 << 20] = 8
    os._exit(0)
os.waitpid(pid, 0)
assert shared.sum().item() == 8
""",
    "memory of a large copy that holds something small reads so": """
large = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
large[1000:1010].copy_(torch.arange(10, dtype=torch.uint8))
large[40 << 20 : (40 << 20) + 4].copy_(torch.full((4,), 5, dtype=torch.uint8))
here = large.cpu()
assert here.sum().item() == 45 + 20
assert here.nonzero().flatten()[[0, -1]].tolist() == [1001, (40 << 20) + 3]
""",
    "allocations are never at an address again": """
seen = set()
for _ in range(2000):
    one = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    seen.add(one.data_ptr())
    del one
    torch.cuda.empty_cache()
assert (len(seen), torch.cuda.memory_reserved()) == (2000, 0)
""",
    "pinned memory is told from other memory": """
plain = torch.ones(1000)
assert not plain.is_pinned()
pinned = plain.pin_memory()
assert pinned.is_pinned() and pinned.sum().item() == 1000
loader = torch.utils.data.DataLoader(list(range(8)), batch_size=4, pin_memory=True)
loaded = [(batch.is_pinned(), batch.cuda().tolist()) for batch in loader]
assert loaded == [(True, [0, 1, 2, 3]), (True, [4, 5, 6, 7])]
""",
    "a history with lines does not import the compiler": """
from memcalc.engine import torch_internals as internals
internals.start_history(with_lines=True)
kept = torch.ones(8, device="cuda")
(traced,) = internals.stop_history()["device_traces"]
assert all(entry["frames"] for entry in traced)
assert "torch._inductor" not in sys.modules and "_inductor" not in vars(torch)
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_memory_is_what_a_program_takes_it_for(over_stub, program):
    over_stub(PROGRAMS[program])


def test_addresses_begin_again_when_all_have_been_used(over_stub):
    over_stub(
        """
import ctypes
driver = ctypes.CDLL(None)
at = ctypes.c_void_p()
torch.zeros(1, device="cuda")
kept = torch.arange(5).cuda()
for _ in range(60):
    # A terabyte at a time, of which there are fewer than 60.
    assert driver.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(1 << 40)) == 0
    assert at.value < 0x500000000000
    assert driver.cudaFree(at) == 0
assert kept.tolist() == [0, 1, 2, 3, 4]
""",
        ROOM=2 << 40,
        MEMORY=2 << 40,
    )
