"""Scripts that a launcher starts once a GPU: the first of the processes is simulated."""

import importlib.util
import textwrap

import pytest

from memcalc.errors import UsageError
from memcalc.estimation.outside import NCCL
from memcalc.records.trace import Component
from memcalc.script import launchers
from memcalc.script.simulate import plan_of, simulate

DEEPSPEED_IS_HERE = importlib.util.find_spec("deepspeed") is not None
SCRIPT = """
    import os, torch, torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("nccl")
    place = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(place)
    assert (dist.get_rank(), dist.get_world_size()) == (0, 8)
    assert torch.cuda.device_count() == torch.accelerator.device_count() == 8
    dist.new_group(backend="gloo").monitored_barrier()
    dist.monitored_barrier()
    assert torch.cuda.get_device_name(7) == torch.cuda.get_device_name(0)
    assert len(torch.cuda.get_rng_state_all()) == 8
    try:
        torch.ones(1, device="cuda:1")
    except torch.AcceleratorError as error:
        said = "has 8 GPUs, of which this process has cuda:0", "stand-in driver"
        assert any(words in str(error) for words in said)
    else:
        raise AssertionError
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, bias=False) for _ in range(4)]).cuda()
    WRAP
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(9):
        model(torch.randn(4, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, torch.cuda.max_memory_allocated(), file=open("said", "a"))
    dist.destroy_process_group()
"""
WRAPS = {
    "ddp": "model = DistributedDataParallel(model, device_ids=[place])",
    "fsdp2": "[fully_shard(layer) for layer in model]; fully_shard(model)",
    "fsdp2 that is filled in shards": (
        "model = model.to('meta'); [fully_shard(layer) for layer in model]; fully_shard(model); "
        "model.to_empty(device='cuda'); [layer.reset_parameters() for layer in model]"
    ),
}
WEIGHTS = 4 * 4 * 512 * 512


@pytest.mark.parametrize(
    ("wrap", "share"), [("ddp", 1), ("fsdp2", 8), ("fsdp2 that is filled in shards", 8)]
)
def test_the_first_of_eight_processes_holds_its_share(parent, tmp_path, monkeypatch, wrap, share):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT).replace("WRAP", WRAPS[wrap]))
    found = simulate(plan_of(["torchrun", "--nproc-per-node", "8", "train.py"]), parent)
    assert (found.ending.code, found.ending.steps) == (0, 3)
    prediction = found.traced.prediction
    assert prediction.components[Component.WEIGHTS] == WEIGHTS // share
    seen = [int(line.split()[1]) for line in (tmp_path / "said").read_text().splitlines()]
    assert seen[2] == prediction.peak.allocated
    assert any("rank 0 of 8" in said for said in prediction.assumptions)


SPAWNS = """
    import os, torch, torch.distributed as dist, torch.multiprocessing as mp
    from torch.nn.parallel import DistributedDataParallel

    def work(rank, world):
        dist.init_process_group("nccl", rank=rank, world_size=world)
        torch.cuda.set_device(rank)
        model = DistributedDataParallel(torch.nn.Linear(512, 512).to(rank), device_ids=[rank])
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            model(torch.randn(4, 512, device=rank)).sum().backward()
            optimizer.step()
        dist.all_reduce(torch.ones(1, device="cuda"))
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.spawn(work, args=(4,), nprocs=4, join=True)
        assert mp.spawn(work, args=(1,), join=False).join()
"""


def test_of_spawned_processes_the_first_runs(parent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(SPAWNS))
    found = simulate(plan_of(["python", "-O", "-u", "train.py"], steps=0), parent)
    assert (found.ending.code, found.ending.steps) == (0, 2)
    prediction = found.traced.prediction
    assert prediction.components[Component.GRADIENTS] >= 4 * 512 * 513
    said = "; ".join(prediction.assumptions)
    assert "of 4 spawned processes (train.py:17) the first runs" in said
    assert "rank 0 of 4" in said
    assert "options are left out: -O;" in said


def test_torchrun_says_how_many_and_what_each_finds():
    words = ["--nnodes", "2", "--nproc-per-node=4", "-m", "pkg.train", "--lr", "1"]
    launch = launchers.understand("torchrun", words)
    assert (launch.script, launch.is_module, launch.arguments) == ("pkg.train", True, ("--lr", "1"))
    found = launch.environment(5)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    assert [found[name] for name in names] == ["5", "1", "8", "4", "1"]


@pytest.mark.parametrize(
    ("options", "told"), [((), ("--local-rank=0", "--lr", "1")), (("--use_env",), ("--lr", "1"))]
)
def test_the_older_launcher_tells_the_rank_by_an_argument(options, told):
    words = [*options, "--nproc_per_node", "2", "train.py", "--lr", "1"]
    launch = launchers.understand("torch.distributed.launch", words)
    assert (launch.script, launch.arguments, launch.world) == ("train.py", told, 2)


def test_launchers_that_count_gpus_count_those_that_are_named():
    words = ["--nproc-per-node", "gpu", "train.py"]
    assert launchers.understand("torchrun", words, 4).world == 4
    named, alone = (
        launchers.understand("accelerate", ["launch", "train.py"], gpus) for gpus in (4, None)
    )
    assert (named.world, named.assumed) == (4, "")
    assert alone.world == 1
    assert "--gpu 8xh100" in alone.assumed


