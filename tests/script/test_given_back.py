"""What the allocator gives back by itself under a limit of the script, as over the driver."""

import re

import pytest

GIVES_BACK = """
import os
os.environ["PYTORCH_ALLOC_CONF"] = "{conf}"
import torch
torch.cuda.set_per_process_memory_fraction(0.05)
held = []
for size in (30, 50, 70, 90, 110, 130, 150):
    for turn in range(3):
        kept = [torch.empty(size << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
        del kept
    held.append(torch.empty(size << 17, dtype=torch.uint8, device="cuda"))
stats = torch.cuda.memory_stats()
given, peak = stats["reserved_bytes.all.freed"], torch.cuda.max_memory_reserved()
print("given", given >> 20, stats["num_alloc_retries"], peak >> 20)
"""
CONFS = {
    "max_split_size_mb:40": (1200, 0, 740),
    "garbage_collection_threshold:0.5": (1300, 0, 590),
    "garbage_collection_threshold:0.5,max_split_size_mb:40": (1860, 0, 512),
    "roundup_power2_divisions:4": (1000, 2, 696),
}
"""MiB that were given back, how often all were, and MiB at the peak: over the driver with 2.13."""


@pytest.mark.parametrize("conf", CONFS)
def test_it_is_counted_and_the_answer_has_the_same_peak(conf, run, capfd):
    found = run(GIVES_BACK.format(conf=conf), gpu="t4", steps=0)
    told = re.search(r"^given (\d+) (\d+) (\d+)$", capfd.readouterr().err, re.MULTILINE)
    assert tuple(map(int, told.groups())) == CONFS[conf]
    assert found.traced.prediction.peak.reserved >> 20 == CONFS[conf][-1]
