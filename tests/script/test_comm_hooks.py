"""DDP calls the communication hook that a script gives it."""

from memcalc.script.simulate import plan_of, simulate

HOOKS = """
import torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
torch.cuda.set_device(0)
seen = []

def halved(state, bucket):
    state.append(bucket.buffer().numel())
    sent = bucket.buffer().half()
    work = dist.all_reduce(sent, async_op=True)
    return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))

squeezed = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
for state, hook in (
    (seen, halved),
    (None, default_hooks.bf16_compress_hook),
    (squeezed, powerSGD_hook.powerSGD_hook),
):
    model = DistributedDataParallel(torch.nn.Linear(256, 256).cuda())
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.ones(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    try:
        model.register_comm_hook(state, hook)
    except RuntimeError as error:
        assert "only be called once" in str(error)
    else:
        raise AssertionError
assert seen == [256 * 256 + 256] * 4, seen
assert squeezed.error_dict
"""


def test_a_hook_of_the_script_is_called_with_each_bucket(run, tmp_path, parent):
    (tmp_path / "train.py").write_text(HOOKS)
    command = ["torchrun", "--nproc-per-node", "2", "train.py"]
    found = simulate(plan_of(command, steps=0, torch="2.13"), parent)
    assert found.ending.code == 0
    assumed = found.traced.prediction.assumptions
    assert any("communication hook runs at once" in said for said in assumed)