def test_accelerates_own_parser_reads_its_command_and_its_config(tmp_path):
    config = tmp_path / "fsdp.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 4\n"
        "num_machines: 1\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n"
        "  fsdp_cpu_ram_efficient_loading: false\n"
    )
    words = ["launch", "--config_file", str(config), "train.py", "--epochs", "3"]
    launch = launchers.understand("accelerate", words)
    assert (launch.script, launch.arguments, launch.world) == ("train.py", ("--epochs", "3"), 4)
    found = launch.environment(0)
    assert (found["ACCELERATE_USE_FSDP"], found["FSDP_VERSION"]) == ("true", "2")
    assert found["ACCELERATE_MIXED_PRECISION"] == "bf16"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nproc-per-node", "gpu", "train.py"], "say how many there will be"),
        (["--nproc-per-node", "some", "train.py"], "no number of processes"),
        (["--no-such-option", "train.py"], "torchrun does not take this"),
        (["--nproc-per-node", "2", "--no-python", "a"], "is not Python's"),
        ([], "torchrun does not take this"),
    ],
)
def test_what_a_launcher_cannot_start_is_said_in_one_sentence(words, said):
    with pytest.raises(UsageError, match=said):
        launchers.understand("torchrun", words)


LISTS = """
    import os, torch, torch.distributed as dist

    dist.init_process_group("nccl")
    world = dist.get_world_size()
    part = torch.ones(1 << 20, device="cuda")
    parts = [torch.empty_like(part) for _ in range(world)]
    held = torch.cuda.memory_allocated()
    dist.all_gather(parts, part)
    assert torch.cuda.max_memory_allocated() - held == 4 * world << 20, "laid in one"
    torch.cuda.reset_peak_memory_stats()
    dist.reduce_scatter(part, parts)
    assert torch.cuda.max_memory_allocated() - held == 4 * world << 20
    counts = [torch.zeros(1, dtype=torch.long, device="cuda") for _ in range(world)]
    dist.all_gather(counts, torch.full((1,), 7, device="cuda"))
    assert [int(count) for count in counts] == [7] * world
    whole = torch.zeros(2 * world, dtype=torch.long, device="cuda")
    dist.all_gather_into_tensor(whole, torch.tensor([1, 2], device="cuda"))
    assert whole.tolist() == [1, 2] * world
    said = [None] * world
    dist.all_gather_object(said, {"rank": 3})
    dist.broadcast_object_list(said)
    assert said == [{"rank": 3}] * world
    dist.barrier()
"""


def test_a_process_finds_what_it_sent_in_what_it_gathers(parent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(LISTS))
    plan = plan_of(["torchrun", "--nproc-per-node", "3", "train.py"], gpu="h100-sxm")
    found = simulate(plan, parent)
    assert found.ending.code == 0
    context = found.traced.prediction.context
    assert any(part.name == NCCL and "1 group" in part.source for part in context.parts)
    alone = simulate(plan_of(["python", "train.py"], gpu="h100-sxm"), parent)
    assert alone.ending.code == 0
    assert not any(part.name == NCCL for part in alone.traced.prediction.context.parts)


DEEPSPEED = """
    import deepspeed, torch

    layers = [torch.nn.Linear(256, 256, bias=False) for _ in range(8)]
    model = torch.nn.Sequential(*layers)
    groups = [{"params": [layer.weight]} for layer in layers]
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=OPTIMIZER,
        config={
            "train_micro_batch_size_per_gpu": 2,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": STAGE, "reduce_bucket_size": 65536},
            MORE
        },
    )
    for step in range(9):
        x = torch.randn(2, 256, device=engine.device, dtype=torch.bfloat16)
        engine.backward(engine(x).square().mean())
        engine.step()
        print(step, file=open("said", "a"))
"""
ZERO = {"stage 1": 1, "stage 2": 2, "stage 3": 3}
OPTIMIZERS = {
    "its own": ("None", '"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}'),
    "of groups": ("torch.optim.AdamW(groups)", '"zero_allow_untested_optimizer": True'),
}


@pytest.mark.skipif(not DEEPSPEED_IS_HERE, reason="runs DeepSpeed's own code")
@pytest.mark.parametrize("stage", ZERO.values(), ids=ZERO)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_of_deepspeeds_engine_is_one_step(parent, tmp_path, monkeypatch, stage, optimizer):
    monkeypatch.chdir(tmp_path)
    made, more = OPTIMIZERS[optimizer]
    text = DEEPSPEED.replace("OPTIMIZER", made).replace("STAGE", str(stage)).replace("MORE", more)
    (tmp_path / "train.py").write_text(textwrap.dedent(text))
    found = simulate(plan_of(["deepspeed", "--num_gpus", "4", "train.py"], steps=2), parent)
    assert (found.ending.code, found.ending.steps, found.ending.stopped) == (0, 2, True)
    assert (tmp_path / "said").read_text().split() == ["0", "1"]
    prediction = found.traced.prediction
    numbers = 8 * 256 * 256
    assert prediction.parameters == numbers
    assert prediction.components[Component.WEIGHTS] == 2 * numbers // (4 if stage == 3 else 1)
    assert prediction.components[Component.MASTER_WEIGHTS] == numbers
    assert prediction.components[Component.OPTIMIZER_STATE] - 2 * numbers < 100


def test_accelerates_config_with_deepspeed_needs_deepspeed(tmp_path):
    config = tmp_path / "ds.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 4\n"
        "num_machines: 1\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n"
        "  zero3_init_flag: true\n"
    )
    words = ["launch", "--config_file", str(config), "train.py"]
    if not DEEPSPEED_IS_HERE:
        with pytest.raises(UsageError, match=r"deepspeed is not installed here.*pip install"):
            launchers.understand("accelerate", words)
        return
    launch = launchers.understand("accelerate", words)
    found = launch.environment(0)
    assert (launch.world, found["ACCELERATE_USE_DEEPSPEED"]) == (4, "true")
    assert found["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert "mixed_precision" in found["ACCELERATE_CONFIG_DS_FIELDS"]
