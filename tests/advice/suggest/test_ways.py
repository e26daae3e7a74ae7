"""The ways to train say what a plan becomes, whatever it was; no estimate is made."""

import json

import pytest

from memcalc.advice.remedies.trials import changed
from memcalc.advice.suggest.snippets import snippet
from memcalc.advice.suggest.strategies import ways
from memcalc.catalog import models
from memcalc.catalog.plan import make


@pytest.mark.parametrize("preset", ["full", "lora", "qlora"])
def test_a_way_that_trains_the_whole_model_has_neither_adapters_nor_few_bits(preset):
    plan = make({"model": "gpt2", "preset": preset, "gpu": "RTX 4090"})
    found = {way.key: changed(plan, way.changes) for way in ways(plan)}
    assert list(found) == ["full", "full-8bit", "full-bf16", "lora", "qlora"]
    for key in ("full", "full-8bit", "full-bf16"):
        assert (found[key].adapters, found[key].quant) == (None, None)
    assert found["lora"].lora
    assert found["lora"].quant is None
    assert found["qlora"].quant == "nf4-dq"


def test_of_a_base_that_is_not_prepared_the_other_ways_are_still_offered():
    plan = make({"model": "gpt2", "quant": "int8", "kbit_prepare": False})
    *others, last = ways(plan)
    assert all(changed(plan, way.changes).kbit_prepare for way in others)
    assert changed(plan, last.changes).kbit_prepare is False
    assert last.title.startswith("QLoRA r=16, 8 bit")


@pytest.fixture
def in_4_bit(tmp_path):
    told = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**models.find("gpt2").config, "quantization_config": told}))
    return str(path)


def test_a_checkpoint_that_is_quantised_takes_adapters_alone(in_4_bit):
    plan = make({"model": in_4_bit})
    (way,) = ways(plan)
    assert (way.key, changed(plan, way.changes).quant) == ("qlora", "nf4")


@pytest.mark.parametrize("program", ["trainer", "accelerate"])
def test_such_a_checkpoint_says_itself_how_it_is_loaded(in_4_bit, program):
    said = snippet(make({"model": in_4_bit}), program)
    assert "BitsAndBytesConfig" not in said
    assert 'device_map={"": 0}' in said
    assert "BitsAndBytesConfig" in snippet(make({"model": "gpt2", "quant": "nf4"}), program)
