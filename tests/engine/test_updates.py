"""Each step of a run updates the weights, in every layout and under every loop that takes it."""

import json

import pytest

from memcalc.catalog.plan import make
from memcalc.estimation.answers import Answers
from memcalc.records.trace import Component, Phase
from memcalc.workload import layouts
from tests.agreement.test_layouts import EXPERTS
from tests.evidence.judged import DEEPSPEED

SPREAD = {"hsdp": "hsdp=2x2", "tp": "tp=2,fsdp2=2"}
"""How a layout is written, where that is not its name alone."""
DRIVEN = ("accelerate", "trainer")
ENGINES = tuple(name for name in layouts.names() if layouts.find(name).package)
CASES = [
    *((name, "plain") for name in layouts.names()),
    *((name, loop) for name in layouts.driven() for loop in DRIVEN),
]
BY_DAY = (("single", "plain"), ("fsdp2", "accelerate"), ("zero2", "plain"), ("zero3", "trainer"))


def cases():
    for name, loop in CASES:
        marks = [] if (name, loop) in BY_DAY else [pytest.mark.nightly]
        if layouts.find(name).package:
            marks.append(pytest.mark.skipif(not DEEPSPEED, reason="runs DeepSpeed's own code"))
        yield pytest.param(name, loop, marks=marks, id=f"{name}-{loop}")


@pytest.fixture
def trace(small_model, tmp_path):
    experts = tmp_path / "experts.json"
    experts.write_text(json.dumps(EXPERTS))
    # GPT-2 has no plan for its parts, its stages or experts.
    own = {"tp": "Qwen/Qwen2.5-0.5B", "pp": "Qwen/Qwen2.5-0.5B", "ep": str(experts)}

    def traced(layout, loop, **more):
        settings = {"gpu": "A100-80GB", "batch": 2, "seq": 32, "optim": "adamw", **more}
        if layout == "cp":
            settings["seq"] = 64 * 4  # Ring attention in fp32 takes multiples of 64 for each part.
        if layout != "single":
            settings |= {"devices": 4, "parallel": SPREAD.get(layout, layout)}
        if layout == "pp":
            settings["batch"] = 8
        model = own.get(layout, small_model)
        return Answers().trace(make({"model": model, "loop": loop, **settings})).trace

    return traced


def made_in_updates(trace):
    """Bytes that are allocated in each step's update."""
    made = [0] * trace.steps
    for storage in trace.storages:
        if storage.phase is Phase.STEP:
            made[storage.step] += storage.bytes
    return made


@pytest.mark.parametrize(("layout", "loop"), cases())
def test_each_step_updates_and_foreach_makes_more_than_fused(trace, layout, loop):
    foreach, fused = (
        made_in_updates(trace(layout, loop, optim_args={name: True}))
        for name in ("foreach", "fused")
    )
    assert len(foreach) == len(fused) > 2
    assert all(some > none for some, none in zip(foreach, fused, strict=True))


@pytest.mark.skipif(not DEEPSPEED, reason="runs DeepSpeed's own code")
@pytest.mark.parametrize("loop", [pytest.param("plain", marks=pytest.mark.nightly), "trainer"])
def test_an_engines_state_and_master_weights_have_their_names(trace, loop):
    found = trace("zero2", loop, precision="amp-bf16")
    shard = sum(one.bytes for one in found.inventory.tensors if not one.buffer) // 4
    held = dict.fromkeys(Component, 0)
    for storage in found.storages:
        if storage.step == 0:
            held[storage.component] += storage.bytes
    assert held[Component.MASTER_WEIGHTS] == pytest.approx(shard, rel=0.01)
    assert held[Component.OPTIMIZER_STATE] == pytest.approx(2 * shard, rel=0.01)


@pytest.mark.skipif(not DEEPSPEED, reason="runs DeepSpeed's own code")
def test_an_engine_under_the_trainer_updates_by_the_optimizer_that_was_named(trace):
    first, second, *_ = made_in_updates(trace("zero2", "trainer", optim="sgd"))
    # AdamW's first step makes its state. After the last one the Trainer gathers losses for its log.
    assert first == second
