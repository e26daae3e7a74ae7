"""A plan that is written out as a script takes what the script takes."""

import shlex
import sys

import pytest

from memcalc.advice.train_script import write
from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.question import look_up
from memcalc.script.simulate import make_plan, simulate
from memcalc.workload import loops

TWO = {"devices": 2, "rank": 0}
LORA = {"lora": "r=8,target=all-linear", "precision": "bf16"}
SMALL = {"batch": 2, "seq": 128}
GPT2, SMOL = "openai-community/gpt2", "HuggingFaceTB/SmolLM2-135M"
PLANS = {
    "plain": {"model": "distilbert-base-cased", **SMALL},
    "amp": {"model": GPT2, **SMALL, "precision": "amp-bf16", "max_grad_norm": 1.0},
    "trainer": {"model": SMOL, **SMALL, "loop": "trainer", "precision": "amp-bf16"},
    "lora": {"model": SMOL, **SMALL, **LORA},
    "scaled": {"model": "bert-base-cased", **SMALL, "precision": "amp-fp16"},
    "clipped": {"model": "bert-base-cased", **SMALL, "precision": "amp-fp16", "max_grad_norm": 1.0},
    "tf32": {"model": "roberta-base", **SMALL, "precision": "tf32"},
    "half": {"model": SMOL, **SMALL, "precision": "bf16"},
    "half amp": {"model": SMOL, **SMALL, "precision": "bf16+amp"},
    "accumulated": {"model": GPT2, **SMALL, "grad_accum": 3},
    "accumulated amp": {"model": GPT2, **SMALL, "grad_accum": 2, "precision": "amp-bf16"},
    "checkpointed": {"model": SMOL, **SMALL, "checkpointing": True},
    "gradients kept": {"model": GPT2, **SMALL, "set_to_none": False},
    "outputs dropped": {"model": GPT2, **SMALL, "keep_outputs": False},
    "8 bit": {"model": "bert-base-cased", **SMALL, "optim": "adamw_8bit"},
    "own 8 bit": {"model": "bert-base-cased", **SMALL, "optim": "memcalc.adamw8bit"},
    "no cache": {"model": GPT2, **SMALL, "kv_cache": False, "keep_outputs": False},
    "segments": {"model": GPT2, **SMALL, "alloc_conf": "expandable_segments:True"},
    "sgd": {"model": "bert-base-cased", **SMALL, "optim": "sgd", "optim_args": {"momentum": 0.9}},
    "fused": {"model": GPT2, **SMALL, "optim": "adamw", "optim_args": {"fused": True}},
    "masked": {"model": "bert-base-cased", **SMALL, "task": "masked-lm"},
    "tokens": {"model": "bert-base-cased", **SMALL, "task": "token-classification"},
    "answers": {"model": "bert-base-cased", **SMALL, "task": "question-answering"},
    "classes": {"model": GPT2, **SMALL, "task": "sequence-classification"},
    "translated": {"model": "t5-small", **SMALL},
    "images": {"model": "google/vit-base-patch16-224", "batch": 2},
    "evaluated": {"model": GPT2, **SMALL, "eval": 3},
    "accelerate": {"model": GPT2, **SMALL, "loop": "accelerate", "precision": "amp-bf16"},
    "accelerate accumulated": {"model": GPT2, **SMALL, "loop": "accelerate", "grad_accum": 2},
    "trainer lora": {"model": SMOL, **SMALL, "loop": "trainer", **LORA, "checkpointing": True},
    "trainer evaluated": {"model": GPT2, **SMALL, "loop": "trainer", "eval": 3},
    "trainer's class": {
        "model": GPT2,
        **SMALL,
        "loop": "trainer",
        "optim": "adam",
        "optim_args": {"amsgrad": True, "weight_decay": 0.1},
    },
    "trainer 8 bit": {"model": GPT2, **SMALL, "loop": "trainer", "optim": "memcalc.adam8bit"},
    "dropped": {"model": SMOL, **SMALL, **LORA, "lora": "r=8,dropout=0.1"},
    "qlora": {"model": SMOL, **SMALL, **LORA, "quant": "nf4-dq", "optim": "paged_adamw_8bit"},
    "int8": {"model": SMOL, **SMALL, **LORA, "quant": "int8", "checkpointing": True},
    "ddp": {"model": GPT2, **SMALL, **TWO, "parallel": "ddp"},
    "fsdp2": {"model": SMOL, **SMALL, **TWO, "parallel": "fsdp2"},
    "generated": {"model": SMOL, **SMALL, "generate": 16, "precision": "bf16"},
}  # fmt: skip
BY_DAY = ("plain",)
RUNGS = ("requested", "allocated", "reserved")


