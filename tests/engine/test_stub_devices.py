"""The simulated GPUs: how many, what they say of themselves, streams and graphs."""

import pytest


@pytest.mark.parametrize(("capability", "processors"), [(75, 40), (80, 108), (90, 132), (120, 170)])
def test_a_gpu_says_what_it_was_told_to_be_in_a_fork(over_stub, capability, processors):
    found = over_stub(
        """
given = torch.cuda.get_device_properties(0)
answer["capability"] = torch.cuda.get_device_capability()
answer["processors"] = given.multi_processor_count
assert (given.name, given.total_memory) == ("Imaginary 9000", 24 << 30)
assert given.max_threads_per_multi_processor == 1536
shared = given.shared_memory_per_multiprocessor, given.shared_memory_per_block_optin
assert shared == (102400, 101376)
assert (given.L2_cache_size, given.regs_per_multiprocessor) == (48 << 20, 65536)
assert given.warp_size == 32
layer = torch.nn.Linear(64, 64, device="cuda", dtype=torch.float16)
layer(torch.randn(8, 64, device="cuda", dtype=torch.float16)).sum().backward()
torch.sort(torch.randn(1000, device="cuda"))
assert torch.cuda.max_memory_allocated() > 0
""",
        CAPABILITY=capability,
        PROCESSORS=processors,
        NAME="Imaginary 9000",
        MEMORY=24 << 30,
        THREADS=1536,
        SHARED=102400,
        SHARED_OF_BLOCK=101376,
        L2=48 << 20,
    )
    assert tuple(found["capability"]) == divmod(capability, 10)
    assert found["processors"] == processors


def test_several_gpus_have_each_their_own_memory(over_stub):
    over_stub(
        """
assert torch.cuda.device_count() == 4
held = [torch.arange(n + 4, device=f"cuda:{n}").cpu() for n in range(2)]
one = torch.empty(10 << 20, dtype=torch.uint8, device="cuda:1")
two = torch.empty(30 << 20, dtype=torch.uint8, device="cuda:3")
assert [torch.cuda.memory_allocated(n) for n in (1, 3)] == [10 << 20, 30 << 20]
there = torch.arange(5).to("cuda:1").to("cuda:3")
assert (there.tolist(), there.get_device()) == ([0, 1, 2, 3, 4], 3)
assert len({str(torch.cuda.get_device_properties(n).uuid) for n in range(4)}) == 4
free = [torch.cuda.mem_get_info(n)[0] >> 20 for n in range(4)]
assert free[2] == 1024 and free[3] <= 1024 - 30
try:
    torch.empty(1, device="cuda:4")
except RuntimeError as error:
    fifth = str(error)
assert "invalid device ordinal" in fifth
""",
        DEVICES=4,
        MEMORY=1 << 30,
    )


@pytest.mark.parametrize(("seen", "count"), [("1,3", 2), ("", 0), ("-1", 0), ("NoDevFiles", 0)])
def test_cuda_visible_devices_hides_gpus_from_cuda_alone(over_stub, seen, count):
    found = over_stub(
        """
import ctypes
number = ctypes.c_int()
ctypes.CDLL(None).cudaGetDeviceCount(ctypes.byref(number))
answer["count"] = torch.cuda.device_count(), number.value
if number.value:
    answer["uuid"] = str(torch.cuda.get_device_properties(0).uuid)[-2:]
import pynvml
pynvml.nvmlInit()
assert pynvml.nvmlDeviceGetCount() == 4
""",
        DEVICES=4,
        CUDA_VISIBLE_DEVICES=seen,
    )
    assert found["count"] == [count, count]
    if count:
        assert int(found["uuid"]) == int(seen[0])


