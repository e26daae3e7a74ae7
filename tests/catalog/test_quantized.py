"""Checkpoints that are quantized already are recognized, and never answered as something else."""

import importlib.util
import json

import pytest
import torch

from memcalc.advice.train_script import write
from memcalc.catalog import models, quantized
from memcalc.catalog.plan import make
from memcalc.cli.options import make_plans
from memcalc.errors import UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.question import check
from memcalc.workload.quantized import describe_dtypes, make_config

NF4 = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
}


@pytest.fixture
def model(tmp_path):
    def write(settings):
        config = {**models.find("smollm2-135m").config, "quantization_config": settings}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        return str(path)

    return write


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptqmodel"),
        ({"quant_method": "awq", "bits": 4}, "gptqmodel"),
        ({"quant_method": "compressed-tensors"}, "CompressedTensorsConfig(dequantize=True)"),
        ({"quant_method": "hqq"}, "does not run hqq"),
        ({"quant_method": "torchao"}, "torchao"),
        ({"quant_method": "something"}, "does not run something"),
    ],
)
def test_a_quantized_checkpoint_is_refused_in_a_sentence_that_says_why(model, settings, said):
    with pytest.raises(UsageError) as refused:
        check(make({"model": model(settings)}))
    assert said in str(refused.value)
    assert "The checkpoint of" in str(refused.value)
    assert "quantization_config" in str(refused.value) or "--quant" in str(refused.value)


def _of_torchao(kind, rows="PerRow", **more):
    made = {"_type": kind, "_version": 2, "_data": {"granularity": {"_type": rows}}}
    return {"quant_method": "torchao", "quant_type": {"default": made}, **more}


def test_a_checkpoint_of_torchao_is_answered_in_the_scheme_it_was_made_with():
    for kind, scheme in (
        ("Int8WeightOnlyConfig", "torchao-int8"),
        ("Float8WeightOnlyConfig", "torchao-float8"),
    ):
        config = {"quantization_config": _of_torchao(kind)}
        assert quantized.refusal(config, "one", scheme, (9, 0)) is None
        assert f"--quant {scheme}" in quantized.refusal(config, "one", None, (9, 0))
    for other in (
        _of_torchao("Int4WeightOnlyConfig"),
        _of_torchao("Int8WeightOnlyConfig", rows="PerTensor"),
        _of_torchao("Int8WeightOnlyConfig", include_input_output_embeddings=True),
    ):
        said = quantized.refusal({"quantization_config": other}, "one", "torchao-int8", (9, 0))
        assert "only weight-only int8 and float8 by rows" in said


@pytest.mark.parametrize(
    ("settings", "there", "said"),
    [
        ({"quant": "torchao-int8"}, False, r"pip install torchao"),
        ({"quant": "torchao-int4"}, True, "TorchaoLoraLinear.*type --quant nf4"),
        ({"quant": "torchao-int4", "generate": 4}, True, "mslk.*type --quant nf4"),
        ({"quant": "torchao-int8", "devices": 2}, True, "on one GPU only"),
    ],
)
def test_what_torchao_cannot_do_is_refused(settings, there, said, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: (there or None) if name == "torchao" else find(name, *rest),
    )
    with pytest.raises(UsageError, match=said):
        check(make({"model": "smollm2-135m", **settings}))


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def test_a_checkpoint_in_fp8_is_dequantized_where_transformers_does_so(model):
    path = model(FP8)
    for settings in ({}, {"gpu": "A100-40GB"}, {"target": "cpu"}, {"quant": "none", "gpu": "L4"}):
        (said,) = check(make({"model": path, **settings})).notes_at(None)
        assert "FineGrainedFP8Config(dequantize=True)" in said
    with pytest.raises(UsageError, match=r"keeps it so: .* Triton .*--quant none dequantizes it"):
        check(make({"model": path, "gpu": "L4"}))
    with pytest.raises(UsageError, match="a second time: leave --quant nf4 out"):
        check(make({"model": path, "quant": "nf4"}))


