"""Repeated layers fold under wrappers that shard them."""

import json

import pytest

import memcalc
from memcalc.catalog import models

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 16, "vocab_size": 512}


@pytest.mark.parametrize("checkpointing", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_sixteen_layers_under_fsdp2_are_traced_through_a_few(tmp_path, checkpointing):
    config = {**models.find("meta-llama/Llama-3.2-1B").config, **SMALL, "head_dim": 8}
    path = tmp_path / "deep.json"
    path.write_text(json.dumps({**config, "num_attention_heads": 8, "num_key_value_heads": 8}))
    found = memcalc.estimate(
        str(path), batch=1, seq=32, devices=8, parallel="fsdp2", checkpointing=checkpointing
    )
    assert any("repeated layers" in said for said in found.assumptions)
