"""Starter files: from a model, or from a training configuration that is read and never run."""

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.budgets import detect
from memcalc.budgets.starter import round_up, run_name, toml
from memcalc.catalog.plan import make
from memcalc.catalog.settings import simplify_layout
from memcalc.errors import UsageError
from memcalc.units import parse_bytes

ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: fp16
num_processes: 4
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
"""
ARGUMENTS = {"per_device_train_batch_size": 2, "num_train_epochs": 3, "fp16": True,
             "model_name_or_path": "gpt2", "max_seq_length": 64}  # fmt: skip


def found_in(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    return detect.read(tmp_path / name)


def test_accelerate_adds_precision_and_how_it_shards(tmp_path):
    (tmp_path / "acc.yaml").write_text(ACCELERATE)
    more = {k: v for k, v in ARGUMENTS.items() if k != "fp16"} | {"ddp_bucket_cap_mb": 50}
    (tmp_path / "args.json").write_text(json.dumps(more))
    merged = detect.merge(*detect.search(tmp_path))
    assert merged.settings["precision"] == "amp-fp16"
    assert (merged.settings["batch"], merged.settings["devices"]) == (2, 4)
    assert merged.settings["parallel"] == "fsdp2"
    assert "bucket_cap_mb" not in dict(merged.settings["parallel_args"])
    settings, notes = simplify_layout(merged.settings)
    assert (settings["loop"], notes) == ("trainer", ())
    make(settings)


SPREAD = {
    "the first version": (
        {"fsdp": "shard_grad_op auto_wrap offload",
         "fsdp_config": {"version": 1, "backward_prefetch": "backward_pre",
                         "transformer_layer_cls_to_wrap": ["GPT2Block"]}},
        {"parallel": "fsdp1", "parallel_args": {
            "sharding_strategy": "SHARD_GRAD_OP", "backward_prefetch": "BACKWARD_PRE",
            "offload": "cpu", "transformer_layer_cls_to_wrap": "GPT2Block"}},
    ),
    "the second version": (
        {"fsdp": True, "bf16": True, "fsdp_config": {"reshard_after_forward": False,
                                                     "activation_checkpointing": True}},
        {"parallel": "fsdp2", "checkpointing": True, "precision": "amp-bf16",
         "parallel_args": {"param_dtype": "bfloat16", "reduce_dtype": "bfloat16",
                           "reshard_after_forward": False}},
    ),
    "a file of DeepSpeed": (
        {"deepspeed": "zero.json", "gradient_accumulation_steps": 2},
        {"parallel": "zero3", "grad_accum": 2, "parallel_args": {"offload": "cpu"}},
    ),
    "buckets": (
        {"ddp_bucket_cap_mb": 50, "ddp_find_unused_parameters": False},
        {"parallel": "ddp",
         "parallel_args": {"bucket_cap_mb": 50, "find_unused_parameters": False}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPREAD)
def test_arguments_of_the_trainer_say_how_a_run_is_spread(tmp_path, name):
    more, wanted = SPREAD[name]
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    (tmp_path / "zero.json").write_text(
        json.dumps({"zero_optimization": zero, "bf16": {"enabled": "auto"}})
    )
    text = json.dumps({**{k: v for k, v in ARGUMENTS.items() if k != "fp16"}, **more})
    settings = found_in(tmp_path, "args.json", text).settings
    for key, value in wanted.items():
        assert (dict(settings[key]) if key == "parallel_args" else settings[key]) == value
    answered, notes = simplify_layout({**settings, "devices": 4})
    assert (answered["devices"], notes, answered["loop"]) == (4, (), "trainer")
    make(answered)


def test_copies_of_shards_in_machines_are_answered_in_the_plain_loop():
    settings = {"loop": "trainer", "parallel": "fsdp1", "devices": 4, "parallel_args": {
        "sharding_strategy": "HYBRID_SHARD", "device_mesh": "2x2"}}  # fmt: skip
    answered, notes = simplify_layout(settings)
    assert ("loop" in answered, answered["max_grad_norm"], len(notes)) == (False, 1.0, 1)


def test_what_is_not_answered_of_a_spread_run_is_named(tmp_path):
    more = {"deepspeed": "missing.json"}
    with pytest.raises(UsageError, match=r"deepspeed = missing.json: there is no such file"):
        found_in(tmp_path, "args.json", json.dumps({**ARGUMENTS, **more}))
    alone, notes = simplify_layout({"loop": "trainer", "parallel": "ddp", "parallel_args": ()})
    assert (alone, notes) == ({"loop": "trainer"}, ())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{"), ("a.json", "[]"), ("a.yaml", "a: [b"), ("a.yaml", "&a [*a]"),
        ("a.txt", "x"), ("a.yaml", "base_model: x"),
        ("a.yaml", "!!python/object/apply:os.system ['touch ran']"),
        ("a.json", '{"batch_size": 3}'),
    ],
)  # fmt: skip
def test_what_is_no_training_configuration_is_refused(tmp_path, monkeypatch, name, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="not understood"):
        found_in(tmp_path, name, text)
    assert not (tmp_path / "ran").exists()
    assert detect.search(tmp_path) == []


@given(st.recursive(st.one_of(st.text(), st.integers(), st.booleans()),
                    lambda inner: st.lists(inner, max_size=3)))  # fmt: skip
def test_values_are_written_as_toml_reads_them(value):
    assert tomllib.loads(f"x = {toml(value)}")["x"] == value


@given(st.integers(1, 1 << 45))
def test_a_rounded_limit_is_never_below_and_hardly_above(size):
    assert size <= parse_bytes(round_up(size)) <= max(size * 1.02, size + 1024)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt2", "gpt2"),
        ("meta-llama/Llama-3.1-8B", "llama-3-1-8b"),
        ("./m/config.json", "m"),
        ("pkg.mod:build", "pkg-mod-build"),
        ("...", "train"),
    ],
)
def test_a_run_is_named_after_its_model(model, name):
    assert run_name(model) == name


def test_what_init_writes_holds_today_and_is_not_overwritten(memcalc, tmp_path):
    done = memcalc("init", "distilbert-base-cased", "--optim", "adam8bit", "--method", "analytic",
                   "--schema")  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "memcalc.toml").read_text()
    assert done.stdout.startswith(text)
    assert text.startswith("#:schema ./memcalc.schema.json\n")
    assert (tmp_path / "memcalc.schema.json").exists()
    assert "the limit is 5% above it" in text
    assert "Exact, 134,004,336 bytes" in text
    assert memcalc("check", "--update-baseline").returncode == 0
    assert memcalc("check").returncode == 0
    again = memcalc("init", "gpt2", "--method", "analytic")
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert (tmp_path / "memcalc.toml").read_text() == text
    assert memcalc("init", "gpt2", "--method", "analytic", "--force").returncode == 0
    assert "gpt2" in (tmp_path / "memcalc.toml").read_text()


LOOP = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(1, 256, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_init_finds_the_scripts_of_a_repository_and_runs_none(memcalc, tmp_path):
    (tmp_path / "nets").mkdir()
    for path in ("train.py", "nets/train.py"):
        (tmp_path / path).write_text(LOOP)
    (tmp_path / "library.py").write_text("def step(loss):\n    loss.backward()\n")
    done = memcalc("init", "--gpu", "t4")
    assert done.returncode == 0, done.stderr
    runs = tomllib.loads((tmp_path / "memcalc.toml").read_text())["runs"]
    commands = {name: run["command"] for name, run in runs.items()}
    assert commands == {"train": "python train.py", "nets-train": "python nets/train.py"}
    assert runs["train"]["limits"] == {"fits": "t4", "max_growth": "2%"}
    (tmp_path / "lora.yaml").write_text("base_model: gpt2\nmicro_batch_size: 2\n")
    done = memcalc("init", "--method", "analytic", "--force")
    assert "has no run of train.py, nets/train.py: add" in done.stderr


def test_init_of_a_command_writes_what_it_needs_today(memcalc, tmp_path, forked_scripts):
    (tmp_path / "train.py").write_text(LOOP)
    done = memcalc("init", "--gpu", "t4", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    run = tomllib.loads((tmp_path / "memcalc.toml").read_text())["runs"]["train"]
    assert run["command"] == "python train.py"
    # Two states of 256 x 257 numbers in fp32, and AdamW's count of steps for each of two tensors.
    assert run["limits"]["optimizer_state"] == "514 KiB"
    assert run["limits"]["fits"] == "T4"
    refused = memcalc("init", "--force", "--batch", "3", "--", "python", "train.py")
    assert refused.returncode == 2
    assert "batch is for runs of a model" in refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--from", "none.json"),
        ("--from", __file__),
        ("gpt2", "--margin", "5 MiB"),
        ("gpt2", "--margin", "x"),
        ("gpt2", "--name", "a\nb"),
        ("gpt2", "--optim", "adamw,sgd"),
    ],
)
def test_init_says_what_it_needs(memcalc, arguments):
    done = memcalc("init", *arguments, "--method", "analytic") if arguments else memcalc("init")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")


def test_a_pyproject_with_budgets_is_not_overruled(memcalc, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.memcalc.runs.a]\n")
    done = memcalc("init", "gpt2", "--method", "analytic")
    assert done.returncode == 2
    assert "tool.memcalc" in done.stderr
