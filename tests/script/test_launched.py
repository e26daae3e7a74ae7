"""A script that a launcher starts runs as one rank of all, whatever ranks do for each other."""

import textwrap

import pytest

from memcalc.records.trace import Component
from memcalc.script.simulate import make_plan, simulate
from tests.evidence.judged import DEEPSPEED

LAUNCHED = """
    import os, torch, torch.distributed as dist
    dist.init_process_group("nccl")
    assert dist.get_world_size() == 4 == torch.cuda.device_count()
    model = torch.nn.Linear(512, 512).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(8, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    everybody = [None] * 4
    dist.all_gather_object(everybody, {"rank": dist.get_rank()})
    assert everybody == [{"rank": 0}] * 4
    dist.destroy_process_group()
"""


PIPELINED = """
    import os, torch, torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    dist.init_process_group("nccl")
    here = torch.device("cuda", 0)
    model = torch.nn.Linear(512, 512, bias=False).to(here)
    stage = PipelineStage(model, 0, 4, here)
    schedule = Schedule1F1B(stage, 8, loss_fn=torch.nn.functional.mse_loss)
    torch.distributed.fsdp.fully_shard(model, mesh=dist.init_device_mesh("cuda", (4,)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(3):
        schedule.step(torch.ones(64, 512, device=here))
        optimizer.step()
        optimizer.zero_grad()
    import torch.distributed.checkpoint as dcp
    dcp.save(state_dict={"model": model.state_dict()}, checkpoint_id="shards")
    dcp.async_save({"model": model.state_dict()}, checkpoint_id="later").result()
    assert os.path.isdir("shards") and os.path.isdir("later")
    dcp.load(state_dict={"model": model.state_dict()}, checkpoint_id="shards")
    model.to("cpu")  # PyTorch swaps DTensors, if they have no weak references.
"""


FLAT = """
    import torch, torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    dist.init_process_group("nccl")
    model = FSDP(torch.nn.Sequential(*map(torch.nn.Linear, (64,) * 4, (64,) * 4)),
                 device_id=0, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    held = {"x": torch.full((1 << 20,), 1.0, device="cuda")}
    for _ in range(3):
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    whole = FSDP.optim_state_dict(model, optimizer)
    assert whole["state"]["3.weight"]["exp_avg"].shape == (64, 64)
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, whole))
"""


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

    heard = [broadcast({"rank": rank}, source) for source in range(world)]
    assert rank or heard == [{"rank": 0}] * 4
    assert gather({"rank": rank}) == [{"rank": rank}] * 4
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


ON_ANOTHER_STREAM = """
import os, torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).cuda())
other = torch.cuda.Stream()
for _ in range(2):
    with torch.cuda.stream(other):
        model(torch.randn(4096, 512, device="cuda")).square().sum().backward()
    torch.cuda.synchronize()
    model.zero_grad()
"""


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Simulate the first of four ranks of a program."""
    monkeypatch.chdir(tmp_path)

    def launch(program):
        (tmp_path / "ranks.py").write_text(textwrap.dedent(program))
        return simulate(make_plan(["torchrun", "--nproc-per-node", "4", "ranks.py"], steps=0))

    return launch


@pytest.mark.nightly
@pytest.mark.skipif(not DEEPSPEED, reason="runs DeepSpeed's own code")
def test_deepspeed_without_a_launcher_says_what_to_type(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alone.py").write_text("import deepspeed\ndeepspeed.init_distributed()\n")
    assert simulate(make_plan(["python", "alone.py"])).ending.code == 1
    said = capfd.readouterr().err
    assert "type deepspeed or torchrun --nproc-per-node 1" in said
    assert "Traceback" not in said


def test_messages_of_other_ranks_are_what_this_rank_sends(launch):
    assert launch(PACKED).ending.code == 0


def test_a_launched_script_is_one_rank_of_all(launch):
    found = launch(LAUNCHED)
    assert found.ending.code == 0
    prediction = found.traced.prediction
    assert prediction.components[Component.COMMUNICATION] >= 4 * (512 * 512 + 512)
    assert any("rank 0 of 4" in one for one in prediction.assumptions)


def test_a_shell_or_a_script_that_says_it_is_a_rank_of_many_needs_no_peer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank.py").write_text(textwrap.dedent(LAUNCHED.replace("0}]", "3}]")))
    shell = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "10.255.255.1"}
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    found = simulate(make_plan(["python", "rank.py"], steps=0))
    assert found.ending.code == 0
    assert any("rank 3 of 4" in one for one in found.traced.prediction.assumptions)


def test_a_step_on_another_stream_is_not_what_ranks_send(launch):
    found = launch(ON_ANOTHER_STREAM).traced.prediction.components
    weights = 4 * 2 * (512 * 512 + 512)
    assert found[Component.ACTIVATIONS] >= 4 * 4096 * 512
    assert weights <= found[Component.COMMUNICATION] < 2 * weights


EXECUTED = """
import os, sys
os.execvpe('python', ['python', '-m', 'torch.distributed.run', '--nproc-per-node', '2',
 'started.py', '-x y'], {**os.environ, 'SIZE': '7'})
