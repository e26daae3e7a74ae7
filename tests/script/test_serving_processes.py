"""Processes of vLLM: what is put into them, what they write, and how they end."""

import json
import os
import subprocess
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import SimpleNamespace

import pytest

from memcalc.__main__ import run as main
from memcalc.engine.patches import Patches
from memcalc.engine.serving import plugin, start
from memcalc.errors import EstimateError
from memcalc.records.engines import EngineFigures, Refused
from memcalc.units import GIB


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(plugin.FOLDER, str(tmp_path))
    return tmp_path


def test_processes_of_vllm_find_the_plugin(folder, monkeypatch):
    from importlib.metadata import entry_points

    found = start.variables(folder, {"VLLM_PLUGINS": "mine", "PYTHONPATH": "/theirs"}, length=99)
    own, theirs = found["PYTHONPATH"].split(os.pathsep)
    assert theirs == "/theirs"
    assert found["VLLM_PLUGINS"] == "mine,memcalc_vllm_plugin"
    assert found[plugin.LENGTH] == "99"
    monkeypatch.syspath_prepend(own)
    (entry,) = entry_points(group="vllm.general_plugins")
    assert entry.load() is plugin.register


def test_a_worker_is_read_by_its_attributes_and_lacks_what_it_lacks(folder):
    settings = SimpleNamespace(VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=True)
    with Patches() as patches:
        patches.also(lambda: sys.modules.pop("vllm.envs", None))
        sys.modules["vllm.envs"] = settings
        worker = SimpleNamespace(
            rank=0,
            total_consumed=160,
            peak_activation_memory=30,  # With the estimate of CUDA graphs, or without.
            cudagraph_memory_estimate=10,
            requested_memory=300,
            model_runner=SimpleNamespace(model_memory_usage=150),
        )
        plugin.write_worker(worker, available=110)
    (found,) = start.read(folder).workers
    assert (found.weights, found.consumed, found.activations, found.graphs) == (150, 160, 20, 10)
    assert (found.requested, found.available, found.parameters) == (300, 110, None)
    # Earlier releases say what lies outside PyTorch, and no sum.
    older = SimpleNamespace(
        non_torch_memory=7, model_runner=SimpleNamespace(model_memory_usage=100)
    )
    plugin.write_worker(older, available=5)
    (found,) = start.read(folder).workers
    assert (found.consumed, found.activations, found.available) == (107, None, 5)


def test_what_fails_first_is_the_reason(folder):
    with pytest.raises(MemoryError), plugin._refusals():
        raise MemoryError("CUDA out of memory")
    with pytest.raises(RuntimeError), plugin._refusals():
        raise RuntimeError("Engine core initialization failed")
    assert start.read(folder).refused == Refused(kind="MemoryError", text="CUDA out of memory")


def test_of_a_cache_in_one_allocation_no_byte_counts_twice():
    shared = [SimpleNamespace(size=64, offset=0), SimpleNamespace(size=64, offset=32)]
    own = [SimpleNamespace(size=64), SimpleNamespace(size=64)]
    assert plugin._size(SimpleNamespace(kv_cache_tensors=shared)) == 64
    assert plugin._size(SimpleNamespace(kv_cache_tensors=own)) == 128
    assert plugin._size(None) is None


SERVER = """
import multiprocessing.shared_memory, os, subprocess, sys, time
from pathlib import Path
folder = Path(os.environ["MEMCALC_SERVING"])
if "quit" in sys.argv:
    raise SystemExit(3)
if "idle" in sys.argv:
    time.sleep(600)
shared = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 20)
(folder / "shared").write_text(shared.name)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(folder / "child").write_text(str(child.pid))
(folder / "engine-1.json").write_text('{"version": "0.33.0"}')
time.sleep(600)
"""


def test_a_server_is_ended_with_all_that_it_started(folder):
    (folder / "server.py").write_text(SERVER)
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    how = {"python": sys.executable, "environ": environ, "folder": folder, "where": folder}
    found = start.start(["server"], **how, out=sys.__stderr__.fileno())
    assert found.engine == EngineFigures(version="0.33.0")
    _wait_for_end_of((folder / "child").read_text())
    with pytest.raises(FileNotFoundError):
        SharedMemory((folder / "shared").read_text())
    (folder / "engine-1.json").unlink()
    with pytest.raises(EstimateError, match=r"took longer than 0\.5 seconds"):
        start.start(["server", "idle"], **how, out=sys.__stderr__.fileno(), timeout=0.5)
    with pytest.raises(EstimateError, match="ended with exit code 3 before it started an engine"):
        start.start(["server", "quit"], **how, out=sys.__stderr__.fileno())


STARTS_A_WORKER = """
import multiprocessing, os, sys, time
from memcalc.engine.serving import plugin
def work():
    plugin.register()
    print(os.getpid(), flush=True)
    time.sleep(600)
multiprocessing.get_context("fork").Process(target=work).start()
"""


def test_a_worker_ends_with_the_process_that_started_it(folder):
    command = [sys.executable, "-c", STARTS_A_WORKER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        parent.kill()
        _wait_for_end_of(worker)


def _wait_for_end_of(process):
    status = Path("/proc", str(process), "status")
    for _ in range(100):
        if not status.exists() or "\nState:\tZ" in status.read_text():
            return
        time.sleep(0.1)
    pytest.fail(f"process {process} lives on")


def test_vllm_takes_the_stub_for_the_cuda_runtime(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/a/libmemcalc_cudnn.so:/a/libmemcalc_stub.so:/a/libcudart.so")

    def original(name):
        return f"/torchvision.libs/{name}.so"

    assert plugin._find_stub(original, "libcudart") == "/a/libmemcalc_stub.so"
    assert plugin._find_stub(original, "libnccl") == "/torchvision.libs/libnccl.so"
    monkeypatch.delenv("LD_PRELOAD")
    assert plugin._find_stub(original, "libcudart") == "/torchvision.libs/libcudart.so"


CUMEM = """
def unmap_and_release(handle): pass
def create_and_map(handle): pass
class CuMemAllocator:
    one = None
    pointer_to_data = {}
    @classmethod
    def get_instance(cls):
        return cls
"""
SLEEPS = """
import torch
from vllm.device_allocator import cumem
cache = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
handle = (0, 1 << 30, cache.data_ptr(), 0)
cumem.CuMemAllocator.pointer_to_data[cache.data_ptr()] = handle
model = torch.nn.Linear(4096, 4096).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.randn(64, 4096, device="cuda")).sum()
    cumem.unmap_and_release(handle)
    (loss * 1).backward()
    optimizer.step()
    optimizer.zero_grad()
    cumem.create_and_map(handle)
"""


@pytest.mark.nightly
def test_memory_that_an_engine_unmaps_is_not_on_the_gpu(tmp_path, monkeypatch, capfd):
    package = tmp_path / "vllm" / "device_allocator"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "cumem.py").write_text(CUMEM)
    (tmp_path / "train.py").write_text(SLEEPS)
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "--gpu", "t4", "--format", "json", "--", "python", "train.py"]) == 0
    found = json.loads(capfd.readouterr().out)
    peaks = {one["phase"]: one["reserved"] for one in found["phases"]}
    assert peaks["forward"] > GIB > peaks["backward"]
    assert sum(found["components"].values()) == found["peak"]["requested"] > GIB
    assert any("1.0 GiB of an engine leave the GPU" in one for one in found["assumptions"])
