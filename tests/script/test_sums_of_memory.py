"""What the allocator adds up begins anew where a script asks for that."""

SCRIPT = """
import torch
kept = torch.ones(1 << 20, device="cuda")
gone = torch.ones(1 << 20, device="cuda")
del gone
before = torch.cuda.memory_stats()
assert before["allocation.all.allocated"] == 2 and before["num_device_alloc"] == 1
torch.cuda.reset_accumulated_memory_stats()
more = torch.ones(3, device="cuda")
after = torch.cuda.memory_stats()
assert after["allocation.all.allocated"] == 1 and after["allocation.all.freed"] == 0, after
assert after["allocated_bytes.all.allocated"] == 512
assert after["allocated_bytes.all.current"] == (4 << 20) + 512
assert after["num_device_alloc"] == 1 and after["num_ooms"] == 0
assert after["allocated_bytes.all.peak"] == 8 << 20
"""


def test_sums_begin_anew_and_levels_and_peaks_stay(run):
    assert run(SCRIPT, gpu="t4", steps=0).ending.code == 0