def test_a_checkpoint_in_mxfp4_is_dequantized_on_every_gpu():
    for settings in ({}, {"gpu": "L4"}, {"gpu": "T4"}, {"quant": "none"}, {"inference": True}):
        source = check(make({"model": "gpt-oss-20b", **settings}))
        assert "Mxfp4Config(dequantize=True)" in source.notes_at(None)[0]
    with pytest.raises(UsageError, match="is in mxfp4"):
        check(make({"model": "gpt-oss-20b", "preset": "qlora"}))


def test_nothing_is_said_of_a_checkpoint_in_16_bit():
    assert check(make({"model": "smollm2-135m", "quant": "none"})).notes_at(None) == ()


def test_a_composite_models_text_part_may_name_the_method():
    config = {"text_config": {"quantization_config": {"quant_method": "gptq"}}}
    assert "gptqmodel" in quantized.refusal(config, "both", None, (8, 0))


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0)])
@pytest.mark.parametrize("method", ["fp8", "mxfp4"])
def test_what_is_dequantized_is_what_transformers_dequantizes(method, capability, monkeypatch):
    import torch
    from transformers.quantizers.auto import AutoHfQuantizer
    from transformers.utils import quantization_config

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    settings = quantization_config.QuantizationMethod(method).value
    quantizer = AutoHfQuantizer.from_config({"quant_method": settings}, pre_quantized=True)
    quantizer.validate_environment(device_map=None)
    refused = quantized.refusal(
        {"quantization_config": {"quant_method": method}}, "one", None, capability
    )
    assert quantizer.quantization_config.dequantize is (refused is None)


def test_a_checkpoint_in_whole_numbers_is_not_divided_by_fsdp(model):
    over = {"devices": 2, "parallel": "fsdp2", "optim": "adamw"}
    with pytest.raises(UsageError, match="stored as uint8, and FSDP asks for a float type"):
        check(make({"model": model(NF4), **over}))
    check(make({"model": model({**NF4, "bnb_4bit_quant_storage": "bfloat16"}), **over}))


def test_schemes_are_read_off_the_settings():
    assert quantized.read_scheme({"load_in_4bit": True}) == "fp4"
    assert quantized.read_scheme({"load_in_4bit": True, "bnb_4bit_quant_type": "int5"}) is None
    assert quantized.read_scheme({"quant_method": "gptq"}) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"devices": 2, "parallel": "fsdp2", "quant": "int8"}, "8 bit.*--parallel ddp"),
        ({"devices": 2, "parallel": "tp=2"}, "tensor-parallel ranks"),
    ],
)
def test_what_does_not_go_with_a_quantized_base_is_refused(settings, said):
    with pytest.raises(UsageError, match=said):
        check(make({"model": "smollm2-135m", "quant": "nf4", **settings}))


def test_layers_in_4_bit_compute_in_the_type_that_is_named(model):
    base = {"model": "smollm2-135m", "quant": "nf4", "precision": "bf16"}
    own, named = make(base), make({**base, "bnb_4bit_compute_dtype": "float32"})
    told = [make_config(plan).bnb_4bit_compute_dtype for plan in (own, named)]
    assert told == [torch.bfloat16, torch.float32]
    assert "compute in float32, as you say" in describe_dtypes(named)
    for wrong in ({"quant": "int8"}, {"quant": None}):
        with pytest.raises(UsageError, match="bnb_4bit_compute_dtype needs a base in 4 bit"):
            make({**base, **wrong, "bnb_4bit_compute_dtype": "float32"})
    there = make({"model": model(NF4), "quant": "nf4-dq", "bnb_4bit_compute_dtype": "float32"})
    with pytest.raises(UsageError, match="says in what its layers compute"):
        check(there)