@pytest.mark.parametrize(
    ("seen", "uuids"),
    [
        ("3,1,7,0", [3, 1, 0, 2]),
        ("6,7", [0, 1]),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", [0]),
        ("0,1,2,3,4,5,6,7", [0, 1, 2, 3]),
    ],
)
def test_gpus_of_another_machine_stand_for_those_that_are_here(over_stub, seen, uuids):
    found = over_stub(
        """
from memcalc.engine.stub.load import visible
torch.cuda._parse_visible_devices = visible
count = torch.cuda.device_count()
answer["uuids"] = [int(str(torch.cuda.get_device_properties(i).uuid)[-2:]) for i in range(count)]
""",
        DEVICES=4,
        CUDA_VISIBLE_DEVICES=seen,
    )
    assert found["uuids"] == uuids


def test_a_gpu_can_be_named_by_its_uuid(over_stub):
    over_stub(
        'assert str(torch.cuda.get_device_properties(0).uuid).endswith("02")',
        DEVICES=4,
        CUDA_VISIBLE_DEVICES="GPU-6d656d63-616c-6300-0000-000000000002",
    )


PROGRAMS = {
    "streams and events run and take no time": """
side = torch.cuda.Stream()
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
begin.record()
with torch.cuda.stream(side):
    made = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
made.record_stream(torch.cuda.current_stream())
torch.cuda.current_stream().wait_stream(side)
end.record()
torch.cuda.synchronize()
assert begin.elapsed_time(end) == 1.0
assert end.query() and side.query()
assert len({s["stream"] for s in torch.cuda.memory_snapshot()}) == 1
""",
    "a graph is captured in a pool of its own and replayed": """
net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(net.parameters(), capturable=True)
given = torch.randn(64, 512, device="cuda")
def step():
    optimizer.zero_grad()
    net(given).sum().backward()
    optimizer.step()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    assert torch.cuda.is_current_stream_capturing()
    step()
assert not torch.cuda.is_current_stream_capturing()
for _ in range(5):
    graph.replay()
torch.cuda.synchronize()
pools = {tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()}
assert len(pools) == 2
""",
    "waiting for the gpu while it captures is an error": """
x = torch.arange(4).cuda()
for wait in (
    lambda: x.sum().item(),
    torch.cuda.synchronize,
    lambda: torch.cuda.current_stream().query(),
):
    said, graph = "", torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            y = x * 2
            wait()
    except RuntimeError as error:
        said = " ".join(str(error.__context__ or error).split())
    assert "not permitted when stream is capturing" in said
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
graph.replay()
assert x.tolist() == [0, 1, 2, 3]
""",
    "announced numbers are what the next readers find": """
import ctypes
answers = ctypes.CDLL(None).memcalc_stub_answer
answers.argtypes = [ctypes.c_size_t, ctypes.c_longlong]
mask = torch.zeros(100, dtype=torch.bool, device="cuda")
assert mask.nonzero().shape == (0, 1)
answers(4, 17), answers(8, 17)
assert mask.nonzero().shape == (17, 1)
answers(0, 0)
assert mask.nonzero().shape == (0, 1)
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_streams_and_graphs_run(over_stub, program):
    over_stub(PROGRAMS[program])


def test_nvml_tells_of_the_same_gpus_as_cuda(over_stub):
    over_stub(
        """
import os
import pynvml
pynvml.nvmlInit()
given = torch.cuda.get_device_properties(1)
card = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{given.uuid}")
by_place = pynvml.nvmlDeviceGetHandleByPciBusId(pynvml.nvmlDeviceGetPciInfo(card).busId)
assert [pynvml.nvmlDeviceGetIndex(one) for one in (card, by_place)] == [1, 1]
assert pynvml.nvmlDeviceGetName(card) == given.name == "Imaginary 9000"
assert not pynvml.nvmlDeviceGetComputeRunningProcesses(card)
held = torch.empty(100 << 20, dtype=torch.uint8, device="cuda:1")
kept, used = 300 << 20, 600 << 20
total = (10 << 30) + kept
memory = pynvml.nvmlDeviceGetMemoryInfo(card, pynvml.nvmlMemory_v2)
assert (memory.total, memory.reserved, memory.used) == (total, kept, used)
assert memory.free == total - used - kept
first = pynvml.nvmlDeviceGetMemoryInfo(card)
assert (first.total, first.used) == (total, used + kept)
(running,) = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
assert (running.pid, running.usedGpuMemory) == (os.getpid(), used)
assert pynvml.nvmlSystemGetDriverVersion() == "580.65.06"
assert pynvml.nvmlSystemGetCudaDriverVersion() == 13000
assert torch.cuda.utilization(1) == 0
assert pynvml.nvmlDeviceGetCudaComputeCapability(card) == (8, 0)
try:
    pynvml.nvmlDeviceGetMigMode(card)
except pynvml.NVMLError as error:
    mig = error.value
assert mig == 3
""",
        DEVICES=2,
        NAME="Imaginary 9000",
        MEMORY=10 << 30,
        KEPT=300 << 20,
        OUTSIDE=500 << 20,
    )


@pytest.mark.parametrize("linked", [0, 1])
def test_nvml_says_whether_nvlink_joins_two_gpus(over_stub, linked):
    over_stub(
        f"""
import ctypes
nvml, status = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_int(-1)
cards = [ctypes.c_void_p(), ctypes.c_void_p()]
for index, card in enumerate(cards):
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(card))
said = []
for capability in (0, 2):
    assert nvml.nvmlDeviceGetP2PStatus(*cards, capability, ctypes.byref(status)) == 0
    said.append(status.value)
