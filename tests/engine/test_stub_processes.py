"""Several processes over the stub driver: forks, ranks, and what NVML tells of others."""

import json
import os
import subprocess

import pytest

from memcalc.engine.stub import load
from tests.engine.stub_process import ROOT, needs_cuda_torch

GROUP = """
from memcalc.engine import ranks
import torch.distributed as dist
ranks.join(0, 2)
torch.cuda.set_device(0)
"""


PROGRAMS = {
    "a fork of a process that used the gpu can use it": """
import ctypes, json, os
driver = ctypes.CDLL(None)
kept = torch.arange(1000).cuda()
address = kept.data_ptr()
read, write = os.pipe()
pid = os.fork()
if not pid:
    at, here = ctypes.c_void_p(), (ctypes.c_longlong * 1000)()
    said = [driver.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(8000))]
    numbers = (ctypes.c_longlong * 1000)(*range(1000))
    driver.cudaMemcpy(at, numbers, ctypes.c_size_t(8000), 1)
    driver.cudaMemcpy(here, at, ctypes.c_size_t(8000), 2)
    said.append(sum(here))
    driver.cudaMemcpy(here, ctypes.c_void_p(address), ctypes.c_size_t(8000), 2)
    said.append(sum(here))
    driver.cudaMemset(ctypes.c_void_p(address), 0, ctypes.c_size_t(8000))
    os.write(write, json.dumps(said).encode())
    os._exit(0)
os.waitpid(pid, 0)
assert json.loads(os.read(read, 1000)) == [0, 499_500, 499_500]
assert kept.cpu().sum().item() == 499_500
""",
    "one process is a rank of a data-parallel run": GROUP
    + """
from torch.nn.parallel import DistributedDataParallel
net = torch.nn.Sequential(*[torch.nn.Linear(500, 500) for _ in range(3)]).cuda()
ddp = DistributedDataParallel(net, device_ids=[0])
optimizer = torch.optim.AdamW(ddp.parameters())
for _ in range(2):
    ddp(torch.randn(8, 500, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
weights = 4 * sum(p.numel() for p in net.parameters())
# Weights, gradients and two states; and buckets as large as the gradients.
assert torch.cuda.max_memory_allocated() > 5 * weights
own = torch.full((3,), 5).cuda()
all = [torch.zeros_like(own) for _ in range(2)]
dist.all_gather(all, own)
assert [one.tolist() for one in all] == [[5, 5, 5], [5, 5, 5]]
one = torch.empty(3, device="cuda", dtype=torch.int64)
dist.reduce_scatter_tensor(one, torch.arange(6).cuda())
assert one.tolist() == [0, 1, 2]
objects = [None, None]
dist.all_gather_object(objects, {"of": "a rank"})
assert objects == [{"of": "a rank"}] * 2
dist.barrier()
""",
    "fully sharded runs start as well": GROUP
    + """
from torch.distributed.fsdp import fully_shard
net = torch.nn.Sequential(*[torch.nn.Linear(1000, 1000) for _ in range(3)]).cuda()
for layer in net:
    fully_shard(layer)
fully_shard(net)
net(torch.randn(8, 1000, device="cuda")).sum().backward()
held = sum(p.to_local().numel() for p in net.parameters())
assert held == sum(p.numel() for p in net.parameters()) / 2
""",
    "settings are read again in a fork of a process that used the gpu": """
import ctypes, os
torch.zeros(1, device="cuda")
read, write = os.pipe()
pid = os.fork()
if not pid:
    os.environ["MEMCALC_STUB_CAPABILITY"] = "90"
    value = ctypes.c_int()
    ctypes.CDLL(None).cudaDeviceGetAttribute(ctypes.byref(value), 75, 0)
    os.write(write, str(value.value).encode())
    os._exit(0)
os.waitpid(pid, 0)
assert int(os.read(read, 10)) == 9
""",
    "forks while other threads allocate do not hang": """
import ctypes, os, threading, time
driver = ctypes.CDLL(None)
stop = False
def work():
    at = ctypes.c_void_p()
    numbers = (ctypes.c_longlong * 1000)()
    while not stop:
        time.sleep(0.0005)
        driver.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(8000))
        driver.cudaMemcpy(at, numbers, ctypes.c_size_t(8000), 1)
        driver.cudaFree(at)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(30):
    pid = os.fork()
    if not pid:
        at = ctypes.c_void_p()
        driver.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(8000))
        driver.cudaFree(at)
        os._exit(0)
    begun = time.monotonic()
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        assert time.monotonic() - begun < 20
        time.sleep(0.001)
stop = True
for thread in threads: thread.join()
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_forks_and_ranks_go_on(over_stub, program):
    over_stub(PROGRAMS[program])


def test_nvml_in_one_process_tells_of_a_run_in_another(stub_cache, tmp_path):
    python, root, cuda = needs_cuda_torch()
    environment = {
        **os.environ,
        **load.environment(load.prepare(root, cuda), tmp_path / "processes"),
        "PYTHONPATH": str(ROOT),
        "MEMCALC_STUB_OUTSIDE": str(500 << 20),
    }
    run = """
import sys, torch
held = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
print("ready", flush=True)
sys.stdin.read()
"""
    look = """
import json, pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(card)
running = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
print(json.dumps([memory.used, [(p.pid, p.usedGpuMemory) for p in running]]))
"""

    def looked():
        command = [python, "-c", look]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([python, "-c", run], env=environment, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        used, running = looked()
        process.kill()
    assert used == 600 << 20
    assert running == [[process.pid, 600 << 20]]
    assert looked() == [0, []]
