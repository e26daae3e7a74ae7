"""The simulated GPUs: how many, what they say of themselves, streams and graphs."""

import pytest


@pytest.mark.parametrize(("capability", "processors"), [(75, 40), (80, 108), (90, 132), (120, 170)])
def test_a_gpu_says_what_it_was_told_to_be_in_a_fork(over_stub, capability, processors):
    found = over_stub(
        """
given = torch.cuda.get_device_properties(0)
answer["capability"] = torch.cuda.get_device_capability()
answer["processors"] = given.multi_processor_count
answer["name"], answer["memory"] = given.name, given.total_memory
answer["threads"] = given.max_threads_per_multi_processor
answer["shared"] = given.shared_memory_per_multiprocessor, given.shared_memory_per_block_optin
answer["l2"], answer["registers"] = given.L2_cache_size, given.regs_per_multiprocessor
answer["warp"] = given.warp_size
layer = torch.nn.Linear(64, 64, device="cuda", dtype=torch.float16)
layer(torch.randn(8, 64, device="cuda", dtype=torch.float16)).sum().backward()
torch.sort(torch.randn(1000, device="cuda"))
answer["peak"] = torch.cuda.max_memory_allocated()
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
    assert (found["name"], found["memory"]) == ("Imaginary 9000", 24 << 30)
    assert (found["threads"], found["shared"]) == (1536, [102400, 101376])
    assert (found["l2"], found["registers"], found["warp"]) == (48 << 20, 65536, 32)
    assert found["peak"] > 0


def test_several_gpus_have_each_their_own_memory(over_stub):
    found = over_stub(
        """
answer["count"] = torch.cuda.device_count()
held = [torch.arange(n + 4, device=f"cuda:{n}").cpu() for n in range(2)]
one = torch.empty(10 << 20, dtype=torch.uint8, device="cuda:1")
two = torch.empty(30 << 20, dtype=torch.uint8, device="cuda:3")
answer["allocated"] = [torch.cuda.memory_allocated(n) for n in range(4)]
there = torch.arange(5).to("cuda:1").to("cuda:3")
answer["moved"] = there.tolist(), there.get_device()
answer["uuids"] = len({str(torch.cuda.get_device_properties(n).uuid) for n in range(4)})
answer["free"] = [torch.cuda.mem_get_info(n)[0] >> 20 for n in range(4)]
try:
    torch.empty(1, device="cuda:4")
except RuntimeError as error:
    answer["fifth"] = str(error)
""",
        DEVICES=4,
        MEMORY=1 << 30,
    )
    assert (found["count"], found["uuids"]) == (4, 4)
    assert found["allocated"][1] == 10 << 20
    assert found["allocated"][3] == 30 << 20
    assert found["moved"] == [[0, 1, 2, 3, 4], 3]
    assert found["free"][2] == 1024
    assert found["free"][3] <= 1024 - 30
    assert "invalid device ordinal" in found["fifth"]


@pytest.mark.parametrize(("seen", "count"), [("1,3", 2), ("3,1,7,0", 2), ("", 0), ("-1", 0)])
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
answer["nvml"] = pynvml.nvmlDeviceGetCount()
""",
        DEVICES=4,
        CUDA_VISIBLE_DEVICES=seen,
    )
    assert found["count"] == [count, count]
    assert found["nvml"] == 4
    if count:
        assert int(found["uuid"]) == int(seen[0])


def test_a_gpu_can_be_named_by_its_uuid(over_stub):
    found = over_stub(
        """
answer["uuid"] = str(torch.cuda.get_device_properties(0).uuid)
""",
        DEVICES=4,
        CUDA_VISIBLE_DEVICES="GPU-6d656d63-616c-6300-0000-000000000002",
    )
    assert found["uuid"].endswith("02")


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
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_streams_and_graphs_run(over_stub, program):
    over_stub(PROGRAMS[program])


def test_waiting_for_the_gpu_while_it_captures_is_an_error(over_stub):
    found = over_stub(
        """
x = torch.arange(4).cuda()
for name, wait in (
    ("item", lambda: x.sum().item()),
    ("synchronize", torch.cuda.synchronize),
    ("query", lambda: torch.cuda.current_stream().query()),
):
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            y = x * 2
            wait()
    except RuntimeError as error:
        answer[name] = " ".join(str(error.__context__ or error).split())
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
graph.replay()
answer["next"] = x.tolist()
"""
    )
    assert "not permitted when stream is capturing" in found["item"]
    assert "not permitted when stream is capturing" in found["synchronize"]
    assert "not permitted when stream is capturing" in found["query"]
    assert found["next"] == [0, 1, 2, 3]


def test_announced_numbers_are_what_the_next_readers_find(over_stub):
    found = over_stub(
        """
import ctypes
answers = ctypes.CDLL(None).memcalc_stub_answer
answers.argtypes = [ctypes.c_size_t, ctypes.c_longlong]
mask = torch.zeros(100, dtype=torch.bool, device="cuda")
answer["before"] = mask.nonzero().shape
answers(4, 17), answers(8, 17)
answer["after"] = mask.nonzero().shape
answers(0, 0)
answer["then"] = mask.nonzero().shape
"""
    )
    assert found["before"] == found["then"] == [0, 1]
    assert found["after"] == [17, 1]


def test_nvml_tells_of_the_same_gpus_as_cuda(over_stub):
    found = over_stub(
        """
import os
import pynvml
pynvml.nvmlInit()
given = torch.cuda.get_device_properties(1)
card = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{given.uuid}")
answer["index"] = pynvml.nvmlDeviceGetIndex(card)
by_place = pynvml.nvmlDeviceGetHandleByPciBusId(pynvml.nvmlDeviceGetPciInfo(card).busId)
answer["place"] = pynvml.nvmlDeviceGetIndex(by_place)
answer["name"] = pynvml.nvmlDeviceGetName(card), given.name
answer["before"] = len(pynvml.nvmlDeviceGetComputeRunningProcesses(card))
held = torch.empty(100 << 20, dtype=torch.uint8, device="cuda:1")
memory = pynvml.nvmlDeviceGetMemoryInfo(card, pynvml.nvmlMemory_v2)
answer["memory"] = memory.total, memory.reserved, memory.used, memory.free
first = pynvml.nvmlDeviceGetMemoryInfo(card)
answer["first"] = first.total, first.used
running = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
answer["process"] = [(p.pid == os.getpid(), p.usedGpuMemory) for p in running]
answer["driver"] = pynvml.nvmlSystemGetDriverVersion()
answer["cuda"] = pynvml.nvmlSystemGetCudaDriverVersion()
answer["utilization"] = torch.cuda.utilization(1)
answer["capability"] = pynvml.nvmlDeviceGetCudaComputeCapability(card)
try:
    pynvml.nvmlDeviceGetMigMode(card)
except pynvml.NVMLError as error:
    answer["mig"] = error.value
""",
        DEVICES=2,
        NAME="Imaginary 9000",
        MEMORY=10 << 30,
        KEPT=300 << 20,
        OUTSIDE=500 << 20,
    )
    assert (found["index"], found["place"], found["before"]) == (1, 1, 0)
    assert found["name"] == ["Imaginary 9000"] * 2
    kept, used = 300 << 20, 600 << 20
    total = (10 << 30) + kept
    assert found["memory"] == [total, kept, used, total - used - kept]
    assert found["first"] == [total, used + kept]
    assert found["process"] == [[True, used]]
    assert (found["driver"], found["cuda"]) == ("580.65.06", 13000)
    assert (found["utilization"], found["capability"], found["mig"]) == (0, [8, 0], 3)