def test_presets_stand_for_settings_and_give_way_to_what_is_said():
    assert make({"model": "smollm2-135m", "preset": "qlora"}) == make(
        {
            "model": "smollm2-135m",
            "precision": "bf16",
            "optim": "paged_adamw_8bit",
            "checkpointing": True,
            "lora": "r=16,target=all-linear",
            "quant": "nf4-dq",
        }
    )
    own = make({"model": "smollm2-135m", "preset": "qlora", "optim": "sgd", "lora": "r=8"})
    assert (own.optim, own.lora, own.quant) == ("sgd", "r=8", "nf4-dq")
    lora = make({"model": "smollm2-135m", "preset": "lora"})
    assert (lora.quant, lora.lora is not None) == (None, True)
    full = make({"model": "smollm2-135m", "preset": "full"})
    assert (full.quant, full.lora, full.precision) == (None, None, "bf16")
    sharded = {"fsdp2": "adamw_torch_fused", "fsdp1": "paged_adamw_8bit"}
    for layout, optim in sharded.items():
        over = make({"model": "gpt2", "preset": "full", "devices": 2, "parallel": layout})
        assert over.optim == optim
    with pytest.raises(UsageError, match="preset"):
        make({"model": "smollm2-135m", "preset": "huge"})


def test_adapters_train_on_a_quantized_base():
    assert make({"model": "smollm2-135m", "quant": "nf4"}).adapters == "r=16,target=all-linear"
    assert make({"model": "smollm2-135m", "lora": "none"}).adapters is None
    assert make({"model": "smollm2-135m"}).adapters is None


@pytest.mark.parametrize("asked", [{"generate": 32}, {"inference": True}])
def test_a_preset_of_a_plan_that_infers_leaves_training_out(asked):
    plan = make({"model": "gpt2", "preset": "qlora", **asked})
    assert (plan.quant, plan.precision, plan.checkpointing) == ("nf4-dq", "bf16", False)
    assert plan.lora
    assert make({"model": "gpt2", "preset": "qlora", "inference": False}).checkpointing


@pytest.mark.parametrize(
    ("settings", "scheme"),
    [(NF4, "nf4-dq"), ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8")],
)
def test_a_checkpoint_of_bitsandbytes_is_answered_as_it_is_without_a_word(model, settings, scheme):
    quantized_one = model(settings)
    assert make({"model": quantized_one}).quant == scheme
    # A preset gives way to the checkpoint; what is typed does not.
    assert make({"model": quantized_one, "preset": "qlora"}).quant == scheme
    (typed,) = make_plans({"model": quantized_one, "preset": "qlora", "optim": "adamw"})
    assert typed.quant == scheme
    with pytest.raises(UsageError, match=f"in {scheme} already: leave --quant fp4"):
        check(make({"model": quantized_one, "quant": "fp4"}))
    assert make({"model": "smollm2-135m"}).quant is None


def test_only_a_quantized_base_is_loaded_on_the_host_before_it_is_divided():
    over = {"model": "gpt2", "devices": 2, "parallel": "fsdp2", "parallel_args": {"load": "cpu"}}
    check(make({**over, "quant": "nf4"}))
    with pytest.raises(UsageError, match="load=cpu is for quantized bases"):
        check(make(over))
    with pytest.raises(UsageError, match="load=gpu is not cpu"):
        check(make({**over, "quant": "nf4", "parallel_args": {"load": "gpu"}}))


def test_a_head_that_no_checkpoint_holds_is_not_quantized(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 2, "vocab_size": 500}  # fmt: skip
    bert = json.loads(models.list_bundled_files()["bert-base-cased"].read_text())
    path = tmp_path / "bert.json"
    path.write_text(json.dumps({**bert, **sizes}))
    plan = make({"model": str(path), "quant": "nf4", "precision": "bf16", "batch": 1, "seq": 16})
    said = " ".join(Answers().predict_one(plan).assumptions)
    # Six of each layer, and the pooler; not the classifier.
    assert "13 linear layers are quantized" in said
    with pytest.raises(UsageError, match="new head"):
        write(check(plan))