assert said == [0, 0 if {linked} else 5]
""",
        DEVICES=2,
        LINKED=linked,
    )


def test_memory_of_another_process_has_addresses_and_takes_nothing_here(over_stub):
    over_stub(
        """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
theirs, handle, mine = ctypes.c_void_p(), Handle(), ctypes.c_void_p()
cuda.cuMemAlloc_v2(ctypes.byref(theirs), ctypes.c_size_t(64 << 20))
before = torch.cuda.mem_get_info()[0]
begins, size, inside = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p(theirs.value + 999)
for attribute, value in ((11, begins), (12, size)):
    assert cuda.cuPointerGetAttribute(ctypes.byref(value), attribute, inside) == 0
assert (begins.value, size.value) == (theirs.value, 64 << 20)
assert cuda.cuMemGetAddressRange_v2(None, ctypes.byref(size), ctypes.c_void_p(8)) == 1
assert cuda.cuIpcGetMemHandle(ctypes.byref(handle), theirs) == 0
assert cuda.cuIpcOpenMemHandle_v2(ctypes.byref(mine), handle, 1) == 0
assert mine.value not in (None, theirs.value)
assert cuda.cuMemsetD8_v2(mine, 1, ctypes.c_size_t(64 << 20)) == 0
assert cuda.cuIpcCloseMemHandle(mine) == 0

piece, fd, imported = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_void_p()
kind = (ctypes.c_int * 4)(1, 1, 1, 0)
assert cuda.cuMemCreate(ctypes.byref(piece), ctypes.c_size_t(8 << 20), kind, ctypes.c_ulong(0)) == 0
held = torch.cuda.mem_get_info()[0]
assert held == before - (8 << 20)
assert cuda.cuMemExportToShareableHandle(ctypes.byref(fd), piece, 1, ctypes.c_ulong(0)) == 0
given = ctypes.c_void_p(fd.value)
assert cuda.cuMemImportFromShareableHandle(ctypes.byref(imported), given, 1) == 0
assert torch.cuda.mem_get_info()[0] == held
cuda.cuMemRelease(imported)
assert torch.cuda.mem_get_info()[0] == held
cuda.cuMemRelease(piece)
assert torch.cuda.mem_get_info()[0] == before
""",
        MEMORY=1 << 30,
    )


def test_a_runtime_that_is_linked_into_a_package_fails_and_does_not_crash(over_stub):
    over_stub(
        """
import ctypes
table = ctypes.c_void_p(1)
assert ctypes.CDLL("libcuda.so.1").cuGetExportTable(ctypes.byref(table), b"0" * 16) == 500
assert table.value is None
"""
    )
