"""Any rank of a command runs, or one of each kind, and gets what others send."""

import textwrap

import pytest

from memcalc.errors import UsageError
from memcalc.records.trace import Component
from memcalc.script.simulate import make_plan, simulate

STAGES = """
    import os, torch, torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    dist.init_process_group("nccl")
    rank, here = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(here)
    mesh = dist.init_device_mesh("cuda", (2, 2), mesh_dim_names=("data", "stage"))
    place, group = mesh.get_local_rank("stage"), mesh.get_group("stage")
    width = [64, 512]
    names = ["first", None] if rank == 0 else [None, None]
    dist.broadcast_object_list(names, src=0)
    assert names[0] == "first"
    peer, own = rank ^ 1, torch.tensor([rank], device=here)
    got = torch.zeros_like(own)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, peer, group),
                                        dist.P2POp(dist.isend, own, peer, group)]):
        work.wait()
    assert got.item() == peer
    model = torch.nn.Linear(width[place], 512).to(here)
    stage = PipelineStage(model, place, 2, here, group=group)
    schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        if place == 0:
            schedule.step(torch.ones(4096, 64, device=here))
        else:
            schedule.step(target=torch.ones(4096, 512, device=here))
        optimizer.step()
        optimizer.zero_grad()
"""

WAITS = """
    import torch, torch.distributed as dist
    dist.init_process_group("nccl")
    torch.ones(1024, device="cuda")
    size = torch.tensor([41], device="cuda")
    if dist.get_rank() == 0:
        dist.isend(size, 1).wait()
        dist.send(size + 1, 1)
    else:
        for number in (41, 42, 43):
            dist.recv(size, src=0)
            assert size.item() == number
"""

FAILS = """
    import torch, torch.distributed as dist
    dist.init_process_group("nccl")
    flags = torch.zeros(3, dtype=torch.long, device="cuda")
    if dist.get_rank() == 0:
        raise ValueError("no documents for a test")
    dist.broadcast(flags, src=0)
    flags[0].item()
"""

SPAWNS = """
    import torch, torch.distributed as dist, torch.multiprocessing as mp
    def train(rank, world):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=world)
        model = torch.nn.Linear(256 * (1 + rank), 256).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(8, 256 * (1 + rank), device="cuda")).sum().backward()
        optimizer.step()
    if __name__ == "__main__":
        mp.spawn(train, args=(2,), nprocs=2)
"""


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """Simulate a script that a launcher starts, or that starts its processes itself."""
    monkeypatch.chdir(tmp_path)

    def run(text, rank, processes=None, **settings):
        (tmp_path / "train.py").write_text(textwrap.dedent(text))
        launcher = ["torchrun", "--nproc-per-node", str(processes)] if processes else ["python"]
        return simulate(make_plan([*launcher, "train.py"], rank=rank, **settings))

    return run


def test_of_all_ranks_one_of_each_stage_runs_and_gets_what_the_others_send(ranks):
    found = ranks(STAGES, "all", 4)
    assert found.ending.code == 0
    prediction = found.traced.prediction
    first, last = prediction.ranks
    assert sorted((first.rank, *first.alike)) == [0, 2]
    assert sorted((last.rank, *last.alike)) == [1, 3]
    assert (first.stage, last.stage) == (0, 1)
    # The second stage gets what the first sends, whose width only that knows.
    assert last.dominant is Component.ACTIVATIONS
    assert prediction.rank == last.rank
    assert prediction.peak == last.peak
    # Ranks beside it are no processes of the script's.
    assert not any("started" in one for one in prediction.uncounted)


@pytest.mark.nightly
def test_a_rank_alone_takes_what_it_takes_among_all(ranks):
    among = {one.rank: one.peak for one in ranks(STAGES, "all", 4).traced.prediction.ranks}
    for rank, peak in among.items():
        assert ranks(STAGES, rank, 4).traced.prediction.peak == peak


@pytest.mark.nightly
def test_a_rank_that_would_wait_without_end_ends_with_one_sentence(ranks, capfd):
    found = ranks(WAITS, "last", 2)
    assert found.ending.code == 1
    assert (
        "rank 1 would wait without end in recv(src=0) at train.py:11: rank 0 ends without"
        in capfd.readouterr().err
    )


@pytest.mark.nightly
def test_what_a_rank_fails_by_that_another_waits_for_is_shown(ranks, capfd):
    assert ranks(FAILS, "last", 2).ending.code == 1
    said = capfd.readouterr().err
    assert "rank 1 would wait without end in broadcast(src=0)" in said
    assert "ValueError: no documents for a test" in said


@pytest.mark.nightly
def test_a_rank_of_spawned_processes_runs(ranks):
    found = ranks(SPAWNS, "all", steps=0).traced.prediction.ranks
    assert [one.rank for one in found] == [0, 1]
    assert found[1].peak.requested > found[0].peak.requested
    with pytest.raises(UsageError, match="--rank 2: the program starts 2 processes"):
        ranks(SPAWNS, 2, steps=0)
