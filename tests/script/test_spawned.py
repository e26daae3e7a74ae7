"""Processes that a script starts by multiprocessing: the first runs here, or it is said why not."""

import pytest

from memcalc.errors import EstimateError

STARTS = """
import torch, torch.multiprocessing as mp

def train(given):
    pass

if __name__ == "__main__":
    mp.set_start_method("spawn", force=True)
    model = torch.nn.Linear(8, 8).cuda()
    {}
"""
LOST = """
    import signal
    tell, told = signal.pthread_kill, []
    signal.pthread_kill = lambda *given: told.append(given) or told[1:] and tell(*given)
"""
"""A signal that comes as the script is about to wait does not wake it."""
SENDS = (
    "process = mp.Process(target=train, args=(model,)); process.start(); process.join()",
    f"{LOST}    queue = mp.Queue(); queue.put(model(torch.ones(2, 8).cuda())); queue.get()",
)


@pytest.mark.parametrize("sends", SENDS)
def test_what_has_no_memory_is_sent_to_no_process(run, sends):
    with pytest.raises(EstimateError, match="the script's own process"):
        run(STARTS.format(sends))


WORKS = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

def work(rank, world, options):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29512"
    dist.init_process_group("nccl", rank=rank, world_size=world)
    torch.cuda.set_device(rank)
    assert torch.cuda.is_available() and options["width"] == 512
    model = DistributedDataParallel(torch.nn.Linear(512, 512).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        model(torch.randn(4, 512, device=rank)).sum().backward()
        optimizer.step()

def ask(queue):
    queue.put(torch.ones(8, device="cuda").sum().item())

if __name__ == "__main__":
    mp.set_start_method(sys.argv[1], force=True)
    if sys.argv[2] == "asks":
        queue = mp.Queue()
        mp.Process(target=ask, args=(queue,)).start()
        queue.get()
    started = [mp.Process(target=work, args=(rank, 2, {"width": 512})) for rank in range(2)]
    [process.start() for process in started]
    if sys.argv[2] == "joins":
        [process.join() for process in started]
        assert [process.exitcode for process in started] == [0, 0]
"""


@pytest.mark.parametrize(
    ("how", "waits"),
    [
        ("spawn", "joins"),
        ("fork", "ends"),
        pytest.param("spawn", "ends", marks=pytest.mark.nightly),
        pytest.param("fork", "joins", marks=pytest.mark.nightly),
    ],
)
def test_of_processes_that_use_the_gpu_the_first_runs_here(run, how, waits):
    found = run(WORKS, how, waits)
    assert (found.ending.code, found.ending.steps) == (0, 2)
    said = "; ".join(found.traced.prediction.assumptions)
    assert "of 2 processes that the script starts for the GPU the first runs" in said
    assert "rank 0 of 2" in said


def test_one_that_is_waited_for_by_a_queue_has_no_gpu(run):
    with pytest.raises(EstimateError, match="the script's own process"):
        run(WORKS, "spawn", "asks")


POOLS = """
import multiprocessing, os, torch

torch.ones(8, device="cuda")
if __name__ == "__main__":
    def lost(*_):
        raise ChildProcessError
    os.waitid = lost
    multiprocessing.get_context("spawn").Pool(1).map(abs, [1])
"""


@pytest.mark.nightly
def test_a_pool_that_sees_first_how_its_process_ended_says_so_too(run):
    with pytest.raises(EstimateError, match="the script's own process"):
        run(POOLS)
