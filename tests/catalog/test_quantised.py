"""Checkpoints that are quantised already are recognised, and never answered as something else."""

import json

import pytest

from memcalc.catalog import models, quantised
from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.estimation.understand import check

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
        (NF4, "--quant nf4-dq"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "--quant int8"),
        ({"quant_method": "gptq", "bits": 4}, "gptqmodel"),
        ({"quant_method": "awq", "bits": 4}, "gptqmodel"),
        ({"quant_method": "mxfp4"}, "Mxfp4Config(dequantize=True)"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "Triton"),
        ({"quant_method": "torchao"}, "torchao"),
        ({"quant_method": "something"}, "does not run something"),
    ],
)
def test_a_quantised_checkpoint_is_refused_in_a_sentence_that_says_why(model, settings, said):
    with pytest.raises(UsageError) as refused:
        check(make({"model": model(settings)}))
    assert said in str(refused.value)
    assert "quantised already" in str(refused.value) or "quantization_config" in str(refused.value)


def test_a_checkpoint_of_bitsandbytes_is_answered_as_it_is(model):
    path = model(NF4)
    check(make({"model": path, "quant": "nf4-dq"}))
    with pytest.raises(UsageError, match="give --quant nf4-dq"):
        check(make({"model": path, "quant": "nf4"}))


def test_schemes_are_read_off_the_settings():
    assert quantised.scheme_of({"load_in_4bit": True}) == "fp4"
    assert quantised.scheme_of({"load_in_4bit": True, "bnb_4bit_quant_type": "int5"}) is None
    assert quantised.scheme_of({"quant_method": "gptq"}) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"devices": 2}, "--devices"),
        ({"loss_chunks": 4}, "--loss-chunks"),
    ],
)
def test_what_does_not_go_with_a_quantised_base_is_refused(settings, said):
    with pytest.raises(UsageError, match=said):
        check(make({"model": "smollm2-135m", "quant": "nf4", **settings}))


def test_presets_stand_for_settings_and_give_way_to_what_is_said():
    plan = make({"model": "smollm2-135m", "preset": "qlora"})
    assert plan == make(
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
    with pytest.raises(UsageError, match="preset"):
        make({"model": "smollm2-135m", "preset": "huge"})


def test_adapters_train_on_a_quantised_base_unless_the_plan_says_none():
    assert make({"model": "smollm2-135m", "quant": "nf4"}).adapters == "r=16,target=all-linear"
    assert make({"model": "smollm2-135m", "quant": "nf4", "lora": "none"}).adapters is None
    assert make({"model": "smollm2-135m", "lora": "none"}).adapters is None
    assert make({"model": "smollm2-135m"}).adapters is None
