"""What a script asks of its card and of NVIDIA's libraries has an answer, or a sentence."""

import ctypes

import pynvml
import pytest
import torch

from memcalc.catalog import gpus
from memcalc.script.card import card
from memcalc.script.nvml import Card, Library, install
from memcalc.script.patches import Patches
from memcalc.units import MIB

NVML = """
import os, torch
from pynvml import *

def used():
    nvmlInit()
    found = nvmlDeviceGetMemoryInfo(nvmlDeviceGetHandleByIndex(0))
    assert found.used + found.free == found.total
    return found.used

assert used() == 0
layer = torch.nn.Linear(4096, 4096, bias=False).cuda()
outside = used() - torch.cuda.memory_reserved()
assert outside > 0
optimizer = torch.optim.Adam(layer.parameters())
for _ in range(2):
    layer(torch.ones(2, 4096, device="cuda")).sum().backward()
    optimizer.step()
    assert used() == torch.cuda.memory_reserved() + outside
    assert used() == torch.cuda.device_memory_used()
card = nvmlDeviceGetHandleByIndex(0)
(process,) = nvmlDeviceGetComputeRunningProcesses(card)
assert process.pid == os.getpid() and process.usedGpuMemory == used()
assert nvmlDeviceGetName(card) == torch.cuda.get_device_name()
assert nvmlDeviceGetCudaComputeCapability(card) == torch.cuda.get_device_capability()
assert torch.cuda.utilization() == torch.cuda.temperature() == 0
assert f"process {os.getpid():>10d}" in torch.cuda.list_gpu_processes()
for call in (lambda: nvmlDeviceGetHandleByIndex(1), lambda: nvmlDeviceGetMigMode(card)):
    try:
        call()
    except (NVMLError_InvalidArgument, NVMLError_NotSupported):
        continue
    raise AssertionError
"""


def test_nvml_says_what_the_process_takes(run):
    found = run(NVML)
    assert found.ending.code == 0
    assert any("NVML answers for" in said for said in found.traced.prediction.assumptions)


def test_what_the_driver_keeps_is_part_of_the_card_and_not_of_what_cuda_offers():
    t4 = card(gpus.find("t4"))
    assert t4.total + t4.kept == 15360 * MIB
    library = Library(Card("any", (9, 0), 100, lambda _: 30, 13000, kept=5))
    first, second = pynvml.c_nvmlMemory_t(), pynvml.c_nvmlMemory_v2_t()
    assert library.nvmlDeviceGetMemoryInfo(None, ctypes.byref(first)) == pynvml.NVML_SUCCESS
    assert (first.total, first.used, first.free) == (105, 75, 30)
    assert library.nvmlDeviceGetMemoryInfo_v2(None, ctypes.byref(second)) == pynvml.NVML_SUCCESS
    assert (second.total, second.reserved, second.used, second.free) == (105, 5, 70, 30)


def test_who_asks_for_processes_is_told_how_many_there_are_first():
    library = Library(Card("any", (9, 0), 100, lambda _: 30, 13000))
    ask, count = library.nvmlDeviceGetComputeRunningProcesses_v3, ctypes.c_uint(0)
    assert ask(None, ctypes.byref(count), None) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert count.value == 1
    room = (pynvml.c_nvmlProcessInfo_v3_t * 2)()
    count.value = 2
    assert ask(None, ctypes.byref(count), room) == pynvml.NVML_SUCCESS
    assert (count.value, room[0].usedGpuMemory) == (1, 70)


def test_a_library_that_is_something_else_is_not_asked():
    with pytest.raises(AttributeError):
        _ = Library(Card("any", (9, 0), 100, lambda _: 30, 13000)).cuInit


def test_pynvml_is_as_it_was_when_the_simulated_card_is_gone():
    before = dict(vars(pynvml))
    patches, said = Patches(), []
    install(patches, Card("any", (9, 0), 100, lambda _: 30, 13000), said.append)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetName(handle) == "any"
    assert not said
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == 70
    patches.undo()
    assert vars(pynvml) == before
    assert len(said) == 1


TYPES = """
import numpy as np, torch
Tensor = torch.cuda.FloatTensor
model = torch.nn.Linear(3, 4).type(Tensor)
before = torch.cuda.memory_allocated()
made = [
    Tensor(4, 1).fill_(1.0), Tensor(np.zeros((5, 3))), Tensor([[1, 2], [3, 4]]), Tensor(),
    Tensor(model.weight.shape), torch.cuda.LongTensor([7]), torch.ones(3).type(Tensor),
    torch.ones(3).type("torch.cuda.HalfTensor"), model.weight.type(torch.cuda.DoubleTensor),
]
assert all(tensor.is_cuda for tensor in made)
assert [tuple(tensor.shape) for tensor in made[:5]] == [(4, 1), (5, 3), (2, 2), (0,), (4, 3)]
assert torch.cuda.memory_allocated() - before == 512 * (len(made) - 1)
assert isinstance(made[0], Tensor) and not isinstance(made[5], Tensor)
assert made[5].item() == 7 and made[7].dtype == torch.float16
assert Tensor(made[0]).data_ptr() == made[0].data_ptr()
assert model.weight.type("torch.FloatTensor").device.type == "cpu"
try:
    Tensor(torch.ones(2))
except TypeError as error:
    assert "torch.FloatTensor" in str(error)
else:
    raise AssertionError
for kind, place in ((torch.cuda.HalfTensor, "cuda"), ("torch.FloatTensor", "cpu")):
    torch.set_default_tensor_type(kind)
    assert torch.zeros(2).device.type == torch.tensor([1, 2]).device.type == place
    for given in ([1e10],), (3, 4), (torch.Size([2]),), ():
        assert torch.Tensor(*given).device.type == place
    assert torch.Tensor(torch.zeros(2)).device.type == place
    assert torch.FloatTensor([1]).device.type == "cpu"
with torch.device("cuda"):
    assert torch.tensor(1.0).is_cuda
"""


