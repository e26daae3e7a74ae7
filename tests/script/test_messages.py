"""What other ranks would send is what this rank sends, however it is packed."""

import textwrap

PACKED = """
    import os, pickle, torch, torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()

    def packed(obj):
        data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8).cuda()
        return data, torch.tensor([data.numel()], device="cuda")

    def broadcast(obj, source):
        data, size = packed(obj)
        if source != rank:
            size = torch.zeros_like(size)
        dist.broadcast(size, source)
        if source != rank:
            data = torch.empty(size.item(), dtype=torch.uint8, device="cuda")
        dist.broadcast(data, source)
        return pickle.loads(data.cpu().numpy().tobytes())

    def gather(obj):
        data, size = packed(obj)
        sizes = [torch.zeros_like(size) for _ in range(world)]
        dist.all_gather(sizes, size)
        rows = [torch.empty_like(data) for _ in range(world)]
        dist.all_gather(rows, data)
        return [pickle.loads(one[:size].cpu().numpy().tobytes()) for one in rows]

    def pass_on(number):
        got = torch.zeros_like(number)
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, number, (rank + 1) % world),
            dist.P2POp(dist.irecv, got, (rank - 1) % world),
        ]):
            work.wait()
        return got.item()

    assert [broadcast({"rank": rank}, source) for source in range(world)] == [{"rank": 0}] * 4
    assert gather({"rank": rank}) == [{"rank": 0}] * 4
    assert pass_on(torch.tensor([17], device="cuda")) == 17
    split = torch.arange(4, device="cuda")
    dist.all_to_all_single(taken := torch.zeros_like(split), split)
    assert taken.tolist() == [0, 1, 2, 3]
    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 64)).cuda()
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW)
    net(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.consolidate_state_dict(0)
    state = optimizer.state_dict()["state"]
    for place, parameter in enumerate(net.parameters()):
        assert state[place]["exp_avg"].shape == parameter.shape
"""


def test_messages_of_other_ranks_are_what_this_rank_sends(tmp_path, monkeypatch):
    from memcalc.script.simulate import plan_of, simulate

    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranks.py").write_text(textwrap.dedent(PACKED))
    found = simulate(plan_of(["torchrun", "--nproc-per-node", "4", "ranks.py"], steps=0))
    assert found.ending.code == 0