"""
CALLED = """
import os
from accelerate.commands.launch import launch_command, launch_command_parser
os.environ['SIZE'] = '7'
words = ['--multi_gpu', '--num_processes', '2', 'started.py', '-x y']
launch_command(launch_command_parser().parse_args(words))
"""


@pytest.mark.parametrize(
    ("launcher", "typed"),
    [
        (EXECUTED, "--nproc-per-node 2"),
        pytest.param(CALLED, "--nproc-per-node=2", marks=pytest.mark.nightly),
    ],
)
def test_a_program_that_becomes_a_launcher_is_what_that_starts(
    launcher, typed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "started.py").write_text(
        "import os, sys, torch\n"
        "assert (os.environ['SIZE'], os.environ['WORLD_SIZE'], sys.argv[1]) == ('7', '2', '-x y')\n"
        "torch.nn.Linear(512, 512).cuda()(torch.ones(8, 512, device='cuda')).sum().backward()\n"
    )
    (tmp_path / "launcher.py").write_text(launcher)
    found = simulate(plan := make_plan(["python", "launcher.py"]))
    assert found.ending.code == 0
    prediction = found.traced.prediction
    assert prediction.plan == plan
    assert f"{typed} started.py '-x y', which ran in its place" in prediction.assumptions[0]
    assert prediction.components[Component.WEIGHTS] == 4 * (512 * 512 + 512)


@pytest.mark.nightly
def test_a_stage_of_a_pipeline_runs_alone_and_its_shards_are_not_written(launch, tmp_path):
    found = launch(PIPELINED)
    assert (found.ending.code, found.ending.steps) == (0, 3)
    assert not (tmp_path / "shards").exists()
    prediction = found.traced.prediction
    state = 2 * 4 * 512 * 512 // 4  # of this rank's share
    assert sum(one.bytes for one in prediction.optimizer_state.tensors) == state + 4
    assert prediction.components[Component.OPTIMIZER_STATE] == state


@pytest.mark.nightly
def test_states_that_ranks_gather_are_whole_and_what_a_variable_holds_is_held(launch):
    found = launch(FLAT)
    assert found.ending.code == 0
    assert found.traced.prediction.components[Component.HELD] == 4 << 20


@pytest.mark.nightly
@pytest.mark.skipif(not DEEPSPEED, reason="runs DeepSpeed's own code")
@pytest.mark.parametrize("stage", [0, 2])
def test_norms_that_deepspeed_checks_decide_nothing(tmp_path, monkeypatch, stage):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(f"""
import deepspeed, torch
net = torch.nn.Linear(64, 64)
adam = {{"type": "AdamW", "params": {{"lr": 1e-4, "torch_adam": True}}}}
settings = {{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "optimizer": adam}}
settings |= {{"bf16": {{"enabled": True}}, "zero_optimization": {{"stage": {stage}}}}}
engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=settings)
for _ in range(2):
    engine.backward(engine(torch.ones(4, 64).cuda().bfloat16()).float().mean())
    engine.step()
""")
    ending = simulate(make_plan(["torchrun", "--nproc-per-node", "2", "train.py"])).ending
    assert (ending.code, ending.decides, ending.escapes) == (0, {}, ())