def test_types_of_tensors_that_older_scripts_name_are_there(run):
    assert run(TYPES).ending.code == 0


COMPILED = """
import torch
from torch import nn

@torch.jit.script
def gelu(x):
    return x * 0.5 * (1.0 + torch.erf(x * 0.70710678))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(64, 64), nn.GroupNorm(2, 8)
    def forward(self, x):
        if x.size(0) > 3:
            x = x * 2
        return self.norm(self.inner(x))

inputs = torch.ones(4, 8, 64, device="cuda")
scripted = torch.jit.script(Net()).cuda()
traced = torch.jit.trace(nn.Sequential(nn.Linear(64, 64), nn.Tanh()).cuda(), inputs)
convolved = torch.jit.trace(nn.Conv1d(8, 8, 3).cuda(), inputs)
optimizer = torch.optim.SGD([*scripted.parameters(), *traced.parameters()], 0.1)
for _ in range(2):
    optimizer.zero_grad()
    (gelu(scripted(inputs)).sum() + traced(inputs).sum() + convolved(inputs).sum()).backward()
    assert all(parameter.grad.is_cuda for parameter in scripted.parameters())
    optimizer.step()
"""


def test_what_torchscript_compiles_and_traces_runs(run):
    found = run(COMPILED)
    assert found.ending.code == 0
    said = found.traced.prediction.assumptions
    assert any("what TorchScript may fuse" in one and "train.py:5" in one for one in said)
    assert any("of what is traced the code itself runs" in one for one in said)


LIBRARIES = """
import torch
import torch.cuda.comm
assert torch.backends.cudnn.is_available() and torch.backends.cudnn.version() >= 90000
assert torch.cuda.nccl.version() >= (2, 20)
torch.backends.cuda.preferred_linalg_library("magma")
assert torch.backends.cuda.preferred_linalg_library() == torch._C._LinalgBackend.Magma
torch.backends.cuda.cufft_plan_cache.max_size = 8
torch.backends.cuda.cufft_plan_cache.clear()
torch.cuda.set_sync_debug_mode("warn")
assert torch.cuda.get_sync_debug_mode() == 1
with torch.autograd.profiler.emit_nvtx(), torch.backends.cudnn.flags(benchmark_limit=3):
    row = torch.ones(8, device="cuda")
assert torch.nn.parallel.replicate(torch.nn.Linear(2, 2).cuda(), [0])
assert torch.cuda.comm.gather([row], destination=0).shape == row.shape
torch.cuda.memory.reset_peak_host_memory_stats()
torch.accelerator.reset_accumulated_memory_stats()
assert not hasattr(torch._C, "_nothing_of_this_name")
"""


def test_libraries_are_there_and_may_be_chosen(run):
    assert run(LIBRARIES).ending.code == 0


@pytest.mark.parametrize(
    ("call", "named"),
    [
        pytest.param(
            *("torch.cuda.tunable.enable()", "torch.cuda.tunable.enable"),
            marks=pytest.mark.skipif(torch.version.cuda is not None, reason="it is set, and idle"),
        ),
        ("torch.cuda.caching_allocator_disabled().__enter__()", "caching_allocator_enable"),
        ("torch.cuda.caching_allocator_alloc(512)", "caching_allocator_alloc"),
    ],
)
def test_what_is_not_simulated_is_named_with_what_to_do(run, capfd, call, named):
    found = run(f"import torch\ntorch.ones(1, device='cuda')\n{call}\n")
    assert found.ending.code == 1
    said = capfd.readouterr().err
    assert named in said
    assert "which is not simulated: use --backend driver" in said


def test_what_hides_the_machines_own_gpus_is_not_shown_to_the_script(run):
    found = run("""
        import os, subprocess, sys, torch
        assert "CUDA_VISIBLE_DEVICES" not in os.environ
        torch.ones(4, device="cuda")
        told = "import os; print(repr(os.environ.get('CUDA_VISIBLE_DEVICES')))"
        assert subprocess.check_output([sys.executable, "-c", told], text=True).strip() == "''"
    """)
    assert found.ending.code == 0
