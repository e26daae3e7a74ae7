"""Settings to be copied say the plan: read again, they come to the same one."""

import pytest
import yaml

from memcalc.advice.suggest.snippets import PROGRAMS, snippet
from memcalc.catalog.plan import make

MODEL = "gpt2"


def read_again(text, folder, **beside):
    path = folder / "config.yaml"
    path.write_text(text)
    return make({"model": MODEL, "accelerate_config": str(path), **beside})


@pytest.mark.parametrize(
    "asked",
    [
        {"devices": 4, "precision": "amp-bf16"},
        {"devices": 8, "parallel": "fsdp2", "precision": "amp-bf16"},
        {
            "devices": 8,
            "parallel": "fsdp2",
            "parallel_args": {"reshard_after_forward": False},
            "precision": "amp-bf16",
        },
        {"devices": 2, "parallel": "zero2", "precision": "amp-bf16"},
        {"devices": 2, "parallel": "zero3", "precision": "amp-bf16", "grad_accum": 4},
    ],
)
def test_accelerates_file_is_read_as_the_same_layout(tmp_path, asked):
    plan = make({"model": MODEL, **asked})
    again = read_again(snippet(plan, "accelerate"), tmp_path, grad_accum=plan.grad_accum)
    assert (again.devices, again.precision) == (plan.devices, plan.precision)
    assert (again.parallel or "ddp") == (plan.parallel or "ddp")
    assert dict(plan.parallel_args).items() <= dict(again.parallel_args).items()


@pytest.mark.parametrize("scheme", ["nf4", "nf4-dq", "fp4", "int8"])
def test_a_quantised_base_is_loaded_as_the_estimate_loads_it(forked, scheme):
    told, estimated = forked(settings_told_and_estimated, scheme)
    assert told == estimated


def settings_told_and_estimated(scheme):
    """transformers' settings by the snippet and by what is traced."""
    from memcalc.workload.quantised import settings_of

    plan = make({"model": MODEL, "quant": scheme, "precision": "bf16"})
    names = {}
    exec(snippet(plan, "trainer"), names)
    return names["quantization_config"].to_dict(), settings_of(plan).to_dict()


def test_the_trainer_is_told_to_shard(forked):
    told = forked(arguments_told, {"devices": 4, "parallel": "fsdp2", "batch": 3})
    assert told == [True, 2, 3]


def arguments_told(settings):
    """What TrainingArguments make of the snippet."""
    names = {}
    exec(snippet(make({"model": MODEL, **settings}), "trainer"), names)
    args = names["args"]
    return [args.fsdp, args.fsdp_config["version"], args.per_device_train_batch_size]


def test_axolotl_is_told_of_four_bits_and_shards():
    plan = make({"model": MODEL, "preset": "qlora"})
    known = yaml.safe_load(snippet(plan, "axolotl"))
    assert (known["adapter"], known["load_in_4bit"], known["lora_r"]) == ("qlora", True, 16)
    plan = make({"model": MODEL, "devices": 8, "parallel": "fsdp2", "lora": "r=8,target=c_attn"})
    known = yaml.safe_load(snippet(plan, "axolotl"))
    assert known["fsdp_version"] == 2
    assert known["lora_target_modules"] == ["c_attn"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_program_has_no_word_for_is_a_comment(program):
    plan = make(
        {
            "model": MODEL,
            "devices": 4,
            "parallel": "tp=4",
            "quant": "fp4",
            "max_grad_norm": 1.0,
            "loss_chunks": 4,
        }
    )
    text = snippet(plan, program)
    for word in ("tp=4", "fp4", "norm of 1.0", "4 pieces"):
        assert word in text