def cases():
    for name in PLANS:
        yield pytest.param(name, marks=[] if name in BY_DAY else [pytest.mark.nightly])


def peaks(trace):
    return {rung: max(getattr(one, rung) for one in trace.readings) for rung in RUNGS}


@pytest.mark.parametrize("name", cases())
def test_a_script_takes_what_its_plan_takes(name, tmp_path, monkeypatch, forked_scripts):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plan = make({**PLANS[name], "gpu": "A100-80GB"})
    (tmp_path / "train.py").write_text(write(look_up(plan)))
    python = [sys.executable]
    if plan.devices > 1:
        python = ["torchrun", f"--nproc-per-node={plan.devices}"]
    asked = {"steps": 0, "gpu": plan.gpu, "alloc_conf": plan.alloc_conf or None}
    found = simulate(make_plan([*python, "train.py"], **asked), quiet=True)
    assert found.ending.code == 0
    answers = Answers()
    planned = answers.trace(plan).trace
    assert peaks(found.traced.trace) == peaks(planned)


@pytest.mark.parametrize("name", ["plain", "trainer", "qlora", "ddp", "generated"])
def test_a_script_is_short_and_says_how_to_start_it(name):
    plan = make({**PLANS[name], "gpu": "A100-80GB"})
    text = write(look_up(plan))
    compile(text, "train.py", "exec")
    assert len(text.splitlines()) <= 70
    start = "torchrun --nproc-per-node 2" if plan.devices > 1 else "python"
    assert f"Start it with: {start} train.py" in text
    assert plan.model in text


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"loss_chunks": 4}, "--loss-chunks"),
        ({"resume": True}, "--resume"),
        ({"parallel": "zero3", "devices": 2}, "--parallel zero3"),
        ({"model": "openai/whisper-small"}, "openai/whisper-small"),
        ({"loop": "trainer", "optim": "adam8bit"}, "--optim adam8bit"),
    ],
)
def test_what_no_script_expresses_is_named(settings, named):
    with pytest.raises(UsageError, match=named):
        write(look_up(make({"model": GPT2, **settings})))


SETTINGS = {
    "optim": "sgd", "optim_args": {"weight_decay": 0.1}, "precision": "bf16", "grad_accum": 2,
    "checkpointing": True, "checkpoint_every": 2, "offload_activations": True, "loss_chunks": 2,
    "attention": "eager", "padding": True, "cudnn_attention": False, "cudnn_benchmark": True,
    "freeze": "*.embed_tokens.*", "quant": "nf4", "lora": "r=8,dropout=0.1", "max_grad_norm": 3.0,
    "set_to_none": False, "keep_outputs": False, "kv_cache": True, "optim_in_backward": True,
    "resume": True, "eval": 3, "inference": True, "generate": 4, "devices": 2, "batch": 3,
    "alloc_conf": "expandable_segments:True", "parallel": "fsdp2", "task": "token-classification",
}  # fmt: skip


@pytest.mark.parametrize("loop", ["plain", "trainer", "accelerate"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_in_the_script_or_named_as_left_out(name, loop):
    plan = {"model": SMOL, **SMALL, "loop": loop}
    plan |= {"devices": 2} if name == "parallel" else {}
    refused = ""
    try:
        changed = make({**plan, name: SETTINGS[name]})
        text = write(look_up(changed))
    except UsageError as error:
        refused = str(error)
    if refused:
        assert name.replace("_", "-") in refused.replace("_", "-")
    elif (name, SETTINGS[name]) not in loops.find(loop).fixed:
        assert text != write(look_up(make(plan)))


def test_a_command_writes_the_script_beside_its_answer(tmp_path, capsys, monkeypatch):
    from memcalc.__main__ import main

    path = tmp_path / "train.py"
    monkeypatch.setattr(
        sys, "argv", shlex.split(f"memcalc estimate {GPT2} --batch 1 --seq 64 -o {path}")
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "GPT2LMHeadModel.from_pretrained" in path.read_text()
    assert "by phase" in capsys.readouterr().out
