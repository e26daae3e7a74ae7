"""Stages, contexts and experts take what a torchrun script takes that does the same."""

import json

import pytest

from memcalc.catalog.plan import make
from memcalc.estimation.answers import Answers
from memcalc.script.simulate import make_plan, simulate
from tests.agreement.test_pairs import LLAMA, peaks
from tests.conftest import ROOT

DENSE = {**LLAMA, "num_hidden_layers": 8}
EXPERTS = {
    **LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
    "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None,
}  # fmt: skip


def stages(schedule, count, *more, parallel=None, ranks=(0, 1)):
    settings = {"parallel": parallel or f"pp={count}", "parallel_args": {"schedule": schedule}}
    world = count * (2 if more else 1)
    return DENSE, world, ["pp.py", schedule, str(count), *more], {"batch": 8, **settings}, ranks


CASES = {
    "gpipe": stages("GPipe", 2),
    "1f1b": stages("1F1B", 4, ranks=(0, 1, 3)),
    "interleaved": stages("Interleaved1F1B", 2),
    "zero bubble": stages("InterleavedZeroBubble", 2),
    "v-shaped": stages("ZBVZeroBubble", 2),
    "stages and shards": stages("1F1B", 2, "fsdp2", parallel="pp=2,fsdp2=2", ranks=(0, 2)),
    "stages and replicas": stages("1F1B", 2, "ddp", parallel="pp=2,ddp=2", ranks=(0, 2)),
    "contexts": (DENSE, 2, ["cp.py"], {"batch": 2, "parallel": "cp=2"}, (0, 1)),
    "contexts and parts": (
        DENSE, 4, ["cp.py", "tp"], {"batch": 2, "parallel": "tp=2,cp=2"}, (0, 2),
    ),
    "divided experts": (EXPERTS, 2, ["tp.py"], {"batch": 2, "parallel": "tp=2"}, (0,)),
    "experts": (EXPERTS, 2, ["ep.py"], {"batch": 2, "parallel": "ep=2"}, (0, 1)),
}  # fmt: skip
SETTINGS = {"gpu": "A100-80GB", "seq": 128, "padding": False}
ROUNDED = ("v-shaped", "stages and replicas")
"""A plan takes rows for whole sequences without asking transformers, whose check has nine tensors
of 512 bytes a forward: later small blocks lie elsewhere. What tensors ask for is the same."""
TIMED = "pp.py"
"""NCCL's own thread lets go of tensors that stages have passed on when it next looks: what is
reserved differs from run to run, and on a busy machine by several segments."""


def cases():
    for name, (*_, ranks) in CASES.items():
        for rank in ranks:
            yield name, rank


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "rank"), cases())
def test_a_rank_of_a_layout_takes_what_its_script_takes(
    name, rank, tmp_path, monkeypatch, forked_scripts
):
    config, world, (script, *words), settings, _ = CASES[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    plan = make({"model": "config.json", "rank": rank, **SETTINGS, **settings})
    planned = peaks(Answers().trace(plan).trace)
    pair = str(ROOT / "tests" / "agreement" / "pairs" / script)
    command = ["torchrun", f"--nproc-per-node={world}", pair, str(tmp_path), *words]
    run = simulate(make_plan(command, steps=0, gpu=SETTINGS["gpu"], rank=rank), quiet=True)
    assert run.ending.code == 0
    simulated = peaks(run.traced.trace)
    assert simulated["requested"] == planned["requested"]
    if name not in ROUNDED:
        assert simulated["allocated"] == planned["allocated"]
        assert script == TIMED or simulated["reserved"] == planned["reserved"]


def test_a_plan_in_stages_answers_each_and_shows_the_one_that_needs_most(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(DENSE))
    settings = {"batch": 8, "parallel": "pp=2,ddp=2", "parallel_args": {"layers_per_stage": "2,6"}}
    found = Answers().trace(make({"model": str(path), **SETTINGS, **settings})).prediction
    assert [(one.rank, one.alike, one.stage) for one in found.ranks] == [(0, (1,), 0), (2, (3,), 1)]
    first, second = (one.peak.allocated for one in found.ranks)
    assert found.rank == 2
    assert found.peak.allocated == second > first
