"""A plan and the script that it stands for take the same memory."""

import json
import sys

import pytest

from memcalc.catalog.plan import make
from memcalc.estimation.answers import Answers
from memcalc.files.extras import can_import
from memcalc.script.simulate import make_plan, simulate
from tests.conftest import ROOT
from tests.evidence.judged import DEEPSPEED

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "vocab_size": 4000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
SETTINGS = {"gpu": "A100-80GB", "batch": 2, "seq": 128, "padding": False}
LORA = {"precision": "bf16", "lora": "r=8,alpha=16,target=all-linear"}
TWO = {"devices": 2, "rank": 0}
PAIRS = {
    "lora": LORA,
    "qlora": {
        **LORA, "quant": "nf4-dq", "checkpointing": True, "optim": "paged_adamw_8bit",
    },
    "trainer": {"loop": "trainer", "precision": "amp-bf16", "optim": "adamw_torch_fused"},
    "compiled": {"compile": "default"},
    "float8": {
        "gpu": "H100 SXM", "loop": "accelerate", "precision": "amp-bf16", "float8": "tensorwise",
    },
    "ddp": {**TWO, "parallel": "ddp"},
    "fsdp1_lora": {**TWO, **LORA, "parallel": "fsdp1", "autocast_adapter_dtype": False},
    **{
        name: {**TWO, "parallel": name, "precision": "amp-bf16"} for name in ("zero2", "zero3")
    },
}  # fmt: skip
RUNGS = ("requested", "allocated", "reserved")
BY_DAY = ("trainer",)
ENGINES = ("zero2", "zero3")
_OF_ROTARY = {"requested": 128}
EXPLAINED = {"lora": _OF_ROTARY, "fsdp1_lora": _OF_ROTARY}
"""Bytes that scripts take beyond their plans. A plan casts the whole model; with
``dtype=torch.bfloat16`` two tensors of 32 rotary frequencies stay in fp32."""


def cases():
    for name in PAIRS:
        marks = [] if name in BY_DAY else [pytest.mark.nightly]
        if name == "float8":
            marks.append(pytest.mark.skipif(not can_import("torchao"), reason="runs torchao"))
        if name in ENGINES:
            marks.append(pytest.mark.skipif(not DEEPSPEED, reason="runs DeepSpeed's own code"))
        yield pytest.param(name, marks=marks)


@pytest.fixture
def config(tmp_path, monkeypatch):
    path = tmp_path / "llama" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA))
    monkeypatch.chdir(tmp_path)
    return path


def of_plan(config, name):
    answers = Answers()
    return answers.trace(make({"model": str(config), **SETTINGS, **PAIRS[name]}))


def of_script(config, name):
    world, gpu = PAIRS[name].get("devices", 1), PAIRS[name].get("gpu", SETTINGS["gpu"])
    python = ["torchrun", f"--nproc-per-node={world}"] if world > 1 else [sys.executable]
    file, *words = ("zero", name[-1]) if name in ENGINES else (name,)
    script = str(ROOT / "tests" / "agreement" / "pairs" / f"{file}.py")
    command = [*python, script, str(config.parent), *words]
    found = simulate(make_plan(command, steps=0, gpu=gpu), quiet=True)
    assert found.ending.code == 0
    return found.traced


def peaks(trace):
    return {rung: max(getattr(one, rung) for one in trace.readings) for rung in RUNGS}


@pytest.mark.parametrize("name", cases())
def test_a_plan_takes_what_its_script_takes(config, name, forked_scripts):
    plan, script = of_plan(config, name), of_script(config, name)
    planned, simulated = peaks(plan.trace), peaks(script.trace)
    more = EXPLAINED.get(name, {})
    assert simulated == {rung: size + more.get(rung, 0) for rung, size in planned.items()}
    if name in ENGINES:
        assert script.prediction.components == plan.prediction.components
