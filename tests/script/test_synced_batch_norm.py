"""``nn.SyncBatchNorm`` among several processes takes what PyTorch's CUDA code took."""

import pytest

from memcalc.script.simulate import plan_of, simulate

TRAINS = """
import sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
torch.cuda.set_device(0)
layout = getattr(torch, sys.argv[1])
layers = torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.BatchNorm2d(32)
model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(*layers))
model = DistributedDataParallel(model.cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    x = torch.ones(16, 32, 62, 62, device="cuda").contiguous(memory_format=layout)
    model(x.requires_grad_()).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OVER_THE_DRIVER = {
    "contiguous_format": (31492632, 31500288),
    "channels_last": (31492632, 31500288),
}
"""Requested and allocated at the peak of PyTorch 2.13's CUDA build."""


@pytest.mark.parametrize("layout", OVER_THE_DRIVER)
def test_moments_of_several_processes_take_what_cuda_takes(parent, tmp_path, monkeypatch, layout):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINS)
    command = ["torchrun", "--nproc-per-node", "2", "train.py", layout]
    plan = plan_of(command, steps=0, torch="2.13", gpu="a100-40gb")
    peak = simulate(plan, parent).traced.prediction.peak
    assert (peak.requested, peak.allocated) == OVER_THE_DRIVER[layout]
